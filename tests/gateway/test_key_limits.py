"""Caps hold exactly: in one process, in two on one database, and when answers come to something else."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest
from gates import NOON_S, Clock, Flaky, key, secret_of

from ganglion.core.errors import ExceedsLimit, QuotaExceeded, RateLimited, StoreUnavailable
from ganglion.core.events import Usage
from ganglion.gateway.access.admission import Admission, AdmissionRequest
from ganglion.gateway.access.allowance import minute_of, period_of
from ganglion.gateway.access.gatekeeper import KeyGatekeeper
from ganglion.gateway.access.price import TokenPrice
from ganglion.store.access_store import Window
from ganglion.store.opening import open_access

PRICES = {"small": TokenPrice(1_000_000, 2_000_000, 500_000)}
"""A millionth for each token of a prompt, two for each of an answer."""


@asynccontextmanager
async def gate(place: str | Path, clock: Clock, **limits: Any) -> AsyncIterator[KeyGatekeeper]:
    """A gatekeeper with one key, which is made if nobody has made it."""
    access = await open_access(place)
    if limits:
        await access.add_key(key(**limits))
    gatekeeper = KeyGatekeeper(access, (), PRICES.get, clock)
    await gatekeeper.start()
    yield gatekeeper
    await gatekeeper.close()
    await access.close()


async def ask(gatekeeper: KeyGatekeeper, tokens: int = 1, model: str = "small") -> Admission:
    identity = gatekeeper.identify(secret_of("app"))
    wanted = AdmissionRequest(model, tokens)
    return gatekeeper.admit_now(identity, wanted) or await gatekeeper.admit(identity, wanted)


async def admitted(gatekeepers: list[KeyGatekeeper], asks: int, tokens: int = 1) -> int:
    """Of so many asks of each at once, how many are let in."""
    outcomes = await asyncio.gather(
        *(ask(each, tokens) for _ in range(asks) for each in gatekeepers), return_exceptions=True
    )
    others = [
        each for each in outcomes if isinstance(each, BaseException) and not isinstance(each, RateLimited)
    ]
    assert not others
    return sum(not isinstance(each, BaseException) for each in outcomes)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "ganglion.db"


@pytest.fixture(params=["file", "postgres"])
def shared(request: pytest.FixtureRequest, file: Path) -> str:
    return str(file) if request.param == "file" else str(request.getfixturevalue("postgres"))


@pytest.mark.parametrize("cap", [1, 7, 100, 999])
async def test_a_cap_admits_exactly_as_many_of_a_thousand_at_once(file: Path, cap: int) -> None:
    async with gate(file, Clock(), requests_per_minute=cap) as gatekeeper:
        assert await admitted([gatekeeper], 1000) == cap


async def test_a_cap_admits_exactly_as_many_one_after_another(file: Path) -> None:
    clock = Clock()
    async with gate(file, clock, requests_per_minute=100) as gatekeeper:
        assert sum([await admitted([gatekeeper], 1) for _ in range(120)]) == 100
        clock.now_s += 60
        assert sum([await admitted([gatekeeper], 1) for _ in range(120)]) == 100


@pytest.mark.parametrize("limits", [{"requests_per_minute": 97}, {"tokens_per_minute": 97}, {"budget": 194}])
async def test_two_gateways_on_one_database_admit_exactly_a_cap_between_them(
    shared: str, limits: dict[str, int]
) -> None:
    clock = Clock()
    async with gate(shared, clock, **limits) as one, gate(shared, clock) as other:
        total = await admitted([one, other], 30)
        assert total <= 97
        for _ in range(12):
            total += await admitted([one, other], 15)
        assert total == 97


ASKER = """
import asyncio, sys
sys.path.insert(0, sys.argv[1])
from test_key_limits import Clock, admitted, gate
async def run():
    total = 0
    async with gate(sys.argv[2], Clock()) as gatekeeper:
        sys.stdin.readline()
        for _ in range(8):
            total += await admitted([gatekeeper], 15)
    print(total)
