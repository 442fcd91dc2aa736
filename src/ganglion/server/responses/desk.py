"""Prepares calls of the Responses wire and keeps what they end with.

Law: what a client was told is kept was committed before it was told.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import msgspec

from ganglion.core.errors import GanglionError, InvalidValue
from ganglion.server.responses.history import History, Recent
from ganglion.server.responses.identity import ItemIds, new_response_id
from ganglion.server.state import State
from ganglion.store.values import NewItem, Status, StoredEvent, StoredResponse
from ganglion.wire import responses
from ganglion.wire.frame import Comment, Frame
from ganglion.wire.responses.stored import output_of

logger = logging.getLogger("ganglion.server")

NOTHING_RECENT: Recent = MappingProxyType({})


class _Head(msgspec.Struct, frozen=True):
    status: Status


class _Identified(msgspec.Struct, frozen=True):
    id: str


_head = msgspec.json.Decoder(_Head)
_raw_items = msgspec.json.Decoder(list[msgspec.Raw])
_identified = msgspec.json.Decoder(_Identified)


@dataclass(frozen=True, slots=True)
class Exchange:
    """One call on its way: what is asked, how it is told, whose it is, and what came before."""

    call: responses.ResponsesCall
    projection: responses.ResponsesProjection
    tenant: str
    history: tuple[responses.Item, ...] = ()

    @property
    def id(self) -> str:
        return self.call.request.id


class Desk:
    """Opens exchanges, and puts them into the store when they begin and when they end."""

    def __init__(self, state: State, *, is_strict: bool) -> None:
        self._state = state
        self._is_strict = is_strict
        self._history = History(state.store)
        self._leaving: set[asyncio.Task[None]] = set()

    async def open(
        self,
        body: bytes,
        tenant: str,
        *,
        keep_markers: bool = False,
        recent: Recent = NOTHING_RECENT,
        transport: Literal["http", "socket"] = "http",
    ) -> Exchange:
        """Read a call and everything it continues; raises what is wrong with it."""
        asked = responses.read(body, is_strict=self._is_strict)
        if self._state.store is None and asked.body.background:
            raise InvalidValue("'background' needs a server that stores responses.", param="background")
        if transport == "socket" and asked.body.background:
            raise InvalidValue("'background' is for HTTP; a socket ends what it began.", param="background")
        history = await self._history.before(asked, tenant, recent)
        response_id = new_response_id()
        ids = ItemIds(response_id)
        seal = self._state.seal.of(tenant)
        arrival = responses.Arrival(
            id=response_id,
            created_s=int(time.time()),
            ids=ids,
            tenant=tenant,
            seal=seal,
            can_store=self._state.store is not None,
            keep_markers=keep_markers,
        )
        referenced = await self._history.referenced(asked, tenant, history) if asked.references else {}
        call = responses.call_of(asked, arrival, history=history, referenced=referenced)
        for warning in call.warnings:
            logger.debug("of %s: %s", response_id, warning)
        projection = responses.ResponsesProjection(
            call.reply, ids=ids, clock_s=lambda: int(time.time()), seal=seal
        )
        return Exchange(call, projection, tenant, history)

    async def begin(self, exchange: Exchange) -> None:
        """Keep a response that has only begun, so that a crash leaves a trace of it."""
        if exchange.call.is_stored and self._state.store is not None:
            await self._state.store.put(_stored(exchange, exchange.projection.snapshot()))

    async def end(
        self, exchange: Exchange, frames: Sequence[Frame | Comment], events: Sequence[StoredEvent] = ()
    ) -> list[Frame | Comment]:
        """Keep the response that `frames` end with; where that fails, frames that say so instead."""
        final = exchange.projection.final
        assert final is not None
        try:
            await self.keep(exchange, final, events)
        except GanglionError as error:
            logger.error("%s could not be stored: %s", exchange.id, error.message)
            return [*frames[:-1], exchange.projection.instead(error)]
        return list(frames)

    async def keep(self, exchange: Exchange, final: bytes, events: Sequence[StoredEvent] = ()) -> None:
        """Commit a response, and what it adds to its conversation."""
        store, call = self._state.store, exchange.call
        if store is None:
            return
        items = _new_items(exchange, final) if call.conversation_id is not None else ()
        if call.is_stored:
            await store.put(_stored(exchange, final), items=items, events=events)
        elif call.conversation_id is not None:
            await store.append_items(exchange.tenant, call.conversation_id, items)

    async def cancel(self, exchange: Exchange, events: Sequence[StoredEvent] = ()) -> None:
        """Keep a response as cancelled, with what it had said; the first ending stands."""
        if exchange.call.is_stored and self._state.store is not None:
            final = exchange.projection.final
            assert final is not None
            await self._state.store.replace(_stored(exchange, final), events=events)

    def abandon(self, exchange: Exchange) -> None:
        """Keep, beside whoever is leaving, that the client of an unfinished response left."""
        if exchange.projection.is_done or not exchange.call.is_stored or self._state.store is None:
            return
        exchange.projection.cancel()
        leaving = asyncio.create_task(self._quietly_cancel(exchange), name=f"cancel {exchange.id}")
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)

    async def close(self) -> None:
        """Wait for what is still being kept."""
        await asyncio.gather(*self._leaving, return_exceptions=True)

    async def _quietly_cancel(self, exchange: Exchange) -> None:
        try:
            await self.cancel(exchange)
        except GanglionError as error:
            logger.error("%s could not be stored as cancelled: %s", exchange.id, error.message)


def remembered(exchange: Exchange) -> tuple[responses.Item, ...]:
    """The whole history after an exchange, for a connection that remembers it by itself."""
    final = exchange.projection.final
    assert final is not None
    said = responses.items_of(output_of(final))
    return (*exchange.history, *exchange.call.input_items, *said)


def _stored(exchange: Exchange, body: bytes) -> StoredResponse:
    call = exchange.call
    return StoredResponse(
        tenant=exchange.tenant,
        id=exchange.id,
        created_s=float(call.reply.response.created_at),
        status=_head.decode(body).status,
        model=call.request.model,
        body=body,
        input_items=responses.encode_items(call.input_items),
        previous_id=call.previous_response_id,
        conversation_id=call.conversation_id,
    )


def _new_items(exchange: Exchange, final: bytes) -> tuple[NewItem, ...]:
    sent = [msgspec.Raw(msgspec.json.encode(item)) for item in exchange.call.input_items]
    said = _raw_items.decode(output_of(final))
    return tuple(NewItem(_identified.decode(item).id, bytes(item)) for item in (*sent, *said))
