"""The echo engine's own promises: its script, its bounds and its token port."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from ganglion.core.engine import ManagedEngine, TokenEngine
from ganglion.core.errors import (
    ContextLengthExceeded,
    EngineFailed,
    GanglionError,
    InvalidValue,
    ModelLoading,
    ModelRecovering,
    Overloaded,
    ShuttingDown,
)
from ganglion.core.events import Delta, Event, Failed, Finished, Pieces, Progress, Started
from ganglion.core.fold import fold
from ganglion.core.grammar import Grammar
from ganglion.core.request import ChatPrompt, Message, Request, Stop, TokenPrompt, TokenRequest
from ganglion.engines.echo.answer import EchoScript
from ganglion.engines.echo.engine import EchoEngine, EchoSettings
from ganglion.engines.echo.vocabulary import REMEMBERED_BYTES, WordVocabulary
from support.embedded_model import kept_open


def ask(text: str = "one two three four", **changes: object) -> Request:
    prompt = ChatPrompt((Message("system", "be brief"), Message("user", text)))
    return Request(**({"id": "1", "model": "echo", "prompt": prompt} | changes))  # type: ignore[arg-type]


@asynccontextmanager
async def opened(
    settings: EchoSettings | None = None, script: EchoScript | None = None
) -> AsyncIterator[EchoEngine]:
    engine = EchoEngine(settings, script)
    async with kept_open(engine):
        yield engine


async def collect(engine: EchoEngine, request: Request) -> list[Event]:
    grammar, events = Grammar(), []
    async for event in engine.generate(request):
        grammar.feed(event)
        events.append(event)
    grammar.check_ended()
    return events


async def error_of(engine: EchoEngine, request: Request) -> GanglionError:
    last = (await collect(engine, request))[-1]
    assert isinstance(last, Failed), last
    return last.error


def test_it_is_both_kinds_of_engine() -> None:
    engine = EchoEngine()
    managed: ManagedEngine = engine
    tokens: TokenEngine = engine
    assert managed is tokens


async def test_it_says_the_last_user_message_word_by_word() -> None:
    async with opened() as engine:
        events = await collect(engine, ask("  one two\nthree "))
    deltas = [event.text for event in events if isinstance(event, Delta)]
    assert deltas == ["  one", " two", "\nthree", " "]
    answer = fold(events)
    assert answer.finished.reason == "stop"
    assert (answer.finished.usage.prompt_tokens, answer.finished.usage.completion_tokens) == (6, 4)


async def test_ids_positions_and_logprobs_are_the_same_each_time() -> None:
    answers = []
    for _ in range(2):
        async with opened() as engine:
            answers.append(fold(await collect(engine, ask(top_logprobs=2))).blocks)
    assert answers[0] == answers[1]
    tokens = answers[0][0].tokens
    assert [token.position for token in tokens] == [6, 7, 8, 9]
    assert b"".join(token.piece for token in tokens) == b"one two three four"
    assert all(token.top[0].logprob == token.logprob for token in tokens)


async def test_a_reply_and_reasoning_can_be_put_in_its_mouth() -> None:
    async with opened(script=EchoScript(reply="no", reasoning="hm well", cached_tokens=2)) as engine:
        answer = fold(await collect(engine, ask()))
        marked = fold(await collect(engine, ask(keep_markers=True)))
    assert [(block.kind, block.text) for block in answer.blocks] == [("reasoning", "hm well"), ("text", "no")]
    assert answer.finished.usage.reasoning_tokens == 2
    assert answer.finished.usage.cached_tokens == 2
    assert [(block.kind, block.text) for block in marked.blocks] == [("text", "<think>hm well</think>no")]


async def test_a_stop_string_across_words_is_found() -> None:
    async with opened() as engine:
        answer = fold(await collect(engine, ask(stop=Stop(strings=("o th", "zzz")))))
    assert answer.text("text") == "one tw"
    assert answer.finished.stop_sequence == "o th"
    assert answer.finished.usage.completion_tokens == 3


async def test_a_stop_token_ends_the_answer() -> None:
    async with opened() as engine:
        [three] = await engine.tokenize(" three", add_special=False, parse_special=False)
        answer = fold(await collect(engine, ask(stop=Stop(token_ids=(three,)))))
    assert answer.text("text") == "one two"
    assert answer.finished.reason == "stop"


async def test_an_unbounded_answer_ends_at_the_room_that_is_left() -> None:
    async with opened(EchoSettings(context=100), EchoScript(is_unbounded=True)) as engine:
        answer = fold(await collect(engine, ask()))
    assert answer.finished.reason == "length"
    assert answer.finished.usage.completion_tokens == 94


async def test_it_fails_and_crashes_where_the_script_says() -> None:
    async with opened(script=EchoScript(fail_at=2, error=Overloaded("enough"))) as engine:
        events = await collect(engine, ask())
    assert [event.text for event in events if isinstance(event, Delta)] == ["one", " two"]
    assert isinstance(events[-1], Failed)
    assert isinstance(events[-1].error, Overloaded)


async def test_a_crash_fails_every_running_request_and_recovers() -> None:
    settings = EchoSettings(allow_directives=True, recovery_s=0.05)
    async with opened(settings) as engine:
        bystander = asyncio.create_task(error_of(engine, ask("!echo delay=30\nslow words")))
        await asyncio.sleep(0.01)
        assert isinstance(await error_of(engine, ask("!echo crash_at=1\na b c")), EngineFailed)
        assert isinstance(await bystander, EngineFailed)
        assert engine.models()[0].status == "recovering"
        assert isinstance(await error_of(engine, ask()), ModelRecovering)
        await asyncio.sleep(0.1)
        assert fold(await collect(engine, ask())).text("text") == "one two three four"
        assert engine.models()[0].restarts == 1


async def test_closing_it_ends_what_runs_and_what_waits() -> None:
    async with opened(EchoSettings(parallel=1), EchoScript(delay_s=30)) as engine:
        tasks = [asyncio.create_task(error_of(engine, ask())) for _ in range(2)]
        await asyncio.sleep(0.01)
        await engine.close()
        assert [type(await task) for task in tasks] == [ShuttingDown, ShuttingDown]
        assert engine.models()[0].in_flight == 0


async def test_requests_wait_their_turn_and_too_many_are_refused() -> None:
    async with opened(EchoSettings(parallel=1, queue_limit=1), EchoScript(delay_s=0.01)) as engine:
        first, second, third = await asyncio.gather(*(collect(engine, ask()) for _ in range(3)))
    assert isinstance(first[0], Started)
    assert second[0] == Progress("queued", 0, 1)
    assert isinstance(second[-1], Finished)
    assert isinstance(third[-1], Failed)
    assert isinstance(third[-1].error, Overloaded)


async def test_the_urgent_go_first_and_the_cancelled_leave_the_queue() -> None:
    order: list[str] = []

    async def run(engine: EchoEngine, name: str, priority: int) -> None:
        await collect(engine, ask(id=name, priority=priority))
        order.append(name)

    async with opened(EchoSettings(parallel=1), EchoScript(delay_s=0.01)) as engine:
        names = [("running", 0), ("patient", 5), ("gone", 0), ("urgent", -1)]
        tasks = {name: asyncio.create_task(run(engine, name, priority)) for name, priority in names}
        await asyncio.sleep(0.005)
        assert engine.models()[0].queued == 3
        tasks.pop("gone").cancel()
        await asyncio.gather(*tasks.values())
        assert engine.models()[0].in_flight == 0
    assert order == ["running", "urgent", "patient"]


async def test_directives_are_words_like_any_other_unless_allowed() -> None:
    text = "!echo fail_at=0\nhello"
    async with opened() as engine:
        assert fold(await collect(engine, ask(text))).text("text") == text
    async with opened(EchoSettings(allow_directives=True)) as engine:
        assert isinstance(await error_of(engine, ask(text)), EngineFailed)
        assert fold(await collect(engine, ask("!echo cached_tokens=1\nhello"))).text("text") == "hello"
        for wrong in ("!echo fail_at=x", "!echo nonsense=1"):
            assert isinstance(await error_of(engine, ask(wrong)), InvalidValue)


async def test_a_prompt_that_leaves_no_room_is_refused() -> None:
    async with opened(EchoSettings(context=4)) as engine:
        assert isinstance(await error_of(engine, ask()), ContextLengthExceeded)


async def test_before_it_is_open_it_says_so() -> None:
    assert isinstance(await error_of(EchoEngine(), ask()), ModelLoading)


async def test_opening_can_be_told_to_fail() -> None:
    engine = EchoEngine(EchoSettings(open_error=EngineFailed("no")))
    with pytest.raises(EngineFailed):
        await engine.open()
    assert engine.models()[0].status == "failed"


async def test_tokens_go_in_and_come_out() -> None:
    async with opened() as engine:
        ids = await engine.tokenize("to be or", add_special=True, parse_special=True)
        events = [event async for event in engine.run(TokenRequest(id="1", tokens=ids, max_tokens=2))]
        spoken = fold(await collect(engine, ask(prompt=TokenPrompt((*ids, 7)))))
    pieces = [piece for event in events if isinstance(event, Pieces) for piece in event.pieces]
    assert [token.id for piece in pieces for token in piece.tokens] == list(ids[:2])
    assert isinstance(events[-1], Finished)
    assert events[-1].reason == "length"
    assert spoken.text("text") == "to be or <7>"


def test_words_that_clients_invent_are_forgotten_before_they_fill_the_memory() -> None:
    words = WordVocabulary()
    first = words.id_of("first")
    for number in range(300):
        words.id_of(f"{number}" + "x" * 10_000)
        assert words.text_of((words.id_of("often"),)) == "often"
    assert words.text_of((first,)) == f" <{first}>"
    assert sum(map(len, words._words_by_id.values())) <= REMEMBERED_BYTES
