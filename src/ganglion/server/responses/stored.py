"""The doors of what was kept: `/v1/responses/{id}` and below."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ganglion.core.errors import InvalidValue, ResponseNotFound
from ganglion.server.http import send_stream, while_connected
from ganglion.server.responses.door import follow
from ganglion.server.responses.pages import Page, number
from ganglion.server.responses.runs import Runs
from ganglion.server.scope import tenant
from ganglion.server.settings import ServerSettings
from ganglion.store.port import Store
from ganglion.store.values import StoredResponse
from ganglion.wire.frame import Frame
from ganglion.wire.responses import items_of
from ganglion.wire.responses.stored import deleted, ended_frame, named_frame, page

_EVENTS: Final = 500


class _Kind(msgspec.Struct, frozen=True):
    background: bool = False


_kind = msgspec.json.Decoder(_Kind)


class StoredDoors:
    """Reads, resumes, cancels and deletes responses, each for the tenant that asked for it."""

    def __init__(self, store: Store | None, runs: Runs, settings: ServerSettings) -> None:
        self._store = store
        self._runs = runs
        self._settings = settings

    async def get(self, scope: Scope, receive: Receive, send: Send) -> None:
        """`GET /v1/responses/{id}`, and with `stream=true` its events after `starting_after`."""
        request = Request(scope)
        response_id, owner = request.path_params["id"], tenant(scope)
        stored = await self._found(owner, response_id)
        run = self._runs.get(owner, response_id)
        if request.query_params.get("stream") in ("true", "1"):
            after = number(request, "starting_after", default=-1)
            if run is not None:
                streaming = follow(run, after, send, self._settings)
            else:
                streaming = send_stream(self._replayed(stored, after), send, self._settings)
            await while_connected(scope, receive, streaming)
            return
        body = stored.body if run is None else run.exchange.projection.snapshot()
        await _json(body)(scope, receive, send)

    async def delete(self, request: Request) -> Response:
        """`DELETE /v1/responses/{id}`; one that runs is cancelled first."""
        response_id, owner = request.path_params["id"], tenant(request.scope)
        await self._found(owner, response_id)
        run = self._runs.get(owner, response_id)
        if run is not None:
            await self._runs.cancel(run)
        assert self._store is not None
        await self._store.delete(owner, response_id)
        return _json(deleted(response_id))

    async def cancel(self, request: Request) -> Response:
        """`POST /v1/responses/{id}/cancel`; cancelling again changes nothing."""
        response_id, owner = request.path_params["id"], tenant(request.scope)
        stored = await self._found(owner, response_id)
        if not _kind.decode(stored.body).background:
            raise InvalidValue(
                f"The response {response_id!r} does not run in the background; "
                "it ends when its client closes the connection."
            )
        run = self._runs.get(owner, response_id)
        if run is not None:
            await asyncio.shield(self._runs.cancel(run))
            stored = await self._found(owner, response_id)
        if stored.status != "cancelled":
            raise InvalidValue(f"The response {response_id!r} has already ended: it is {stored.status}.")
        return _json(stored.body)

    async def input_items(self, request: Request) -> Response:
        """`GET /v1/responses/{id}/input_items`: what this response itself was sent."""
        stored = await self._found(tenant(request.scope), request.path_params["id"])
        asked = Page.of(request)
        shown, has_more = asked.cut(items_of(stored.input_items))
        return _json(page(shown, has_more=has_more))

    async def _found(self, owner: str, response_id: str) -> StoredResponse:
        stored = None if self._store is None else await self._store.response(owner, response_id)
        if stored is None:
            raise ResponseNotFound(f"There is no response {response_id[:200]!r} here.")
        return stored

    async def _replayed(self, stored: StoredResponse, after: int) -> AsyncGenerator[list[Frame], None]:
        """The kept events after a number; of a stream that a crash cut off, its end is made up for here."""
        if not _kind.decode(stored.body).background:
            raise InvalidValue(
                f"The response {stored.id!r} was not made in the background, so its events were not kept.",
                param="stream",
            )
        assert self._store is not None
        is_ended = False
        while kept := await self._store.events(stored.tenant, stored.id, after=after, limit=_EVENTS):
            after = kept[-1].sequence_number
            frames = [named_frame(event.frame) for event in kept]
            is_ended = frames[-1].event in ("response.completed", "response.incomplete", "response.failed")
            yield frames
        if not is_ended and stored.is_finished and not await self._is_past_the_end(stored, after):
            yield [ended_frame(stored.body, stored.status, after + 1)]

    async def _is_past_the_end(self, stored: StoredResponse, after: int) -> bool:
        """Whether a reader already heard the last event."""
        assert self._store is not None
        last = await self._store.events(stored.tenant, stored.id, after=after - 1, limit=1)
        return bool(last) and named_frame(last[0].frame).event in (
            "response.completed",
            "response.incomplete",
            "response.failed",
        )


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")
