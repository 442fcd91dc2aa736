"""What every engine owes its callers; to add an engine, write its factory and list it in ENGINES."""

import asyncio
from array import array
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass
from operator import mul
from pathlib import Path

import pytest
import pytest_asyncio

from ganglion.core.engine import (
    Embedder,
    EmbedRequest,
    ManagedEngine,
    PromptReader,
    RankRequest,
    SessionEngine,
)
from ganglion.core.errors import ContextLengthExceeded, InvalidValue, ModelNotFound
from ganglion.core.events import (
    Delta,
    Event,
    Failed,
    Finished,
    Opened,
    Pieces,
    Progress,
    Scored,
    Started,
    Token,
    TokenEvent,
)
from ganglion.core.fold import fold
from ganglion.core.grammar import Grammar
from ganglion.core.request import ChatPrompt, Message, Request, Score, Stop, TextPrompt, TokenRequest
from ganglion.core.sampling import ResolvedSampling, Sampling
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")


@dataclass(frozen=True)
class Subject:
    """An open engine under test; its answer to QUESTION at temperature 0 is some dozens of tokens long."""

    engine: ManagedEngine
    model: str
    block: int = 1
    """Cached prefixes are found in steps of so many tokens."""
    has_vectors: bool = True
    """Whether it also makes vectors with a model that generates."""

    def ask(self, text: str = "", **changes: object) -> Request:
        """A request that this engine answers the same way each time."""
        asked = {
            "id": "contract",
            "model": self.model,
            "prompt": ChatPrompt((Message("user", text or QUESTION),)),
            "sampling": Sampling(temperature=0.0),
            "max_tokens": 48,
            "stop": Stop(),
        }
        return Request(**(asked | changes))  # type: ignore[arg-type]

    async def tokens(self, text: str = "") -> tuple[int, ...]:
        """A text as this model reads it."""
        assert isinstance(self.engine, PromptReader)
        return (await self.engine.read(self.ask(prompt=TextPrompt(text or STORY)))).tokens

    async def go_on(self, tokens: tuple[int, ...], **changes: object) -> list[TokenEvent]:
        """All that is told while a token list is continued, token by token."""
        assert isinstance(self.engine, SessionEngine)
        return [event async for event in self.engine.continue_tokens(self.model, going_on(tokens, **changes))]

    async def answer(self, request: Request) -> list[Event]:
        """All events of one answer, each checked against the grammar."""
        return await checked(self.engine.generate(request))


QUESTION = (
    "Count from one to twenty in words: one two three four five six seven eight nine ten eleven twelve."
)

STORY = "Once upon a time there was a little girl who lived in a small house near the"
"""What no engine under test ends within 8 tokens."""


def going_on(tokens: tuple[int, ...], **changes: object) -> TokenRequest:
    """A token list to continue by 8 tokens, always the same ones."""
    asked = {
        "id": "contract",
        "tokens": tokens,
        "max_tokens": 8,
        "sampling": ResolvedSampling(temperature=0.0),
        "in_tokens": True,
        "salt": "contract",
    }
    return TokenRequest(**(asked | changes))  # type: ignore[arg-type]


async def checked(stream: AsyncGenerator[Event, None]) -> list[Event]:
    """Collect a whole stream; raises GrammarError where it breaks the law."""
    grammar, events = Grammar(), []
    async for event in stream:
        grammar.feed(event)
        events.append(event)
    grammar.check_ended()
    return events


@asynccontextmanager
async def echo() -> AsyncIterator[Subject]:
    from ganglion.engines.echo.engine import EchoEngine, EchoSettings

    engine = EchoEngine(EchoSettings(model_id="echo", aliases=("parrot",)))
    await engine.open()
    try:
        yield Subject(engine, "echo")
    finally:
        await engine.close()


@asynccontextmanager
async def residents() -> AsyncIterator[Subject]:
    from ganglion.engines.echo.engine import EchoEngine, EchoSettings
    from ganglion.registry.loading.candidate import Candidate, build_without_options
    from ganglion.registry.loading.residency import Residency

    first, second = (EchoEngine(EchoSettings(model_id=name)) for name in ("first", "second"))
    candidates = [
        Candidate("first", build_without_options(lambda: first)),
        Candidate("second", build_without_options(lambda: second)),
    ]
    engine = Residency(candidates, free_bytes=lambda: 0)
    await engine.open()
    try:
        yield Subject(engine, "second")
    finally:
        await engine.close()


