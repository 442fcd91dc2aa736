"""One answer of an echo: decided before it begins, and said word by word."""

import asyncio
import itertools
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, Literal

from ganglion.core.errors import EngineFailed, GanglionError, InvalidValue
from ganglion.core.events import (
    Finished,
    FinishReason,
    Opened,
    Piece,
    Scored,
    Started,
    Timing,
    Token,
    Usage,
)
from ganglion.core.request import Stop
from ganglion.core.sampling import ResolvedSampling
from ganglion.engines.echo.vocabulary import EchoReadout, WordVocabulary, split_words
from ganglion.text.stops import StopMatcher

_DIRECTIVE: Final = "!echo"


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    """A tool call as an echo makes it."""

    name: str
    arguments: str = "{}"


@dataclass(frozen=True, slots=True)
class EchoScript:
    """What one answer does; the default repeats the user at once."""

    reply: str | None = None
    """Said instead of the user's own words."""
    reasoning: str = ""
    """Thought aloud before the reply."""
    calls: tuple[ScriptedCall, ...] = ()
    """Tools called after the reply, in order."""
    delay_s: float = 0.0
    """Before every token after the first."""
    first_token_delay_s: float = 0.0
    fail_at: int | None = None
    """The answer fails instead of this token, counted from 0."""
    error: GanglionError = EngineFailed("The echo was told to fail.")
    crash_at: int | None = None
    """The engine dies instead of this token, under every request that runs."""
    cached_tokens: int = 0
    is_unbounded: bool = False
    """The reply repeats until something else ends it."""


def take_directives(text: str, script: EchoScript) -> tuple[str, EchoScript]:
    """Split the `!echo key=value …` lines from a message and apply them; raises InvalidValue."""
    kept: list[str] = []
    for line in text.splitlines(keepends=True):
        words = line.split()
        if words[:1] == [_DIRECTIVE]:
            for word in words[1:]:
                script = _apply(word, script)
        else:
            kept.append(line)
    return "".join(kept), script


def _apply(word: str, script: EchoScript) -> EchoScript:
    key, _, value = word.partition("=")
    try:
        apply = _DIRECTIVES[key]
    except KeyError:
        raise InvalidValue(
            f"The echo directive {word!r} is unknown.",
            param="messages",
            hint=f"One of: {', '.join(_DIRECTIVES)}.",
        ) from None
    try:
        return apply(script, value)
    except ValueError:
        raise InvalidValue(f"The echo directive {word!r} needs a number.", param="messages") from None


def _call(value: str) -> ScriptedCall:
    """`name` or `name:{"json":"arguments"}`, without spaces."""
    name, _, arguments = value.partition(":")
    return ScriptedCall(name, arguments or "{}")


_DIRECTIVES: Final[dict[str, Callable[[EchoScript, str], EchoScript]]] = {
    "delay": lambda script, value: replace(script, delay_s=float(value)),
    "first_token_delay": lambda script, value: replace(script, first_token_delay_s=float(value)),
    "fail_at": lambda script, value: replace(script, fail_at=int(value)),
    "crash_at": lambda script, value: replace(script, crash_at=int(value)),
    "cached_tokens": lambda script, value: replace(script, cached_tokens=int(value)),
    "reply": lambda script, value: replace(script, reply=value),
    "reasoning": lambda script, value: replace(script, reasoning=value),
    "call": lambda script, value: replace(script, calls=(*script.calls, _call(value))),
    "unbounded": lambda script, _: replace(script, is_unbounded=True),
}


Block = Literal["text", "reasoning"] | ScriptedCall
"""What a word belongs to; a call is its own block each time it stands in a script."""


@dataclass(frozen=True, slots=True)
class EchoPlan:
    """One answer, decided before it begins."""

    script: EchoScript
    words: Iterator[tuple[Block, str]]
    prompt_tokens: int
    max_tokens: int
    stop: Stop
    top_logprobs: int | None
    priority: int
    reader: EchoReadout
    cached_tokens: int
    scored: tuple[Token, ...] = ()
    in_tokens: bool = False
    readout_concepts: int = 0
    prompt_token_ids: tuple[int, ...] | None = None
    """The prompt, where somebody wants to hear of tokens."""
    sampling: ResolvedSampling | None = None


