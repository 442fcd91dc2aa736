"""The history of a call: the items of the responses and conversations that it continues."""

import asyncio
from collections.abc import Mapping
from typing import NoReturn

from ganglion.core.errors import ConversationNotFound, InvalidValue, PreviousResponseNotFound
from ganglion.server.responses.ids import response_of
from ganglion.store.database import Store
from ganglion.store.response_store import MAX_CHAIN, MAX_CHAIN_BYTES, StoredResponse
from ganglion.wire.responses import Item, ParsedResponsesBody, items_of
from ganglion.wire.responses.items import CustomToolCallItem, FunctionCallItem
from ganglion.wire.responses.stored import output_of

_MAX_CONVERSATION_ITEMS = 10_000
"""More than any context holds; a longer conversation is refused rather than cut."""
_PAGE = 500

Recent = Mapping[str, tuple[Item, ...]]
"""Whole histories of responses that a connection remembers by itself, by response id."""


class History:
    """Reads what a call continues, as its tenant sees it."""

    def __init__(self, store: Store | None) -> None:
        self._store = store

    async def before(self, parsed: ParsedResponsesBody, tenant: str, recent: Recent) -> tuple[Item, ...]:
        """Every item, input and output, before the call's own."""
        if parsed.previous_response_id is not None:
            known = recent.get(parsed.previous_response_id)
            return known if known is not None else await self.until(parsed.previous_response_id, tenant)
        if parsed.conversation_id is not None:
            return await self.conversation(parsed.conversation_id, tenant)
        return ()

    async def until(self, response_id: str, tenant: str) -> tuple[Item, ...]:
        """Every item up to the end of a response; raises PreviousResponseNotFound."""
        chain = () if self._store is None else await self._store.chain(tenant, response_id)
        if not chain:
            raise PreviousResponseNotFound(
                f"There is no response {response_id[:200]!r} here.", param="previous_response_id"
            )
        if not chain[-1].is_finished:
            raise InvalidValue(
                f"The response {response_id!r} has not ended yet.", param="previous_response_id"
            )
        if chain[0].previous_id is not None:
            await self._refuse_part(chain[0].previous_id, response_id, tenant)
        items = list(await self._conversation_before(chain[0], response_id))
        for response in chain:
            items += _items_of_response(response)
            await asyncio.sleep(0)  # a long one is read in pieces, and other requests run in between
        return tuple(items)

    async def conversation(self, conversation_id: str, tenant: str) -> tuple[Item, ...]:
        """Every item of a conversation; raises ConversationNotFound."""
        if self._store is None or await self._store.conversation(tenant, conversation_id) is None:
            raise ConversationNotFound(
                f"There is no conversation {conversation_id[:200]!r} here.", param="conversation"
            )
        return await self._items(conversation_id, tenant)

    async def referenced(
        self, parsed: ParsedResponsesBody, tenant: str, history: tuple[Item, ...]
    ) -> dict[str, Item]:
        """The stored items that the input refers to, as far as they are found."""
        referenced_ids = set(parsed.references)
        found = {item.id: item for item in history if item.id in referenced_ids and item.id is not None}
        responses = {response_of(item_id) for item_id in referenced_ids - found.keys()} - {None}
        for response_id in responses:
            assert response_id is not None
            kept = None if self._store is None else await self._store.response(tenant, response_id)
            if kept is not None:
                found |= {
                    item.id: item
                    for item in _items_of_response(kept)
                    if item.id in referenced_ids and item.id
                }
        return found

    async def _refuse_part(self, missing_id: str, response_id: str, tenant: str) -> NoReturn:
        assert self._store is not None
        if await self._store.response(tenant, missing_id) is None:
            raise _not_whole(response_id, missing_id)
        raise InvalidValue(
            f"The history of the response {response_id!r} is longer than {MAX_CHAIN} responses "
            f"or {MAX_CHAIN_BYTES} bytes.",
            param="previous_response_id",
            hint="Compact it, or begin anew.",
        )

    async def _conversation_before(self, first: StoredResponse, response_id: str) -> tuple[Item, ...]:
        """The items that the conversation of a chain's first response held when that was parsed for."""
        conversation_id = first.conversation_id
        if conversation_id is None:
            return ()
        assert self._store is not None
        if await self._store.conversation(first.tenant, conversation_id) is None:
            raise _not_whole(response_id, conversation_id)
        items = await self._items(conversation_id, first.tenant)
        own = {item.id for item in _items_of_response(first)}
        # A turn is appended at once, so that its items stand together; an earlier one that the client sent
        # again stands where it was.
        end = max((place for place, item in enumerate(items) if item.id in own), default=None)
        if end is None:
            raise InvalidValue(
                f"The response {first.id!r} is no turn of its conversation {conversation_id!r}.",
                param="previous_response_id",
                hint="Continue the conversation itself.",
            )
        while end > 0 and items[end - 1].id in own:
            end -= 1
        return items[:end]

    async def _items(self, conversation_id: str, tenant: str) -> tuple[Item, ...]:
        """All items, read page by page: other requests run in between."""
        assert self._store is not None
        items: list[Item] = []
        after: int | None = None
        size_bytes = 0
        while page := await self._store.items(tenant, conversation_id, after=after, limit=_PAGE):
            items += items_of(*(b"[%b]" % item.body for item in page))
            after = page[-1].position
            size_bytes += sum(len(item.body) for item in page)
            if len(items) > _MAX_CONVERSATION_ITEMS or size_bytes > MAX_CHAIN_BYTES:
                raise InvalidValue(
                    f"The conversation {conversation_id!r} holds more than {_MAX_CONVERSATION_ITEMS} items "
                    f"or {MAX_CHAIN_BYTES} bytes.",
                    param="conversation",
                    hint="Compact it, or begin another one.",
                )
        return tuple(items)


def _items_of_response(response: StoredResponse) -> tuple[Item, ...]:
    """What a response was sent and what it said; without a call that was cut off, which nobody can answer."""
    said = items_of(output_of(response.body))
    return (*items_of(response.input_items), *(item for item in said if not _is_cut_call(item)))


def _is_cut_call(item: Item) -> bool:
    return isinstance(item, FunctionCallItem | CustomToolCallItem) and item.status == "incomplete"


def _not_whole(response_id: str, missing_id: str) -> PreviousResponseNotFound:
    return PreviousResponseNotFound(
        f"The history of the response {response_id!r} is no longer whole: {missing_id!r} is gone.",
        param="previous_response_id",
    )
