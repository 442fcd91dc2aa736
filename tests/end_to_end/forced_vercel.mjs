// Vercel's agent loop with a tool forced in its first step: `forced_vercel.mjs <wire> <url> <model>`.

import { createAnthropic } from '@ai-sdk/anthropic';
import { createOpenAI } from '@ai-sdk/openai';
import { generateText, stepCountIs, tool } from 'ai';
import { z } from 'zod';

const [wire, url, name] = process.argv.slice(2);
const settings = { baseURL: `${url}/v1`, apiKey: 'none' };
const MODELS = {
  chat: () => createOpenAI(settings).chat(name),
  responses: () => createOpenAI(settings).responses(name),
  messages: () => createAnthropic(settings)(name),
};

let ran = 0;
const answer = await generateText({
  model: MODELS[wire](),
  maxRetries: 0,
  maxOutputTokens: 64,
  temperature: 0,
  prompt: 'What is the weather in Paris?',
  stopWhen: stepCountIs(4),
  tools: {
    weather: tool({
      description: 'The weather of a city.',
      inputSchema: z.object({ city: z.enum(['Paris', 'Oslo']) }),
      execute: async () => {
        ran += 1;
        return 'Sunny, 20 degrees.';
      },
    }),
  },
  prepareStep: async ({ stepNumber }) => ({
    toolChoice: stepNumber === 0 ? { type: 'tool', toolName: 'weather' } : 'none',
  }),
});
const steps = answer.steps.map(({ toolCalls, finishReason }) => ({
  calls: toolCalls.length,
  finish: finishReason,
}));
console.log(JSON.stringify({ ran, steps }));
