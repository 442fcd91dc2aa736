"""Projects the events of a chat answer, or of n interleaved ones, into the chunks of a stream."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import assert_never

import msgspec
from msgspec import UNSET, UnsetType

from ganglion.core.events import Finished, Kind, Opened, Started, Token, Usage
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
from ganglion.wire.chunk_stream import ChunkProjection
from ganglion.wire.frame import Frame
from ganglion.wire.logprobs import prompt_logprobs_of
from ganglion.wire.readout import TokenReadout, readouts_of
from ganglion.wire.usage import usage_of


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
_EMPTY_TEXT = ChoiceDelta(content="")


def chat_projection(reply: ChatReplyContext, choices: int = 1) -> ChunkProjection:
    """The stream of an answer with so many choices."""
    no_usage = UNSET if reply.usage_reporting == "never" else None
    chunks = [_ChatChunks(reply, index, no_usage) for index in range(choices)]
    return ChunkProjection(chunks, None if no_usage is UNSET else partial(_usage_frame, reply))


def _usage_frame(reply: ChatReplyContext, usages: list[Usage]) -> Frame:
    chunk = ChatCompletionChunk(
        id=reply.id,
        created=reply.created_s,
        model=reply.model,
        system_fingerprint=reply.fingerprint,
        choices=(),
        usage=usage_of(usages),
    )
    return Frame(_encode(chunk))


@dataclass(slots=True)
class _ChatChunks:
    """One choice; its role goes out before all else."""

    reply: ChatReplyContext
    index: int
    no_usage: UnsetType | None
    has_role: bool = False
    kind: Kind = "text"
    is_custom: bool = False
    tool_calls: int = 0
    readout_concepts: int = 0
    so_far: Usage = Usage(0, 0)
    """Tokens that are not shown are counted at the end."""
    around_text: tuple[bytes, bytes] | None = None
    """A chunk of text, before and after the text."""
    prompt_token_ids: tuple[int, ...] | UnsetType = UNSET
    """What is still to be told of the prompt: with the role, or with the end where that went out before."""

    def start(self, started: Started) -> None:
        self.readout_concepts = started.readout_concepts
        self.so_far = Usage(started.prompt_tokens, 0, started.cached_tokens)
        if self.index == 0 and started.prompt_token_ids is not None:
            self.prompt_token_ids = started.prompt_token_ids

    def score(self, tokens: tuple[Token, ...]) -> None:
        """A stream of this wire shows no logprobs of the prompt."""

    def tick(self) -> list[Frame]:
        """The role, where it is not out yet."""
        if self.has_role:
            return []
        self.has_role = True
        return [self._chunk(ChunkChoice(self.index, _ROLE), prompt_token_ids=self._prompt_ids_once())]

    def open(self, opened: Opened) -> list[Frame]:
        frames = self.tick()
        self.kind = opened.kind
        if opened.kind == "tool_call":
            frames.append(self._call(opened))
        return frames

    def more(self, text: str, tokens: tuple[Token, ...]) -> list[Frame]:
        reply = self.reply
        if reply.usage_reporting == "always":
            made = self.so_far.completion_tokens + len(tokens)
            self.so_far = replace(self.so_far, completion_tokens=made)
        logprobs = None
        if self.kind == "text" and reply.has_logprobs and tokens:
            logprobs = logprobs_of(tokens)
        readout: list[TokenReadout] | UnsetType = UNSET
        if reply.has_readout:
            readout = readouts_of(tokens, self.readout_concepts) or UNSET
        if logprobs is None and readout is UNSET and (self.kind == "text" or not text):
            return self._plain(text) if text else []
        match self.kind:
            case "text":
                delta = ChoiceDelta(content=text)
                return [self._chunk(ChunkChoice(self.index, delta, logprobs, readout=readout))]
            case "reasoning":
                delta = ChoiceDelta(reasoning_content=text, reasoning=text)
                thought = text if reply.shows_thought else UNSET
                return [self._chunk(ChunkChoice(self.index, delta, readout=readout), thought)]
            case "tool_call":
                index = self.tool_calls - 1
                if reply.is_legacy:
                    delta = ChoiceDelta(function_call=FunctionDelta(text))
                    return [self._chunk(ChunkChoice(self.index, delta, readout=readout))]
                if self.is_custom:
                    return [self._called(ToolCallDelta(index=index, custom=CustomDelta(text)), readout)]
                return [self._called(ToolCallDelta(index=index, function=FunctionDelta(text)), readout)]
            case _:
                assert_never(self.kind)

    def _plain(self, text: str) -> list[Frame]:
        """A chunk of which only the text is new, as most of an answer is: the rest is encoded once."""
        if self.around_text is None or self.reply.usage_reporting == "always":
            before, _, after = self._chunk(ChunkChoice(self.index, _EMPTY_TEXT)).data.rpartition(b'""')
            self.around_text = before, after
        before, after = self.around_text
        return [Frame(b"%b%b%b" % (before, _encode(text), after))]

    def finish(self, finished: Finished) -> list[Frame]:
        frames = self.tick()
        self.so_far = finished.usage
        ended = ChunkChoice(
            self.index,
            _NOTHING,
            None,
            finish_of(finished.reason, self.reply),
            token_ids=_ids(finished.token_ids, self.reply),
        )
        frames.append(self._chunk(ended, prompt_token_ids=self._prompt_ids_once()))
        return frames

    def _call(self, opened: Opened) -> Frame:
        call_id, name = opened.call_id or "", opened.name or ""
        index, self.tool_calls = self.tool_calls, self.tool_calls + 1
        self.is_custom = name in self.reply.custom_tools
        if self.reply.is_legacy:
            delta = ChoiceDelta(function_call=FunctionDelta("", name))
            return self._chunk(ChunkChoice(self.index, delta))
        if self.is_custom:
            custom = CustomDelta("", name)
            return self._called(ToolCallDelta(index=index, id=call_id, type="custom", custom=custom))
        function = FunctionDelta("", name)
        return self._called(ToolCallDelta(index=index, id=call_id, type="function", function=function))

    def _called(self, call: ToolCallDelta, readout: list[TokenReadout] | UnsetType = UNSET) -> Frame:
        return self._chunk(ChunkChoice(self.index, ChoiceDelta(tool_calls=(call,)), readout=readout))

    def _prompt_ids_once(self) -> tuple[int, ...] | UnsetType:
        found, self.prompt_token_ids = self.prompt_token_ids, UNSET
        return found

    def _chunk(
        self,
        choice: ChunkChoice,
        thought: str | UnsetType = UNSET,
        prompt_token_ids: tuple[int, ...] | UnsetType = UNSET,
    ) -> Frame:
        reply = self.reply
        chunk = ChatCompletionChunk(
            id=reply.id,
            created=reply.created_s,
            model=reply.model,
            system_fingerprint=reply.fingerprint,
            choices=(choice,),
            usage=self.no_usage if reply.usage_reporting != "always" else usage_of([self.so_far]),
            thought=thought,
            prompt_token_ids=prompt_token_ids,
        )
        return Frame(_encode(chunk))
