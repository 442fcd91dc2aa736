"""Responses as a proxy knows them: answers that are kept, and may run on after their request."""

from functools import partial

from msgspec import Raw, Struct

from ganglion.wire.proxy_dialect import (
    ABSENT,
    Part,
    Peeked,
    ProxyDialect,
    StreamMarks,
    body_reader,
    bound_answer,
    opening,
)
from ganglion.wire.responses.compaction import SUMMARY_TOKENS
from ganglion.wire.token_bound import bound_chat


class _ResponsesFields(Struct):
    model: str | None = None
    stream: bool | None = None
    instructions: Raw = ABSENT
    input: str | list[Raw] | None = None
    previous_response_id: str | None = None
    conversation: Raw = ABSENT
    prompt_cache_key: str | None = None
    background: bool | None = None


def _peek(fields: _ResponsesFields) -> Peeked:
    return Peeked(
        fields.model or "",
        bool(fields.stream),
        False,
        _conversation(fields),
        bool(fields.background),
    )


def _conversation(fields: _ResponsesFields) -> tuple[Part, ...]:
    if fields.prompt_cache_key:
        return (fields.prompt_cache_key,)
    if fields.conversation:
        return (bytes(fields.conversation),)
    # Each turn continues another response: only who keeps them knows where they all began.
    if fields.previous_response_id is not None:
        return ()
    first = (fields.input,) if isinstance(fields.input, str) else opening(fields.input)
    return (bytes(fields.instructions), *first)


PROXY = ProxyDialect(
    peek=body_reader(_ResponsesFields, _peek),
    bound=bound_chat,
    bound_answer=partial(bound_answer, name="max_output_tokens"),
    marks=StreamMarks(text=b'.delta"'),
    answer_tokens={"/v1/responses/compact": SUMMARY_TOKENS},
)
