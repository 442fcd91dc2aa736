"""Prepares calls of the Responses wire and keeps what they end with.

Law: what a client was told is kept was committed before it was told.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

import msgspec

from ganglion.core.engine import ModelState
from ganglion.core.errors import GanglionError, InvalidValue
from ganglion.server.metering import Tab
from ganglion.server.naming import sampling_of
from ganglion.server.once import left_out, unknown_fields
from ganglion.server.responses.history import History, Recent
from ganglion.server.responses.identity import ItemIds, new_response_id
from ganglion.server.responses.owed import Owed
from ganglion.server.state import State
from ganglion.server.visit import Visit
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
    visit: Visit
    history: tuple[responses.Item, ...] = ()

    @property
    def id(self) -> str:
        return self.call.request.id

    @property
    def tenant(self) -> str:
        return self.visit.tenant


class Desk:
    """Opens exchanges, and puts them into the store when they begin and when they end."""

    def __init__(
        self, state: State, models: Callable[[], tuple[ModelState, ...]], *, is_strict: bool
    ) -> None:
        """`models` tells those that may be named, with their defaults."""
        self._store = state.store
        self._seal = state.seal
        self._models = models
        self._is_strict = is_strict
        self._history = History(state.store)
        self._unknown = unknown_fields()
        self._left_out = left_out()
        self._owed = Owed(state)

    async def open(
        self,
        body: bytes,
        visit: Visit,
        *,
        keep_markers: bool = False,
        recent: Recent = NOTHING_RECENT,
        transport: Literal["http", "socket"] = "http",
    ) -> Exchange:
        """Read a call and everything it continues; raises what is wrong with it."""
        tenant = visit.tenant
        asked = responses.read(body, is_strict=self._is_strict)
        self._unknown.note(asked.unknown_fields)
        if self._store is None and asked.body.background:
            raise InvalidValue("'background' needs a server that stores responses.", param="background")
        if transport == "socket" and asked.body.background:
            raise InvalidValue("'background' is for HTTP; a socket ends what it began.", param="background")
        history = await self._history.before(asked, tenant, recent)
        referenced = await self._history.referenced(asked, tenant, history) if asked.references else {}
        response_id = new_response_id()
        ids = ItemIds(response_id)
        seal = self._seal.of(tenant)
        arrival = responses.Arrival(
            id=response_id,
            created_s=int(time.time()),
            ids=ids,
            tenant=tenant,
            seal=seal,
            can_store=self._store is not None,
            keep_markers=keep_markers,
            defaults=sampling_of(self._models(), asked.body.model),
        )
        call = responses.call_of(asked, arrival, history=history, referenced=referenced)
        self._left_out.note(call.warnings)
        projection = responses.ResponsesProjection(
            call.reply, ids=ids, clock_s=lambda: int(time.time()), seal=seal
        )
        return Exchange(call, projection, visit, history)

    async def begin(self, exchange: Exchange, events: Sequence[StoredEvent] = ()) -> None:
        """Keep a response that has only begun, so that a crash leaves a trace of it."""
        if exchange.call.is_stored and self._store is not None:
            await self._store.put(_stored(exchange, exchange.projection.snapshot()), events=events)

    async def keep(self, exchange: Exchange) -> None:
        """Keep a whole response that was not begun; raises why it cannot be."""
        if exchange.call.is_stored and self._store is not None:
            ended = _ended(exchange)
            await self._store.put(ended, items=_new_items(exchange, ended))

    async def end(
        self, exchange: Exchange, frames: Sequence[Frame], events: Sequence[StoredEvent] = ()
    ) -> list[Frame]:
        """Keep how a response that was begun ended; where that fails, frames that end with that instead.

        What was deleted meanwhile, or has ended in another way, stays so. `events` end as `frames` do.
        """
        if not exchange.call.is_stored or self._store is None:
            return list(frames)
        ended = _ended(exchange)
        try:
            await self._store.replace(ended, items=_new_items(exchange, ended), events=events)
        except GanglionError as error:
            logger.error("%s could not be stored: %s", exchange.id, error)
            last = exchange.projection.instead(error)
            told = [*events[:-1], StoredEvent(events[-1].sequence_number, last.data)] if events else []
            self._owed.add(_ended(exchange), told)
            return [*frames[:-1], last]
        return list(frames)


def bounded(exchange: Exchange, tab: Tab) -> Exchange:
    """The exchange with its answer held to what was reserved for it, where its client left it open."""
    request = exchange.call.request
    if tab.answer_tokens is None or request.max_tokens is not None:
        return exchange
    request = replace(request, max_tokens=tab.answer_tokens)
    return replace(exchange, call=replace(exchange.call, request=request))


def remembered(exchange: Exchange) -> tuple[responses.Item, ...]:
    """The whole history after an exchange, for a connection that remembers it by itself."""
    final = exchange.projection.final
    assert final is not None
    said = responses.items_of(output_of(final))
    return (*exchange.history, *exchange.call.input_items, *said)


def only_frames(frames: Sequence[Frame | Comment]) -> list[Frame]:
    """The frames of a stream that has no comments."""
    return [frame for frame in frames if isinstance(frame, Frame)]


def _ended(exchange: Exchange) -> StoredResponse:
    assert exchange.projection.final is not None
    return _stored(exchange, exchange.projection.final)


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


def _new_items(exchange: Exchange, ended: StoredResponse) -> tuple[NewItem, ...]:
    """What a response adds to its conversation; one that failed or was cancelled is no turn of it."""
    if ended.conversation_id is None or ended.status not in ("completed", "incomplete"):
        return ()
    sent = _raw_items.decode(ended.input_items)
    said = _raw_items.decode(output_of(ended.body))
    return tuple(NewItem(_identified.decode(item).id, bytes(item)) for item in (*sent, *said))
