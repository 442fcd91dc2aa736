"""One answer of an echo: decided before it begins, and said word by word."""

import asyncio
import itertools
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from ganglion.core.errors import GanglionError
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
from ganglion.core.request import ResolvedSampling, Stop
from ganglion.engines.echo_concepts import Reader
from ganglion.engines.echo_script import Call, Script
from ganglion.engines.echo_words import Words, split
from ganglion.text.stops import StopMatcher

Block = Literal["text", "reasoning"] | Call
"""What a word belongs to; a call is its own block each time it stands in a script."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One answer, decided before it begins."""

    script: Script
    words: Iterator[tuple[Block, str]]
    prompt_tokens: int
    max_tokens: int
    stop: Stop
    top_logprobs: int | None
    priority: int
    reader: Reader
    cached_tokens: int
    scored: tuple[Token, ...] = ()
    in_tokens: bool = False
    readout_concepts: int = 0
    prompt_token_ids: tuple[int, ...] | None = None
    """The prompt, where somebody wants to hear of tokens."""
    sampling: ResolvedSampling | None = None


@dataclass(frozen=True, slots=True)
class Said:
    """Text that no stop string can take back, with the tokens that end in it."""

    block: Block
    piece: Piece


class Run:
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


def words_of(text: str, script: Script) -> Iterator[tuple[Block, str]]:
    """All that a script says where the text is what it would repeat."""
    reply = split(text if script.reply is None else script.reply)
    thoughts: list[tuple[Block, str]] = [("reasoning", word) for word in split(script.reasoning)]
    spoken: list[tuple[Block, str]] = [("text", word) for word in reply]
    called: list[tuple[Block, str]] = [
        (call, word) for call in script.calls for word in split(call.arguments)
    ]
    if not script.is_unbounded:
        return iter(thoughts + spoken + called)
    return itertools.chain(thoughts, itertools.cycle(spoken or [("text", " echo")]))


def opened(index: int, block: Block) -> Opened:
    """How a block begins."""
    if isinstance(block, Call):
        return Opened(index, "tool_call", f"call_{uuid.uuid4().hex[:24]}", block.name)
    return Opened(index, block)


async def say(
    plan: Plan, run: Run, words: Words, queued_s: float, crash: Callable[[], None]
) -> AsyncGenerator[Started | Scored | Said | Finished, None]:
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
        told = words.told(words.id_of(word), plan.prompt_tokens + made, plan.top_logprobs)
        token = plan.reader.read(told)
        made += 1
        said.append(token.id)
        reasoned += block == "reasoning"
        if plan.in_tokens:
            yield Said("text", Piece("", (token,)))
        if token.id in plan.stop.token_ids:
            stop_token = token.id
            break
        if block != "text" and not plan.in_tokens:
            for piece in matcher.flush():
                yield Said("text", piece)
            has_called = has_called or isinstance(block, Call)
            yield Said(block, Piece(word, (token,)))
            continue
        shown = matcher.feed((Piece(word, (token,)),))
        for piece in () if plan.in_tokens else shown:  # to whom every token is told, the text is not
            yield Said(block, piece)
        if matcher.matched is not None:
            break
    for piece in () if plan.in_tokens else matcher.flush():
        yield Said("text", piece)
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


async def _step(script: Script, run: Run, number: int, crash: Callable[[], None]) -> None:
    await run.pause(script.delay_s if number else 0.0)
    if number == script.fail_at:
        raise script.error.with_traceback(None)
    if number == script.crash_at:
        crash()
        await run.pause(0)