@asynccontextmanager
async def llama() -> AsyncIterator[Subject]:
    from ganglion.core.model import ModelFacts
    from ganglion.registry.files.gguf import read_facts
    from ganglion.registry.hub.embedded import SMOLLM2, find

    module = pytest.importorskip("ganglion.engines.llama.engine")
    settings = pytest.importorskip("ganglion.engines.settings")
    found = find(SMOLLM2, Path("nowhere"))
    if found is None:
        pytest.skip("the embedded model is not installed")
    facts: ModelFacts = read_facts(found.path)
    engine: ManagedEngine = module.LlamaEngine(
        facts, settings.EngineSettings(model_id="smollm2", context=2048)
    )
    await engine.open()
    try:
        yield Subject(engine, "smollm2")
    finally:
        await engine.close()


@asynccontextmanager
async def vllm() -> AsyncIterator[Subject]:
    from support.vllm_node import vllm_engine

    async with vllm_engine() as engine:
        yield Subject(engine, "smollm2", block=32, has_vectors=False)


VLLM_MARKS = [pytest.mark.model, pytest.mark.vllm, pytest.mark.timeout(600)]
Factory = Callable[[], AbstractAsyncContextManager[Subject]]
ENGINES = [
    pytest.param(echo, id="echo"),
    pytest.param(residents, id="residents"),
    pytest.param(llama, id="llama", marks=pytest.mark.model),
    pytest.param(vllm, id="vllm", marks=VLLM_MARKS),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=ENGINES)
async def subject(request: pytest.FixtureRequest) -> AsyncIterator[Subject]:
    factory: Factory = request.param
    async with factory() as opened:
        yield opened


def text_of(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Delta))


def finish_of(events: list[Event]) -> Finished:
    assert isinstance(events[-1], Finished), events[-1]
    return events[-1]


async def is_idle(subject: Subject, within_s: float = 2.0) -> bool:
    await until(
        lambda: not any(state.in_flight or state.queued for state in subject.engine.models()), within_s
    )
    return True


async def test_an_ordinary_answer_starts_speaks_and_finishes(subject: Subject) -> None:
    events = await subject.answer(subject.ask())
    assert text_of(events)
    assert any(isinstance(event, Started) for event in events)
    assert finish_of(events).reason in ("stop", "length")


async def test_the_fold_is_the_deltas_put_together(subject: Subject) -> None:
    events = await subject.answer(subject.ask())
    assert "".join(block.text for block in fold(events).blocks) == text_of(events)


async def test_usage_agrees_with_the_stream(subject: Subject) -> None:
    events = await subject.answer(subject.ask(max_tokens=12))
    [started] = [event for event in events if isinstance(event, Started)]
    usage = finish_of(events).usage
    told = sum(len(event.tokens) for event in events if isinstance(event, Delta))
    assert usage.prompt_tokens == started.prompt_tokens > 0
    assert usage.cached_tokens == started.cached_tokens <= usage.prompt_tokens
    assert told <= usage.completion_tokens <= 12
    assert usage.reasoning_tokens <= usage.completion_tokens


async def test_hitting_max_tokens_is_length(subject: Subject) -> None:
    finished = finish_of(await subject.answer(subject.ask(max_tokens=3)))
    assert (finished.reason, finished.usage.completion_tokens) == ("length", 3)


async def test_the_same_question_gets_the_same_answer(subject: Subject) -> None:
    first, second = [text_of(await subject.answer(subject.ask())) for _ in range(2)]
    assert first == second


