"""run(): the whole conversation every time, and only what is new on the wire."""

import asyncio
from collections.abc import Sequence

import pytest
from both import KINDS, AnySession, Kind, client_of, done, every, some
from hypothesis import given, settings
from hypothesis import strategies as st

from ganglion.client import (
    Chunk,
    Disconnected,
    Done,
    GanglionError,
    Image,
    ImageAppended,
    SessionDivergence,
    TokenEvent,
)
from ganglion.client.fake import FakeNode, RecordedCall
from ganglion.client.fake_sessions import IMAGE_POSITIONS
from ganglion.core.errors import (
    ContextLengthExceeded,
    EngineFailed,
    InvalidValue,
    Overloaded,
    RateLimited,
    VisionUnsupported,
)
from ganglion.core.request import PLACEHOLDER
from ganglion.wire.salience import salience_pb2 as pb
from support.examples import examples

CHUNKS = st.one_of(
    st.text("ab c", max_size=6),
    st.lists(st.integers(3, 9), max_size=3).map(tuple),
    st.sampled_from([Image(b"cat"), Image(b"dog")]),
)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["grow", "leave", "fail", "restart", "short", "merge", "straddle", "differ", "swap"]),
        st.lists(CHUNKS, max_size=3),
        st.integers(0, 4),
    ),
    max_size=8,
)


def tokens_of(node: FakeNode, chunks: Sequence[Chunk]) -> tuple[int, ...]:
    """What a server holds that was given these chunks."""
    tokens: list[int] = []
    for chunk in chunks:
        if isinstance(chunk, Image):
            tokens += [PLACEHOLDER] * IMAGE_POSITIONS
        elif isinstance(chunk, str):
            tokens += node.sessions.vocabulary.tokens(chunk, add_special=not tokens, parse_special=True)
        else:
            tokens += chunk
    return tuple(tokens)


def expected_divergence(node: FakeNode, held: list[Chunk], chunks: list[Chunk]) -> str | None:
    """Why chunks are no continuation of those that are held, found out the slow way."""
    committed = tokens_of(node, held)
    spans = {}
    for count in range(len(held)):
        spans[len(tokens_of(node, held[:count])), held[count]] = len(tokens_of(node, held[: count + 1]))
    position = 0
    for chunk in chunks:
        if position == len(committed):
            return None
        if isinstance(chunk, str | Image):
            if (position, chunk) not in spans:
                return "unknown"
            position = spans[position, chunk]
        else:
            if position + len(chunk) > len(committed):
                return "straddles"
            if committed[position : position + len(chunk)] != tuple(chunk):
                return "differs"
            position += len(chunk)
    return "short" if position < len(committed) else None


def bent(how: str, held: list[Chunk], more: list[Chunk]) -> list[Chunk]:
    """Chunks that may have stopped to be what was said before."""
    match how:
        case "short":
            return held[:-1]
        case "merge":
            return ["".join(chunk for chunk in held if isinstance(chunk, str)), *more]
        case "straddle":
            last = held[-1] if held and isinstance(held[-1], tuple) else ()
            return [*held[:-1], (*last, 3, 4), *more]
        case "differ":
            return [
                tuple(token + 1 for token in chunk) if isinstance(chunk, tuple) else chunk for chunk in held
            ] + more
        case _:
            return [*reversed(held), *more]


def appended(call: RecordedCall) -> Sequence[int]:
    """The tokens that a call to Generate brought."""
    assert isinstance(call.request, pb.GenerateRequest)
    return call.request.append_tokens


