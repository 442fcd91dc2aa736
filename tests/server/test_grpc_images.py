"""Pictures in sessions over gRPC: what was said of them is said again after every way a session travels.

Everything asks a `SeeingModel`, which another engine can stand in for.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import grpc
import pytest
from grpc_calls import Rpc, connected, rest, stream_of, trailers
from relaying import relaying, view_of

from ganglion.core.engine import ManagedEngine
from ganglion.core.errors import EngineFailed
from ganglion.core.events import Failed, TokenEvent
from ganglion.core.request import PLACEHOLDER, ImageBlock, TokenRequest
from ganglion.engines.echo.engine import EchoEngine, EchoSettings
from ganglion.engines.echo.vocabulary import WordVocabulary
from ganglion.engines.llama.engine import LlamaEngine
from ganglion.engines.settings import EngineSettings
from ganglion.registry.stores.sighted import read_whole_facts
from ganglion.sessions.settings import SessionSettings
from ganglion.wire.salience import salience_pb2 as pb
from support.seeing import laid_side_by_side, questions
from support.served import Served, serving
from support.waiting import until

Code = grpc.StatusCode
CAT = b"\x89PNG\r\n\x1a\n" + b"cat " * 73
DOG = b"\x89PNG\r\n\x1a\n" + b"dog " * 123


@dataclass(frozen=True)
class SeeingModel:
    """An engine that sees, the name of its model, and two pictures of which it says different things."""

    engine: Callable[[], ManagedEngine]
    model: str
    pictures: tuple[bytes, bytes]
    question: str


class LookingEcho(EchoEngine):
    """An echo that keeps nothing of an image, so that it must be handed its file each time."""

    async def continue_tokens(self, model: str, request: TokenRequest) -> AsyncGenerator[TokenEvent, None]:
        seen = [position for image in request.images for position in positions(image)]
        placed = [position for position, token in enumerate(request.tokens) if token == PLACEHOLDER]
        if seen != placed or any(sha256(image.data).hexdigest() != image.digest for image in request.images):
            yield Failed(EngineFailed("The echo was not handed its images."))
            return
        async with aclosing(super().continue_tokens(model, request)) as events:
            async for event in events:
                yield event


def positions(image: ImageBlock) -> range:
    return range(image.start, image.start + image.count)


def echo_that_looks() -> SeeingModel:
    words = WordVocabulary()

    def echo() -> ManagedEngine:
        engine = LookingEcho(EchoSettings("echo-vision", sees=True))
        engine._words = words  # nodes that hold one model have one vocabulary
        return engine

    return SeeingModel(echo, "echo-vision", (CAT, DOG), "what is in it")


def embedded_eyes(folder: Path) -> SeeingModel:
    facts = read_whole_facts(laid_side_by_side(folder).model)

    def llama() -> ManagedEngine:
        return LlamaEngine(facts, EngineSettings("smollm2-seeing", context=512, parallel=2))

    first, second = (question.png for question in questions(2))
    return SeeingModel(llama, "smollm2-seeing", (first, second), "\nWhat do you see?")


@pytest.fixture(params=["echo", pytest.param("model", marks=pytest.mark.model)])
def seeing(request: pytest.FixtureRequest, tmp_path: Path) -> SeeingModel:
    return echo_that_looks() if request.param == "echo" else embedded_eyes(tmp_path)


@dataclass
class Conversation:
    """A session on some address, driven as a client would."""

    rpc: Rpc
    session_id: str
    seeing: SeeingModel
    length: int = 0

    async def show(self, picture: bytes, **fields: object) -> pb.AppendImageResponse:
        request = pb.AppendImageRequest(
            session_id=self.session_id, data=picture, mime="image/png", offset=self.length
        )
        appended = await self.rpc.call("AppendImage", request)
        assert appended.total_length == self.length + appended.placeholder_count
        self.length = appended.total_length
        return appended

    async def say(self, text: str) -> None:
        tokenize = pb.TokenizeRequest(model=self.seeing.model, text=text)
        tokens = (await self.rpc.call("Tokenize", tokenize)).tokens
        *_, last = await self.rpc.generate(self.session_id, append_tokens=tokens, offset=self.length)
        self.length = last.done.total_tokens

    async def answer(self) -> list[int]:
        """What follows, greedily; the session is cut back to where it was."""
        events = await self.rpc.generate(
            self.session_id, offset=self.length, max_tokens=8, temperature=0.0, truncating=True
        )
        told = [event.token.id for event in events if event.HasField("token")]
        cut = pb.TruncateSessionRequest(session_id=self.session_id, length=self.length)
        assert (await self.rpc.call("TruncateSession", cut)).total_tokens == self.length
        return told

    def at(self, session_id: str, rpc: Rpc | None = None) -> "Conversation":
        return replace(self, session_id=session_id, rpc=rpc or self.rpc)

    async def saved(self, **fields: object) -> list[pb.SessionBytes]:
        request = pb.SaveSessionRequest(session_id=self.session_id, **fields)
        return await rest(self.rpc.begin("SaveSession", request))


async def talking(rpc: Rpc, seeing: SeeingModel) -> Conversation:
    """A conversation about two pictures, with text before, between and after them."""
    opened = await rpc.call("OpenSession", pb.OpenSessionRequest(model=seeing.model))
    talk = Conversation(rpc, opened.session_id, seeing)
    await talk.say("look here")
    for picture in seeing.pictures:
        await talk.show(picture)
        await talk.say(seeing.question)
    return talk


@asynccontextmanager
async def node(seeing: SeeingModel, folder: Path | None = None, **fields: object) -> AsyncIterator[Served]:
    sessions = SessionSettings(folder=folder, **fields)  # type: ignore[arg-type]
    async with serving(seeing.engine(), sessions=sessions) as served:
        await until(lambda: served.engine.models()[0].status == "loaded", 30.0)
        yield served


async def test_a_fork_sees_what_its_parent_saw(seeing: SeeingModel) -> None:
    async with node(seeing) as served, connected(served.rpc) as rpc:
        talk = await talking(rpc, seeing)
        answer = await talk.answer()
        fork = await rpc.call("ForkSession", pb.ForkSessionRequest(session_id=talk.session_id))
        assert await talk.at(fork.session_id).answer() == answer
        await rpc.call("CloseSession", pb.CloseSessionRequest(session_id=talk.session_id))
        assert await talk.at(fork.session_id).answer() == answer


async def test_a_picture_that_was_cut_away_and_shown_again_is_the_same(seeing: SeeingModel) -> None:
    async with node(seeing) as served, connected(served.rpc) as rpc:
        talk = await talking(rpc, seeing)
        answer, length = await talk.answer(), talk.length
        await rpc.call("TruncateSession", pb.TruncateSessionRequest(session_id=talk.session_id, length=2))
        talk.length = 2
        for picture in seeing.pictures:
            await talk.show(picture)
            await talk.say(seeing.question)
        assert (talk.length, await talk.answer()) == (length, answer)


async def test_no_call_cuts_a_picture_and_one_with_another_offset_is_refused(seeing: SeeingModel) -> None:
    async with node(seeing) as served, connected(served.rpc) as rpc:
        opened = await rpc.call("OpenSession", pb.OpenSessionRequest(model=seeing.model))
        talk = Conversation(rpc, opened.session_id, seeing)
        count = (await talk.show(seeing.pictures[0])).placeholder_count
        assert count > 1
        picture = {"data": seeing.pictures[1], "mime": "image/png"}
        metrics = (await served.http.get("/metrics")).text
        assert f"ganglion_session_image_bytes {len(seeing.pictures[0])}.0" in metrics
        for at in range(1, count):
            session = {"session_id": talk.session_id}
            for method, request in (
                ("TruncateSession", pb.TruncateSessionRequest(**session, length=at)),
                ("ForkSession", pb.ForkSessionRequest(**session, at=at)),
                ("AppendImage", pb.AppendImageRequest(**session, **picture, offset=at, truncating=True)),
                ("Generate", pb.GenerateRequest(**session, offset=at, truncating=True, append_tokens=[1])),
            ):
                refused = await rpc.refusal(method, request)
                assert trailers(refused)["ganglion-code"] == "image_block_cut", method
        for offset in (0, count + 1):
            request = pb.AppendImageRequest(session_id=talk.session_id, **picture, offset=offset)
            refused = await rpc.refusal("AppendImage", request)
            assert refused.code() is Code.FAILED_PRECONDITION
            assert trailers(refused)["ganglion-code"] == "session_drift"
        page = await rpc.call("GetTokens", pb.GetTokensRequest(session_id=talk.session_id))
        assert list(page.tokens) == [-1] * count


async def test_a_session_with_pictures_is_saved_and_restored_on_another_node(seeing: SeeingModel) -> None:
    async with node(seeing) as one, node(seeing) as other, AsyncExitStack() as stack:
        rpc = await stack.enter_async_context(connected(one.rpc))
        elsewhere = await stack.enter_async_context(connected(other.rpc))
        talk = await talking(rpc, seeing)
        answer = await talk.answer()
        for fields in ({}, {"without_kv": True}):
            restored = await elsewhere.begin("RestoreSession", stream_of(await talk.saved(**fields)))
            assert restored.total_tokens == talk.length
            assert await talk.at(restored.session_id, elsewhere).answer() == answer


async def test_a_large_picture_travels_in_many_messages(seeing: SeeingModel) -> None:
    picture = seeing.pictures[0] + bytes((5 << 20) - len(seeing.pictures[0]))
    engine = EchoEngine(EchoSettings(seeing.model, context=1 << 20, sees=True))
    async with serving(engine) as served, connected(served.rpc) as rpc:
        opened = await rpc.call("OpenSession", pb.OpenSessionRequest(model=seeing.model))
        talk = Conversation(rpc, opened.session_id, seeing)
        count = (await talk.show(picture)).placeholder_count
        saved = await talk.saved()
        assert len(saved) > 1 and max(len(part.data) for part in saved) <= 4 << 20
        restored = await rpc.begin("RestoreSession", stream_of(saved))
        assert restored.total_tokens == count


async def test_suspended_sessions_and_those_kept_at_shutdown_come_back_with_their_pictures(
    seeing: SeeingModel, tmp_path: Path
) -> None:
    async with node(seeing, tmp_path, keeps_on_drain=True) as served, connected(served.rpc) as rpc:
        suspended, kept = await talking(rpc, seeing), await talking(rpc, seeing)
        answer = await kept.answer()
        for _ in range(2):
            await rpc.call("SuspendSession", pb.SuspendSessionRequest(session_id=suspended.session_id))
            assert await suspended.answer() == answer, "it is resumed by being named"
        await rpc.call("SuspendSession", pb.SuspendSessionRequest(session_id=suspended.session_id))
    async with node(seeing, tmp_path) as served, connected(served.rpc) as rpc:
        listed = (await rpc.call("ListSessions", pb.ListSessionsRequest())).sessions
        assert {each.session_id: each.image_count for each in listed} == {
            suspended.session_id: 2,
            kept.session_id: 2,
        }
        for talk in (suspended, kept):
            assert await talk.at(talk.session_id, rpc).answer() == answer


async def test_a_conversation_moves_from_a_node_that_leaves_to_another_by_the_gateway(
    seeing: SeeingModel,
) -> None:
    async with node(seeing) as one, node(seeing) as other:
        first, second = view_of("a", one.rpc, seeing.model), view_of("b", other.rpc, seeing.model)
        async with relaying([first]) as relayed, connected(relayed.address) as rpc:
            talk = await talking(rpc, seeing)
            assert talk.session_id.startswith("a~")
            answer, saved = await talk.answer(), await talk.saved()
            relayed.fleet.put(second)
            relayed.fleet.put(replace(first, replicas=()))
            restored = await rpc.begin("RestoreSession", stream_of(saved))
            assert restored.session_id.startswith("b~")
            assert await talk.at(restored.session_id).answer() == answer


async def test_more_pictures_than_may_be_held_are_refused_by_name_and_the_session_goes_on(
    seeing: SeeingModel,
) -> None:
    most = len(seeing.pictures[0])
    async with node(seeing, max_session_image_bytes=most) as served, connected(served.rpc) as rpc:
        opened = await rpc.call("OpenSession", pb.OpenSessionRequest(model=seeing.model))
        talk = Conversation(rpc, opened.session_id, seeing)
        await talk.show(seeing.pictures[0])
        request = pb.AppendImageRequest(
            session_id=talk.session_id, data=seeing.pictures[1], mime="image/png", offset=talk.length
        )
        refused = await rpc.refusal("AppendImage", request)
        assert refused.code() is Code.RESOURCE_EXHAUSTED
        assert trailers(refused)["ganglion-code"] == "session_limit_exceeded"
        await talk.say(seeing.question)
        assert await talk.answer()
