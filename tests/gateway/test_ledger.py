"""Everything that was used is in the database in the end, and once."""

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from gates import NOON_S, Clock, Flaky, key, secret_of
from hypothesis import given
from hypothesis import strategies as st

from ganglion.core.errors import StoreUnavailable
from ganglion.core.events import Usage
from ganglion.gateway.access.admission import AdmissionRequest
from ganglion.gateway.access.gatekeeper import MAX_TOKENS, KeyGatekeeper
from ganglion.gateway.access.ledger import UnwrittenSums, UsageLedger, folded
from ganglion.gateway.access.price import TokenPrice
from ganglion.store.access_store import AccessStore, UsageTotals
from ganglion.store.opening import open_access

USAGE = Usage(10, 5, 4)


@pytest.fixture
async def access(tmp_path: Path) -> AsyncIterator[AccessStore]:
    access = await open_access(tmp_path / "ganglion.db")
    yield access
    await access.close()


async def kept(access: AccessStore) -> UsageTotals:
    lines = await access.usage(0, NOON_S + 10**6)
    return lines[0].sums if lines else UsageTotals()


async def test_what_was_settled_is_in_the_database_after_close(access: AccessStore) -> None:
    await access.add_key(key())
    await access.add_key(key("capped", tokens_per_minute=10**6))
    gatekeeper = KeyGatekeeper(access, ("operator",), {"small": TokenPrice(1_500_000, 0)}.get, Clock())
    await gatekeeper.start()
    for presented in (secret_of("app"), secret_of("capped"), b"operator"):
        identity = gatekeeper.identify(presented)
        for number in range(100):
            place = await gatekeeper.admit(identity, AdmissionRequest("small", 20))
            place.settle(None if number % 10 == 0 else USAGE)
    await gatekeeper.close()
    assert await kept(access) == UsageTotals(270, 2700, 1350, 1080, 270 * 15)
    lines = await access.usage(0, NOON_S + 1, ["key", "tenant", "model"])
    assert {line.sums.requests for line in lines} == {90}
    assert {line.key_id for line in lines} >= {"key_app", "key_capped"}


async def test_a_database_that_fails_in_between_loses_and_doubles_nothing(
    access: AccessStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("ganglion.gateway.access.ledger.FLUSH_S", 0.005)
    store = Flaky(access)
    ledger = UsageLedger(store, clock=Clock())
    with caplog.at_level(logging.INFO):
        running = asyncio.create_task(ledger.run())
        for number in range(60):
            store.is_away = number % 20 in range(5, 12)
            store.loses_answers = number % 20 in range(12, 18)
            ledger.add("k", "t", f"model-{number % 3}", USAGE, 7)
            await asyncio.sleep(0.004)
        running.cancel()
        store.is_away = store.loses_answers = False
        await ledger.flush()
    assert await kept(access) == UsageTotals(60, 600, 300, 240, 420)
    assert ledger.unwritten == 0
    assert "the database cannot be used" in caplog.text


async def test_a_flush_that_was_cancelled_is_finished_by_the_next(access: AccessStore) -> None:
    ledger = UsageLedger(access, clock=Clock())
    for _ in range(20):
        ledger.add("k", "t", "small", USAGE, 1)
        flushing = asyncio.create_task(ledger.flush())
        await asyncio.sleep(0)
        flushing.cancel()
        await asyncio.gather(flushing, return_exceptions=True)
    await ledger.flush()
    assert (await kept(access)).requests == 20


async def test_what_is_held_in_an_outage_is_bounded_and_its_sums_are_whole(
    access: AccessStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ganglion.gateway.access.ledger.MAX_UNWRITTEN", 20)
    clock, store = Clock(), Flaky(access)
    ledger = UsageLedger(store, clock=clock)
    store.is_away = True
    for hour in range(30):
        for model in range(8):
            ledger.add("k", "t", f"model-{model}", USAGE, 1)
        clock.now_s = NOON_S + 3600 * hour
        with pytest.raises(StoreUnavailable):
            await ledger.flush()
    assert ledger.unwritten <= 20 + 8
    store.is_away = False
    await ledger.flush()
    assert (await kept(access)).requests == 240


@given(
    st.dictionaries(
        st.tuples(st.sampled_from("ab"), st.sampled_from("xy"), st.sampled_from("mno"), st.integers(0, 5)),
        st.lists(st.integers(0, 9), min_size=5, max_size=5),
        min_size=1,
    ),
    st.integers(1, 20),
)
def test_folding_keeps_every_sum_and_its_bound(held: UnwrittenSums, most: int) -> None:
    small = folded(held, most)
    assert len(small) <= most
    assert [sum(column) for column in zip(*small.values(), strict=True)] == [
        sum(column) for column in zip(*held.values(), strict=True)
    ]


async def test_a_lying_server_cannot_spoil_the_sums(access: AccessStore) -> None:
    gatekeeper = KeyGatekeeper(access, clock=Clock())
    await gatekeeper.start()
    identity = gatekeeper.identify(None)
    for usage in (Usage(10**30, -5, 10**31), Usage(3, 4)):
        (await gatekeeper.admit(identity, AdmissionRequest("m\0odel" + "é" * 600, 10**30))).settle(usage)
    await gatekeeper.close()
    assert await kept(access) == UsageTotals(2, MAX_TOKENS + 3, 4, MAX_TOKENS, 0)


def test_a_part_of_a_millionth_is_paid_as_a_whole_one() -> None:
    price = TokenPrice(prompt=100_000, completion=300_000, cached=0)
    assert price.of(Usage(1, 0)) == 1
    assert price.of(Usage(20, 10, 10)) == 4
    assert price.at_most(10) == 3
    assert TokenPrice(1, 1).of(Usage(0, 0)) == 0
