"""The service behind the Responses wire: it opens calls with their history, and stores their ends.

Law: a response is committed to the store before its client is told that it is stored.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, Literal

import msgspec

from ganglion.core.engine import Engine, ModelState, PromptReader, ReadPrompt
from ganglion.core.errors import ContextLengthExceeded, GanglionError, InvalidValue
from ganglion.server.answers import Answers
from ganglion.server.middleware.model_lookup import default_sampling
from ganglion.server.middleware.principal import Principal
from ganglion.server.middleware.request_log import ignored_field_log, unknown_field_log
from ganglion.server.quota import QuotaSettlement
from ganglion.server.responses.history import History, Recent
from ganglion.server.responses.ids import ItemIds, new_response_id
from ganglion.server.state import AppState
from ganglion.server.truncation import TruncatingEngine, shortened
from ganglion.store.response_store import NewItem, Status, StoredEvent, StoredResponse
from ganglion.wire import responses
from ganglion.wire.frame import Comment, Frame
from ganglion.wire.responses.stored import output_of

_RETRY_S: Final = 1.0
_MAX_UNSAVED: Final = 256
"""Endings beyond it read as failed after the next start; a full disk must not fill the memory."""


class _UnsavedEndings:
    """Endings that the store refused, to be saved later, by tenant and response."""

    def __init__(self, state: AppState) -> None:
        self._store = state.store
        self._background = state.background
        self._endings: dict[tuple[str, str], tuple[StoredResponse, Sequence[StoredEvent]]] = {}

    def add(self, ended: StoredResponse, events: Sequence[StoredEvent]) -> None:
        """Keep an ending that could not be saved, and try again until it is."""
        if len(self._endings) >= _MAX_UNSAVED:
            _logger.error("the response %s will read as running until the next start", ended.id)
            return
        is_first = not self._endings
        self._endings[ended.tenant, ended.id] = ended, events
        if is_first:
            self._background.start(self._settle(), "save unsaved endings")

    async def _settle(self) -> None:
        assert self._store is not None
        while self._endings:
            await asyncio.sleep(_RETRY_S)
            for key, (ended, events) in tuple(self._endings.items()):
                try:
                    await self._store.replace(ended, events=events)
                except GanglionError:
                    break
                del self._endings[key]


_logger = logging.getLogger("ganglion.server")

NO_RECENT: Recent = MappingProxyType({})


class _Head(msgspec.Struct, frozen=True):
    status: Status


class _Identified(msgspec.Struct, frozen=True):
    id: str


_head = msgspec.json.Decoder(_Head)
_raw_items = msgspec.json.Decoder(list[msgspec.Raw])
_identified = msgspec.json.Decoder(_Identified)


@dataclass(frozen=True, slots=True)
class ResponsesExchange:
    """One call on its way: the call, its projection, its principal, its history and its quota."""

    call: responses.ResponsesCall
    projection: responses.ResponsesProjection
    principal: Principal
    history: tuple[responses.Item, ...] = ()
    settlement: QuotaSettlement = field(default_factory=QuotaSettlement)

    @property
    def id(self) -> str:
        return self.call.request.id

    @property
    def tenant(self) -> str:
        return self.principal.tenant


class ResponsesService:
    """Opens exchanges, and saves them when they begin and when they end."""

    def __init__(
        self, state: AppState, models: Callable[[], tuple[ModelState, ...]], *, is_strict: bool
    ) -> None:
        """`models` gives the models that may be named, with their defaults."""
        self._store = state.store
        self._seal = state.seal
        self._meter = state.meter
        self._models = models
        self._is_strict = is_strict
        self._history = History(state.store)
        self._unknown = unknown_field_log()
        self._ignored = ignored_field_log()
        self._unsaved = _UnsavedEndings(state)

    async def open(
        self,
        body: bytes,
        principal: Principal,
        *,
        keep_markers: bool = False,
        recent: Recent = NO_RECENT,
        transport: Literal["http", "socket"] = "http",
    ) -> ResponsesExchange:
        """Read a call and everything it continues; raises what is wrong with it."""
        tenant = principal.tenant
        parsed = responses.parse_body(body, is_strict=self._is_strict)
        self._unknown.log(parsed.unknown_fields)
        if self._store is None and parsed.body.background:
            raise InvalidValue("'background' needs a server that stores responses.", param="background")
        if transport == "socket" and parsed.body.background:
            raise InvalidValue("'background' is for HTTP; a socket ends what it began.", param="background")
        history = await self._history.before(parsed, tenant, recent)
        referenced = await self._history.referenced(parsed, tenant, history) if parsed.references else {}
        response_id = new_response_id()
        ids = ItemIds(response_id)
        seal = self._seal.of(tenant)
        arrival = responses.ResponsesParseContext(
            id=response_id,
            created_s=int(time.time()),
            ids=ids,
            tenant=tenant,
            seal=seal,
            can_store=self._store is not None,
            keep_markers=keep_markers,
            defaults=default_sampling(self._models(), parsed.body.model),
        )
        call = responses.build_call(parsed, arrival, history=history, referenced=referenced)
        self._ignored.log(call.warnings)
        projection = responses.ResponsesProjection(
            call.reply, ids=ids, clock_s=lambda: int(time.time()), seal=seal
        )
        return ResponsesExchange(call, projection, principal, history)

    async def reserve(self, exchange: ResponsesExchange) -> ResponsesExchange:
        """The exchange within its key's quota; what its answers take is settled when its settlement is left.

        An answer that its client did not bound is bounded by what was reserved. Raises why it may not run.
        """
        call, request = exchange.call, exchange.call.request
        reserved = await self._meter.admit(exchange.principal, request)
        if reserved.answer_tokens is not None and request.max_tokens is None:
            call = replace(call, request=replace(request, max_tokens=reserved.answer_tokens))
        return replace(exchange, call=call, settlement=QuotaSettlement(reserved.settle))

    async def save_begun(self, exchange: ResponsesExchange, events: Sequence[StoredEvent] = ()) -> None:
        """Save a response that has only begun, so that a crash leaves a trace of it."""
        if exchange.call.is_stored and self._store is not None:
            await self._store.put(_stored_response(exchange, exchange.projection.snapshot()), events=events)

    async def save(self, exchange: ResponsesExchange) -> None:
        """Save a whole response that was not begun; raises why it cannot be."""
        if exchange.call.is_stored and self._store is not None:
            ended = _ended_response(exchange)
            await self._store.put(ended, items=_new_items(exchange, ended))

    async def save_ended(
        self, exchange: ResponsesExchange, frames: Sequence[Frame], events: Sequence[StoredEvent] = ()
    ) -> list[Frame]:
        """Save the end of a response that was begun; where that fails, the frames end with that error.

        What was deleted meanwhile, or has ended in another way, stays so. `events` end as `frames` do.
        """
        if not exchange.call.is_stored or self._store is None:
            return list(frames)
        ended = _ended_response(exchange)
        try:
            await self._store.replace(ended, items=_new_items(exchange, ended), events=events)
        except GanglionError as error:
            _logger.error("the response %s could not be stored: %s", exchange.id, error)
            last = exchange.projection.instead(error)
            saved_events = (
                [*events[:-1], StoredEvent(events[-1].sequence_number, last.data)] if events else []
            )
            self._unsaved.add(_ended_response(exchange), saved_events)
            return [*frames[:-1], last]
        return list(frames)


def answers_to(exchange: ResponsesExchange, engine: Engine, *, is_folded: bool = False) -> Answers:
    """The answers to an exchange's request, which may be shortened when the call says so."""
    chosen = TruncatingEngine(engine) if exchange.call.may_truncate else engine
    answers = Answers(chosen, (exchange.call.request,), principal=exchange.principal, is_folded=is_folded)
    exchange.settlement.answers = answers
    return answers


