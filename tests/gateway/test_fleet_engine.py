"""A fleet as one engine: who is asked, who after them, and what is told when none is left."""

import asyncio
import json
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import pytest_asyncio
from remote_nodes import InOrder, Loads, echo, held, listening, refused, response, scripted

from ganglion.core.engine import Embedder, EmbedRequest, ModelState, PromptReader, RankRequest
from ganglion.core.errors import (
    DeadlineExceeded,
    EngineFailed,
    GanglionError,
    InsufficientMemory,
    InvalidValue,
    LeaseLost,
    ModelNotFound,
    Overloaded,
    UnsupportedParameter,
    UpstreamRefused,
    UpstreamUnavailable,
    WireUnsupported,
)
from ganglion.core.events import Delta, Event, Failed, Finished
from ganglion.core.fold import fold
from ganglion.core.grammar import Grammar
from ganglion.core.request import (
    ChatPrompt,
    Message,
    Request,
    Steer,
    Stop,
    TextPrompt,
    TokenPrompt,
    Tool,
    ToolUse,
)
from ganglion.engines.echo.answer import EchoScript
from ganglion.engines.echo.engine import EchoEngine
from ganglion.gateway.engine import FleetEngine
from ganglion.gateway.fleet.fleet import Fleet
from ganglion.gateway.node import NodeSpec, Replica
from ganglion.gateway.remote import RemoteDeadlines
from ganglion.gateway.upstream.node_client import NodeClient
from ganglion.gateway.upstream.pool import ConnectionPools
from ganglion.wire.dialects import USUAL_WIRES
from support.played_engine import PlayedEngine
from support.waiting import until

SSE = b"text/event-stream"
NOWHERE = "http://127.0.0.1:9"


def sse(*frames: object) -> bytes:
    told = [frame if isinstance(frame, str) else json.dumps(frame) for frame in frames]
    return "".join(f"data: {frame}\n\n" for frame in told).encode()


def says(text: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}}]}


WHOLE = response(
    200, sse(says("from the script"), {"choices": [{"delta": {}, "finish_reason": "stop"}]}, "[DONE]"), SSE
)


@dataclass
class Room:
    """An engine over nodes that a test puts there."""

    fleet: Fleet = field(default_factory=Fleet)
    pools: ConnectionPools = field(default_factory=ConnectionPools)
    poked: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chooser = InOrder(self.fleet)
        self.loads = Loads(self.fleet)
        self.engine = FleetEngine(
            self.fleet,
            self.chooser,
            NodeClient(self.pools),
            self.loads,
            probe_now=self.poked.append,
            deadlines=RemoteDeadlines(head_s=5.0, idle_s=0.3),
        )

    def put(self, name: str, url: str, *models: str, **spec: Any) -> NodeSpec:
        node = NodeSpec(name, url, **spec)
        self.fleet.put(held(node, *(models or ("echo",))))
        return node

    async def answer(self, request: Request) -> list[Event]:
        grammar, events = Grammar(), []
        async for event in self.engine.generate(request):
            grammar.feed(event)
            events.append(event)
        grammar.check_ended()
        assert not any(self.fleet.in_flight.values())
        return events

    async def text(self, text: str = "hello there you", **changes: Any) -> str:
        return fold(await self.answer(ask(text, **changes))).text("text")

    async def failure(self, text: str = "hello there you", **changes: Any) -> GanglionError:
        last = (await self.answer(ask(text, **changes)))[-1]
        assert isinstance(last, Failed), last
        return last.error


def ask(text: str = "hello there you", model: str = "echo", **changes: Any) -> Request:
    prompt = changes.pop("prompt", ChatPrompt((Message("user", text),)))
    return Request("r-1", model, prompt, tenant="anna", **changes)


@pytest_asyncio.fixture
async def room() -> AsyncIterator[Room]:
    opened = Room()
    yield opened
    opened.pools.close()