async def test_a_stop_string_ends_the_answer_and_is_not_shown(subject: Subject) -> None:
    whole = text_of(await subject.answer(subject.ask()))
    # Across a word's border, so that no single token is the stop string.
    stop = whole[len(whole) // 2 : len(whole) // 2 + 5]
    events = await subject.answer(subject.ask(stop=Stop(strings=(stop, "never said"))))
    assert text_of(events) == whole[: whole.index(stop)]
    assert finish_of(events).reason == "stop"
    assert finish_of(events).stop_sequence == stop


async def test_logprobs_come_only_when_asked_for(subject: Subject) -> None:
    plain = await subject.answer(subject.ask(max_tokens=4))
    asked = await subject.answer(subject.ask(max_tokens=4, top_logprobs=3))
    tokens = [token for event in asked if isinstance(event, Delta) for token in event.tokens]
    assert tokens
    assert all(token.logprob is not None and token.logprob <= 0 for token in tokens)
    assert all(len(token.top) == 3 for token in tokens)
    assert all(
        token.logprob is None and not token.top
        for event in plain
        if isinstance(event, Delta)
        for token in event.tokens
    )


async def test_closing_the_stream_cancels_the_answer(subject: Subject) -> None:
    endless = subject.ask(max_tokens=2000, stop=Stop(ignore_eos=True))
    async with aclosing(subject.engine.generate(endless)) as events:
        async for event in events:
            if isinstance(event, Delta):
                break
        assert any(state.in_flight for state in subject.engine.models())
    assert await is_idle(subject)


async def test_closing_an_unread_stream_holds_nothing(subject: Subject) -> None:
    stream = subject.engine.generate(subject.ask())
    await stream.aclose()
    assert await is_idle(subject)


async def test_an_empty_message_is_answered_or_refused_by_the_grammar(subject: Subject) -> None:
    events = await subject.answer(subject.ask(prompt=ChatPrompt((Message("user", ""),)), max_tokens=4))
    assert isinstance(events[-1], Finished)


async def test_plain_text_is_continued(subject: Subject) -> None:
    events = await subject.answer(subject.ask(prompt=TextPrompt("Once upon a time"), max_tokens=4))
    assert text_of(events)


async def test_sixteen_at_once_are_all_answered(subject: Subject) -> None:
    requests = [subject.ask(f"Say the number {number} please.", max_tokens=8) for number in range(16)]
    answers = await asyncio.gather(*(checked(subject.engine.generate(request)) for request in requests))
    assert all(isinstance(events[-1], Finished) for events in answers)
    assert all(any(isinstance(event, Opened) for event in events) for events in answers)
    assert await is_idle(subject)


async def test_an_unknown_model_fails_before_anything_starts(subject: Subject) -> None:
    events = await subject.answer(subject.ask(model="no-such-model"))
    [failed] = events
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, ModelNotFound)


async def test_its_models_are_listed_as_loaded(subject: Subject) -> None:
    states = {state.id: state for state in subject.engine.models()}
    assert states[subject.model].status == "loaded"
    assert states[subject.model].context_length > 0


async def test_a_prompt_is_read_without_being_answered(subject: Subject) -> None:
    reader = subject.engine
    assert isinstance(reader, PromptReader)
    read = await reader.read(subject.ask())
    assert read.text is not None
    assert await reader.detokenize(subject.model, read.tokens) == read.text
    assert b"".join(await reader.pieces(subject.model, read.tokens)).decode() == read.text
    info = await reader.tokenizer_info(subject.model)
    assert max(read.tokens) < info.vocabulary_size


async def test_a_prompt_is_scored_at_the_positions_asked_for(subject: Subject) -> None:
    request = subject.ask(
        prompt=TextPrompt(QUESTION), score=Score(((0, 3), (2, 6), (9, None)), top=2), max_tokens=0
    )
    answer = fold(await subject.answer(request))
    length = answer.finished.usage.prompt_tokens
    assert [token.position for token in answer.scored] == [*range(6), *range(9, length)]
    assert answer.scored[0].logprob is None
    assert all(token.logprob is not None and token.logprob <= 0 for token in answer.scored[1:])
    assert all(len(token.top) == 2 for token in answer.scored[1:])
    assert answer.finished.usage.completion_tokens == 0
    assert (answer.blocks, answer.finished.reason) == ((), "length")


async def test_inputs_become_vectors_and_documents_are_ranked(subject: Subject) -> None:
    embedder = subject.engine
    assert isinstance(embedder, Embedder)
    inputs = (TextPrompt("red green"), TextPrompt("red green"), TextPrompt("something else"))
    request = EmbedRequest("e", subject.model, inputs)
    if not subject.has_vectors:
        with pytest.raises(InvalidValue, match="makes no vectors"):
            await embedder.embed(request)
        return
    embedded = await embedder.embed(request)
    first, second, third = (array("f", vector) for vector in embedded.vectors)
    assert len(first) == len(third)
    assert sum(map(mul, first, first)) == pytest.approx(1.0, abs=1e-3)
    assert sum(map(mul, first, second)) > sum(map(mul, first, third))
    ranked = await embedder.rank(RankRequest("r", subject.model, "red green", ("blue", "red green")))
    assert ranked.scores[1] > ranked.scores[0]
    with pytest.raises(ModelNotFound):
        await embedder.embed(EmbedRequest("e", "nobody", inputs))


def told(events: list[TokenEvent]) -> list[Token]:
    """The tokens that were generated, each told in a piece of its own without text."""
    pieces = [piece for event in events if isinstance(event, Pieces) for piece in event.pieces]
    assert all(not piece.text and len(piece.tokens) == 1 for piece in pieces)
    return [token for piece in pieces for token in piece.tokens]


