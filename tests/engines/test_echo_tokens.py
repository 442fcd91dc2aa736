"""An echo as sessions meet it: readouts, steering, images, and what it remembers of token lists."""

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganglion.core.engine import ReadoutManifest
from ganglion.core.errors import ContextLengthExceeded, GanglionError, InvalidValue, ReadoutUnavailable
from ganglion.core.events import Failed, Finished, Pieces, Scored, Started, Token, TokenEvent
from ganglion.core.fold import Answer, fold
from ganglion.core.request import (
    ChatPrompt,
    ImageBlock,
    Message,
    Request,
    Score,
    Steer,
    Stop,
    TokenRequest,
)
from ganglion.engines.echo.answer import EchoScript, ScriptedCall
from ganglion.engines.echo.capacity import PrefixMemory
from ganglion.engines.echo.engine import EchoEngine, EchoSettings
from support.embedded_model import kept_open

CONCEPTS = EchoSettings(concepts=("calm", "formal"), readout_layers=(3, 5, 8))


@asynccontextmanager
async def opened(
    settings: EchoSettings = CONCEPTS, script: EchoScript | None = None
) -> AsyncIterator[EchoEngine]:
    engine = EchoEngine(settings, script)
    async with kept_open(engine):
        yield engine


async def tokens_of(engine: EchoEngine, text: str) -> tuple[int, ...]:
    return await engine.tokenize(text, add_special=False, parse_special=False)


def asked(tokens: tuple[int, ...], max_tokens: int = 0, **changes: object) -> TokenRequest:
    return TokenRequest(**({"id": "1", "tokens": tokens, "max_tokens": max_tokens} | changes))  # type: ignore[arg-type]


async def told(engine: EchoEngine, request: TokenRequest) -> list[TokenEvent]:
    return [event async for event in engine.continue_tokens("echo", request)]


async def error_of(engine: EchoEngine, request: TokenRequest) -> GanglionError:
    [failed] = await told(engine, request)
    assert isinstance(failed, Failed), failed
    return failed.error


def scored(events: list[TokenEvent]) -> dict[int, Token]:
    found = [token for event in events if isinstance(event, Scored) for token in event.tokens]
    assert [token.position for token in found] == sorted({token.position for token in found})
    return {token.position: token for token in found}


def said(events: list[TokenEvent]) -> list[Token]:
    pieces = [piece for event in events if isinstance(event, Pieces) for piece in event.pieces]
    return [token for piece in pieces for token in piece.tokens]


def cached(events: list[TokenEvent]) -> int:
    [started] = [event for event in events if isinstance(event, Started)]
    assert isinstance(events[-1], Finished)
    assert events[-1].usage.cached_tokens == started.cached_tokens
    return started.cached_tokens


async def answer(engine: EchoEngine, **changes: object) -> Answer:
    prompt = ChatPrompt((Message("user", "one two three"),))
    request = Request(**({"id": "1", "model": "echo", "prompt": prompt} | changes))  # type: ignore[arg-type]
    return fold([event async for event in engine.generate(request)])


async def test_its_concepts_are_told_of_its_model() -> None:
    async with opened() as engine:
        [state] = engine.models()
        assert state.readout == ReadoutManifest(("calm", "formal"), (3, 5, 8))
        assert "readout" in state.abilities
    [plain] = EchoEngine().models()
    assert plain.readout is None
    assert "readout" not in plain.abilities


async def test_positions_are_told_once_with_all_that_was_asked_of_them() -> None:
    async with opened() as engine:
        tokens = await tokens_of(engine, "a b c d e f")
        events = await told(
            engine, asked(tokens, 3, score=Score(((0, 3),), top=2), readout=((2, 4), (7, 8), (8, None)))
        )
    found = scored(events)
    assert set(found) == {0, 1, 2, 3}
    assert [bool(token.readout) for token in found.values()] == [False, False, True, True]
    assert [token.logprob is None for token in found.values()] == [True, False, False, True]
    assert [(token.position, len(token.readout)) for token in said(events)] == [(6, 0), (7, 6), (8, 6)]
    assert [token.id for token in found.values()] == list(tokens[:4])


