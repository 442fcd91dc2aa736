"""The endpoints of stored responses: `/v1/responses/{id}` and below."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ganglion.core.errors import InvalidValue, ResponseNotFound
from ganglion.server.endpoints.http import json_response, send_frames, while_connected
from ganglion.server.middleware.scope import principal
from ganglion.server.responses.background import SAVE_EVENTS_S, BackgroundRun, BackgroundRuns
from ganglion.server.responses.paging import PageQuery, query_number
from ganglion.server.settings import ServerSettings
from ganglion.store.response_store import Store, StoredResponse
from ganglion.wire.frame import Frame
from ganglion.wire.responses import ENDING, items_of
from ganglion.wire.responses.stored import deleted, is_last, last_frames, named_frame, page, response_with

_PAGE: Final = 500


class _Kind(msgspec.Struct, frozen=True):
    background: bool = False


_kind = msgspec.json.Decoder(_Kind)


class StoredResponseEndpoints:
    """Reads, resumes, cancels and deletes responses, each for the tenant that asked for it."""

    def __init__(self, store: Store | None, runs: BackgroundRuns, settings: ServerSettings) -> None:
        self._opened = store
        self._runs = runs
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """`GET /v1/responses/{id}`, and with `stream=true` its events after `starting_after`."""
        request = Request(scope)
        # A run is asked first: it goes only when the store holds its end.
        run = self._run(request)
        if request.query_params.get("stream") not in ("true", "1"):
            body = (await self._found(request)).body if run is None else await run.snapshot()
            await json_response(body)(scope, receive, send)
            return
        after = query_number(request, "starting_after", default=-1)
        if run is None:
            stored = await self._found(request)
            if not _is_background(stored):
                raise InvalidValue(
                    f"The events of {stored.id!r} were not kept: it was not made in the background.",
                    param="stream",
                )
        frames = self._replayed(request, after) if run is None else run.follow(after)
        await while_connected(scope, receive, send_frames(frames, send, self._settings, ending=ENDING))

    async def delete(self, request: Request) -> Response:
        """`DELETE /v1/responses/{id}`; one that runs is cancelled first."""
        run = self._run(request)
        if run is not None:
            await self._runs.cancel(run)
        found = await self._found(request)
        await self._store.delete(found.tenant, found.id)
        return json_response(deleted(found.id))

    async def cancel(self, request: Request) -> Response:
        """`POST /v1/responses/{id}/cancel`; one that has ended is returned as it is."""
        run = self._run(request)
        if run is not None:
            await self._runs.cancel(run)
        found = await self._found(request)
        if not _is_background(found):
            raise InvalidValue(
                f"The response {found.id!r} does not run in the background; "
                "it ends when its client closes the connection."
            )
        if not found.is_finished:
            # It runs on another server of the same store, whose own ending then comes too late.
            body = response_with(found.body, "cancelled")
            await self._store.replace(replace(found, status="cancelled", body=body))
            found = await self._found(request)
        return json_response(found.body)

    async def input_items(self, request: Request) -> Response:
        """`GET /v1/responses/{id}/input_items`: the input of this response itself."""
        found, query = await self._found(request), PageQuery.of(request)
        shown, has_more = query.cut(items_of(found.input_items))
        return json_response(page(shown, has_more=has_more))

    @property
    def _store(self) -> Store:
        if self._opened is None:
            raise ResponseNotFound("This server keeps no responses.")
        return self._opened

    def _run(self, request: Request) -> BackgroundRun | None:
        return self._runs.get(principal(request.scope).tenant, request.path_params["id"])

    async def _found(self, request: Request) -> StoredResponse:
        response_id: str = request.path_params["id"]
        found = await self._store.response(principal(request.scope).tenant, response_id)
        if found is None:
            raise ResponseNotFound(f"There is no response {response_id[:200]!r} here.")
        return found

    async def _replayed(self, request: Request, after: int) -> AsyncGenerator[list[Frame], None]:
        """The stored events after a number, and those that another server of the same store still adds."""
        while True:
            # Read first: once it has ended, all events are there that ever will be.
            found = await self._found(request)
            while kept := await self._store.events(found.tenant, found.id, after=after, limit=_PAGE):
                after = kept[-1].sequence_number
                frames = [named_frame(event.frame) for event in kept]
                yield frames
                if is_last(frames[-1]):
                    return
            if found.is_finished:
                # A reader may have got more events than a crash left; it, too, gets the end.
                yield last_frames(found.body, after + 1)
                return
            await asyncio.sleep(SAVE_EVENTS_S)


def _is_background(found: StoredResponse) -> bool:
    return _kind.decode(found.body).background