class Talk:
    """A conversation, and what the node must hold of it."""

    def __init__(self, node: FakeNode, session: AnySession) -> None:
        self.node = node
        self.session = session
        self.held: list[Chunk] = []
        self.is_settled = True

    async def grow(self, more: list[Chunk], max_tokens: int) -> None:
        chunks = [*self.held, *more]
        before, calls = self.session.length, len(self.node.calls)
        events = await every(self.session.run(chunks, max_tokens=max_tokens))
        told = tuple(event.id for event in events if isinstance(event, TokenEvent))
        assert isinstance(events[-1], Done)
        assert [event.placeholder_count for event in events if isinstance(event, ImageAppended)] == [
            IMAGE_POSITIONS for chunk in self._rest(chunks, before) if isinstance(chunk, Image)
        ]
        if self.is_settled:
            sent = [appended(call) for call in self.node.calls[calls:] if call.rpc == "Generate"]
            new = tokens_of(self.node, chunks)[before:]
            assert sum(map(len, sent)) == len([token for token in new if token != PLACEHOLDER])
        self.held = [*chunks, told]
        self.is_settled = True
        assert self.session.tokens == tokens_of(self.node, self.held)
        assert self.node.tokens(self.session.id) == self.session.tokens

    async def leave(self, more: list[Chunk], count: int) -> None:
        generation = self.session.run([*self.held, *more], max_tokens=4)
        images = sum(
            isinstance(chunk, Image) for chunk in self._rest([*self.held, *more], self.session.length)
        )
        events = await some(generation, images + count + 1)
        await done(generation.close())  # type: ignore[func-returns-value]
        told = tuple(event.id for event in events if isinstance(event, TokenEvent))
        self.held = [*self.held, *more, told]
        self.is_settled = False
        assert self.session.tokens == tokens_of(self.node, self.held)

    async def fail(self, more: list[Chunk], after: int, error: GanglionError) -> None:
        self.node.fail_next(error, rpc="Generate", after=after)
        with pytest.raises(type(error)):
            await every(self.session.run([*self.held, *more], max_tokens=4))
        assert self.session.length == 0 and self.session.id is None
        self.is_settled = True

    async def restart(self, more: list[Chunk]) -> None:
        self.node.restart()
        chunks, is_forgotten = [*self.held, *more], self.session.id is not None
        sent = chunks if is_forgotten else self._rest(chunks, self.session.length)
        events = await every(self.session.run(chunks, max_tokens=1))
        assert sum(isinstance(event, ImageAppended) for event in events) == sum(
            isinstance(chunk, Image) for chunk in sent
        )
        self.held = [*chunks, tuple(event.id for event in events if isinstance(event, TokenEvent))]
        self.is_settled = True
        assert self.node.tokens(self.session.id) == self.session.tokens == tokens_of(self.node, self.held)

    async def bend(self, chunks: list[Chunk], max_tokens: int) -> None:
        reason = expected_divergence(self.node, self.held, chunks)
        if self.session.length == 0 or reason is None:
            return
        before = (self.session.tokens, self.node.tokens(self.session.id), len(self.node.calls))
        with pytest.raises(SessionDivergence) as caught:
            await every(self.session.run(chunks, max_tokens=max_tokens))
        assert caught.value.reason == reason
        assert before == (self.session.tokens, self.node.tokens(self.session.id), len(self.node.calls))

    def _rest(self, chunks: list[Chunk], committed: int) -> list[Chunk]:
        position = 0
        for number, chunk in enumerate(chunks):
            if position == committed:
                return chunks[number:]
            position = len(tokens_of(self.node, [*chunks[:number], chunk]))
        return []


async def talk(kind: Kind, steps: list[tuple[str, list[Chunk], int]]) -> None:
    node = FakeNode(runs_ahead=2)
    session = client_of(node, kind).session("fake")
    conversation = Talk(node, session)
    for what, chunks, count in steps:
        match what:
            case "grow":
                await conversation.grow(chunks, count)
            case "leave":
                await conversation.leave(chunks, count)
            case "fail":
                await conversation.fail(chunks, count % 2, EngineFailed("The engine died."))
            case "restart":
                await conversation.restart(chunks)
            case _:
                await conversation.bend(bent(what, conversation.held, chunks), count)
    await conversation.grow([], 1)


@pytest.mark.parametrize("kind", KINDS)
def test_the_server_holds_the_chunks_whatever_happened_and_only_the_rest_is_sent(kind: Kind) -> None:
    @settings(max_examples=examples(80))
    @given(STEPS)
    def holds(steps: list[tuple[str, list[Chunk], int]]) -> None:
        asyncio.run(talk(kind, steps))

    holds()