async def test_steering_moves_its_concept_by_its_strength_and_nothing_else() -> None:
    async with opened() as engine:
        tokens = await tokens_of(engine, "a b")
        plain, everywhere, somewhere = [
            said(await told(engine, asked(tokens, 1, readout=((0, None),), steering=steering)))[0].readout
            for steering in (
                (),
                (Steer("formal", 0.5), Steer("formal", 0.25)),
                (Steer("calm", -2.0, (5,)),),
            )
        ]
    assert [after - before for before, after in zip(plain, everywhere, strict=True)] == [0, 0.75] * 3
    assert [after - before for before, after in zip(plain, somewhere, strict=True)] == [0, 0, -2, 0, 0, 0]


async def test_answers_are_read_whatever_their_tokens_belong_to() -> None:
    script = EchoScript(reasoning="hm well", calls=(ScriptedCall("look", "{} now"),))
    async with opened(script=script) as engine:
        read = await answer(engine, wants_readout=True)
        plain = await answer(engine)
    assert [block.kind for block in read.blocks] == ["reasoning", "text", "tool_call"]
    assert [len(token.readout) for token in read.tokens] == [6] * 7
    assert read.readout_concepts == 2
    assert not any(token.readout for token in plain.tokens)
    assert plain.readout_concepts == 0


async def test_what_cannot_be_read_or_steered_is_refused() -> None:
    async with opened() as engine:
        tokens = await tokens_of(engine, "a b")
        for steering in ((Steer("angry", 1.0),), (Steer("calm", 1.0, (4,)),)):
            error = await error_of(engine, asked(tokens, 1, steering=steering))
            assert isinstance(error, InvalidValue)
            assert error.param == "steering"
    async with opened(EchoSettings()) as engine:
        tokens = await tokens_of(engine, "a b")
        assert isinstance(await error_of(engine, asked(tokens, 1, readout=((0, None),))), ReadoutUnavailable)
        assert isinstance(await error_of(engine, asked(tokens, 1, steering=(Steer("x", 1.0),))), InvalidValue)
        with pytest.raises(ReadoutUnavailable):
            await answer(engine, wants_readout=True)


async def test_images_are_no_words_and_hold_their_places() -> None:
    async with opened() as engine:
        before, after = await tokens_of(engine, "look"), await tokens_of(engine, " here")
        tokens = (*before, -1, -1, *after)
        block = ImageBlock(1, 2, "digest")
        request = asked(tokens, 9, images=(block,), score=Score(((0, None),)), readout=((0, None),))
        events = await told(engine, request)
        assert isinstance(await error_of(engine, asked(tokens, 9)), InvalidValue)
    assert [(token.id, token.position) for token in said(events)] == [(before[0], 4), (after[0], 5)]
    assert set(scored(events)) == {0, 3}
    assert isinstance(events[-1], Finished)
    assert events[-1].usage.prompt_tokens == 4


async def test_tokens_are_told_alone_without_text_the_one_that_ends_included() -> None:
    async with opened() as engine:
        tokens = await tokens_of(engine, "a b c d")
        stop = Stop(token_ids=(tokens[2],))
        events = await told(engine, asked(tokens, 9, in_tokens=True, stop=stop))
        by_text = await told(engine, asked(tokens, 9, in_tokens=True, stop=Stop(strings=("b c", "d"))))
    assert [token.id for token in said(by_text)] == list(tokens[:3])
    assert isinstance(by_text[-1], Finished) and by_text[-1].stop_sequence == "b c"
    assert [token.id for token in said(events)] == list(tokens[:3])
    pieces = [piece for event in events if isinstance(event, Pieces) for piece in event.pieces]
    assert [(piece.text, len(piece.tokens)) for piece in pieces] == [("", 1)] * 3
    assert isinstance(events[-1], Finished)
    assert (events[-1].reason, events[-1].usage.completion_tokens) == ("stop", 3)


