"""Finished chat answers to one body."""

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from ganglion.core.fold import Answer, Block
from ganglion.wire.chat.reply import (
    AnswerMessage,
    CalledCustom,
    CalledFunction,
    ChatCompletion,
    Choice,
    ChoiceLogprobs,
    CustomCall,
    FunctionCall,
    Reply,
    finish_of,
    logprobs_of,
)
from ganglion.wire.logprobs import prompt_logprobs_of
from ganglion.wire.readout import readouts_of
from ganglion.wire.usage import usage_of

_encode = msgspec.json.Encoder().encode


def body(answers: Sequence[Answer], reply: Reply) -> bytes:
    """The whole answer; `answers` holds one per choice, in order."""
    count = reply.prompt_logprobs
    completion = ChatCompletion(
        id=reply.id,
        created=reply.created_s,
        model=reply.model,
        system_fingerprint=reply.fingerprint,
        choices=tuple(_choice(index, answer, reply) for index, answer in enumerate(answers)),
        usage=usage_of([answer.finished.usage for answer in answers]),
        prompt_logprobs=UNSET if count is None else prompt_logprobs_of(answers[0].scored, count),
        thought=(answers[0].text("reasoning") or None) if reply.is_thought_shown else UNSET,
        prompt_token_ids=_ids(answers[0].prompt_token_ids, reply),
    )
    return _encode(completion)


def _choice(index: int, answer: Answer, reply: Reply) -> Choice:
    logprobs = _logprobs(answer) if reply.has_logprobs else None
    readout = readouts_of(answer.tokens, answer.readout_concepts) if reply.has_readout else UNSET
    finish, token_ids = finish_of(answer.finished.reason, reply), _ids(answer.finished.token_ids, reply)
    return Choice(index, _message(answer, reply), logprobs, finish, readout, token_ids)


def _ids(found: tuple[int, ...] | None, reply: Reply) -> tuple[int, ...] | UnsetType:
    return (found or ()) if reply.has_token_ids else UNSET


def _message(answer: Answer, reply: Reply) -> AnswerMessage:
    text = answer.text("text")
    reasoning = answer.text("reasoning") or UNSET
    called = [block for block in answer.blocks if block.kind == "tool_call"]
    calls = () if reply.is_legacy else tuple(_call(block, reply) for block in called)
    return AnswerMessage(
        content=None if called and not text else text,
        reasoning_content=reasoning,
        reasoning=reasoning,
        tool_calls=calls or UNSET,
        function_call=(
            CalledFunction(called[0].name or "", called[0].text) if reply.is_legacy and called else UNSET
        ),
    )


def _call(block: Block, reply: Reply) -> FunctionCall | CustomCall:
    call_id, name = block.call_id or "", block.name or ""
    if name in reply.custom_tools:
        return CustomCall(call_id, CalledCustom(name, block.text))
    return FunctionCall(call_id, CalledFunction(name, block.text))


def _logprobs(answer: Answer) -> ChoiceLogprobs:
    return logprobs_of(token for block in answer.blocks if block.kind == "text" for token in block.tokens)
