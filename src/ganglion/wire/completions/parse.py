"""Parses a completion body into its requests: n for each prompt, the prompts in order."""

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from ganglion.core.errors import InvalidValue, UnsupportedParameter
from ganglion.core.request import Request, Score, TextPrompt, TokenPrompt
from ganglion.wire.answer_format import ParseContext, ParsedCall
from ganglion.wire.completions.schema import MAX_PROMPTS, CompletionBody, CompletionReplyContext
from ganglion.wire.constraint import CONSTRAINTS
from ganglion.wire.decode import decode
from ganglion.wire.field_policy import IGNORED, INSTEAD, UNSUPPORTED_IN_COMPLETIONS, FieldPolicy
from ganglion.wire.fields import (
    check_token_counts,
    choice_samplings,
    usage_reporting,
)
from ganglion.wire.generation_fields import request_of
from ganglion.wire.logprobs import check_alternatives, check_prompt_logprobs, prompt_score

DEFAULT_MAX_TOKENS = 16
"""OpenAI's, on this wire only."""

_body = msgspec.json.Decoder(CompletionBody)
_POLICY = FieldPolicy(
    CompletionBody,
    unsupported=UNSUPPORTED_IN_COMPLETIONS,
    ignored=IGNORED,
    max_bytes=CONSTRAINTS,
    instead=INSTEAD,
)


def parse(body: bytes, context: ParseContext) -> ParsedCall[CompletionReplyContext]:
    """Read a body, or raise the InvalidRequest that names the first thing wrong with it."""
    unknown = _POLICY.check(body, is_strict=context.is_strict)
    fields = decode(_body, body)
    is_streamed, per_prompt = bool(fields.stream), fields.n or 1
    if fields.prompt_logprobs is not None:
        check_prompt_logprobs(fields.prompt_logprobs, is_streamed=is_streamed)
    if fields.logprobs is not None:
        check_alternatives(fields.logprobs, "logprobs")
    _check_best_of(fields)
    prompts = _prompts(fields)
    if len(prompts) * per_prompt > MAX_PROMPTS:
        raise InvalidValue(
            f"{len(prompts)} prompts with {per_prompt} choices each are more than {MAX_PROMPTS}.",
            param="prompt",
        )
    reply = CompletionReplyContext(
        id=context.id,
        created_s=int(context.created_s),
        model=fields.model,
        fingerprint=context.fingerprint,
        usage_reporting=usage_reporting(fields.stream_options, is_streamed=is_streamed),
        per_prompt=per_prompt,
        logprobs=fields.logprobs,
        prompt_logprobs=fields.prompt_logprobs,
        has_readout=bool(fields.readout),
        has_token_ids=bool(fields.return_token_ids),
        echoes=tuple(_echo(prompt) for prompt in prompts for _ in range(per_prompt)) if fields.echo else (),
    )
    template = _request(fields, context)
    requests = [
        replace(
            template, prompt=prompt, score=_score(fields, prompt, is_first=choice == 0), sampling=sampling
        )
        for prompt in prompts
        for choice, sampling in enumerate(choice_samplings(template.sampling, per_prompt))
    ]
    return ParsedCall(_named(requests), reply, is_streamed, unknown)


def _request(fields: CompletionBody, context: ParseContext) -> Request:
    max_tokens = DEFAULT_MAX_TOKENS if fields.max_tokens is None else fields.max_tokens
    check_token_counts(fields.min_tokens, max_tokens, fields.truncate_prompt_tokens)
    # This wire has no place for reasoning: whatever a model writes is its text.
    return request_of(
        fields,
        context,
        TextPrompt(""),
        max_tokens=max_tokens,
        top_logprobs=fields.logprobs,
        keep_markers=True,
    )


def _named(requests: Sequence[Request]) -> tuple[Request, ...]:
    if len(requests) == 1:
        return tuple(requests)
    return tuple(replace(request, id=f"{request.id}-{place}") for place, request in enumerate(requests))


def _check_best_of(fields: CompletionBody) -> None:
    if fields.best_of not in (None, fields.n or 1):
        raise UnsupportedParameter(
            f"'best_of' is {fields.best_of} and 'n' is {fields.n or 1}; only the same number is supported.",
            param="best_of",
            hint="Ask for all of them with 'n'.",
        )


def _prompts(fields: CompletionBody) -> list[TextPrompt | TokenPrompt]:
    prompt, suffix = fields.prompt, fields.suffix or None
    if suffix is not None and fields.echo:
        raise InvalidValue("'echo' and 'suffix' cannot be combined.", param="suffix")
    if isinstance(prompt, str):
        return [TextPrompt(prompt, suffix)]
    if len(prompt) > MAX_PROMPTS and not isinstance(prompt[0], int):
        raise InvalidValue(f"{len(prompt)} prompts are more than {MAX_PROMPTS}.", param="prompt")
    texts = [each for each in prompt if isinstance(each, str)]
    if len(texts) == len(prompt):
        return [TextPrompt(text, suffix) for text in texts]
    if suffix is not None:
        raise InvalidValue("'suffix' needs a prompt of text.", param="suffix")
    tokens = [each for each in prompt if isinstance(each, int)]
    if len(tokens) == len(prompt):
        return [TokenPrompt(tuple(tokens))]
    lists = [TokenPrompt(tuple(each)) for each in prompt if isinstance(each, list)]
    if len(lists) == len(prompt):
        return [*lists]
    raise InvalidValue(
        "'prompt' mixes kinds; expected texts, token ids, or lists of token ids.", param="prompt"
    )


def _echo(prompt: TextPrompt | TokenPrompt) -> str | None:
    return prompt.text if isinstance(prompt, TextPrompt) else None


def _score(fields: CompletionBody, prompt: TextPrompt | TokenPrompt, *, is_first: bool) -> Score | None:
    """The whole prompt where it is shown with logprobs, or where only its tokens say what to echo."""
    wanted: list[int] = []
    if fields.echo and fields.logprobs is not None:
        wanted.append(fields.logprobs)
    elif fields.echo and isinstance(prompt, TokenPrompt):
        wanted.append(0)
    if fields.prompt_logprobs is not None and is_first:
        wanted.append(prompt_score(fields.prompt_logprobs).top)
    return Score(((0, None),), max(wanted)) if wanted else None
