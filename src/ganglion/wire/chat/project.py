"""Projects the events of a chat answer, or of n interleaved ones, into the chunks of a stream."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import assert_never

import msgspec
from msgspec import UNSET, UnsetType

from ganglion.core.events import (
    Closed,
    Delta,
    Event,
    Failed,
    Finished,
    Kind,
    Opened,
    Progress,
    Scored,
    Started,
    Token,
    Usage,
)
from ganglion.core.fold import Answer, Block
from ganglion.wire.chat.schema import (
    CalledCustom,
    CalledFunction,
    ChatChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionMessage,
    ChatCustomCall,
    ChatFunctionCall,
    ChatReplyContext,
    ChoiceDelta,
    ChoiceLogprobs,
    ChunkChoice,
    CustomDelta,
    FunctionDelta,
    ToolCallDelta,
    finish_of,
    logprobs_of,
)
from ganglion.wire.frame import Comment, Frame
from ganglion.wire.logprobs import prompt_logprobs_of
from ganglion.wire.openai_errors import encode_error
from ganglion.wire.readout import TokenReadout, readouts_of
from ganglion.wire.usage import CompletionUsage, usage_of


def body(answers: Sequence[Answer], reply: ChatReplyContext) -> bytes:
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
        thought=(answers[0].text("reasoning") or None) if reply.shows_thought else UNSET,
        prompt_token_ids=_ids(answers[0].prompt_token_ids, reply),
    )
    return _encode(completion)


def _choice(index: int, answer: Answer, reply: ChatReplyContext) -> ChatChoice:
    logprobs = _logprobs(answer) if reply.has_logprobs else None
    readout = readouts_of(answer.tokens, answer.readout_concepts) if reply.has_readout else UNSET
    finish, token_ids = finish_of(answer.finished.reason, reply), _ids(answer.finished.token_ids, reply)
    return ChatChoice(index, _message(answer, reply), logprobs, finish, readout, token_ids)


def _ids(found: tuple[int, ...] | None, reply: ChatReplyContext) -> tuple[int, ...] | UnsetType:
    return (found or ()) if reply.has_token_ids else UNSET


def _message(answer: Answer, reply: ChatReplyContext) -> ChatCompletionMessage:
    text = answer.text("text")
    reasoning = answer.text("reasoning") or UNSET
    called = [block for block in answer.blocks if block.kind == "tool_call"]
    calls = () if reply.is_legacy else tuple(_call(block, reply) for block in called)
    return ChatCompletionMessage(
        content=None if called and not text else text,
        reasoning_content=reasoning,
        reasoning=reasoning,
        tool_calls=calls or UNSET,
        function_call=(
            CalledFunction(called[0].name or "", called[0].text) if reply.is_legacy and called else UNSET
        ),
    )


def _call(block: Block, reply: ChatReplyContext) -> ChatFunctionCall | ChatCustomCall:
    call_id, name = block.call_id or "", block.name or ""
    if name in reply.custom_tools:
        return ChatCustomCall(call_id, CalledCustom(name, block.text))
    return ChatFunctionCall(call_id, CalledFunction(name, block.text))


def _logprobs(answer: Answer) -> ChoiceLogprobs:
    return logprobs_of(token for block in answer.blocks if block.kind == "text" for token in block.tokens)


_encode = msgspec.json.Encoder().encode
_ROLE = ChoiceDelta(role="assistant", content="")
_NOTHING = ChoiceDelta()
_DONE = Frame(b"[DONE]")


@dataclass(slots=True)
class _Choice:
    """The state of one choice."""

    index: int
    has_role: bool = False
    kind: Kind = "text"
    is_custom: bool = False
    tool_calls: int = 0
    readout_concepts: int = 0
    so_far: Usage = Usage(0, 0)
    prompt_token_ids: tuple[int, ...] | UnsetType = UNSET
    """What is still to be told of the prompt: with the role, or with the end where that went out before."""
    usage: Usage | None = None


class ChatProjection:
    """Feed it every event of every choice; `is_done` says that its last frame is out."""

    def __init__(self, reply: ChatReplyContext, choices: int = 1) -> None:
        self._reply = reply
        self._choices = [_Choice(index) for index in range(choices)]
        self._no_usage: UnsetType | None = UNSET if reply.usage_reporting == "never" else None
        self._is_done = False

    @property
    def is_done(self) -> bool:
        """Whether `[DONE]` or an error has been handed out."""
        return self._is_done

    def feed(self, event: Event, choice: int = 0) -> list[Frame]:
        """The frames that this event of this choice adds; none once the stream is done."""
        if self._is_done:
            return []
        state = self._choices[choice]
        match event:
            case Delta(text=text, tokens=tokens):
                return self._more(state, text, tokens)
            case Opened():
                return self._open(state, event)
            case Started():
                state.readout_concepts = event.readout_concepts
                state.so_far = Usage(event.prompt_tokens, 0, event.cached_tokens)
                if state.index == 0 and event.prompt_token_ids is not None:
                    state.prompt_token_ids = event.prompt_token_ids
            case Progress() | Scored() | Closed():
                pass
            case Finished():
                return self._finish(state, event)
            case Failed(error=error):
                self._is_done = True
                return [Frame(encode_error(error))]
            case _:
                assert_never(event)
        return []

    def tick(self) -> list[Frame | Comment]:
        """The role chunks when nothing went out yet, then a comment."""
        frames: list[Frame | Comment] = [
            frame for state in self._choices if not state.has_role for frame in self._role(state)
        ]
        return frames or [Comment()]

    def _role(self, state: _Choice) -> list[Frame]:
        if state.has_role:
            return []
        state.has_role = True
        return [self._chunk(ChunkChoice(state.index, _ROLE), prompt_token_ids=_once(state))]

    def _open(self, state: _Choice, opened: Opened) -> list[Frame]:
        frames = self._role(state)
        state.kind = opened.kind
        if opened.kind == "tool_call":
            frames.append(self._call(state, opened))
        return frames

    def _more(self, state: _Choice, text: str, tokens: tuple[Token, ...]) -> list[Frame]:
        if self._reply.usage_reporting == "always":
            made = state.so_far.completion_tokens + len(tokens)
            state.so_far = replace(state.so_far, completion_tokens=made)
        logprobs = None
        if state.kind == "text" and self._reply.has_logprobs and tokens:
            logprobs = logprobs_of(tokens)
        readout = self._readout(state, tokens)
        if not text and logprobs is None and readout is UNSET:
            return []
        match state.kind:
            case "text":
                delta = ChoiceDelta(content=text)
                return [self._chunk(ChunkChoice(state.index, delta, logprobs, readout=readout))]
            case "reasoning":
                delta = ChoiceDelta(reasoning_content=text, reasoning=text)
                thought = text if self._reply.shows_thought else UNSET
                return [self._chunk(ChunkChoice(state.index, delta, readout=readout), thought)]
            case "tool_call":
                index = state.tool_calls - 1
                if self._reply.is_legacy:
                    delta = ChoiceDelta(function_call=FunctionDelta(text))
                    return [self._chunk(ChunkChoice(state.index, delta, readout=readout))]
                if state.is_custom:
                    return [
                        self._called(state, ToolCallDelta(index=index, custom=CustomDelta(text)), readout)
                    ]
                more = ToolCallDelta(index=index, function=FunctionDelta(text))
                return [self._called(state, more, readout)]
            case _:
                assert_never(state.kind)

    def _readout(self, state: _Choice, tokens: tuple[Token, ...]) -> list[TokenReadout] | UnsetType:
        if not self._reply.has_readout:
            return UNSET
        return readouts_of(tokens, state.readout_concepts) or UNSET

    def _call(self, state: _Choice, opened: Opened) -> Frame:
        call_id, name = opened.call_id or "", opened.name or ""
        index, state.tool_calls = state.tool_calls, state.tool_calls + 1
        state.is_custom = name in self._reply.custom_tools
        if self._reply.is_legacy:
            delta = ChoiceDelta(function_call=FunctionDelta("", name))
            return self._chunk(ChunkChoice(state.index, delta))
        if state.is_custom:
            custom = CustomDelta("", name)
            return self._called(state, ToolCallDelta(index=index, id=call_id, type="custom", custom=custom))
        function = FunctionDelta("", name)
        return self._called(state, ToolCallDelta(index=index, id=call_id, type="function", function=function))

    def _called(
        self, state: _Choice, call: ToolCallDelta, readout: list[TokenReadout] | UnsetType = UNSET
    ) -> Frame:
        return self._chunk(ChunkChoice(state.index, ChoiceDelta(tool_calls=(call,)), readout=readout))

    def _finish(self, state: _Choice, finished: Finished) -> list[Frame]:
        frames = self._role(state)
        state.usage = state.so_far = finished.usage
        ended = ChunkChoice(
            state.index,
            _NOTHING,
            None,
            finish_of(finished.reason, self._reply),
            token_ids=(finished.token_ids or ()) if self._reply.has_token_ids else UNSET,
        )
        frames.append(self._chunk(ended, prompt_token_ids=_once(state)))
        usages = [choice.usage for choice in self._choices if choice.usage is not None]
        if len(usages) < len(self._choices):
            return frames
        if self._reply.usage_reporting != "never":
            frames.append(self._usage(usages))
        frames.append(_DONE)
        self._is_done = True
        return frames

    def _chunk(
        self,
        choice: ChunkChoice,
        thought: str | UnsetType = UNSET,
        prompt_token_ids: tuple[int, ...] | UnsetType = UNSET,
    ) -> Frame:
        reply = self._reply
        chunk = ChatCompletionChunk(
            id=reply.id,
            created=reply.created_s,
            model=reply.model,
            system_fingerprint=reply.fingerprint,
            choices=(choice,),
            usage=self._no_usage if reply.usage_reporting != "always" else self._so_far(choice.index),
            thought=thought,
            prompt_token_ids=prompt_token_ids,
        )
        return Frame(_encode(chunk))

    def _so_far(self, choice: int) -> CompletionUsage:
        """The usage of one choice up to here; tokens that are not shown are counted at its end."""
        return usage_of([self._choices[choice].so_far])

    def _usage(self, usages: list[Usage]) -> Frame:
        reply = self._reply
        chunk = ChatCompletionChunk(
            id=reply.id,
            created=reply.created_s,
            model=reply.model,
            system_fingerprint=reply.fingerprint,
            choices=(),
            usage=usage_of(usages),
        )
        return Frame(_encode(chunk))


def _once(state: _Choice) -> tuple[int, ...] | UnsetType:
    told, state.prompt_token_ids = state.prompt_token_ids, UNSET
    return told