def ended(events: list[TokenEvent]) -> Finished:
    assert isinstance(events[-1], Finished), events[-1]
    return events[-1]


async def test_a_token_list_is_continued_in_order_and_every_token_is_told(subject: Subject) -> None:
    tokens = await subject.tokens()
    events = await subject.go_on(tokens, top_logprobs=2)
    found, usage = told(events), ended(events).usage
    assert [token.position for token in found] == [*range(len(tokens), len(tokens) + len(found))]
    assert (usage.prompt_tokens, usage.completion_tokens) == (len(tokens), len(found))
    assert all(token.logprob is not None and len(token.top) == 2 for token in found)
    assert (ended(events).reason, len(found)) == ("length", 8)


async def test_a_token_stream_keeps_to_its_grammar(subject: Subject) -> None:
    tokens = await subject.tokens("Grammar. " + STORY)
    events = await subject.go_on(tokens, score=Score(((0, 4),)))
    order = [type(event) for event in events if not isinstance(event, Progress)]
    assert order[0] is Started
    assert order[-1] is Finished
    spoken = [kind for kind in order[1:-1] if kind is Pieces]
    scores = [kind for kind in order[1:-1] if kind is Scored]
    assert order == [Started, *scores, *spoken, Finished]
    assert scores
    assert spoken


async def test_the_token_that_ends_is_told_and_counted(subject: Subject) -> None:
    tokens = await subject.tokens()
    third = told(await subject.go_on(tokens))[2]
    before = [token.id for token in told(await subject.go_on(tokens))[:2]]
    assert third.id not in before
    events = await subject.go_on(tokens, stop=Stop(token_ids=(third.id,)))
    assert [token.id for token in told(events)] == [*before, third.id]
    assert (ended(events).reason, ended(events).usage.completion_tokens) == ("stop", 3)


async def test_a_stop_text_ends_a_continuation_whose_tokens_are_all_told(subject: Subject) -> None:
    tokens = await subject.tokens()
    free = told(await subject.go_on(tokens))
    said = b"".join(token.piece for token in free[2:4]).decode()
    events = await subject.go_on(tokens, stop=Stop(strings=("never said", said[1:-1])))
    stopped = told(events)
    assert [token.id for token in stopped] == [token.id for token in free[: len(stopped)]]
    assert 0 < len(stopped) <= 4
    assert (ended(events).reason, ended(events).stop_sequence) == ("stop", said[1:-1])
    assert ended(events).usage.completion_tokens == len(stopped)


async def test_reading_alone_generates_nothing_and_is_remembered(subject: Subject) -> None:
    tokens = await subject.tokens("Remembered once. " + 3 * STORY)
    first = await subject.go_on(tokens, max_tokens=0)
    assert (told(first), ended(first).usage.completion_tokens) == ([], 0)
    grown = (*tokens, *await subject.tokens(" And more of it."))
    kept = (len(tokens) - 1) // subject.block * subject.block
    assert ended(await subject.go_on(grown)).usage.cached_tokens >= kept > 0
    assert ended(await subject.go_on(grown, salt="another")).usage.cached_tokens == 0


async def test_closing_a_continuation_cancels_it(subject: Subject) -> None:
    tokens = await subject.tokens()
    assert isinstance(subject.engine, SessionEngine)
    endless = going_on(tokens, max_tokens=1500, stop=Stop(ignore_eos=True))
    async with aclosing(subject.engine.continue_tokens(subject.model, endless)) as events:
        async for event in events:
            if isinstance(event, Pieces):
                break
        assert any(state.in_flight for state in subject.engine.models())
    assert await is_idle(subject)


async def test_token_lists_that_cannot_be_continued_are_refused(subject: Subject) -> None:
    engine = subject.engine
    assert isinstance(engine, SessionEngine)
    tokens = await subject.tokens()
    [failed] = [event async for event in engine.continue_tokens("no-such-model", going_on(tokens))]
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, ModelNotFound)
    context = {state.id: state for state in engine.models()}[subject.model].context_length
    for wrong, kind in (((), InvalidValue), (tokens[:1] * (context + 1), ContextLengthExceeded)):
        [refused] = await subject.go_on(wrong)
        assert isinstance(refused, Failed)
        assert isinstance(refused.error, kind)
    for call in (
        engine.save_kv("no-such-model", "", tokens),
        engine.load_kv("no-such-model", "", tokens, b""),
        engine.place_image("no-such-model", b"x", "image/png"),
    ):
        with pytest.raises(ModelNotFound):
            await call
    assert await engine.load_kv(subject.model, "contract", tokens, b"not what was saved") == 0