@pytest.mark.parametrize("kind", KINDS)
async def test_each_way_to_diverge_says_what_and_where(kind: Kind) -> None:
    node = FakeNode()
    session = client_of(node, kind).session("fake")
    first = await done(session.run(["one two", " three"], max_tokens=2).result())
    assert session.length == 6
    cases: list[tuple[list[Chunk], str, int, int]] = [
        (["one two", first.tokens], "differs", 1, 3),
        (["one", " two three"], "unknown", 0, 0),
        (["one two", " three", (*first.tokens, 7)], "straddles", 2, 4),
        (["one two", " three"], "short", 2, 4),
        ([], "short", 0, 0),
        (["one two", Image(b"cat")], "unknown", 1, 3),
    ]
    for chunks, reason, chunk, position in cases:
        with pytest.raises(SessionDivergence) as caught:
            await done(session.run(chunks).result())
        error = caught.value
        assert (error.reason, error.chunk, error.position, error.committed) == (reason, chunk, position, 6)
    await done(session.truncate(4))
    assert (await done(session.run(["one two", " three"], max_tokens=1).result())).tokens == first.tokens[:1]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_text_that_was_cut_in_two_straddles_until_something_else_follows(kind: Kind) -> None:
    session = client_of(FakeNode(), kind).session("fake")
    await done(session.append("one two three"))
    await done(session.truncate(2))
    with pytest.raises(SessionDivergence) as caught:
        await done(session.run(["one two three"]).result())
    assert caught.value.reason == "straddles"
    await done(session.append([5, 6]))
    with pytest.raises(SessionDivergence) as caught:
        await done(session.run(["one two three"]).result())
    assert caught.value.reason == "unknown"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_node_that_restarts_under_an_answer_is_said_and_the_next_run_sends_everything(
    kind: Kind,
) -> None:
    node = FakeNode()
    session = client_of(node, kind).session("fake")
    generation = session.run(["one two"], max_tokens=4)
    await some(generation, 2)
    node.restart()
    with pytest.raises(Disconnected):
        await every(generation)
    assert session.length == 0
    await done(session.run(["one two", " three"], max_tokens=1).result())
    assert node.tokens(session.id) == session.tokens
    sent = [list(appended(call)) for call in node.calls if call.rpc == "Generate"]
    assert len(sent[-1]) == 4


@pytest.mark.parametrize("kind", KINDS)
async def test_a_refused_image_and_any_other_refusal_leave_the_session_as_it_was(kind: Kind) -> None:
    node = FakeNode()
    session = client_of(node, kind).session("fake")
    first = await done(session.run(["one two"], max_tokens=2).result())
    before, session_id = session.tokens, session.id
    chunks: list[Chunk] = ["one two", first.tokens, " three", Image(b"cat"), " four", Image(b"dog")]
    for error, after in (
        (VisionUnsupported("No images."), 0),
        (InvalidValue("No image.", param="data"), 1),
        (RateLimited("Later."), 1),
        (Overloaded("Too many images wait to be decoded."), 1),
    ):
        for _ in range(after):
            node.fail_next(Disconnected("never comes"), rpc="AppendImage", after=9)
        node.fail_next(error, rpc="AppendImage")
        with pytest.raises(type(error)):
            await every(session.run(chunks, max_tokens=1))
        assert (session.tokens, session.id) == (before, session_id)
    node.fail_next(ContextLengthExceeded(9, 8), rpc="Generate")
    with pytest.raises(ContextLengthExceeded):
        await every(session.run(["one two", first.tokens, " three"], max_tokens=1))
    assert (session.tokens, session.id) == (before, session_id)
    await every(session.run(chunks, max_tokens=1))
    assert session.id == session_id and node.tokens(session_id) == session.tokens
    assert node.count("OpenSession") == 1


async def test_a_conversation_that_is_no_list_of_chunks_is_refused() -> None:
    session = FakeNode().client().session("fake")
    for chunks in ("hello", [b"bytes"], [3.5], [[1.5]], [["one"]]):
        with pytest.raises(GanglionError, match="Expected"):
            session.run(chunks)  # type: ignore[arg-type]
