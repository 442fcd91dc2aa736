"""Talking to the Responses doors of a served node."""

import asyncio
import socket
from typing import Any

import httpx

from ganglion.engines.echo.answer import EchoScript
from ganglion.engines.echo.engine import EchoEngine, EchoSettings
from ganglion.server.life.storage import StoreTarget
from support.played_engine import PlayedEngine
from support.responses_invariants import check, frames_of

MEMORY = StoreTarget(":memory:")
SLOW = "!echo delay=0.01\n"
ENDLESS = "!echo unbounded=1 delay=0.005\nla "


class Asking:
    """A tenant's client of a served node; every stream is checked."""

    def __init__(self, http: httpx.AsyncClient, key: str | None = None) -> None:
        self.http = http
        self.headers = {} if key is None else {"authorization": f"Bearer {key}"}

    async def call(self, method: str, path: str, body: object = None, **query: object) -> httpx.Response:
        return await self.http.request(method, path, json=body, params=query, headers=self.headers)

    async def ok(self, method: str, path: str, body: object = None, **query: object) -> Any:
        answer = await self.call(method, path, body, **query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def error(
        self, method: str, path: str, body: object = None, **query: object
    ) -> tuple[int, str, str]:
        answer = await self.call(method, path, body, **query)
        told = answer.json()["error"]
        return answer.status_code, told["code"], told["param"]

    async def create(self, said: object = "hello there", **fields: object) -> Any:
        return await self.ok("POST", "/v1/responses", ask(said, **fields))

    async def stream(self, said: object = "hello there", **fields: object) -> Any:
        """The response that a stream ends with."""
        answer = await self.call("POST", "/v1/responses", ask(said, stream=True, **fields))
        assert answer.status_code == 200, answer.text
        return check(answer.content)

    async def get(self, response_id: str, **query: object) -> Any:
        return await self.ok("GET", f"/v1/responses/{response_id}", **query)

    async def resume(self, response_id: str, after: int | None = None) -> list[dict[str, Any]]:
        """The events after a number, until the end."""
        query = {"stream": "true"} | ({} if after is None else {"starting_after": after})
        answer = await self.call("GET", f"/v1/responses/{response_id}", **query)
        assert answer.status_code == 200, answer.text
        check(answer.content, after=after)
        return [event for _, event in frames_of(answer.content)]

    async def until(self, response_id: str, *statuses: str, within_s: float = 5.0) -> Any:
        """The response, once it has one of these statuses."""
        async with asyncio.timeout(within_s):
            while (found := await self.get(response_id))["status"] not in statuses:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        return found


def ask(said: object = "hello there", **fields: object) -> dict[str, object]:
    return {"model": "echo", "input": said} | fields


def text_of(response: Any) -> str:
    return "".join(
        part["text"] for item in response["output"] if item["type"] == "message" for part in item["content"]
    )


def said_to(engine: PlayedEngine, number: int = -1) -> list[tuple[Any, ...]]:
    """The messages of a request that an engine was given, as plain values."""
    return [
        (
            message.role,
            message.content,
            message.reasoning,
            message.tool_call_id,
            [(call.call_id, call.name, call.arguments) for call in message.tool_calls],
        )
        for message in engine.requests[number].prompt.messages
    ]


def plain(role: str, content: str) -> tuple[Any, ...]:
    return (role, content, None, None, [])


def played(*scripts: EchoScript, **settings: object) -> PlayedEngine:
    fields = {"context": 1 << 20, "allow_directives": True} | settings
    return PlayedEngine(scripts or (EchoScript(),), EchoSettings(**fields))


def small(context: int) -> EchoEngine:
    return EchoEngine(EchoSettings(context=context, allow_directives=True))


def deaf_socket(port: int) -> socket.socket:
    """A connection whose other end can send but a few kilobytes before somebody must read."""
    deaf = socket.socket()
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    deaf.connect(("127.0.0.1", port))
    return deaf
