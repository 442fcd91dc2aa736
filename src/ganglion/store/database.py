"""The store of responses and conversations in a database: one thread that writes, a few that read.

Laws: a write that returned is on disk, and survives the process, the kernel and the power. Each method names
one tenant and sees nothing of another's; another tenant's rows look exactly like rows that do not exist. Only
`abandoned` and `sweep`, the server's own upkeep, look at all tenants.

Cancelling a write while it waits leaves open whether it is made. Every method may raise StoreUnavailable,
StorageFull, StoreUnusable, or Overloaded when too much waits already.
"""

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from operator import add
from secrets import token_bytes
from time import time
from typing import Concatenate, Final, Literal, ParamSpec, TypeVar

from ganglion.store import conversations, responses
from ganglion.store.backend import Backend, DatabaseConnection
from ganglion.store.database_thread import DatabaseThread
from ganglion.store.response_store import (
    MAX_CHAIN,
    MAX_CHAIN_BYTES,
    PAGE,
    AbandonedResponse,
    NewItem,
    Retention,
    StoredConversation,
    StoredEvent,
    StoredItem,
    StoredResponse,
    SweepResult,
    check_names,
    is_name,
)

_BATCH: Final = 64
"""Removed in one transaction: other writers run between two of them."""
_OLDEST: Final = """
    SELECT 'response' AS kind, tenant, id, created_s AS age_s, size_bytes FROM responses
    WHERE status NOT IN ('queued', 'in_progress')
    UNION ALL
    SELECT 'conversation', tenant, id, used_s, size_bytes FROM conversations
    ORDER BY age_s LIMIT ?
"""


@dataclass(frozen=True, slots=True)
class _Removable:
    """A response or conversation that may be removed, and when it was last used."""

    kind: Literal["response", "conversation"]
    tenant: str
    id: str
    since_s: float
    size_bytes: int


def removable(connection: DatabaseConnection, retention: Retention, now_s: float) -> list[_Removable]:
    """The next ones to remove, oldest first; none when everything may stay."""
    found = [_Removable(*row) for row in connection.rows(_OLDEST, _BATCH)]
    too_many_bytes = 0 if retention.max_bytes is None else _kept_bytes(connection) - retention.max_bytes
    going: list[_Removable] = []
    for old in found:
        is_too_old = retention.max_age_s is not None and old.since_s < now_s - retention.max_age_s
        if not is_too_old and too_many_bytes <= 0:
            break
        going.append(old)
        too_many_bytes -= old.size_bytes
    return going


def _kept_bytes(connection: DatabaseConnection) -> int:
    """The size of all responses and conversations."""
    sql = """SELECT (SELECT coalesce(sum(size_bytes), 0) FROM responses)
                  + (SELECT coalesce(sum(size_bytes), 0) FROM conversations)"""
    return int(connection.rows(sql)[0][0])


def remove(connection: DatabaseConnection, found: list[_Removable]) -> SweepResult:
    """Remove those that have not changed since; a conversation that was continued stays."""
    gone_responses, gone_conversations, size_bytes = 0, 0, 0
    for old in found:
        if old.kind == "response":
            is_gone = responses.delete(connection, old.tenant, old.id)
            gone_responses += is_gone
        else:
            is_gone = bool(
                connection.rows(
                    "SELECT 1 FROM conversations WHERE tenant = ? AND id = ? AND used_s = ?",
                    old.tenant,
                    old.id,
                    old.since_s,
                )
            ) and conversations.delete(connection, old.tenant, old.id)
            gone_conversations += is_gone
        size_bytes += old.size_bytes * is_gone
    connection.shrink()
    return SweepResult(gone_responses, gone_conversations, size_bytes)


_SECRET_BYTES: Final = 32


def _get_or_create_secret(connection: DatabaseConnection, name: str) -> bytes:
    """The secret of that name, created when there is none."""
    connection.rows(
        "INSERT INTO secrets (name, value) VALUES (?, ?) ON CONFLICT (name) DO NOTHING",
        name,
        token_bytes(_SECRET_BYTES),
    )
    value: bytes = connection.rows("SELECT value FROM secrets WHERE name = ?", name)[0][0]
    return value


_P = ParamSpec("_P")
_T = TypeVar("_T")

READERS: Final = 2
"""So that one long chain does not hold up all other reads."""
_MAX_PAGE: Final = 10_000
_LAST: Final = 2**63 - 1