async def read_prompt(exchange: ResponsesExchange, reader: PromptReader, context_length: int) -> ReadPrompt:
    """The prompt that an exchange is answered from: shortened where the call says so and it would not fit."""
    request = exchange.call.request
    least = 0 if request.max_tokens == 0 else 1
    while True:
        read = await reader.read(request)
        length = len(read.tokens)
        if not exchange.call.may_truncate or not context_length or length + least <= context_length:
            return read
        shorter = shortened(request, ContextLengthExceeded(length, context_length))
        if shorter is None:
            return read
        request = shorter


def full_history(exchange: ResponsesExchange) -> tuple[responses.Item, ...]:
    """The whole history after an exchange, for a connection that remembers it itself."""
    final = exchange.projection.final
    assert final is not None
    said = responses.items_of(output_of(final))
    return (*exchange.history, *exchange.call.input_items, *said)


def only_frames(frames: Sequence[Frame | Comment]) -> list[Frame]:
    """The frames of a stream that has no comments."""
    return [frame for frame in frames if isinstance(frame, Frame)]


def _ended_response(exchange: ResponsesExchange) -> StoredResponse:
    assert exchange.projection.final is not None
    return _stored_response(exchange, exchange.projection.final)


def _stored_response(exchange: ResponsesExchange, body: bytes) -> StoredResponse:
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


def _new_items(exchange: ResponsesExchange, ended: StoredResponse) -> tuple[NewItem, ...]:
    """The items that a response adds to its conversation: none where it failed or was cancelled."""
    if ended.conversation_id is None or ended.status not in ("completed", "incomplete"):
        return ()
    sent = _raw_items.decode(ended.input_items)
    said = _raw_items.decode(output_of(ended.body))
    return tuple(NewItem(_identified.decode(item).id, bytes(item)) for item in (*sent, *said))
