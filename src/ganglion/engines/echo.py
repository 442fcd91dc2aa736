"""An engine without a model: it says the user's words back, word by word, and does what a script tells it.

It stands in for a model wherever tests and people need answers that are quick, exact or broken on purpose.
"""

import asyncio
import itertools
import math
import re
import time
import uuid
import zlib
from array import array
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Final, Literal, assert_never

from ganglion.core.engine import (
    Embedded,
    EmbedRequest,
    ModelState,
    PlacedImage,
    Ranked,
    RankRequest,
    ReadPrompt,
    Status,
    TokenizerInfo,
)
from ganglion.core.errors import (
    ContextLengthExceeded,
    EngineFailed,
    GanglionError,
    ModelLoading,
    ModelNotFound,
    ModelRecovering,
    ShuttingDown,
)
from ganglion.core.events import (
    Alternative,
    Closed,
    Delta,
    Event,
    Failed,
    Finished,
    FinishReason,
    Opened,
    Piece,
    Pieces,
    Progress,
    Scored,
    Started,
    Timing,
    Token,
    TokenEvent,
    Usage,
)
from ganglion.core.request import (
    ChatPrompt,
    Prompt,
    Request,
    Score,
    Stop,
    TextPrompt,
    TokenPrompt,
    TokenRequest,
)
from ganglion.engines.echo_script import Call, Script, take_directives
from ganglion.engines.slots import Slots, Ticket
from ganglion.text.stops import StopMatcher

MAX_TOKENS_DEFAULT: Final = 2048
REMEMBERED_WORDS: Final = 1 << 16
"""Words that ids can be turned back into: a vocabulary's worth."""
_WORD: Final = re.compile(r"\s*\S+|\s+")

_Block = Literal["text", "reasoning"] | Call
"""What a word belongs to; a call is its own block each time it stands in a script."""
VECTOR_SIZE: Final = 64