async def test_a_list_without_room_or_without_tokens_is_refused() -> None:
    async with opened(EchoSettings(context=4)) as engine:
        tokens = await tokens_of(engine, "a b c d")
        assert isinstance(await error_of(engine, asked(tokens, 1)), ContextLengthExceeded)
        assert isinstance((await told(engine, asked(tokens, 0)))[-1], Finished)
        assert isinstance(await error_of(engine, asked(())), InvalidValue)
        assert len(said(await told(engine, asked(tokens[:2], 9)))) == 2


async def test_what_it_has_run_is_cached_for_the_same_salt_alone() -> None:
    async with opened() as engine:
        tokens = await tokens_of(engine, "a b c d")
        first = await told(engine, asked(tokens, 2, salt="mine", in_tokens=True))
        grown = (*tokens, *(token.id for token in said(first)), 7)
        assert cached(first) == 0
        # The token that was sampled last has not been run.
        assert cached(await told(engine, asked(grown, salt="mine"))) == 5
        assert cached(await told(engine, asked(grown, salt="mine"))) == 6, "the last one runs again"
        assert cached(await told(engine, asked(grown, salt="theirs"))) == 0
        branch = (*tokens[:3], 99, 98)
        assert cached(await told(engine, asked(branch, salt="mine"))) == 3
        assert cached(await told(engine, asked(grown, salt="mine", score=Score(((4, 5),))))) == 3
        assert cached(await told(engine, asked(grown, salt="mine", readout=((4, 5),)))) == 4
        assert (await answer(engine)).finished.usage.cached_tokens == 0, "chat says what its script says"
        engine.crash()
        await engine.open()
        assert cached(await told(engine, asked(grown, salt="mine"))) == 0


async def test_a_call_that_is_closed_leaves_what_it_ran() -> None:
    async with opened() as engine:
        tokens = await tokens_of(engine, "a b c d")
        request = asked(tokens, 100, in_tokens=True, stop=Stop(ignore_eos=True))
        heard = []
        async with aclosing(engine.continue_tokens("echo", request)) as events:
            async for event in events:
                if isinstance(event, Pieces):
                    heard += [token.id for piece in event.pieces for token in piece.tokens]
                if len(heard) == 6:
                    break
        assert engine.models()[0].in_flight == 0
        assert cached(await told(engine, asked((*tokens, *heard, 7)))) == len(tokens) + 5


lists = st.lists(st.integers(0, 2), max_size=8).map(tuple)


@given(st.lists(lists, max_size=20), lists)
def test_the_longest_common_prefix_is_found(kept: list[tuple[int, ...]], wanted: tuple[int, ...]) -> None:
    memory = PrefixMemory()
    for each in kept:
        memory.keep("salt", each)
    shared = [
        next((place for place, (a, b) in enumerate(zip(each, wanted, strict=False)) if a != b), None)
        for each in kept
    ]
    lengths = [
        min(len(each), len(wanted)) if place is None else place
        for each, place in zip(kept, shared, strict=True)
    ]
    assert memory.common("salt", wanted) == max(lengths, default=0)
    assert memory.common("other", wanted) == 0


def test_the_memory_is_bounded_and_the_oldest_make_room() -> None:
    memory = PrefixMemory(max_tokens=100)
    for number in range(50):
        memory.keep("a" if number % 2 else "b", tuple(range(number, number + 20)))
        assert len(memory) <= 100
    assert memory.common("a", tuple(range(49, 69))) == 20
    assert memory.common("a", tuple(range(1, 21))) == 0
    memory.keep("a", tuple(range(1000)))
    assert memory.common("a", tuple(range(1000))) == 0
    memory.clear()
    assert len(memory) == 0