async def test_an_answer_of_a_node_is_the_one_that_its_engine_gives(room: Room) -> None:
    engine = echo()
    said = '!echo reasoning=Hm. reply=Look. call=weather:{"city":"Oslo"} call=shell:ls\n'
    tools = (Tool("weather"), Tool("shell", is_custom=True))
    request = ask(prompt=ChatPrompt((Message("user", said),), tool_use=ToolUse(tools)), top_logprobs=2)
    async with listening(engine) as url:
        room.put("a", url)
        here = fold([event async for event in engine.generate(request)])
        there = fold(await room.answer(request))
    assert there.finished.reason == here.finished.reason == "tool_calls"
    assert there.finished.usage == here.finished.usage
    told = [(block.kind, block.text, block.name, bool(block.call_id)) for block in there.blocks]
    assert told == [(block.kind, block.text, block.name, bool(block.call_id)) for block in here.blocks]
    texts = [
        [token.logprob for block in answer.blocks if block.kind == "text" for token in block.tokens]
        for answer in (here, there)
    ]
    assert texts[0] == texts[1] != []


async def test_our_node_is_told_whose_request_it_is_and_a_foreign_one_is_not(room: Room) -> None:
    async with scripted(WHOLE) as ours, scripted(WHOLE) as theirs:
        room.put("a", ours.url, api_key="sesame", epoch=7)
        room.put("b", theirs.url, "other", kind="openai", api_key="open", wires=USUAL_WIRES)
        assert await room.text(priority=-3, keep_markers=True) == "from the script"
        assert await room.text(model="other") == "from the script"
    assert ours.header(b"authorization") == b"Bearer sesame"
    assert ours.header(b"x-ganglion-tenant") == b"anna"
    assert ours.header(b"x-ganglion-priority") == b"-3"
    assert ours.header(b"x-ganglion-epoch") == b"7"
    assert ours.header(b"x-include-thinking") == b"1"
    assert ours.header(b"x-ganglion-affinity") == room.chooser.asked[0].affinity.encode() != b""
    assert theirs.header(b"authorization") == b"Bearer open"
    assert b"ganglion" not in theirs.heads[0]


async def test_our_node_believes_its_gateway(room: Room) -> None:
    engine = PlayedEngine([EchoScript(reply="Hello.")])
    async with listening(engine, api_keys=("client's",), gateway_keys=("gateway's",)) as url:
        room.put("a", url, api_key="gateway's")
        assert await room.text(priority=7, affinity="thread 5") == "Hello."
    (heard,) = engine.requests
    assert (heard.tenant, heard.priority) == ("anna", 7)
    assert heard.affinity == room.chooser.asked[0].affinity


async def test_the_turns_of_a_conversation_have_one_affinity_and_others_another(room: Room) -> None:
    async with scripted(WHOLE) as node:
        room.put("a", node.url)
        first = (Message("system", "Be brief."), Message("user", "hi"))
        later = (*first, Message("assistant", "Hello."), Message("user", "and?"))
        prompts = [first, later, (first[0], Message("user", "ho"))]
        for messages in prompts:
            await room.answer(ask(prompt=ChatPrompt(messages)))
        await room.answer(ask(prompt=ChatPrompt(first), affinity="thread 5"))
        await room.answer(ask(prompt=ChatPrompt(later), affinity="thread 5"))
    one, two, other, named, again = (asked.affinity for asked in room.chooser.asked)
    assert one == two
    assert named == again
    assert len({one, other, named}) == 3


FREE: list[Callable[[], GanglionError]] = [
    lambda: Overloaded("Full."),
    lambda: LeaseLost("Another epoch."),
    lambda: ModelNotFound("echo"),
    lambda: InsufficientMemory("Little.", free_mb=1, required_mb=2),
]


@pytest.mark.parametrize("make", FREE, ids=lambda make: make().code)
async def test_a_node_that_did_nothing_is_passed_over_for_all_others(
    room: Room, make: Callable[[], GanglionError]
) -> None:
    async with scripted(refused(make())) as a, scripted(refused(make())) as b, listening(echo()) as last:
        room.put("a", NOWHERE)
        room.put("b", a.url)
        room.put("c", b.url)
        room.put("d", last)
        assert await room.text() == "hello there you"
        assert [len(node.heads) for node in (a, b)] == [1, 1]
        assert "a" in room.poked
        room.fleet.remove("d")
        assert type(await room.failure()) is type(make())


async def test_a_request_that_kills_nodes_meets_two_of_them(room: Room) -> None:
    async with scripted(None) as a, scripted(None) as b, scripted(None) as c:
        for name, node in (("a", a), ("b", b), ("c", c)):
            room.put(name, node.url)
        error = await room.failure()
        assert [len(node.heads) for node in (a, b, c)] == [1, 1, 0]
    assert type(error) is UpstreamUnavailable
    assert error.extras["node"] == "b"


