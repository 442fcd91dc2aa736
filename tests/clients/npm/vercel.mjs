// Vercel's `ai` against a node: `vercel.mjs <wire> <scenario> <url>` prints what came of it as JSON.

import { createAnthropic } from '@ai-sdk/anthropic';
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { generateText, Output, stepCountIs, streamText, tool } from 'ai';
import { z } from 'zod';

const [wire, scenario, url] = process.argv.slice(2);
const name = scenario === 'refusal' ? 'nobody' : 'echo';
const settings = { baseURL: `${url}/v1`, apiKey: 'none' };

const MODELS = {
  chat: () => createOpenAI(settings).chat(name),
  compatible: () =>
    createOpenAICompatible({
      ...settings,
      name: 'ganglion',
      includeUsage: true,
      supportsStructuredOutputs: true,
    })(name),
  responses: () => createOpenAI(settings).responses(name),
  stateless: () => createOpenAI(settings).responses(name),
  messages: () => createAnthropic(settings)(name),
  tooled: () => createAnthropic(settings)(name),
};

const OPTIONS = {
  responses: { openai: { forceReasoning: true, store: true } },
  stateless: { openai: { forceReasoning: true, store: false, include: ['reasoning.encrypted_content'] } },
  messages: {
    anthropic: { thinking: { type: 'enabled', budgetTokens: 1024 }, structuredOutputMode: 'outputFormat' },
  },
};

const tools = {
  multiply: tool({
    description: 'Multiply two numbers.',
    inputSchema: z.object({ a: z.number(), b: z.number() }),
    execute: async ({ a, b }) => ({ product: a * b }),
  }),
};

const asking = {
  model: MODELS[wire](),
  maxOutputTokens: 2000,
  maxRetries: 0,
  providerOptions: OPTIONS[wire],
};
const ask = (content) => ({ role: 'user', content });

const step = ({ text, reasoningText, finishReason, usage, warnings, toolCalls, toolResults }) => ({
  text,
  reasoning: reasoningText ?? null,
  finish: finishReason,
  output: usage.outputTokens ?? null,
  reasoned: usage.outputTokenDetails.reasoningTokens ?? null,
  calls: toolCalls.map(({ toolName, input }) => [toolName, input]),
  results: toolResults.map(({ output }) => output),
  warnings: warnings ?? [],
});

const SCENARIOS = {
  // Three questions; everything that was said before goes back as the SDK keeps it.
  async turns() {
    const messages = [ask('What is six times seven?')];
    const turns = [];
    for (const next of ['And again?', 'Sure?', null]) {
      const answer = await generateText({ ...asking, tools, messages, stopWhen: stepCountIs(4) });
      turns.push(answer.steps.map(step));
      messages.push(...answer.response.messages);
      if (next) messages.push(ask(next));
    }
    return turns;
  },

  async stream() {
    const answer = streamText({
      ...asking,
      tools,
      messages: [ask('What is six times seven?')],
      stopWhen: stepCountIs(4),
    });
    const parts = {};
    for await (const { type } of answer.fullStream) parts[type] = (parts[type] ?? 0) + 1;
    return { parts, steps: (await answer.steps).map(step) };
  },

  async object() {
    const schema = z.object({ city: z.string(), people: z.number() });
    const output = Output.object({ schema });
    const whole = await generateText({ ...asking, output, prompt: 'Where?' });
    const streamed = streamText({ ...asking, output, prompt: 'Where?' });
    const partial = [];
    for await (const each of streamed.partialOutputStream) partial.push(each);
    return { whole: whole.output, partial, streamed: await streamed.output };
  },

  async refusal() {
    try {
      await generateText({ ...asking, prompt: 'Hello?' });
      return null;
    } catch ({ name, statusCode, message, isRetryable }) {
      return { name, statusCode, message, isRetryable };
    }
  },
};

console.log(JSON.stringify(await SCENARIOS[scenario]()));
