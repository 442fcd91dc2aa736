"""The endpoints of stored state: `/v1/responses/{id}` and `/v1/conversations`, and all below them."""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ganglion.core.errors import (
    ConversationNotFound,
    EngineUnavailable,
    InvalidValue,
    ItemNotFound,
    ResponseNotFound,
)
from ganglion.server.endpoints.http import json_response, read_json, send_frames, while_connected
from ganglion.server.middleware.scope import principal
from ganglion.server.responses.background import SAVE_EVENTS_S, BackgroundRun, BackgroundRuns
from ganglion.server.responses.ids import new_id
from ganglion.server.settings import ServerSettings
from ganglion.store.database import Store
from ganglion.store.response_store import NewItem, StoredConversation, StoredResponse
from ganglion.wire.frame import Frame
from ganglion.wire.responses import ENDING, Item, items_of, kept_items
from ganglion.wire.responses.stored import (
    conversation,
    conversation_deleted,
    deleted,
    is_last,
    item,
    last_frames,
    named_frame,
    page,
    read_added,
    read_conversation,
    read_update,
    response_with,
)

_DEFAULT_LIMIT: Final = 20
_MAX_LIMIT: Final = 100
_LARGEST: Final = 2**53


def query_number(request: Request, name: str, *, default: int, most: int = _LARGEST) -> int:
    """A number of the query; raises InvalidValue for anything else."""
    value = request.query_params.get(name)
    if value is None:
        return default
    if not (value.isascii() and value.isdigit() and len(value) < 17 and int(value) <= most):
        raise InvalidValue(f"'{name}' is a whole number from 0 to {most}, not {value[:64]!r}.", param=name)
    return int(value)


@dataclass(frozen=True, slots=True)
class PageQuery:
    """At most `limit` items beyond the one named `after`, newest first unless asked otherwise."""

    limit: int
    after: str | None
    is_descending: bool

    @classmethod
    def of(cls, request: Request) -> "PageQuery":
        """The page that a request's query asks for."""
        limit = query_number(request, "limit", default=_DEFAULT_LIMIT, most=_MAX_LIMIT)
        if limit < 1:
            raise InvalidValue(f"'limit' is from 1 to {_MAX_LIMIT}.", param="limit")
        order = request.query_params.get("order", "desc")
        if order not in ("asc", "desc"):
            raise InvalidValue(f"'order' is asc or desc, not {order[:64]!r}.", param="order")
        return cls(limit, request.query_params.get("after"), order == "desc")

    def cut(self, items: Sequence[Item]) -> tuple[list[Item], bool]:
        """The page of a whole list, and whether more follows it."""
        ordered = list(reversed(items)) if self.is_descending else list(items)
        if self.after is not None:
            places = [place for place, item in enumerate(ordered) if item.id == self.after]
            if not places:
                raise ItemNotFound(f"There is no item {self.after[:200]!r} here.", param="after")
            ordered = ordered[places[0] + 1 :]
        return ordered[: self.limit], len(ordered) > self.limit


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
        await while_connected(scope, receive, send_frames(frames, scope, send, self._settings, ending=ENDING))

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


_metadata = msgspec.json.Decoder(dict[str, str])


class ConversationEndpoints:
    """Keeps conversations and their items, each for the tenant that made it."""

    def __init__(self, store: Store | None, settings: ServerSettings) -> None:
        self._opened = store
        self._settings = settings

    async def create(self, request: Request) -> Response:
        """`POST /v1/conversations`."""
        items, metadata = read_conversation(await self._body(request))
        tenant = principal(request.scope).tenant
        made = StoredConversation(
            tenant, new_id("conv"), float(int(time.time())), msgspec.json.encode(metadata)
        )
        await self._store.create_conversation(made, _bodies(kept_items(items, new_id, {}, "items")))
        return json_response(_encode(made))

    async def get(self, request: Request) -> Response:
        """`GET /v1/conversations/{id}`."""
        return json_response(_encode(await self._found(request)))

    async def update(self, request: Request) -> Response:
        """`POST /v1/conversations/{id}`: other metadata."""
        metadata = read_update(await self._body(request))
        found = await self._found(request)
        await self._store.set_metadata(found.tenant, found.id, msgspec.json.encode(metadata))
        return json_response(_encode(await self._found(request)))

    async def delete(self, request: Request) -> Response:
        """`DELETE /v1/conversations/{id}`."""
        found = await self._found(request)
        await self._store.delete_conversation(found.tenant, found.id)
        return json_response(conversation_deleted(found.id))

    async def items(self, request: Request) -> Response:
        """`GET /v1/conversations/{id}/items`."""
        found, query = await self._found(request), PageQuery.of(request)
        after = None
        if query.after is not None:
            beyond = await self._store.item(found.tenant, found.id, query.after)
            if beyond is None:
                raise ItemNotFound(f"There is no item {query.after[:200]!r} here.", param="after")
            after = beyond.position
        page_of = partial(self._store.items, found.tenant, found.id, is_descending=query.is_descending)
        kept = await page_of(after=after, limit=query.limit)
        # A page of large items is shorter than asked for: only the next one tells whether there is more.
        has_more = bool(kept) and bool(await page_of(after=kept[-1].position, limit=1))
        return json_response(page(items_of(*(b"[%b]" % each.body for each in kept)), has_more=has_more))

    async def add(self, request: Request) -> Response:
        """`POST /v1/conversations/{id}/items`."""
        sent = read_added(await self._body(request))
        found = await self._found(request)
        kept = kept_items(sent, new_id, {}, "items")
        await self._store.append_items(found.tenant, found.id, _bodies(kept))
        return json_response(page(kept, has_more=False))

    async def item(self, request: Request) -> Response:
        """`GET /v1/conversations/{id}/items/{item}`."""
        found = await self._found(request)
        return json_response(item(await self._item(found, request.path_params["item"])))

    async def delete_item(self, request: Request) -> Response:
        """`DELETE /v1/conversations/{id}/items/{item}`, which answers with the conversation."""
        found = await self._found(request)
        gone = await self._item(found, request.path_params["item"])
        await self._store.delete_item(found.tenant, found.id, gone.id or "")
        return json_response(_encode(found))

    @property
    def _store(self) -> Store:
        if self._opened is None:
            raise EngineUnavailable("This server keeps no conversations.")
        return self._opened

    async def _body(self, request: Request) -> bytes:
        return await read_json(request.scope, request.receive, self._settings)

    async def _found(self, request: Request) -> StoredConversation:
        conversation_id = request.path_params["id"]
        found = await self._store.conversation(principal(request.scope).tenant, conversation_id)
        if found is None:
            raise ConversationNotFound(f"There is no conversation {conversation_id[:200]!r} here.")
        return found

    async def _item(self, found: StoredConversation, item_id: str) -> Item:
        kept = await self._store.item(found.tenant, found.id, item_id)
        if kept is None:
            raise ItemNotFound(f"There is no item {item_id[:200]!r} here.")
        return items_of(b"[%b]" % kept.body)[0]


def _bodies(items: tuple[Item, ...]) -> tuple[NewItem, ...]:
    return tuple(NewItem(each.id or "", item(each)) for each in items)


def _encode(found: StoredConversation) -> bytes:
    return conversation(found.id, int(found.created_s), _metadata.decode(found.metadata))