@pytest.mark.parametrize("is_dead", [True, False], ids=["lost", "engine_failed"])
async def test_what_one_node_broke_over_another_may_answer(room: Room, is_dead: bool) -> None:
    answer = None if is_dead else refused(EngineFailed("It died."))
    async with scripted(answer) as broken, listening(echo()) as url:
        room.put("a", broken.url)
        room.put("b", url)
        assert await room.text() == "hello there you"
        assert len(broken.heads) == 1


async def test_nobody_reached_is_said_with_the_node(room: Room) -> None:
    room.put("a", NOWHERE)
    error = await room.failure()
    assert type(error) is UpstreamUnavailable
    assert error.extras["node"] == "a"


async def test_a_node_that_is_not_reached_again_and_again_is_left_alone(room: Room) -> None:
    room.put("a", NOWHERE, cool_down_after=2)
    await room.failure()
    assert not room.fleet.is_cooling("a")
    await room.failure()
    assert room.fleet.is_cooling("a")


BEGUN = sse(says("one two"))


@pytest.mark.parametrize(
    "answer",
    [
        response(200, BEGUN, SSE, is_whole=False),
        response(200, BEGUN, SSE),
        response(200, BEGUN + sse({"error": {"message": "died", "code": "engine_failed"}}), SSE),
        response(200, BEGUN + sse({"error": {"message": "full", "code": "overloaded"}}), SSE),
    ],
    ids=["cut", "silent end", "engine_failed", "overloaded"],
)
async def test_after_the_first_text_a_failure_is_the_end_and_nobody_else_is_asked(
    room: Room, answer: bytes
) -> None:
    async with scripted(answer) as a, scripted(WHOLE) as b:
        room.put("a", a.url)
        room.put("b", b.url)
        events = await room.answer(ask())
        assert b.heads == []
    assert [event.text for event in events if isinstance(event, Delta)] == ["one two"]
    assert isinstance(events[-1], Failed)
    assert events[-1].error.status >= 500


async def test_what_the_client_did_wrong_is_not_tried_again(room: Room) -> None:
    async with scripted(refused(InvalidValue("No.", param="top_p"))) as a, scripted(WHOLE) as b:
        room.put("a", a.url)
        room.put("b", b.url)
        error = await room.failure()
        assert (type(error), error.param, b.heads) == (InvalidValue, "top_p", [])
    assert room.poked == []


async def test_a_key_that_a_foreign_server_does_not_take_is_not_the_clients_fault(room: Room) -> None:
    async with scripted(response(401, b'{"error": {"message": "bad key sk-123"}}')) as node:
        room.put("a", node.url, kind="openai", wires=USUAL_WIRES)
        error = await room.failure()
    assert (type(error), error.status) == (UpstreamRefused, 502)
    assert "sk-" not in error.message


async def test_what_a_foreign_server_cannot_honour_is_refused_before_anything_is_sent(room: Room) -> None:
    async with scripted(WHOLE) as node:
        room.put("a", node.url, kind="openai", wires=USUAL_WIRES)
        error = await room.failure(steering=(Steer("joy", 1.0),))
        assert (type(error), error.param, node.heads) == (UnsupportedParameter, "steering", [])
    assert not room.fleet.is_cooling("a")