@dataclass(frozen=True, slots=True)
class EchoSettings:
    """What the operator asks of an echo."""

    model_id: str = "echo"
    aliases: tuple[str, ...] = ()
    context: int = 8192
    parallel: int = 16
    queue_limit: int = 256
    allow_directives: bool = False
    """Let `!echo delay=0.1 fail_at=3` lines in the user's message change the script."""
    open_delay_s: float = 0.0
    open_error: GanglionError | None = None
    recovery_s: float = 0.1
    """How long the engine is gone after a crash."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """One answer, decided before it begins."""

    script: Script
    words: Iterator[tuple[_Block, str]]
    prompt_tokens: int
    max_tokens: int
    stop: Stop
    top_logprobs: int | None
    priority: int
    scored: tuple[Token, ...] = ()
    in_tokens: bool = False


@dataclass(frozen=True, slots=True)
class _Said:
    """Text that no stop string can take back, with the tokens that end in it."""

    block: _Block
    piece: Piece


class _Run:
    """A request that holds or awaits a slot, and can be ended from outside."""

    def __init__(self) -> None:
        self._ended = asyncio.Event()
        self._error: GanglionError | None = None

    def end(self, error: GanglionError) -> None:
        self._error = error
        self._ended.set()

    async def pause(self, seconds: float) -> None:
        """Wait, or raise why there is nothing to wait for any more."""
        if seconds > 0:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), seconds)
        else:
            await asyncio.sleep(0)
        if self._error is not None:
            raise self._error.with_traceback(None)


class EchoEngine:
    """A ManagedEngine and TokenEngine whose answer is its prompt."""

    def __init__(self, settings: EchoSettings | None = None, script: Script | None = None) -> None:
        settings = settings or EchoSettings()
        self._settings = settings
        self._script = script or Script()
        self._slots = Slots(settings.parallel, settings.queue_limit)
        self._runs: dict[_Run, int] = {}
        self._status: Status = "unloaded"
        self._restarts = 0
        self._created_s = int(time.time())
        self._words_by_id: dict[int, str] = {}

    async def open(self) -> None:
        """Be ready, after the delay or with the error that the settings ask for."""
        self._status = "loading"
        await asyncio.sleep(self._settings.open_delay_s)
        if self._settings.open_error is not None:
            self._status = "failed"
            raise self._settings.open_error
        self._status = "loaded"

    async def close(self) -> None:
        """End what runs."""
        self._status = "unloaded"
        self._end_all(ShuttingDown("The engine is shutting down."))

    def crash(self) -> None:
        """Die as a native engine would: every running request fails, and new ones wait for the recovery."""
        self._restarts += 1
        self._status = "recovering"
        self._end_all(EngineFailed("The engine died under this request."))
        asyncio.get_running_loop().call_later(self._settings.recovery_s, self._recover)

    def models(self) -> tuple[ModelState, ...]:
        """The one model."""
        settings, slots = self._settings, self._slots
        return (
            ModelState(
                id=settings.model_id,
                engine="echo",
                status=self._status,
                context_length=settings.context,
                created_s=self._created_s,
                aliases=settings.aliases,
                capabilities=("chat", "completion", "embeddings", "tools"),
                in_flight=slots.used,
                queued=slots.queued,
                kv_used=sum(self._runs.values()),
                kv_total=settings.context * settings.parallel,
                slots_used=slots.used,
                slots_total=slots.total,
                restarts=self._restarts,
            ),
        )

    async def generate(self, request: Request) -> AsyncGenerator[Event, None]:
        """Say the last user message, or what the script says instead."""
        try:
            plan = self._plan(request)
        except GanglionError as error:
            yield Failed(error)
            return
        index = -1
        block: _Block | None = None
        async with aclosing(self._play(plan)) as said:
            async for event in said:
                match event:
                    case _Said(block=new_block, piece=piece):
                        if new_block is not block:
                            if block is not None:
                                yield Closed(index)
                            index, block = index + 1, new_block
                            yield _opened(index, new_block)
                        yield Delta(index, piece.text, piece.tokens)
                    case Finished():
                        if block is not None:
                            yield Closed(index)
                        yield event
                    case Progress() | Started() | Scored() | Failed():
                        yield event
                    case _:
                        assert_never(event)

    async def run(self, request: TokenRequest) -> AsyncGenerator[TokenEvent, None]:
        """Say the prompt's own tokens."""
        plan = _Plan(
            script=self._script,
            words=self._words(self._text(TokenPrompt(request.tokens)), replace(self._script, reasoning="")),
            prompt_tokens=len(request.tokens),
            max_tokens=request.max_tokens,
            stop=request.stop,
            top_logprobs=request.top_logprobs,
            priority=request.priority,
            scored=self._scored(request.tokens, request.score),
            in_tokens=request.in_tokens,
        )
        async with aclosing(self._play(plan)) as said:
            async for event in said:
                yield Pieces((event.piece,)) if isinstance(event, _Said) else event

    async def continue_tokens(self, model: str, request: TokenRequest) -> AsyncGenerator[TokenEvent, None]:
        """Say the prompt's own tokens, to somebody who reads tokens."""
        try:
            self._check_name(model)
        except GanglionError as error:
            yield Failed(error)
            return
        async with aclosing(self.run(request)) as events:
            async for event in events:
                yield event

    async def save_kv(self, model: str, salt: str, tokens: tuple[int, ...]) -> bytes:
        """An echo computes nothing that would be worth keeping."""
        self._check_name(model)
        return b""

    async def load_kv(self, model: str, salt: str, tokens: tuple[int, ...], state: bytes) -> int:
        """Nothing is restored."""
        self._check_name(model)
        return 0

    async def place_image(self, model: str, data: bytes, mime: str) -> PlacedImage:
        """An image takes as many positions as it has hundreds of bytes, and is known by its bytes."""
        self._check_name(model)
        return PlacedImage(max(len(data) // 100, 1), sha256(data).hexdigest())

    async def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> tuple[int, ...]:
        """A token for each word; an echo has no special ones."""
        return tuple(self._id_of(word) for word in _WORD.findall(text))

    async def text_of(self, tokens: tuple[int, ...]) -> str:
        """Ids to the words they were, as far as this echo has seen them."""
        return self._text(TokenPrompt(tokens))

    async def detokenize(self, model: str, tokens: tuple[int, ...]) -> str:
        """Ids to the words they were, as far as this echo has seen them."""
        self._check_name(model)
        return self._text(TokenPrompt(tokens))

    async def pieces(self, model: str, tokens: tuple[int, ...]) -> tuple[bytes, ...]:
        """The words one by one."""
        self._check_name(model)
        return tuple(self._text(TokenPrompt((token,))).encode() for token in tokens)

    async def read(self, request: Request) -> ReadPrompt:
        """The words of all messages, one after another."""
        self._check_name(request.model)
        text = None if isinstance(request.prompt, TokenPrompt) else self._said(request.prompt)
        return ReadPrompt(self._ids(request.prompt), text)

    async def tokenizer_info(self, model: str) -> TokenizerInfo:
        """A tokenizer of words."""
        self._check_name(model)
        return TokenizerInfo(2**31, self._settings.context, "", "", "")

    async def embed(self, request: EmbedRequest) -> Embedded:
        """A vector of each input's words, the same for the same words."""
        self._check_name(request.model)
        inputs = [self._ids(each) for each in request.inputs]
        return Embedded(tuple(_vector(ids) for ids in inputs), sum(map(len, inputs)))

    async def rank(self, request: RankRequest) -> Ranked:
        """The share of the query's words that a document holds."""
        self._check_name(request.model)
        asked = set(request.query.split())
        texts = [set(document.split()) for document in request.documents]
        scores = tuple(len(asked & words) / max(len(asked), 1) for words in texts)
        return Ranked(scores, len(asked) + sum(map(len, texts)))

    def _plan(self, request: Request) -> _Plan:
        self._check_name(request.model)
        text, script = self._text(request.prompt), self._script
        if self._settings.allow_directives:
            text, script = take_directives(text, script)
        if request.stop.ignore_eos:
            script = replace(script, is_unbounded=True)
        prompt_tokens = len(self._ids(request.prompt))
        room = self._settings.context - prompt_tokens
        if room <= 0:
            raise ContextLengthExceeded(prompt_tokens, self._settings.context)
        if request.keep_markers and script.reasoning:
            text = f"<think>{script.reasoning}</think>{text if script.reply is None else script.reply}"
            script = replace(script, reasoning="", reply=None)
        asked = MAX_TOKENS_DEFAULT if request.max_tokens is None else request.max_tokens
        return _Plan(
            script=script,
            words=self._words(text, script),
            prompt_tokens=prompt_tokens,
            max_tokens=min(asked, room),
            stop=request.stop,
            top_logprobs=request.top_logprobs,
            priority=request.priority,
            scored=self._scored(self._ids(request.prompt), request.score),
        )

    async def _play(
        self, plan: _Plan
    ) -> AsyncGenerator[Progress | Started | Scored | _Said | Finished | Failed, None]:
        """Wait for a slot and say the plan; errors end it as Failed."""
        run, ticket = _Run(), None
        try:
            self._check_ready()
            ticket = self._slots.enter(plan.priority)
            entered_s = time.perf_counter()
            if not ticket.turn.done():
                yield Progress("queued", 0, self._slots.queued)
            await ticket.turn
            self._runs[run] = plan.prompt_tokens
            async with aclosing(self._say(plan, run, time.perf_counter() - entered_s)) as events:
                async for event in events:
                    yield event
        except GanglionError as error:
            yield Failed(error)
        finally:
            self._leave(run, ticket)

    async def _say(
        self, plan: _Plan, run: _Run, queued_s: float
    ) -> AsyncGenerator[Started | Scored | _Said | Finished, None]:
        script, started_s = plan.script, time.perf_counter()
        yield Started(plan.prompt_tokens, min(script.cached_tokens, plan.prompt_tokens))
        await run.pause(script.first_token_delay_s)
        if plan.scored:
            yield Scored(plan.scored)
        first_s = time.perf_counter()
        made = reasoned = 0
        has_called = False
        matcher = StopMatcher(plan.stop.strings)
        for block, word in plan.words:
            if made == plan.max_tokens:
                break
            await self._step(script, run, made)
            token = self._token(word, plan.prompt_tokens + made, plan.top_logprobs)
            made += 1
            reasoned += block == "reasoning"
            if token.id in plan.stop.token_ids:
                if plan.in_tokens:
                    yield _Said("text", Piece("", (token,)))
                break
            if block != "text":
                for piece in matcher.flush():
                    yield _Said("text", piece)
                has_called = has_called or isinstance(block, Call)
                yield _Said(block, Piece(word, (token,)))
                continue
            for piece in matcher.feed((Piece(word, (token,)),)):
                yield _Said(block, piece)
            if matcher.matched is not None:
                break
        for piece in matcher.flush():
            yield _Said("text", piece)
        reason: FinishReason = "tool_calls" if has_called else "stop"
        if made >= plan.max_tokens and matcher.matched is None:
            reason = "length"
        ended_s = time.perf_counter()
        yield Finished(
            reason,
            Usage(plan.prompt_tokens, made, min(script.cached_tokens, plan.prompt_tokens), reasoned),
            Timing(queued_s, first_s - started_s, ended_s - first_s),
            matcher.matched,
        )

    async def _step(self, script: Script, run: _Run, number: int) -> None:
        await run.pause(script.delay_s if number else 0.0)
        if number == script.fail_at:
            raise script.error.with_traceback(None)
        if number == script.crash_at:
            self.crash()
            await run.pause(0)

    def _check_name(self, name: str) -> None:
        names = map(str.casefold, self._settings.aliases)
        if name != self._settings.model_id and name.casefold() not in (*names,):
            raise ModelNotFound(name, hint=f"Here: {self._settings.model_id}.")

    def _check_ready(self) -> None:
        if self._status == "recovering":
            raise ModelRecovering("The engine died and is starting again.")
        if self._status != "loaded":
            raise ModelLoading(f"The model {self._settings.model_id!r} is not loaded.")

    def _leave(self, run: _Run, ticket: Ticket | None) -> None:
        self._runs.pop(run, None)
        if ticket is not None:
            self._slots.leave(ticket)

    def _end_all(self, error: GanglionError) -> None:
        self._slots.refuse_waiting(error)
        for run in self._runs:
            run.end(error)

    def _recover(self) -> None:
        if self._status == "recovering":
            self._status = "loaded"

    def _text(self, prompt: Prompt) -> str:
        match prompt:
            case ChatPrompt(messages=messages):
                users = [message.content for message in messages if message.role == "user"]
                return users[-1] if users else ""
            case TextPrompt(text=text):
                return text
            case TokenPrompt(tokens=tokens):
                return "".join(self._words_by_id.get(token, f" <{token}>") for token in tokens)
            case _:
                assert_never(prompt)

    def _said(self, prompt: ChatPrompt | TextPrompt) -> str:
        """All that a prompt says."""
        if isinstance(prompt, TextPrompt):
            return prompt.text
        return "\n".join(message.content for message in prompt.messages)

    def _ids(self, prompt: Prompt) -> tuple[int, ...]:
        if isinstance(prompt, TokenPrompt):
            return prompt.tokens
        if isinstance(prompt, TextPrompt):
            return tuple(map(self._id_of, _WORD.findall(prompt.text)))
        said = (word for message in prompt.messages for word in _WORD.findall(message.content))
        return tuple(map(self._id_of, said))

    def _scored(self, tokens: tuple[int, ...], score: Score | None) -> tuple[Token, ...]:
        if score is None:
            return ()
        asked = {
            place
            for start, end in score.ranges
            for place in range(start, min(len(tokens) if end is None else end, len(tokens)))
        }
        return tuple(
            replace(
                self._token(self._words_by_id.get(tokens[place], ""), place, score.top if place else None),
                id=tokens[place],
            )
            for place in sorted(asked)
        )

    def _words(self, text: str, script: Script) -> Iterator[tuple[_Block, str]]:
        reply = _WORD.findall(text if script.reply is None else script.reply)
        thoughts: list[tuple[_Block, str]] = [("reasoning", word) for word in _WORD.findall(script.reasoning)]
        spoken: list[tuple[_Block, str]] = [("text", word) for word in reply]
        called: list[tuple[_Block, str]] = [
            (call, word) for call in script.calls for word in _WORD.findall(call.arguments)
        ]
        if not script.is_unbounded:
            return iter(thoughts + spoken + called)
        return itertools.chain(thoughts, itertools.cycle(spoken or [("text", " echo")]))

    def _id_of(self, word: str) -> int:
        token_id = zlib.crc32(word.encode()) & 0x7FFFFFFF
        if len(self._words_by_id) >= REMEMBERED_WORDS:
            self._words_by_id.pop(next(iter(self._words_by_id)))
        self._words_by_id[token_id] = word
        return token_id

    def _token(self, word: str, position: int, top_logprobs: int | None) -> Token:
        token_id, piece = self._id_of(word), word.encode()
        if top_logprobs is None:
            return Token(token_id, piece, position)
        logprob = -(1 + token_id % 99) / 100
        top = [Alternative(token_id, piece, logprob)]
        top += [
            Alternative(rank, f" other{rank}".encode(), logprob - rank) for rank in range(1, top_logprobs)
        ]
        return Token(token_id, piece, position, logprob, tuple(top[:top_logprobs]))


def _opened(index: int, block: _Block) -> Opened:
    if isinstance(block, Call):
        return Opened(index, "tool_call", f"call_{uuid.uuid4().hex[:24]}", block.name)
    return Opened(index, block)


def _vector(tokens: tuple[int, ...]) -> bytes:
    counts = array("f", bytes(4 * VECTOR_SIZE))
    for token in tokens:
        counts[token % VECTOR_SIZE] += 1.0
    length = math.sqrt(sum(value * value for value in counts)) or 1.0
    return array("f", [value / length for value in counts]).tobytes()
