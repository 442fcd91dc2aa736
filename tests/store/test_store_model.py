"""Any sequence of calls does to a store what it does to plain dictionaries, over two tenants at once."""

import asyncio
from dataclasses import replace
from typing import ClassVar

import psycopg
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from kept import conversation, events, items, response

from ganglion.store.opening import open_store
from ganglion.store.response_store import StoredConversation, StoredEvent, StoredItem, StoredResponse

TENANTS = st.sampled_from(["ann", "bob"])
IDS = st.sampled_from(["1", "2", "3"])
STATUSES = st.sampled_from(["queued", "in_progress", "completed", "failed"])
ITEMS = st.lists(st.sampled_from("abcde"), max_size=3, unique=True).map(lambda names: items(*names))
EVENTS = st.lists(st.integers(0, 9), max_size=3, unique=True).map(lambda numbers: events(*numbers))
Key = tuple[str, str]


class StoreAgainstDictionaries(RuleBasedStateMachine):
    place: ClassVar[str] = ":memory:"

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.responses: dict[Key, StoredResponse] = {}
        self.events: dict[Key, dict[int, StoredEvent]] = {}
        self.conversations: dict[Key, StoredConversation] = {}
        self.items: dict[Key, list[StoredItem]] = {}
        self.next: dict[Key, int] = {}

    @initialize()
    def open(self) -> None:
        if self.place != ":memory:":
            with psycopg.connect(self.place, autocommit=True) as connection:
                connection.execute("DROP SCHEMA IF EXISTS ganglion CASCADE")
        self.store = self.runner.run(open_store(self.place))

    def teardown(self) -> None:
        self.runner.run(self.store.close())
        self.runner.close()

    def _append(self, key: Key, added: list) -> bool:
        if key not in self.conversations:
            return False
        for item in added:
            if all(item.id != kept.id for kept in self.items[key]):
                self.items[key].append(StoredItem(self.next[key], item.id, item.body))
                self.next[key] += 1
        return True

    @rule(
        tenant=TENANTS,
        name=IDS,
        status=STATUSES,
        previous=st.none() | IDS,
        to=st.none() | IDS,
        body=st.binary(max_size=4),
        added=ITEMS,
        log=EVENTS,
        is_ending=st.booleans(),
    )
    def write(self, tenant, name, status, previous, to, body, added, log, is_ending) -> None:
        key = (tenant, name)
        written = replace(
            response(name, tenant=tenant, status=status, previous_id=previous, conversation_id=to), body=body
        )
        verb = self.store.replace if is_ending else self.store.put
        result = self.runner.run(verb(written, items=added, events=log))
        if is_ending:
            is_replaced = key in self.responses and not self.responses[key].is_finished
            assert result == is_replaced
            if not is_replaced:
                return
        self.responses[key] = written
        kept = self.events.setdefault(key, {})
        for event in log:
            kept.setdefault(event.sequence_number, event)
        if to is not None:
            self._append((tenant, to), added)

    @rule(tenant=TENANTS, name=IDS)
    def delete(self, tenant: str, name: str) -> None:
        is_there = self.responses.pop((tenant, name), None) is not None
        self.events.pop((tenant, name), None)
        assert self.runner.run(self.store.delete(tenant, name)) == is_there

    @rule(tenant=TENANTS, name=IDS, log=EVENTS)
    def append_events(self, tenant: str, name: str, log: list[StoredEvent]) -> None:
        is_there = (tenant, name) in self.responses and not self.responses[tenant, name].is_finished
        assert self.runner.run(self.store.append_events(tenant, name, log)) == is_there
        for event in log if is_there else ():
            self.events[tenant, name].setdefault(event.sequence_number, event)

    @rule(tenant=TENANTS, name=IDS, added=ITEMS)
    def create_conversation(self, tenant: str, name: str, added: list) -> None:
        key = (tenant, name)
        if key in self.conversations:
            return
        self.conversations[key] = conversation(name, tenant=tenant)
        self.items[key], self.next[key] = [], 0
        self._append(key, added)
        self.runner.run(self.store.create_conversation(self.conversations[key], added))

    @rule(tenant=TENANTS, name=IDS, metadata=st.binary(max_size=4))
    def set_metadata(self, tenant: str, name: str, metadata: bytes) -> None:
        is_there = (tenant, name) in self.conversations
        assert self.runner.run(self.store.set_metadata(tenant, name, metadata)) == is_there
        if is_there:
            self.conversations[tenant, name] = replace(self.conversations[tenant, name], metadata=metadata)

    @rule(tenant=TENANTS, name=IDS)
    def delete_conversation(self, tenant: str, name: str) -> None:
        is_there = self.conversations.pop((tenant, name), None) is not None
        self.items.pop((tenant, name), None)
        assert self.runner.run(self.store.delete_conversation(tenant, name)) == is_there

    @rule(tenant=TENANTS, name=IDS, added=ITEMS)
    def append_items(self, tenant: str, name: str, added: list) -> None:
        expected = self._append((tenant, name), added)
        assert self.runner.run(self.store.append_items(tenant, name, added)) == expected

    @rule(tenant=TENANTS, name=IDS, item=st.sampled_from("abcde"))
    def delete_item(self, tenant: str, name: str, item: str) -> None:
        kept = self.items.get((tenant, name), [])
        left = [other for other in kept if other.id != item]
        assert self.runner.run(self.store.delete_item(tenant, name, item)) == (len(left) < len(kept))
        if (tenant, name) in self.items:
            self.items[tenant, name] = left

    @rule(tenant=TENANTS, name=IDS, limit=st.integers(1, 4))
    def chain(self, tenant: str, name: str, limit: int) -> None:
        expected: list[StoredResponse] = []
        link: str | None = name
        while link is not None and (tenant, link) in self.responses and len(expected) < limit:
            if self.responses[tenant, link] in expected:
                break
            expected.insert(0, self.responses[tenant, link])
            link = expected[0].previous_id
        assert self.runner.run(self.store.chain(tenant, name, limit=limit)) == tuple(expected)

    @rule(tenant=TENANTS, name=IDS, after=st.none() | st.integers(0, 9), is_descending=st.booleans())
    def list_items(self, tenant: str, name: str, after: int | None, is_descending: bool) -> None:
        kept = self.items.get((tenant, name), [])[:: -1 if is_descending else 1]
        beyond = [
            item
            for item in kept
            if after is None or (item.position < after if is_descending else item.position > after)
        ]
        found = self.runner.run(
            self.store.items(tenant, name, after=after, limit=2, is_descending=is_descending)
        )
        assert found == tuple(beyond[:2])

    @invariant()
    def everything_is_as_it_should_be(self) -> None:
        async def check() -> None:
            for tenant in ("ann", "bob"):
                for name in ("1", "2", "3"):
                    key = (tenant, name)
                    log = sorted(self.events.get(key, {}).items())
                    assert await self.store.response(tenant, name) == self.responses.get(key)
                    assert await self.store.events(tenant, name) == tuple(event for _, event in log)
                    assert await self.store.conversation(tenant, name) == self.conversations.get(key)
                    assert await self.store.items(tenant, name) == tuple(self.items.get(key, ()))

        self.runner.run(check())


@pytest.mark.parametrize(("kind", "examples"), [("memory", 40), ("postgres", 8)])
def test_a_store_does_what_dictionaries_do(kind: str, examples: int, request: pytest.FixtureRequest) -> None:
    place = ":memory:" if kind == "memory" else request.getfixturevalue("postgres")
    machine = type("Machine", (StoreAgainstDictionaries,), {"place": place})
    run_state_machine_as_test(machine, settings=settings(max_examples=examples, stateful_step_count=25))
