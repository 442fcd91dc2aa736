"""What every store owes its callers, whatever database is under it."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from kept import conversation, events, items, response

from ganglion.core.errors import InvalidValue, StoreUnavailable
from ganglion.store.database import Store
from ganglion.store.database_thread import GROUP_LIMIT
from ganglion.store.opening import open_store
from ganglion.store.response_store import MAX_NAME_BYTES, Retention, StoredItem, SweepResult
from ganglion.store.upkeep import interrupt_unfinished

UNKEEPABLE = ["a\0b", "\ud800", "n" * (MAX_NAME_BYTES + 1)]


async def ids(store: Store, after: int | None = None, **options: bool) -> list[str]:
    return [item.id for item in await store.items("ann", "conv_1", after=after, **options)]


async def test_a_response_is_given_back_as_it_was_put(store: Store) -> None:
    kept = response(body=bytes(range(256)), previous_id="resp_0", conversation_id="conv_9")
    await store.put(kept)
    assert await store.response("ann", "resp_1") == kept
    assert await store.response("ann", "resp_2") is None


async def test_putting_again_overwrites_and_keeps_the_events(store: Store) -> None:
    await store.put(response(), events=events(0, 1))
    again = response(body=b"other", status="failed")
    await store.put(again)
    assert await store.response("ann", "resp_1") == again
    assert await store.events("ann", "resp_1") == tuple(events(0, 1))


async def test_a_deleted_response_is_gone_with_its_events(store: Store) -> None:
    await store.put(response(), events=events(0))
    assert await store.delete("ann", "resp_1")
    assert not await store.delete("ann", "resp_1")
    assert await store.response("ann", "resp_1") is None
    assert await store.events("ann", "resp_1") == ()
    await store.put(response())
    assert await store.events("ann", "resp_1") == ()


async def test_of_endings_that_race_the_first_stands(store: Store) -> None:
    await store.put(response(status="in_progress"))
    endings = [response(status="cancelled"), response(status="completed"), response(status="failed")]
    results = await asyncio.gather(*(store.replace(ending) for ending in endings))
    assert results.count(True) == 1
    assert await store.response("ann", "resp_1") == endings[results.index(True)]


async def test_what_was_deleted_is_not_brought_back_by_its_ending(store: Store) -> None:
    await store.put(response(status="queued"))
    assert await store.replace(response(status="in_progress"))
    await store.delete("ann", "resp_1")
    await store.create_conversation(conversation())
    ending = response(conversation_id="conv_1")
    assert not await store.replace(ending, items=items("a"), events=events(0))
    assert await store.response("ann", "resp_1") is None
    assert await ids(store) == []


async def test_a_chain_is_given_from_its_start(store: Store) -> None:
    for number in range(5):
        previous = f"r{number - 1}" if number else None
        await store.put(response(f"r{number}", previous_id=previous))
    assert [link.id for link in await store.chain("ann", "r3")] == ["r0", "r1", "r2", "r3"]
    assert await store.chain("ann", "r9") == ()


async def test_a_chain_shows_that_it_is_broken_or_too_long(store: Store) -> None:
    for number in range(1, 5):
        await store.put(response(f"r{number}", previous_id=f"r{number - 1}", body=b"x" * 98))
    assert [link.id for link in await store.chain("ann", "r4")] == ["r1", "r2", "r3", "r4"]
    assert [link.id for link in await store.chain("ann", "r4", limit=2)] == ["r3", "r4"]
    assert [link.id for link in await store.chain("ann", "r4", max_bytes=250)] == ["r3", "r4"]
    assert (await store.chain("ann", "r4"))[0].previous_id == "r0"


async def test_a_chain_that_bites_its_tail_ends(store: Store) -> None:
    await store.put(response("a", previous_id="b"))
    await store.put(response("b", previous_id="a"))
    assert [link.id for link in await store.chain("ann", "a")] == ["b", "a"]


async def test_events_are_read_after_a_number_and_never_change(store: Store) -> None:
    await store.put(response(status="in_progress"))
    assert await store.append_events("ann", "resp_1", events(0, 1, 2))
    assert await store.append_events("ann", "resp_1", [replace(events(2)[0], frame=b"else"), *events(3)])
    assert await store.events("ann", "resp_1") == tuple(events(0, 1, 2, 3))
    assert await store.events("ann", "resp_1", after=1) == tuple(events(2, 3))
    assert await store.events("ann", "resp_1", after=0, limit=1) == tuple(events(1))
    assert await store.events("ann", "resp_1", after=2**80) == ()
    assert not await store.append_events("ann", "resp_2", events(0))
    await store.replace(response(), events=events(4))
    assert not await store.append_events("ann", "resp_1", events(5)), "it has ended"
    assert await store.events("ann", "resp_1", after=3) == tuple(events(4))


async def test_a_conversation_is_kept_changed_and_deleted(store: Store) -> None:
    await store.create_conversation(conversation(), items("a", "b"))
    assert await store.conversation("ann", "conv_1") == conversation()
    assert await store.set_metadata("ann", "conv_1", b'{"k":"v"}')
    assert await store.conversation("ann", "conv_1") == conversation(metadata=b'{"k":"v"}')
    assert await store.delete_conversation("ann", "conv_1")
    assert not await store.delete_conversation("ann", "conv_1")
    assert not await store.set_metadata("ann", "conv_1", b"{}")
    assert not await store.append_items("ann", "conv_1", items("c"))
    assert await store.conversation("ann", "conv_1") is None
    assert await ids(store) == []


async def test_items_are_listed_in_both_orders_from_any_place(store: Store) -> None:
    await store.create_conversation(conversation(), items("a", "b"))
    assert await store.append_items("ann", "conv_1", items("c", "d"))
    assert await ids(store) == ["a", "b", "c", "d"]
    assert await ids(store, is_descending=True) == ["d", "c", "b", "a"]
    third = await store.item("ann", "conv_1", "c")
    assert third == StoredItem(2, "c", b"c")
    assert await ids(store, third.position) == ["d"]
    assert await ids(store, third.position, is_descending=True) == ["b", "a"]
    assert [item.id for item in await store.items("ann", "conv_1", limit=3)] == ["a", "b", "c"]


async def test_an_item_that_is_there_already_is_not_added_again(store: Store) -> None:
    await store.create_conversation(conversation(), items("a"))
    assert await store.append_items("ann", "conv_1", [*items("b", "a"), replace(items("b")[0], body=b"else")])
    assert await ids(store) == ["a", "b"]
    assert await store.item("ann", "conv_1", "b") == StoredItem(1, "b", b"b")


async def test_a_position_is_never_used_again(store: Store) -> None:
    await store.create_conversation(conversation(), items("a", "b"))
    assert await store.delete_item("ann", "conv_1", "b")
    assert not await store.delete_item("ann", "conv_1", "b")
    await store.append_items("ann", "conv_1", items("c"))
    assert await store.items("ann", "conv_1") == (StoredItem(0, "a", b"a"), StoredItem(2, "c", b"c"))


@pytest.mark.parametrize("is_descending", [False, True])
async def test_a_page_of_large_items_is_cut_and_never_empty(
    store: Store, monkeypatch: pytest.MonkeyPatch, is_descending: bool
) -> None:
    monkeypatch.setattr("ganglion.store.conversations.MAX_PAGE_BYTES", 10)
    names = ["aaaa", "bbbb", "cccc", "d" * 30, "eeee"]
    await store.create_conversation(conversation(), items(*names))
    pages: list[list[str]] = []
    after: int | None = None
    while page := await store.items("ann", "conv_1", after=after, is_descending=is_descending):
        pages.append([item.id for item in page])
        after = page[-1].position
    if is_descending:
        assert pages == [["eeee"], ["d" * 30], ["cccc", "bbbb"], ["aaaa"]]
    else:
        assert pages == [["aaaa", "bbbb"], ["cccc"], ["d" * 30], ["eeee"]]


async def test_a_response_and_its_items_are_one_commit(store: Store) -> None:
    await store.create_conversation(conversation(), items("question"))
    await store.put(response(conversation_id="conv_1"), items=items("answer"), events=events(0))
    assert await ids(store) == ["question", "answer"]
    await store.put(response("resp_2", conversation_id="gone"), items=items("lost"))
    assert await store.response("ann", "resp_2") is not None


async def test_many_writers_at_once_all_find_what_they_wrote(store: Store) -> None:
    await store.create_conversation(conversation())

    async def write(number: int) -> None:
        kept = response(f"r{number}", conversation_id="conv_1")
        await store.put(kept, items=items(f"i{number}"))
        assert await store.response("ann", f"r{number}") == kept

    await asyncio.gather(*(write(number) for number in range(2 * GROUP_LIMIT)))
    found = await store.items("ann", "conv_1", limit=1000)
    assert [item.position for item in found] == list(range(2 * GROUP_LIMIT))


async def test_a_write_that_fails_takes_no_other_with_it(store: Store) -> None:
    number = 2**70  # no database has a column for it
    good = [store.put(response(f"r{n}"), events=events(n)) for n in range(5)]
    bad = store.put(response("bad"), events=events(number))
    results = await asyncio.gather(*good, bad, return_exceptions=True)
    assert [result is None for result in results] == [True] * 5 + [False]
    assert await store.response("ann", "r4") is not None
    assert await store.response("ann", "bad") is None


async def test_a_writer_that_leaves_harms_nobody(store: Store) -> None:
    tasks = [asyncio.create_task(store.put(response(f"r{n}"))) for n in range(20)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for n in range(1, 20, 2):
        assert await store.response("ann", f"r{n}") is not None


@pytest.mark.parametrize("name", UNKEEPABLE, ids=["NUL", "surrogate", "long"])
async def test_a_name_that_no_database_holds_is_unknown_and_cannot_be_kept(store: Store, name: str) -> None:
    assert await store.response("ann", name) is None
    assert await store.response(name, "resp_1") is None
    assert not await store.delete("ann", name)
    assert await store.chain("ann", name) == ()
    assert await store.events("ann", name) == ()
    assert not await store.append_events("ann", name, events(0))
    assert await store.conversation("ann", name) is None
    assert not await store.delete_conversation("ann", name)
    assert not await store.set_metadata("ann", name, b"")
    assert not await store.append_items("ann", name, items("a"))
    assert await store.items("ann", name) == ()
    assert await store.item("ann", "conv_1", name) is None
    assert not await store.delete_item("ann", "conv_1", name)
    for kept in (response(name), response(tenant=name), response(previous_id=name)):
        with pytest.raises(InvalidValue):
            await store.put(kept)
    with pytest.raises(InvalidValue):
        await store.create_conversation(conversation(), items(name))


async def test_names_of_the_longest_kind_are_kept(store: Store) -> None:
    longest = "é" * (MAX_NAME_BYTES // 2)
    await store.create_conversation(conversation(longest, tenant=longest), items(longest))
    assert await store.item(longest, longest, longest) is not None


async def test_a_secret_is_made_once(store: Store) -> None:
    first, again, other = await asyncio.gather(
        store.secret("seal"), store.secret("seal"), store.secret("other")
    )
    assert first == again != other
    assert len(first) == len(other) == 32


async def test_a_closed_store_says_so(store: Store) -> None:
    await store.close()
    with pytest.raises(StoreUnavailable):
        await store.put(response())


@pytest.fixture
async def ageing(place: str) -> AsyncIterator[tuple[Store, list[float]]]:
    now = [0.0]
    store = await open_store(place, clock=lambda: now[0])
    yield store, now
    await store.close()


async def test_what_is_too_old_is_swept_and_the_rest_stays(ageing: tuple[Store, list[float]]) -> None:
    store, now = ageing
    await store.put(response("running", status="in_progress", created_s=0))
    for number in range(150):
        await store.put(response(f"r{number}", created_s=number, previous_id=f"r{number - 1}"))
    await store.create_conversation(conversation("old"), items("a"))
    now[0] = 50.0
    await store.create_conversation(conversation("conv_1"), items("a"))
    now[0] = 200.0
    swept = await store.sweep(Retention(max_age_s=160))
    assert (swept.responses, swept.conversations) == (40, 1)
    assert await store.response("ann", "r39") is None
    assert await store.response("ann", "r40") is not None
    assert await store.response("ann", "running") is not None
    assert await store.conversation("ann", "old") is None
    assert await store.conversation("ann", "conv_1") is not None
    assert await store.sweep(Retention(max_age_s=160)) == SweepResult()
    assert await store.sweep(Retention()) == SweepResult()


async def test_what_is_too_much_is_swept_oldest_first(ageing: tuple[Store, list[float]]) -> None:
    store, now = ageing
    for number in range(100):
        kept = response(f"r{number}", created_s=number, status="in_progress", body=b"")
        await store.put(kept)
        await store.append_events("ann", kept.id, [replace(events(0)[0], frame=b"x" * 500)])
        await store.replace(replace(kept, status="completed", body=b"x" * 498))
    now[0] = 200.0
    await store.create_conversation(conversation("conv_1", metadata=b"x" * 500), items("a"))
    await store.delete_item("ann", "conv_1", "a")
    await store.set_metadata("ann", "conv_1", b"x" * 1000)
    swept = await store.sweep(Retention(max_bytes=11_000))
    assert swept == SweepResult(90, 0, 90_000)
    assert await store.response("ann", "r89") is None
    assert await store.response("ann", "r90") is not None
    assert (await store.sweep(Retention(max_bytes=0))).conversations == 1


async def test_what_this_server_runs_is_not_abandoned(store: Store) -> None:
    await store.put(response(status="in_progress"))
    assert await store.abandoned() == ()
    assert await interrupt_unfinished(store, lambda found: pytest.fail("nothing was cut off")) == 0
