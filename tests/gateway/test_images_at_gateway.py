"""Pictures through a gateway: routed to what sees, passed on as they are, translated, kept on their node."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from gateways import Running, gateway
from made_nodes import StillLoads, held, node, nodes
from proxy_stage import always, answer, post, staged
from remote_nodes import echo, listening, response

from ganglion.core.errors import UnsupportedParameter
from ganglion.core.request import Attachment, ChatPrompt, Message, Request
from ganglion.gateway.access.admission import Identity
from ganglion.gateway.fleet.fleet import Fleet
from ganglion.gateway.fleet.quarantine import Quarantine
from ganglion.gateway.node import NodeSpec, NodeView
from ganglion.gateway.placing.catalogue import CatalogueModel, FleetCatalogue
from ganglion.gateway.proxy.authorize import RequestContext, inspect_request
from ganglion.gateway.proxy.client_request import ClientRequest, build_head
from ganglion.gateway.proxy.routes import parse_target
from ganglion.gateway.routing.decision import ChosenNode, NoRoute, RoutingRequest, TranslatedNode
from ganglion.gateway.routing.policies import route
from ganglion.gateway.routing.table import RoutingTable
from ganglion.wire.dialects import USUAL_WIRES
from ganglion.wire.pictures_in_body import shows_pictures
from ganglion.wire.token_bound import MEDIA_TOKENS, bound_of_request
from ganglion.wire.upstream.chat_request import encode_request
from support.pictures import base64_of, data_uri, png, positions

RED, BLUE = png(), png(40, 40, (0, 0, 255))
SEES = ("chat", "vision")
READS = ("chat",)


def shown(data: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_uri(data)}}


def chat_body(*parts: object, model: str = "m", **fields: object) -> bytes:
    return json.dumps(
        {"model": model, "messages": [{"role": "user", "content": list(parts)}], **fields}
    ).encode()


def decided(*views: NodeView, wire: str = "chat", models: tuple[CatalogueModel, ...] = ()) -> object:
    asked = RoutingRequest("m", wire, has_images=True)
    decisions = [
        route(RoutingTable(nodes(*views), FleetCatalogue(models)), asked, StillLoads(), turn)
        for turn in range(4)
    ]
    names = {
        f"{type(each).__name__} {each.node.name}"
        if isinstance(each, ChosenNode | TranslatedNode)
        else type(each.error).__name__
        if isinstance(each, NoRoute)
        else "cold"
        for each in decisions
    }
    (name,) = names
    return name


# Routing


def test_a_picture_goes_to_a_node_whose_model_sees() -> None:
    blind, seeing = node("a", held("m", capabilities=READS)), node("b", held("m", capabilities=SEES))
    assert decided(blind, seeing) == "ChosenNode b"
    assert decided(blind, seeing, wire="messages") == "ChosenNode b"
    assert decided(blind) == "VisionUnsupported"


def test_a_server_that_says_nothing_of_its_models_gets_pictures_as_they_are_and_none_translated() -> None:
    silent = node("a", held("m"), is_foreign=True)
    assert decided(silent) == "ChosenNode a"
    assert decided(silent, wire="messages") == "VisionUnsupported"
    declared = node("a", held("m", capabilities=("vision",)), is_foreign=True)
    assert decided(declared, wire="messages") == "TranslatedNode a"


def test_a_fallback_must_see_too() -> None:
    models = (
        CatalogueModel(id="m", loadable=False, fallbacks=("n", "o")),
        CatalogueModel(id="n"),
        CatalogueModel(id="o"),
    )
    views = node("a", held("n", capabilities=READS)), node("b", held("o", capabilities=SEES))
    assert decided(*views, models=models) == "ChosenNode b"


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"role": "user", "content": [shown(RED)]}]},
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
        {
            "messages": [
                {"role": "user", "content": [{"type": "tool_result", "content": [{"type": "image"}]}]}
            ]
        },
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
        {"input": ["x", {"type": "function_call_output", "output": [{"type": "input_image"}]}]},
        {"messages": [{"role": "user", "content": "?", "images": ["aaaa"]}]},
        {"prompt": "?", "images": ["aaaa"]},
    ],
)
def test_pictures_are_found_in_every_body(body: dict[str, object]) -> None:
    assert shows_pictures(json.dumps(body).encode())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"image_url"',
        b'{"messages": 5, "x": "image"}',
        json.dumps({"messages": [{"role": "user", "content": 'say "image_url" and "images"'}]}).encode(),
        json.dumps({"input": 'the "input_image" part', "tools": [{"name": "image"}]}).encode(),
        json.dumps({"prompt": "x", "images": []}).encode(),
        b'{"messages": [{"content": "\xff "image"}]}',
    ],
)
def test_who_only_speaks_of_pictures_shows_none(body: bytes) -> None:
    assert not shows_pictures(body)


# Bounds


@pytest.mark.parametrize("count", [0, 1, 5])
def test_a_prompt_with_pictures_reserves_room_for_each(count: int) -> None:
    attachments = tuple(Attachment(RED, 0) for _ in range(count))
    with_them = Request(
        "r", "m", ChatPrompt((Message("user", "see", attachments=attachments),)), max_tokens=1
    )
    without = Request("r", "m", ChatPrompt((Message("user", "see"),)), max_tokens=1)
    assert bound_of_request(with_them).tokens - bound_of_request(without).tokens == count * MEDIA_TOKENS


# Translation


def message_with(*attachments: Attachment, role: str = "user", text: str = "one two") -> Request:
    message = Message(role, text, attachments=attachments)  # type: ignore[arg-type]
    return Request("r", "m", ChatPrompt((message,)))


@pytest.mark.parametrize("is_ours", [True, False])
def test_pictures_are_translated_with_their_places(is_ours: bool) -> None:
    request = message_with(
        Attachment(RED, 0),
        Attachment(BLUE, 4, detail="low"),
        Attachment(b"", 7, url="https://host.example/a.png"),
        Attachment(b"ID3\x04", 7, "audio"),
    )
    (message,) = json.loads(encode_request(request, "m", is_ours=is_ours))["messages"]
    assert message["content"] == [
        shown(RED),
        {"type": "text", "text": "one "},
        {"type": "image_url", "image_url": {"url": data_uri(BLUE), "detail": "low"}},
        {"type": "text", "text": "two"},
        {"type": "image_url", "image_url": {"url": "https://host.example/a.png"}},
        {"type": "input_audio", "input_audio": {"data": base64_of(b"ID3\x04"), "format": "mp3"}},
    ]


def test_a_foreign_server_is_not_asked_to_see_in_the_answer_of_a_tool() -> None:
    request = message_with(Attachment(RED, 0, path="messages[2].content[0]"), role="tool")
    with pytest.raises(UnsupportedParameter) as caught:
        encode_request(request, "m", is_ours=False)
    assert caught.value.param == "messages[2].content[0]"
    assert shown(RED) in json.loads(encode_request(request, "m", is_ours=True))["messages"][0]["content"]


SAID = (
    b'data: {"choices":[{"index":0,"delta":{"content":"red"}}]}\n\n'
    b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
    b"data: [DONE]\n\n"
)
LISTED = response(200, b'{"object":"list","data":[{"id":"m","object":"model"}]}')


@asynccontextmanager
async def before_a_chat_server(vision: frozenset[str]) -> AsyncIterator[tuple[Running, Any]]:
    """A gateway before a server that speaks chat alone, and lists one model."""
    async with chat_server() as (url, bodies):
        spec = NodeSpec("theirs", url, "openai", wires=USUAL_WIRES, vision=vision)
        async with gateway([spec]) as running:
            await running.until_ready()
            yield running, bodies


@asynccontextmanager
async def chat_server() -> AsyncIterator[tuple[str, list[bytes]]]:
    bodies: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"GET"):
                writer.write(LISTED)
            else:
                length = re.search(rb"content-length: (\d+)", head)
                assert length is not None
                bodies.append(await reader.readexactly(int(length[1])))
                writer.write(response(200, SAID, b"text/event-stream"))
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", bodies


MESSAGE = {
    "model": "m",
    "max_tokens": 9,
    "messages": [
        {
            "role": "user",
            "content": [
                {
                    "type": "image",
                    "source": {"type": "base64", "media_type": "image/png", "data": base64_of(RED)},
                },
                {"type": "text", "text": "What colour?"},
            ],
        }
    ],
}


@pytest.mark.parametrize("vision", [frozenset({"m"}), frozenset({"*"})])
async def test_a_chat_server_that_is_declared_to_see_gets_messages_with_pictures(
    vision: frozenset[str],
) -> None:
    async with before_a_chat_server(vision) as (running, bodies):
        answered = await running.http.post("/v1/messages", json=MESSAGE)
        assert (answered.status_code, answered.json()["content"][0]["text"]) == (200, "red"), answered.text
        (message,) = json.loads(bodies[0])["messages"]
        assert message["content"] == [shown(RED), {"type": "text", "text": "What colour?"}]
        listed = (await running.http.get("/v1/models")).json()["data"]
        assert listed[0]["capabilities"] == ["vision"]


async def test_a_chat_server_that_is_not_declared_to_see_gets_none_translated() -> None:
    async with before_a_chat_server(frozenset({"other"})) as (running, bodies):
        answered = await running.http.post("/v1/messages", json=MESSAGE)
        assert (answered.status_code, answered.json()["error"]["type"]) == (400, "invalid_request_error")
        assert bodies == []
        passed = await running.http.post(
            "/v1/chat/completions",
            content=chat_body(shown(RED), stream=True),
            headers={"content-type": "application/json"},
        )
        assert passed.status_code == 200


# Whole gateways


async def test_bytes_with_pictures_are_passed_on_as_they_are() -> None:
    body = chat_body({"type": "text", "text": "see"}, shown(BLUE), shown(RED), model="m0")
    async with staged(always(answer(b'{"choices":[]}'))) as stage:
        heard = await stage.ask(post("/v1/chat/completions", body))
        assert heard.status == 200
        assert stage.nodes["n0"].asked[0].body == body


async def test_a_gateway_sends_pictures_to_the_node_that_sees_and_its_answer_is_the_node_s() -> None:
    blind, seeing = echo(), echo(sees=True)
    async with listening(blind) as first, listening(seeing) as second:
        specs = [NodeSpec("blind", first), NodeSpec("seeing", second)]
        async with gateway(specs) as running:
            await running.until_ready()
            async for wire_answer in _asked_on_every_wire(running):
                assert f"[image 1: {positions(BLUE)} positions]" in wire_answer


async def _asked_on_every_wire(running: Running) -> AsyncIterator[str]:
    image = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": base64_of(BLUE)},
    }
    of_responses = {"type": "input_image", "image_url": data_uri(BLUE)}
    for _ in range(3):
        for path, body in (
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": [shown(BLUE)]}]}),
            ("/v1/messages", {"max_tokens": 99, "messages": [{"role": "user", "content": [image]}]}),
            ("/v1/responses", {"input": [{"role": "user", "content": [of_responses]}]}),
            ("/api/generate", {"prompt": "?", "images": [base64_of(BLUE)], "stream": False}),
        ):
            answered = await running.http.post(path, json={"model": "echo", **body})
            assert answered.status_code == 200, answered.text
            yield answered.text


async def test_a_stored_response_is_continued_through_a_gateway_with_its_picture() -> None:
    async with listening(echo(sees=True)) as url, gateway([NodeSpec("seeing", url)]) as running:
        await running.until_ready()
        content = [{"type": "input_image", "image_url": data_uri(BLUE)}]
        sent = {"model": "echo", "input": [{"role": "user", "content": content}]}
        first = (await running.http.post("/v1/responses", json=sent)).json()
        more = {"model": "echo", "input": "go on", "previous_response_id": first["id"]}
        second = (await running.http.post("/v1/responses", json=more)).json()
        assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"] >= positions(BLUE)


async def test_a_gateway_of_nodes_without_eyes_refuses_by_name() -> None:
    async with listening(echo()) as url, gateway([NodeSpec("blind", url)]) as running:
        await running.until_ready()
        answered = await running.http.post(
            "/v1/chat/completions",
            json={"model": "echo", "messages": [{"role": "user", "content": [shown(RED)]}]},
        )
        error = answered.json()["error"]
        assert (answered.status_code, error["code"], error["model"]) == (400, "vision_unsupported", "echo")
        assert error["suggestion"] == "send text only"


# Affinity


def affinity(*messages: dict[str, Any]) -> str:
    body = json.dumps({"model": "m", "messages": list(messages)}).encode()
    head = build_head(b"POST", parse_target(b"/v1/chat/completions"), [])
    context = RequestContext(ClientRequest(head, body), head.route, "r", Identity("anna"))
    inspect_request(context, Quarantine(), Fleet())
    return context.affinity


def test_a_conversation_about_a_picture_stays_one_and_another_picture_is_another() -> None:
    question = {"type": "text", "text": "What is this?"}
    first = {"role": "user", "content": [question, shown(png(60, 60))]}
    other = {"role": "user", "content": [question, shown(png(60, 60, (1, 2, 3)))]}
    later = ({"role": "assistant", "content": "A square."}, {"role": "user", "content": "Sure?"})
    assert affinity(first) == affinity(first, *later) != affinity(other)
    # Files of a kind begin alike: what tells them apart stands behind the first few thousand bytes.
    tail = png(60, 60)[:9000] + b"\x01" + png(60, 60)[9001:]
    assert affinity({"role": "user", "content": [question, shown(tail)]}) != affinity(first)
