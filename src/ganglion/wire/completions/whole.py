"""Finished completions to one body."""

from collections.abc import Sequence

import msgspec
from msgspec import UNSET

from ganglion.core.fold import Answer
from ganglion.wire.completions.logprobs import (
    CompletionLogprobs,
    Offsets,
    completion_logprobs,
    echoed_logprobs,
    echoed_text,
    hidden_logprobs,
    joined,
)
from ganglion.wire.completions.reply import Completion, CompletionChoice, Reply, finish_of
from ganglion.wire.logprobs import prompt_logprobs_of
from ganglion.wire.readout import readouts_of
from ganglion.wire.usage import usage_of

_encode = msgspec.json.Encoder().encode


def body(answers: Sequence[Answer], reply: Reply) -> bytes:
    """The whole answer; `answers` holds n for each prompt, in order."""
    completion = Completion(
        id=reply.id,
        created=reply.created_s,
        model=reply.model,
        system_fingerprint=reply.fingerprint,
        choices=tuple(_choice(index, answers, reply) for index in range(len(answers))),
        usage=usage_of([answer.finished.usage for answer in answers], reply.per_prompt),
    )
    return _encode(completion)


def _choice(index: int, answers: Sequence[Answer], reply: Reply) -> CompletionChoice:
    answer, first = answers[index], answers[index - index % reply.per_prompt]
    known = reply.echo(index)
    echo = echoed_text(answer.scored) if known is None else known
    count = reply.prompt_logprobs
    return CompletionChoice(
        text=echo + "".join(block.text for block in answer.blocks),
        index=index,
        logprobs=None if reply.logprobs is None else _logprobs(answer, echo, reply.logprobs, reply.is_echoed),
        finish_reason=finish_of(answer.finished.reason),
        prompt_logprobs=UNSET if count is None else prompt_logprobs_of(first.scored, count),
        readout=readouts_of(answer.tokens, answer.readout_concepts) if reply.has_readout else UNSET,
        token_ids=(answer.finished.token_ids or ()) if reply.has_token_ids else UNSET,
        prompt_token_ids=(answer.prompt_token_ids or ()) if reply.has_token_ids else UNSET,
    )


def _logprobs(answer: Answer, echo: str, alternatives: int, is_echoed: bool) -> CompletionLogprobs:
    offsets = Offsets(len(echo))
    made = completion_logprobs(answer.tokens, alternatives, offsets)
    if not is_echoed:
        return made
    hidden = hidden_logprobs(answer.finished.usage.completion_tokens - len(answer.tokens), offsets.end)
    return joined((echoed_logprobs(answer.scored, alternatives, echo), made, hidden))