async def test_a_silent_node_is_given_up(room: Room) -> None:
    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        writer.write(head + b"%x\r\n%b\r\n" % (len(BEGUN), BEGUN))
        await reader.read(-1)
        writer.close()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    async with server:
        room.put("a", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        error = await room.failure()
    assert isinstance(error, DeadlineExceeded)


async def test_leaving_an_answer_cancels_it_on_the_node(room: Room) -> None:
    engine = echo()
    async with listening(engine) as url:
        room.put("a", url)
        endless = ask("!echo delay=0.002 unbounded=1\nword", stop=Stop(ignore_eos=True), max_tokens=5000)
        async with aclosing(room.engine.generate(endless)) as events:
            async for event in events:
                if isinstance(event, Delta):
                    break
            assert room.fleet.in_flight["a"] == 1
            assert busy(engine)
        assert room.fleet.in_flight["a"] == 0
        await until(lambda: not busy(engine), 2)


def busy(engine: EchoEngine) -> bool:
    return any(model.in_flight or model.queued for model in engine.models())


async def test_a_connection_is_kept_and_one_that_died_meanwhile_is_replaced(room: Room) -> None:
    engine = echo()
    async with listening(engine) as url:
        room.put("a", url)
        port = int(url.rsplit(":", 1)[1])
        for _ in range(3):
            await room.text()
        pool = room.pools.of(room.fleet.nodes["a"].spec)
        assert len(pool._all) == 1
    async with listening(echo(), port=port):
        assert await room.text() == "hello there you"
    assert room.poked == []


async def test_a_cold_model_is_loaded_and_then_answered(room: Room) -> None:
    async with listening(echo(model_id="cold")) as url:
        room.put("a", url, "other")
        room.chooser.cold = frozenset({"cold"})
        room.loads.onto = "a"
        assert await room.text(model="cold") == "hello there you"
        assert await room.text(model="cold") == "hello there you"
    assert room.loads.loaded == ["cold"]


async def test_a_cold_model_that_cannot_be_loaded_says_why(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(model: str) -> None:
        raise InsufficientMemory("Nowhere.", free_mb=1, required_mb=9)

    room.chooser.cold = frozenset({"cold"})
    monkeypatch.setattr(room.loads, "load", refuse)
    assert type(await room.failure(model="cold")) is InsufficientMemory


async def test_a_load_that_puts_the_model_nowhere_is_repeated_once(room: Room) -> None:
    room.chooser.cold = frozenset({"cold"})
    assert (await room.failure(model="cold")).code == "model_loading"
    assert room.loads.loaded == ["cold", "cold"]


def foreign_call(name: str, arguments: str) -> bytes:
    called = {"index": 0, "id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}
    ended = {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}
    return response(200, sse({"choices": [{"delta": {"tool_calls": [called]}}]}, ended, "[DONE]"), SSE)


async def test_a_tool_that_takes_text_gets_its_text_from_a_server_that_knows_only_functions(
    room: Room,
) -> None:
    tools = ToolUse((Tool("shell", is_custom=True), Tool("weather")))
    prompt = ChatPrompt((Message("user", "hi"),), tool_use=tools)
    async with (
        scripted(foreign_call("shell", '{"input": "ls -l \\"a b\\""}')) as a,
        scripted(foreign_call("weather", '{"input": "x"}')) as b,
    ):
        room.put("a", a.url, "one", kind="openai", wires=USUAL_WIRES)
        room.put("b", b.url, "two", kind="openai", wires=USUAL_WIRES)
        texts = [
            fold(await room.answer(ask(model=name, prompt=prompt))).blocks[0].text for name in ("one", "two")
        ]
    assert texts == ['ls -l "a b"', '{"input": "x"}']
    assert json.loads(a.bodies[0])["tools"][0]["type"] == "function"


async def test_a_template_that_is_strict_about_turns_is_met_half_way(room: Room) -> None:
    strict = response(
        500, b'{"error": {"code": 500, "message": "Jinja Exception: System message must be first"}}'
    )
    prompt = ChatPrompt((Message("user", "hi"), Message("system", "Be brief."), Message("user", "ho")))
    async with scripted(strict, WHOLE) as node:
        room.put("a", node.url, kind="openai", wires=USUAL_WIRES)
        assert fold(await room.answer(ask(prompt=prompt))).text("text") == "from the script"
    asked = [[message["role"] for message in json.loads(body)["messages"]] for body in node.bodies]
    assert asked == [["user", "system", "user"], ["user"]]
    assert "Be brief." in node.bodies[1].decode()


def test_models_are_the_union_of_what_healthy_nodes_hold() -> None:
    room = Room()
    room.put("a", NOWHERE, "small", "big")
    view = held(NodeSpec("b", NOWHERE, kind="openai"), "small")
    slow = replace(view.replicas[0], context_length=4096, aliases=("s",), capabilities=("chat",), created_s=5)
    cold = Replica("big", "unloaded")
    room.fleet.put(replace(view, replicas=(slow, cold, Replica("loading", "loading"))))
    room.fleet.put(replace(held(NodeSpec("c", NOWHERE), "gone"), is_healthy=False))
    models = {model.id: model for model in room.engine.models()}
    assert sorted(models) == ["big", "loading", "small"]
    small = models["small"]
    assert (small.context_length, small.aliases, small.created_s) == (4096, ("s",), 5)
    assert (models["big"].status, models["big"].context_length) == ("loaded", 8192)
    assert models["loading"].status == "loading"
    assert room.engine.models() is room.engine.models()
    known = tuple(ModelState(name, "llama", "unloaded", 0, 0) for name in ("small", "never loaded"))
    with_more = FleetEngine(
        room.fleet, room.chooser, NodeClient(room.pools), room.loads, catalogue=lambda: known
    )
    assert [model.id for model in with_more.models()] == ["big", "loading", "never loaded", "small"]
    assert with_more.models()[-1] == small
    room.fleet.remove("b")
    assert {model.id for model in room.engine.models()} == {"small", "big"}


async def test_prompts_are_read_by_the_node_that_would_answer_them(room: Room) -> None:
    engine = echo()
    assert isinstance(room.engine, PromptReader)
    async with listening(engine) as url:
        room.put("a", NOWHERE)
        room.put("b", url)
        for prompt in (
            ChatPrompt((Message("user", "one two three"),)),
            TextPrompt("one two"),
            TokenPrompt((1, 2)),
        ):
            request = ask(prompt=prompt)
            assert await room.engine.read(request) == await engine.read(request)
        tokens = (await engine.read(ask("one two"))).tokens
        assert await room.engine.detokenize("echo", tokens) == "one two"
        assert await room.engine.tokenizer_info("echo") == await engine.tokenizer_info("echo")
        with pytest.raises(ModelNotFound):
            await room.engine.read(ask(model="nobody"))
        with pytest.raises(WireUnsupported):
            await room.engine.pieces("echo", tokens)


async def test_a_server_that_does_not_count_says_so_instead_of_guessing(room: Room) -> None:
    async with scripted(response(404, b'{"error": "not found"}')) as node:
        room.put("a", node.url, kind="openai", wires=USUAL_WIRES)
        for call in (room.engine.read(ask()), room.engine.tokenizer_info("echo")):
            with pytest.raises(WireUnsupported):
                await call


async def test_vllm_counts_a_chat_by_its_messages(room: Room) -> None:
    missing, counted = (
        response(404, b'{"detail":"Not Found"}'),
        response(200, b'{"count":3,"tokens":[1,2,3]}'),
    )
    async with scripted(missing, counted) as node:
        room.put("a", node.url, kind="openai", wires=USUAL_WIRES)
        assert (await room.engine.read(ask())).tokens == (1, 2, 3)


async def test_vectors_and_rankings_come_from_a_node(room: Room) -> None:
    engine = echo()
    assert isinstance(room.engine, Embedder)
    request = EmbedRequest("e", "echo", (TextPrompt("red green"), TextPrompt("blue")))
    ranking = RankRequest("r", "echo", "red green", ("blue", "red green"))
    async with listening(engine) as url:
        room.put("a", url)
        assert await room.engine.embed(request) == await engine.embed(request)
        assert await room.engine.rank(ranking) == await engine.rank(ranking)
        with pytest.raises(ModelNotFound):
            await room.engine.embed(replace(request, model="nobody"))


async def test_a_foreign_servers_vectors_are_brought_to_length_one_and_it_ranks_nothing(room: Room) -> None:
    vectors = (
        b'{"data":[{"index":1,"embedding":[0,2]},{"index":0,"embedding":[3,4]}],"usage":{"prompt_tokens":5}}'
    )
    async with scripted(response(200, vectors), response(501, b'{"error":{"code":501}}')) as node:
        room.put("a", node.url, kind="openai", wires=USUAL_WIRES)
        embedded = await room.engine.embed(EmbedRequest("e", "echo", (TextPrompt("a"), TextPrompt("b"))))
        with pytest.raises(WireUnsupported):
            await room.engine.rank(RankRequest("r", "echo", "q", ("d",)))
    assert [array("f", vector).tolist() for vector in embedded.vectors] == [
        pytest.approx([0.6, 0.8]),
        pytest.approx([0.0, 1.0]),
    ]
    assert embedded.prompt_tokens == 5


async def test_sixteen_at_once_are_all_answered(room: Room) -> None:
    async with listening(echo()) as url:
        room.put("a", url)
        words = [f"word {number} and more" for number in range(16)]
        events = await asyncio.gather(*(_all(room.engine, ask(word)) for word in words))
    assert [fold(each).text("text") for each in events] == words
    assert all(isinstance(each[-1], Finished) for each in events)
    assert not any(room.fleet.in_flight.values())


async def _all(engine: FleetEngine, request: Request) -> list[Event]:
    return [event async for event in engine.generate(request)]
