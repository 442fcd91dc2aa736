"""The store over a database: one lane that writes, a few that read."""

from collections.abc import Callable, Sequence
from secrets import token_bytes
from time import time
from typing import Final, TypeVar

from ganglion.store import conversations, removal, responses
from ganglion.store.backend import Backend, DatabaseConnection, Job
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

SECRET_BYTES: Final = 32


def get_or_create_secret(session: DatabaseConnection, name: str) -> bytes:
    """The bytes of that name, made when there are none."""
    session.rows(
        "INSERT INTO secrets (name, value) VALUES (?, ?) ON CONFLICT (name) DO NOTHING",
        name,
        token_bytes(SECRET_BYTES),
    )
    value: bytes = session.rows("SELECT value FROM secrets WHERE name = ?", name)[0][0]
    return value


T = TypeVar("T")

READERS: Final = 2
"""So that one long chain does not hold up everybody who reads."""
MAX_PAGE: Final = 10_000
_LAST: Final = 2**63 - 1


class DatabaseStore:
    """A Store in SQLite or PostgreSQL; made with `open_store`."""

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
        await self._writer.run(lambda session: None)

    async def put(
        self, response: StoredResponse, *, items: Sequence[NewItem] = (), events: Sequence[StoredEvent] = ()
    ) -> None:
        _check(response, items)

        def job(session: DatabaseConnection) -> None:
            responses.put(session, self._backend.owner, response, events)
            self._append_to(session, response, items)

        await self._writer.run(job)

    async def replace(
        self, response: StoredResponse, *, items: Sequence[NewItem] = (), events: Sequence[StoredEvent] = ()
    ) -> bool:
        _check(response, items)

        def job(session: DatabaseConnection) -> bool:
            is_replaced = responses.replace(session, self._backend.owner, response, events)
            if is_replaced:
                self._append_to(session, response, items)
            return is_replaced

        return await self._writer.run(job)

    async def response(self, tenant: str, response_id: str) -> StoredResponse | None:
        if not is_name(tenant, response_id):
            return None
        return await self._read(lambda session: responses.get(session, tenant, response_id))

    async def delete(self, tenant: str, response_id: str) -> bool:
        if not is_name(tenant, response_id):
            return False
        return await self._writer.run(lambda session: responses.delete(session, tenant, response_id))

    async def chain(
        self, tenant: str, response_id: str, *, limit: int = MAX_CHAIN, max_bytes: int = MAX_CHAIN_BYTES
    ) -> tuple[StoredResponse, ...]:
        if not is_name(tenant, response_id):
            return ()
        limit = min(limit, MAX_PAGE)
        return await self._read(
            lambda session: responses.chain(session, tenant, response_id, limit, max_bytes)
        )

    async def append_events(self, tenant: str, response_id: str, events: Sequence[StoredEvent]) -> bool:
        if not is_name(tenant, response_id):
            return False
        return await self._writer.run(
            lambda session: responses.append_events(session, tenant, response_id, events)
        )

    async def events(
        self, tenant: str, response_id: str, *, after: int = -1, limit: int = PAGE
    ) -> tuple[StoredEvent, ...]:
        if not is_name(tenant, response_id):
            return ()
        start, limit = _within(after), _page(limit)
        return await self._read(
            lambda session: responses.events_after(session, tenant, response_id, start, limit)
        )

    async def create_conversation(
        self, conversation: StoredConversation, items: Sequence[NewItem] = ()
    ) -> None:
        check_names(tenant=conversation.tenant, id=conversation.id)
        _check_items(items)
        now_s = self._clock()
        await self._writer.run(lambda session: conversations.create(session, conversation, items, now_s))

    async def conversation(self, tenant: str, conversation_id: str) -> StoredConversation | None:
        if not is_name(tenant, conversation_id):
            return None
        return await self._read(lambda session: conversations.get(session, tenant, conversation_id))

    async def set_metadata(self, tenant: str, conversation_id: str, metadata: bytes) -> bool:
        if not is_name(tenant, conversation_id):
            return False
        return await self._writer.run(
            lambda session: conversations.set_metadata(session, tenant, conversation_id, metadata)
        )

    async def delete_conversation(self, tenant: str, conversation_id: str) -> bool:
        if not is_name(tenant, conversation_id):
            return False
        return await self._writer.run(lambda session: conversations.delete(session, tenant, conversation_id))

    async def append_items(self, tenant: str, conversation_id: str, items: Sequence[NewItem]) -> bool:
        if not is_name(tenant, conversation_id):
            return False
        _check_items(items)
        now_s = self._clock()
        return await self._writer.run(
            lambda session: conversations.append(session, tenant, conversation_id, items, now_s)
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
        if not is_name(tenant, conversation_id):
            return ()
        start, limit = None if after is None else _within(after), _page(limit)
        return await self._read(
            lambda session: conversations.items(
                session, tenant, conversation_id, start, limit=limit, is_descending=is_descending
            )
        )

    async def item(self, tenant: str, conversation_id: str, item_id: str) -> StoredItem | None:
        if not is_name(tenant, conversation_id, item_id):
            return None
        return await self._read(
            lambda session: conversations.get_item(session, tenant, conversation_id, item_id)
        )

    async def delete_item(self, tenant: str, conversation_id: str, item_id: str) -> bool:
        if not is_name(tenant, conversation_id, item_id):
            return False
        return await self._writer.run(
            lambda session: conversations.delete_item(session, tenant, conversation_id, item_id)
        )

    async def abandoned(self, limit: int = PAGE) -> tuple[AbandonedResponse, ...]:
        limit = _page(limit)

        def job(session: DatabaseConnection) -> tuple[AbandonedResponse, ...]:
            found: list[AbandonedResponse] = []
            for owner in responses.unfinished_elsewhere(session, self._backend.owner):
                if not self._backend.is_alive(session, owner):
                    found += responses.unfinished_of(session, owner, limit - len(found))
            return tuple(found)

        return await self._read(job)

    async def sweep(self, retention: Retention) -> SweepResult:
        swept = SweepResult()
        while batch := await self._removable(retention):
            found = batch
            removed = await self._writer.run(lambda session: removal.remove(session, found))  # noqa: B023
            if removed == SweepResult():
                break
            swept = removal.sum_of(swept, removed)
        return swept

    async def secret(self, name: str) -> bytes:
        check_names(name=name)
        return await self._writer.run(lambda session: get_or_create_secret(session, name))

    async def close(self) -> None:
        for lane in (*self._readers, self._writer):
            await lane.close()
        self._backend.close()

    async def _read(self, job: Job[T]) -> T:
        lane = min(self._readers, key=lambda reader: reader.depth, default=self._writer)
        return await lane.run(job)

    async def _removable(self, retention: Retention) -> list[removal.Removable]:
        now_s = self._clock()
        return await self._read(lambda session: removal.removable(session, retention, now_s))

    def _append_to(
        self, session: DatabaseConnection, response: StoredResponse, items: Sequence[NewItem]
    ) -> None:
        if items and response.conversation_id is not None:
            conversations.append(session, response.tenant, response.conversation_id, items, self._clock())


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
    return max(0, min(limit, MAX_PAGE))