class Store:
    """Responses, streams that outlive their client, and conversations in SQLite or PostgreSQL."""

    def __init__(
        self, backend: Backend, *, readers: int = READERS, clock: Callable[[], float] = time
    ) -> None:
        """With no readers the writer reads too: for a database that has but one connection."""
        self._backend = backend
        self._clock = clock
        self._writer = DatabaseThread(backend.connect, is_writer=True)
        self._readers = [DatabaseThread(backend.connect, is_writer=False) for _ in range(readers)]

    async def open(self) -> None:
        """Connect and bring the schema up to date; raises what is wrong with the database."""
        await self._writer.run(lambda connection: None)

    async def put(
        self, response: StoredResponse, *, items: Sequence[NewItem] = (), events: Sequence[StoredEvent] = ()
    ) -> None:
        """Keep a response under its id, in one commit with items of its conversation and events.

        A response that the id named before is overwritten. Items of a conversation that is gone are dropped.
        """
        _check(response, items)

        def job(connection: DatabaseConnection) -> None:
            responses.put(connection, self._backend.owner, response, events)
            self._append_to(connection, response, items)

        await self._writer.run(job)

    async def replace(
        self, response: StoredResponse, *, items: Sequence[NewItem] = (), events: Sequence[StoredEvent] = ()
    ) -> bool:
        """As `put`, but only while the kept one is unfinished: False when it ended before, or is gone.

        So of a cancellation, an ending and a deletion that race, the first one wins.
        """
        _check(response, items)

        def job(connection: DatabaseConnection) -> bool:
            is_replaced = responses.replace(connection, self._backend.owner, response, events)
            if is_replaced:
                self._append_to(connection, response, items)
            return is_replaced

        return await self._writer.run(job)

    async def response(self, tenant: str, response_id: str) -> StoredResponse | None:
        """The response of that id."""
        return await self._named(self._reader, responses.get, None, tenant, response_id)

    async def delete(self, tenant: str, response_id: str) -> bool:
        """Remove a response and its events; False when there was none. What continues it stays."""
        return await self._named(self._writer, responses.delete, False, tenant, response_id)

    async def chain(
        self, tenant: str, response_id: str, *, limit: int = MAX_CHAIN, max_bytes: int = MAX_CHAIN_BYTES
    ) -> tuple[StoredResponse, ...]:
        """A response and those before it, oldest first; empty when the id names none.

        It is whole when the first one has no `previous_id`; otherwise that one is gone, or a limit was met.
        """
        limit = min(limit, _MAX_PAGE)
        return await self._named(
            self._reader, responses.chain, (), tenant, response_id, limit=limit, max_bytes=max_bytes
        )

    async def append_events(self, tenant: str, response_id: str, events: Sequence[StoredEvent]) -> bool:
        """Keep frames of an unfinished response's stream; False when it ended before, or is gone.

        Kept numbers stay.
        """
        return await self._named(
            self._writer, responses.append_events, False, tenant, response_id, events=events
        )

    async def events(
        self, tenant: str, response_id: str, *, after: int = -1, limit: int = PAGE
    ) -> tuple[StoredEvent, ...]:
        """The kept frames after a number, in order."""
        start, limit = _within(after), _page(limit)
        return await self._named(
            self._reader, responses.events_after, (), tenant, response_id, after=start, limit=limit
        )

    async def create_conversation(
        self, conversation: StoredConversation, items: Sequence[NewItem] = ()
    ) -> None:
        """Keep a new conversation with its first items."""
        check_names(tenant=conversation.tenant, id=conversation.id)
        _check_items(items)
        now_s = self._clock()
        await self._writer.run(
            lambda connection: conversations.create(connection, conversation, items, now_s)
        )

    async def conversation(self, tenant: str, conversation_id: str) -> StoredConversation | None:
        """The conversation of that id."""
        return await self._named(self._reader, conversations.get, None, tenant, conversation_id)

    async def set_metadata(self, tenant: str, conversation_id: str, metadata: bytes) -> bool:
        """Give a conversation other metadata; False when there is none."""
        return await self._named(
            self._writer, conversations.set_metadata, False, tenant, conversation_id, metadata=metadata
        )

    async def delete_conversation(self, tenant: str, conversation_id: str) -> bool:
        """Remove a conversation with its items; False when there was none."""
        return await self._named(self._writer, conversations.delete, False, tenant, conversation_id)

    async def append_items(self, tenant: str, conversation_id: str, items: Sequence[NewItem]) -> bool:
        """Add items at the end; False when there is no such conversation.

        An item whose id the conversation holds already stays as it is: sending one again adds nothing.
        """
        if is_name(tenant, conversation_id):
            _check_items(items)
        now_s = self._clock()
        return await self._named(
            self._writer, conversations.append, False, tenant, conversation_id, items=items, now_s=now_s
        )

    async def items(
        self,
        tenant: str,
        conversation_id: str,
        *,
        after: int | None = None,
        limit: int = PAGE,
        is_descending: bool = False,
    ) -> tuple[StoredItem, ...]:
        """Items beyond a position, in the order of positions or against it.

        Fewer than `limit` where they are large, but always one while there is one.
        """
        start, limit = None if after is None else _within(after), _page(limit)
        return await self._named(
            self._reader,
            conversations.items,
            (),
            tenant,
            conversation_id,
            after=start,
            limit=limit,
            is_descending=is_descending,
        )

    async def item(self, tenant: str, conversation_id: str, item_id: str) -> StoredItem | None:
        """One item of a conversation."""
        return await self._named(self._reader, conversations.get_item, None, tenant, conversation_id, item_id)

    async def delete_item(self, tenant: str, conversation_id: str, item_id: str) -> bool:
        """Remove one item; False when there was none."""
        return await self._named(
            self._writer, conversations.delete_item, False, tenant, conversation_id, item_id
        )

    async def abandoned(self, limit: int = PAGE) -> tuple[AbandonedResponse, ...]:
        """Unfinished responses of servers that are gone, of every tenant: what a crash cut off."""
        limit = _page(limit)

        def job(connection: DatabaseConnection) -> tuple[AbandonedResponse, ...]:
            found: list[AbandonedResponse] = []
            for owner in responses.unfinished_elsewhere(connection, self._backend.owner):
                if not self._backend.is_alive(connection, owner):
                    found += responses.unfinished_of(connection, owner, limit - len(found))
            return tuple(found)

        return await self._reader.run(job)

    async def sweep(self, retention: Retention) -> SweepResult:
        """Remove what is too old, then the oldest until the rest is small enough; unfinished ones stay.

        A response is as old as its creation, a conversation as its last item.
        """
        swept = SweepResult()
        while batch := await self._reader.run(
            lambda connection: removable(connection, retention, self._clock())
        ):
            removed = await self._writer.run(partial(remove, found=batch))
            if removed == SweepResult():
                break
            swept = SweepResult(*map(add, astuple(swept), astuple(removed)))
        return swept

    async def secret(self, name: str) -> bytes:
        """32 random bytes, created when the name is first used and the same ever after."""
        check_names(name=name)
        return await self._writer.run(lambda connection: _get_or_create_secret(connection, name))

    async def close(self) -> None:
        """Finish what waits, then close the database."""
        for thread in (*self._readers, self._writer):
            await thread.close()
        self._backend.close()

    async def _named(
        self,
        thread: DatabaseThread,
        job: Callable[Concatenate[DatabaseConnection, _P], _T],
        missing: _T,
        *names: _P.args,
        **more: _P.kwargs,
    ) -> _T:
        """Run a job; `missing` where a name, as all positional arguments are, cannot be a key."""
        if not all(isinstance(name, str) and is_name(name) for name in names):
            return missing
        return await thread.run(lambda connection: job(connection, *names, **more))

    @property
    def _reader(self) -> DatabaseThread:
        return min(self._readers, key=lambda reader: reader.depth, default=self._writer)

    def _append_to(
        self, connection: DatabaseConnection, response: StoredResponse, items: Sequence[NewItem]
    ) -> None:
        if items and response.conversation_id is not None:
            conversations.append(connection, response.tenant, response.conversation_id, items, self._clock())


def _check(response: StoredResponse, items: Sequence[NewItem]) -> None:
    check_names(
        tenant=response.tenant,
        id=response.id,
        model=response.model,
        previous_response_id=response.previous_id,
        conversation=response.conversation_id,
    )
    _check_items(items)


def _check_items(items: Sequence[NewItem]) -> None:
    for item in items:
        check_names(id=item.id)


def _within(number: int) -> int:
    return max(-1, min(number, _LAST))


def _page(limit: int) -> int:
    return max(0, min(limit, _MAX_PAGE))
