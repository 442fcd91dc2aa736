"""Whose a key is, and how soon a change of keys is in force."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path

import pytest
from gates import Clock, Flaky, key, secret_of

from ganglion.core.errors import InvalidApiKey, NotAllowed
from ganglion.core.events import Usage
from ganglion.core.request import MOST_URGENT
from ganglion.gateway.access.admission import EVERYBODY, AdmissionRequest, Gatekeeper, Identity
from ganglion.gateway.access.gatekeeper import KeyGatekeeper
from ganglion.gateway.access.keys import ApiKeys
from ganglion.gateway.access.ledger import KeyCount
from ganglion.server.middleware.principal import KeyRing
from ganglion.store.access_store import AccessStore
from ganglion.store.opening import open_access


@pytest.fixture
async def access(tmp_path: Path) -> AsyncIterator[AccessStore]:
    access = await open_access(tmp_path / "ganglion.db")
    yield access
    await access.close()


async def loaded(access: AccessStore, *admins: str, clock: Clock | None = None) -> ApiKeys:
    keys = ApiKeys(access, admin_keys=admins, clock=clock or Clock())
    await keys.load()
    return keys


async def test_without_any_key_everybody_may_do_everything(access: AccessStore) -> None:
    keys = await loaded(access)
    assert keys.is_open
    assert keys.identify(None) is keys.identify(b"whatever") is EVERYBODY


async def test_before_the_database_was_asked_nobody_comes_in(access: AccessStore) -> None:
    with pytest.raises(InvalidApiKey):
        ApiKeys(access).identify(b"gk-app")


async def test_a_key_of_the_database_says_whose_it_is(access: AccessStore) -> None:
    await access.add_key(key(role="node", models=("a", "b"), requests_per_minute=5, priority=-2))
    keys = await loaded(access)
    assert keys.identify(secret_of("app")) == Identity(
        "tenant-app", "key_app", "node", frozenset(("a", "b")), -2, is_limited=True
    )
    with pytest.raises(InvalidApiKey, match="not valid"):
        keys.identify(b"gk-other")
    with pytest.raises(InvalidApiKey, match="No API key"):
        keys.identify(None)


async def test_an_operators_key_is_an_admin_with_the_tenant_that_a_node_gives_it(access: AccessStore) -> None:
    keys = await loaded(access, "secret")
    identity = keys.identify(b"secret")
    assert (identity.role, identity.priority) == ("admin", MOST_URGENT)
    assert identity.tenant == KeyRing(["secret"]).holder_of(b"secret").tenant
    assert not identity.is_limited
    assert "secret" not in identity.key_id and sha256(b"secret").hexdigest() not in identity.key_id


async def test_an_operators_keys_can_be_replaced(access: AccessStore) -> None:
    await access.add_key(key())
    keys = await loaded(access, "old")
    keys.replace_static(["callers"], ["new"])
    assert (keys.identify(b"new").role, keys.identify(b"callers").role) == ("admin", "user")
    assert keys.identify(secret_of("app")).key_id == "key_app"
    with pytest.raises(InvalidApiKey):
        keys.identify(b"old")


async def test_a_key_ends_when_it_expires(access: AccessStore) -> None:
    clock = Clock()
    await access.add_key(key(expires_s=clock() + 10))
    keys = await loaded(access, clock=clock)
    assert keys.identify(secret_of("app")).key_id == "key_app"
    clock.now_s += 10
    with pytest.raises(InvalidApiKey, match="no longer valid"):
        keys.identify(secret_of("app"))


async def test_revoking_the_last_key_lets_nobody_in(access: AccessStore) -> None:
    await access.add_key(key())
    await access.revoke("key_app")
    keys = await loaded(access, clock=Clock(0.0))  # whatever the clock says
    assert not keys.is_open
    for presented in (None, secret_of("app"), b"other"):
        with pytest.raises(InvalidApiKey):
            keys.identify(presented)


async def test_a_revocation_by_another_process_is_in_force_within_a_second(tmp_path: Path) -> None:
    place = tmp_path / "ganglion.db"
    ours, theirs = await open_access(place), await open_access(place)
    await theirs.add_key(key())
    gatekeeper = KeyGatekeeper(ours)
    await gatekeeper.start()
    assert gatekeeper.identify(secret_of("app")).key_id == "key_app"
    await theirs.revoke("key_app")
    await theirs.add_key(key("new"))
    began_s = time.monotonic()
    with pytest.raises(InvalidApiKey):
        while time.monotonic() - began_s < 1.0:
            gatekeeper.identify(secret_of("app"))
            await asyncio.sleep(0.02)
    assert gatekeeper.identify(secret_of("new")).key_id == "key_new"
    await gatekeeper.close()
    await ours.close()
    await theirs.close()


async def test_a_database_that_is_away_leaves_the_keys_valid_and_is_said_once(
    access: AccessStore, caplog: pytest.LogCaptureFixture
) -> None:
    await access.add_key(key())
    store = Flaky(access)
    keys = ApiKeys(store)
    await keys.load()
    store.is_away = True
    watching = asyncio.create_task(keys.watch(0.01))
    with caplog.at_level(logging.INFO):
        await asyncio.sleep(0.1)
        assert keys.identify(secret_of("app")).key_id == "key_app"
        await access.revoke("key_app")
        store.is_away = False
        await asyncio.sleep(0.1)
    watching.cancel()
    with pytest.raises(InvalidApiKey):
        keys.identify(secret_of("app"))
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


async def test_a_model_that_is_not_the_keys_is_refused(access: AccessStore) -> None:
    await access.add_key(key(models=("small",)))
    gatekeeper = KeyGatekeeper(access)
    await gatekeeper.start()
    gate: Gatekeeper = gatekeeper
    identity = gate.identify(secret_of("app"))
    assert gate.admit_now(identity, AdmissionRequest("small", 1)) is not None
    with pytest.raises(NotAllowed, match="'large'"):
        gate.admit_now(identity, AdmissionRequest("large", 1))
    with pytest.raises(NotAllowed):
        await gate.admit(identity, AdmissionRequest("large", 1))
    await gatekeeper.close()


async def test_metrics_count_requests_tokens_and_refusals_by_name(
    access: AccessStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ganglion.gateway.access.ledger.MAX_COUNTED_KEYS", 2)
    for name in ("one", "two", "three", "four"):
        await access.add_key(key(name, models=("small",)))
    gatekeeper = KeyGatekeeper(access)
    await gatekeeper.start()
    for name in ("one", "two", "three", "four"):
        identity = gatekeeper.identify(secret_of(name))
        place = await gatekeeper.admit(identity, AdmissionRequest("small", 1))
        place.settle(Usage(5, 2, 1))
        place.settle(Usage(5, 2, 1))
        with pytest.raises(NotAllowed):
            gatekeeper.admit_now(identity, AdmissionRequest("large", 1))
    refusals = {"permission_denied": 1}
    assert gatekeeper.usage_counts() == (
        KeyCount("tenant-one", "one", 1, 5, 2, 1, 0, refusals),
        KeyCount("tenant-two", "two", 1, 5, 2, 1, 0, refusals),
        KeyCount("(others)", "(others)", 2, 10, 4, 2, 0, {"permission_denied": 2}),
    )
    await gatekeeper.close()
