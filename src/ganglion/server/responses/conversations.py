"""The endpoints of conversations: `/v1/conversations` and below."""

import time
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ganglion.core.errors import ConversationNotFound, EngineUnavailable, ItemNotFound
from ganglion.server.endpoints.http import json_response, read_json
from ganglion.server.middleware.scope import principal
from ganglion.server.responses.ids import new_id
from ganglion.server.responses.paging import PageQuery
from ganglion.server.settings import ServerSettings
from ganglion.store.response_store import NewItem, Store, StoredConversation
from ganglion.wire.responses import Item, items_of, kept_items
from ganglion.wire.responses.stored import (
    conversation,
    conversation_deleted,
    item,
    page,
    read_added,
    read_conversation,
    read_update,
)

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
