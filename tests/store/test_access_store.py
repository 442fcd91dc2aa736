"""Keys, grants and usage in every kind of database."""

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ganglion.core.errors import InvalidValue, StoreUnavailable
from ganglion.store.access_store import AccessStore, Grant, HourlyUsage, StoredKey, UsageTotals, Window
from ganglion.store.opening import open_access, open_store
from ganglion.store.schema import MIGRATIONS
from ganglion.store.sqlite import APPLICATION
from support.examples import examples

HOUR = 1_800_000_000 // 3600 * 3600
MINUTE = Window(HOUR, HOUR + 60)


def key(name: str = "app", **fields: object) -> StoredKey:
    made = StoredKey(f"key_{name}", sha256(name.encode()).digest(), name, "ann", 12.5)
    return replace(made, **fields)  # type: ignore[arg-type]


def spent(model: str = "small", requests: int = 1, *, hour_s: int = HOUR, cost: int = 0) -> HourlyUsage:
    return HourlyUsage(
        "key_app", "ann", model, hour_s, UsageTotals(requests, 10 * requests, 5 * requests, requests, cost)
    )


@pytest.fixture
async def access(place: str) -> AsyncIterator[AccessStore]:
    access = await open_access(place, clock=lambda: float(HOUR))
    yield access
    await access.close()


async def test_a_key_comes_back_as_it_was_made(access: AccessStore) -> None:
    full = key(
        "full",
        role="node",
        models=("a", "b/c"),
        requests_per_minute=60,
        tokens_per_minute=2**40,
        budget=12_500_000,
        budget_period="day",
        expires_s=99.5,
        priority=-3,
        created_s=13.0,
    )
    await access.add_key(key())
    await access.add_key(full)
    assert await access.keys() == (key(), full)


async def test_each_change_raises_the_version(access: AccessStore) -> None:
    seen = [await access.keys_version()]
    await access.add_key(key())
    seen.append(await access.keys_version())
    assert await access.revoke("key_app")
    seen.append(await access.keys_version())
    assert not await access.revoke("key_app")
    assert not await access.revoke("key_nobody")
    assert seen == sorted(set(seen))
    assert await access.keys_version() == seen[-1]
    assert (await access.keys())[0].revoked_s == float(HOUR)


async def test_a_name_is_free_again_once_its_key_is_revoked(access: AccessStore) -> None:
    await access.add_key(key())
    with pytest.raises(InvalidValue, match="called 'app' already"):
        await access.add_key(key(id="key_other", digest=b"1" * 32))
    await access.revoke("key_app")
    await access.add_key(key(id="key_other", digest=b"1" * 32))
    assert [each.revoked_s is None for each in await access.keys()] == [False, True]


async def test_a_cap_is_granted_once(access: AccessStore) -> None:
    assert await access.grant("k", "requests", MINUTE, requested=6, cap=10) == Grant(6, 4)
    assert await access.grant("k", "requests", MINUTE, requested=6, cap=10, least=5) == Grant(0, 4)
    assert await access.grant("k", "requests", MINUTE, requested=6, cap=10) == Grant(4, 0)
    assert await access.grant("k", "requests", MINUTE, requested=1, cap=10) == Grant(0, 0)
    await access.give_back("k", "requests", MINUTE, 3)
    assert await access.grant("k", "requests", MINUTE, requested=9, cap=10) == Grant(3, 0)
    # Nor does it touch another key's, another cap's or another window's.
    assert await access.grant("other", "requests", MINUTE, requested=1, cap=10) == Grant(1, 9)
    assert await access.grant("k", "tokens", MINUTE, requested=1, cap=10) == Grant(1, 9)
    assert await access.grant("k", "requests", Window(HOUR + 60, HOUR + 120), requested=1, cap=10) == Grant(
        1, 9
    )


async def test_a_cap_that_was_lowered_grants_nothing(access: AccessStore) -> None:
    await access.grant("k", "budget", Window(0, None), requested=8, cap=10)
    assert await access.grant("k", "budget", Window(0, None), requested=1, cap=5) == Grant(0, 0)


async def test_two_stores_that_ask_at_once_share_one_cap(place: str) -> None:
    if place == ":memory:":
        pytest.skip("memory is nobody else's")
    one, other = await open_access(place), await open_access(place)
    asks = [
        store.grant("k", kind, MINUTE, requested=3, cap=100)
        for _ in range(40)
        for store in (one, other)
        for kind in ("requests", "tokens")
    ]
    grants = await asyncio.gather(*asks)
    assert sum(grant.amount for grant in grants) == 200
    assert all(grant.left >= 0 for grant in grants)
    await one.close()
    await other.close()