@dataclass(frozen=True, slots=True)
class EchoPiece:
    """Text that no stop string can take back, with the tokens that end in it."""

    block: Block
    piece: Piece


class EchoRun:
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


def scripted_words(text: str, script: EchoScript) -> Iterator[tuple[Block, str]]:
    """All that a script says where the text is what it would repeat."""
    reply = split_words(text if script.reply is None else script.reply)
    thoughts: list[tuple[Block, str]] = [("reasoning", word) for word in split_words(script.reasoning)]
    spoken: list[tuple[Block, str]] = [("text", word) for word in reply]
    called: list[tuple[Block, str]] = [
        (call, word) for call in script.calls for word in split_words(call.arguments)
    ]
    if not script.is_unbounded:
        return iter(thoughts + spoken + called)
    return itertools.chain(thoughts, itertools.cycle(spoken or [("text", " echo")]))


def open_block(index: int, block: Block) -> Opened:
    """How a block begins."""
    if isinstance(block, ScriptedCall):
        return Opened(index, "tool_call", f"call_{uuid.uuid4().hex[:24]}", block.name)
    return Opened(index, block)


async def play_plan(
    plan: EchoPlan, run: EchoRun, words: WordVocabulary, queued_s: float, crash: Callable[[], None]
) -> AsyncGenerator[Started | Scored | EchoPiece | Finished, None]:
    """Say the plan; raises what the script, or whoever ends the run, says instead."""
    script, started_s = plan.script, time.perf_counter()
    yield Started(
        plan.prompt_tokens,
        plan.cached_tokens,
        plan.readout_concepts,
        plan.prompt_token_ids,
        plan.sampling,
    )
    await run.pause(script.first_token_delay_s)
    if plan.scored:
        yield Scored(plan.scored)
    first_s = time.perf_counter()
    made = reasoned = 0
    said: list[int] = []
    has_called = False
    stop_token: int | None = None
    matcher = StopMatcher(plan.stop.strings, is_shown=plan.stop.is_shown)
    for block, word in plan.words:
        if made == plan.max_tokens:
            break
        await _step(script, run, made, crash)
        told = words.token_of(words.id_of(word), plan.prompt_tokens + made, plan.top_logprobs)
        token = plan.reader.read(told)
        made += 1
        said.append(token.id)
        reasoned += block == "reasoning"
        if plan.in_tokens:
            yield EchoPiece("text", Piece("", (token,)))
        if token.id in plan.stop.token_ids:
            stop_token = token.id
            break
        if block != "text" and not plan.in_tokens:
            for piece in matcher.flush():
                yield EchoPiece("text", piece)
            has_called = has_called or isinstance(block, ScriptedCall)
            yield EchoPiece(block, Piece(word, (token,)))
            continue
        shown = matcher.feed((Piece(word, (token,)),))
        for piece in () if plan.in_tokens else shown:  # to whom every token is told, the text is not
            yield EchoPiece(block, piece)
        if matcher.matched is not None:
            break
    for piece in () if plan.in_tokens else matcher.flush():
        yield EchoPiece("text", piece)
    reason: FinishReason = "tool_calls" if has_called else "stop"
    if made >= plan.max_tokens and matcher.matched is None and stop_token is None:
        reason = "length"
    ended_s = time.perf_counter()
    yield Finished(
        reason,
        Usage(plan.prompt_tokens, made, plan.cached_tokens, reasoned),
        Timing(queued_s, first_s - started_s, ended_s - first_s),
        matcher.matched,
        stop_token,
        None if plan.prompt_token_ids is None else tuple(said),
    )


async def _step(script: EchoScript, run: EchoRun, number: int, crash: Callable[[], None]) -> None:
    await run.pause(script.delay_s if number else 0.0)
    if number == script.fail_at:
        raise script.error.with_traceback(None)
    if number == script.crash_at:
        crash()
        await run.pause(0)
