"""Every route of the Responses wire."""

from collections.abc import Awaitable, Callable

from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import Receive, Scope, Send

from ganglion.server.drain import Gate
from ganglion.server.ports import Ports
from ganglion.server.responses.compacting import CompactDoor
from ganglion.server.responses.conversations import ConversationDoors
from ganglion.server.responses.counting import InputTokensDoor
from ganglion.server.responses.desk import Desk
from ganglion.server.responses.door import ResponsesDoor
from ganglion.server.responses.runs import Runs
from ganglion.server.responses.socket import SocketDoor
from ganglion.server.responses.stored import StoredDoors
from ganglion.server.settings import ServerSettings
from ganglion.server.state import State


class _Raw:
    """A method as an app: the router hands plain methods a request instead."""

    def __init__(self, handler: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._handler(scope, receive, send)


def responses_routes(ports: Ports, settings: ServerSettings, gate: Gate, state: State) -> list[BaseRoute]:
    """The routes over one desk and one set of runs."""
    desk = Desk(state, ports.engine.models, is_strict=settings.is_strict)
    runs = Runs(ports.engine, desk, state, settings)
    kept = StoredDoors(state.store, runs, settings)
    talks = ConversationDoors(state.store, settings)
    return [
        Route("/v1/responses", ResponsesDoor(ports, settings, gate, desk, runs), methods=["POST"]),
        WebSocketRoute("/v1/responses", SocketDoor(ports, settings, gate, desk, state.meter)),
        Route("/v1/responses/input_tokens", InputTokensDoor(ports, settings, gate, desk), methods=["POST"]),
        Route("/v1/responses/compact", CompactDoor(ports, settings, gate, desk, state), methods=["POST"]),
        Route("/v1/responses/{id}", _Raw(kept.get), methods=["GET"]),
        Route("/v1/responses/{id}", kept.delete, methods=["DELETE"]),
        Route("/v1/responses/{id}/cancel", kept.cancel, methods=["POST"]),
        Route("/v1/responses/{id}/input_items", kept.input_items, methods=["GET"]),
        Route("/v1/conversations", _Raw(talks.create), methods=["POST"]),
        Route("/v1/conversations/{id}", talks.get, methods=["GET"]),
        Route("/v1/conversations/{id}", _Raw(talks.update), methods=["POST"]),
        Route("/v1/conversations/{id}", talks.delete, methods=["DELETE"]),
        Route("/v1/conversations/{id}/items", talks.items, methods=["GET"]),
        Route("/v1/conversations/{id}/items", _Raw(talks.add), methods=["POST"]),
        Route("/v1/conversations/{id}/items/{item}", talks.item, methods=["GET"]),
        Route("/v1/conversations/{id}/items/{item}", talks.delete_item, methods=["DELETE"]),
    ]