@settings(max_examples=examples(15), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cap=st.integers(0, 30),
    steps=st.lists(
        st.tuples(st.integers(0, 1), st.integers(1, 12), st.integers(1, 12), st.booleans()), max_size=14
    ),
)
def test_any_interleaving_of_two_stores_stays_within_the_cap(
    tmp_path_factory: pytest.TempPathFactory, cap: int, steps: list[tuple[int, int, int, bool]]
) -> None:
    file = tmp_path_factory.mktemp("grants") / "ganglion.db"

    async def interleave() -> None:
        stores = [await open_access(file), await open_access(file)]
        held = [0, 0]
        for who, wanted, least, is_returning in steps:
            if is_returning:
                amount = min(wanted, held[who])
                held[who] -= amount
                await stores[who].give_back("k", "tokens", MINUTE, amount)
                continue
            free = cap - sum(held)
            grant = await stores[who].grant("k", "tokens", MINUTE, requested=wanted, cap=cap, least=least)
            expected = min(wanted, free)
            assert grant.amount == (expected if expected >= least else 0)
            held[who] += grant.amount
            assert sum(held) + grant.left == cap
        for store in stores:
            await store.close()

    asyncio.run(interleave())


async def test_usage_is_summed_by_whatever_is_asked(access: AccessStore) -> None:
    yesterday = HOUR - 86400
    await access.add_usage("g", 1, [spent("small", 2, cost=7), spent("large", 1, cost=100)])
    await access.add_usage("g", 2, [spent("small", 3), spent("small", 4, hour_s=yesterday)])
    (whole,) = await access.usage(0, HOUR + 1)
    assert whole.sums == UsageTotals(10, 100, 50, 10, 107)
    assert [(line.model, line.sums.requests) for line in await access.usage(0, HOUR + 1, ["model"])] == [
        ("large", 1),
        ("small", 9),
    ]
    days = await access.usage(0, HOUR + 1, ["day", "key"])
    assert [(line.day_s, line.key_id, line.sums.requests) for line in days] == [
        (yesterday // 86400 * 86400, "key_app", 4),
        (HOUR // 86400 * 86400, "key_app", 6),
    ]
    assert {line.tenant for line in await access.usage(0, HOUR + 1, ["tenant"])} == {"ann"}
    assert await access.usage(HOUR + 1, HOUR + 2) == ()
    assert (await access.usage(HOUR, HOUR + 1))[0].sums.requests == 6


async def test_a_batch_that_comes_again_is_not_counted_again(access: AccessStore) -> None:
    await access.add_usage("g", 1, [spent()])
    await access.add_usage("g", 1, [spent()])
    await access.add_usage("other", 1, [spent()])
    await access.add_usage("g", 2, [spent()])
    assert (await access.usage(0, HOUR + 1))[0].sums.requests == 3


async def test_a_batch_that_fails_half_way_counts_nothing(access: AccessStore) -> None:
    too_large = replace(spent("other"), sums=UsageTotals(2**70))
    with pytest.raises((OverflowError, StoreUnavailable)):
        await access.add_usage("g", 1, [spent(), too_large])
    assert await access.usage(0, HOUR + 1) == ()
    await access.add_usage("g", 1, [spent()])
    assert (await access.usage(0, HOUR + 1))[0].sums.requests == 1


async def test_sweeping_forgets_old_windows_and_keeps_those_that_count(access: AccessStore) -> None:
    old, total = Window(HOUR - 7200, HOUR - 7140), Window(0, None)
    for window in (old, MINUTE, total):
        await access.grant("k", "budget", window, requested=5, cap=5)
    await access.add_usage("g", 1, [spent(), spent(hour_s=HOUR - 401 * 86400)])
    await access.sweep()
    windows = (old, MINUTE, total)
    left = [(await access.grant("k", "budget", each, requested=1, cap=5)).amount for each in windows]
    assert left == [1, 0, 0]
    assert (await access.usage(0, HOUR + 1))[0].sums.requests == 1


async def test_a_process_that_leaves_the_file_does_not_take_the_log_along(tmp_path: Path) -> None:
    file = tmp_path / "ganglion.db"
    store, access = await open_store(file), await open_access(file)
    assert await access.keys() == ()  # each has its reader connected
    assert await store.response("ann", "none") is None
    visit = """
import asyncio, sys
from ganglion.store.access_store import StoredKey
from ganglion.store.opening import open_access
async def visit():
    access = await open_access(sys.argv[1])
    print(*(key.name for key in await access.keys()))
    name, created_s = sys.argv[2], 1.0 + 2 * int(sys.argv[2][-1])
    await access.add_key(StoredKey(name, name.encode(), name, "", created_s))
    await access.close()
asyncio.run(visit())
"""
    for number, before in enumerate(("", "visitor-0 ours-0")):
        command = [sys.executable, "-c", visit, str(file), f"visitor-{number}"]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == before
        assert (await access.keys())[-1].name == f"visitor-{number}"
        await access.add_key(key(f"ours-{number}", created_s=2.0 + 2 * number, tenant=""))
    await access.close()
    await store.close()


async def test_a_database_of_the_first_schema_is_brought_up_to_date(tmp_path: Path) -> None:
    file = tmp_path / "ganglion.db"
    with sqlite3.connect(file) as connection:
        for statement in MIGRATIONS[0]:
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute("PRAGMA user_version = 1")
    connection.close()
    access, store = await open_access(file), await open_store(file)
    await access.add_key(key())
    assert await store.response("ann", "none") is None
    assert await access.keys() == (key(),)
    await access.close()
    await store.close()