asyncio.run(run())
"""


def test_two_gateway_processes_on_one_database_admit_exactly_a_cap_between_them(shared: str) -> None:
    async def make() -> None:
        async with gate(shared, Clock(), requests_per_minute=97):
            pass

    asyncio.run(make())
    command = [sys.executable, "-c", ASKER, str(Path(__file__).parent), shared]
    askers = [subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True) for _ in range(2)]
    for asker in askers:
        assert asker.stdin is not None
        asker.stdin.write("go\n")
        asker.stdin.flush()
    counts = [int(asker.communicate(timeout=30)[0]) for asker in askers]
    assert sum(counts) == 97


async def test_a_gateway_that_rests_gives_back_what_it_does_not_use(file: Path) -> None:
    clock = Clock()
    async with gate(file, clock, requests_per_minute=80) as one, gate(file, clock) as other:
        await ask(one)  # and holds a block of ten now
        total = 1 + await admitted([other], 80)
        assert total < 80
        clock.now_s += 5
        await one._limits.give_back_idle()
        assert total + await admitted([other], 80) == 80


async def test_a_refusal_says_the_limit_what_is_left_and_when_to_come_back(file: Path) -> None:
    clock = Clock(NOON_S + 12.5)
    async with gate(file, clock, requests_per_minute=2) as gatekeeper:
        await ask(gatekeeper)
        await ask(gatekeeper)
        with pytest.raises(RateLimited, match="2 requests") as refusal:
            await ask(gatekeeper)
        assert refusal.value.extras == {"limit": 2, "remaining": 0, "reset": 48, "kind": "requests"}
        assert refusal.value.retry_after_s == 48
        clock.now_s += 47.5
        await ask(gatekeeper)


async def test_what_did_not_run_is_not_counted(file: Path) -> None:
    async with gate(file, Clock(), requests_per_minute=1, tokens_per_minute=10, budget=1000) as gatekeeper:
        for _ in range(5):
            (await ask(gatekeeper, 10)).settle(None)
        (await ask(gatekeeper, 10)).settle(Usage(5, 5))
        with pytest.raises(RateLimited):
            await ask(gatekeeper, 10)


async def test_tokens_are_settled_with_what_was_used(file: Path) -> None:
    async with gate(file, Clock(), tokens_per_minute=100) as gatekeeper:
        place = await ask(gatekeeper, 90)
        with pytest.raises(RateLimited, match="20 tokens, and the key has 10 of 100"):
            await ask(gatekeeper, 20)
        place.settle(Usage(10, 10))
        place = await ask(gatekeeper, 80)
        place.settle(Usage(80, 15))  # more than anybody could tell before
        assert await admitted([gatekeeper], 10) == 0


async def test_what_was_used_beyond_the_reservation_is_paid_from_the_next_block(file: Path) -> None:
    async with gate(file, Clock(), tokens_per_minute=100) as gatekeeper:
        (await ask(gatekeeper, 1)).settle(Usage(60, 1))
        assert await admitted([gatekeeper], 100) == 39


async def test_a_request_larger_than_the_cap_is_told_so(file: Path) -> None:
    async with gate(file, Clock(), tokens_per_minute=100) as gatekeeper:
        with pytest.raises(ExceedsLimit, match="may take 101 tokens, and the key has 100") as refusal:
            await ask(gatekeeper, 101)
        assert refusal.value.retry_after_s is None
        assert "waiting does not help" in (refusal.value.hint or "")
        assert refusal.value.extras == {"limit": 100, "needed": 101, "kind": "tokens"}


async def test_a_budget_is_spent_at_the_models_price(file: Path) -> None:
    clock = Clock()
    async with gate(file, clock, budget=1000, budget_period="day") as gatekeeper:
        (await ask(gatekeeper, 400)).settle(Usage(200, 50, 100))  # 100 + 50 + 100
        place = await ask(gatekeeper, 375)
        with pytest.raises(QuotaExceeded, match=r"0\.000002, and the key has 0 of its budget of 0\.001"):
            await ask(gatekeeper, 1)
        place.settle(None)
        (await ask(gatekeeper, 375)).settle(Usage(750, 0))
        with pytest.raises(QuotaExceeded) as refusal:
            await ask(gatekeeper, 1)
        assert refusal.value.retry_after_s == 12 * 3600
        await ask(gatekeeper, 1, model="has no price")
        clock.now_s += 12 * 3600
        await ask(gatekeeper, 1)


async def test_a_budget_outlives_the_gateway_to_the_last_millionth(file: Path) -> None:
    clock = Clock()
    async with gate(file, clock, budget=1000, budget_period="total") as gatekeeper:
        (await ask(gatekeeper, 10)).settle(Usage(3, 0))
    async with gate(file, clock) as gatekeeper:
        (await ask(gatekeeper, 498)).settle(Usage(996, 0))
        with pytest.raises(QuotaExceeded):
            await ask(gatekeeper, 1)
    access = await open_access(file)
    assert (await access.grant("key_app", "budget", Window(0, None), requested=9, cap=1000)).amount == 1
    await access.close()


async def test_askers_of_one_key_share_one_call_to_the_database(file: Path) -> None:
    access = await open_access(file)
    await access.add_key(key(requests_per_minute=50))
    store = Flaky(access)
    gatekeeper = KeyGatekeeper(store, clock=Clock())
    await gatekeeper.start()
    assert await admitted([gatekeeper], 200) == 50
    assert store.grants == 1
    assert await admitted([gatekeeper], 200) == 0
    assert store.grants == 1
    await gatekeeper.close()
    await access.close()


async def test_a_key_with_caps_waits_for_a_database_that_is_away(file: Path) -> None:
    access = await open_access(file)
    await access.add_key(key(requests_per_minute=5))
    await access.add_key(key("free"))
    store = Flaky(access)
    gatekeeper = KeyGatekeeper(store, clock=Clock())
    await gatekeeper.start()
    store.is_away = True
    outcomes = await asyncio.gather(ask(gatekeeper), ask(gatekeeper), return_exceptions=True)
    assert [type(each) for each in outcomes] == [StoreUnavailable] * 2
    assert (
        gatekeeper.admit_now(gatekeeper.identify(secret_of("free")), AdmissionRequest("small", 1)) is not None
    )
    store.is_away = False
    assert await admitted([gatekeeper], 10) == 5
    await gatekeeper.close()
    await access.close()


async def test_a_caller_who_leaves_while_waiting_takes_nothing(file: Path) -> None:
    async with gate(file, Clock(), requests_per_minute=3) as gatekeeper:
        leaving = [asyncio.create_task(ask(gatekeeper)) for _ in range(3)]
        await asyncio.sleep(0)
        for task in leaving:
            task.cancel()
        await asyncio.gather(*leaving, return_exceptions=True)
        assert await admitted([gatekeeper], 5) == 3


def test_windows_are_minutes_days_and_months_in_utc() -> None:
    assert minute_of(NOON_S + 61) == Window(int(NOON_S) + 60, int(NOON_S) + 120)
    assert period_of("day", NOON_S) == Window(int(NOON_S) - 43200, int(NOON_S) + 43200)
    december = period_of("month", 1_798_675_200.0)  # 2026-12-31
    assert december == Window(1_796_083_200, 1_798_761_600)
    assert period_of("total", NOON_S) == Window(0, None)
