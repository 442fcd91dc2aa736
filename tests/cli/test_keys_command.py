"""`ganglion keys` as an operator meets it, also while a gateway runs on the same database."""

import asyncio
import json
import re
import sqlite3
import stat
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
from commands import data, fresh_environment, run

from ganglion.cli.main import _run
from ganglion.core.errors import InvalidApiKey
from ganglion.gateway.access.admission import Identity
from ganglion.gateway.access.gatekeeper import KeyGatekeeper
from ganglion.store.opening import open_access
from support.waiting import until

Environment = dict[str, str]


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    return fresh_environment(tmp_path)


def create(environment: Environment, *words: str) -> str:
    done = run(environment, "keys", "create", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout.removesuffix("\n")


def test_a_key_is_printed_once_and_kept_nowhere(environment: Environment) -> None:
    done = run(
        environment,
        *("keys", "create", "shop", "--tenant", "ann", "--model", "a", "--model", "b/c", "--priority", "-2"),
        *(
            "--requests-per-minute",
            "60",
            "--tokens-per-minute",
            "5000",
            "--budget",
            "12.5",
            "--period",
            "day",
        ),
        *("--expires", "30d", "--role", "node"),
    )
    secret = done.stdout.removesuffix("\n")
    assert re.fullmatch(r"gk-[A-Za-z0-9_-]{43}", secret)
    assert "60 requests/min, 5000 tokens/min, 12.50 a day, until 20" in done.stderr
    assert secret not in done.stderr
    file = Path(environment["GANGLION_HOME"], "data", "ganglion.db")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    for each in file.parent.glob("ganglion.db*"):
        assert each.is_dir() or secret.encode() not in each.read_bytes()
    with sqlite3.connect(file) as connection:
        (row,) = connection.execute("SELECT digest FROM api_keys").fetchall()
    connection.close()
    assert row[0] == sha256(secret.encode()).digest()
    (listed,) = data(environment, "keys", "list")
    assert "digest" not in listed
    lasts_s = listed.pop("expires") - listed.pop("created")
    assert lasts_s == pytest.approx(30 * 86400)
    assert listed == {
        "id": done.stderr.split()[0],
        "name": "shop",
        "tenant": "ann",
        "role": "node",
        "state": "valid",
        "models": ["a", "b/c"],
        "requests_per_minute": 60,
        "tokens_per_minute": 5000,
        "budget": "12.50",
        "budget_period": "day",
        "priority": -2,
        "revoked": None,
    }


def test_a_running_gateway_sees_what_the_commands_do(environment: Environment, tmp_path: Path) -> None:
    place = str(tmp_path / "gateway.db")

    async def story() -> None:
        access = await open_access(place)
        gatekeeper = KeyGatekeeper(access)
        await gatekeeper.start()
        secret = await asyncio.to_thread(create, environment, "shop", "--store", place)
        while gatekeeper.keys.is_open:  # noqa: ASYNC110 (how soon it is seen is tested elsewhere)
            await asyncio.sleep(0.02)
        identity = gatekeeper.identify(secret.encode())
        assert identity == Identity("shop", identity.key_id, "user")
        done = await asyncio.to_thread(run, environment, "keys", "revoke", "shop", "--store", place)
        assert (done.returncode, done.stdout) == (0, "")
        assert f"{identity.key_id} shop is revoked" in done.stderr
        with pytest.raises(InvalidApiKey):
            await until(lambda: not gatekeeper.identify(secret.encode()), 10)
        await gatekeeper.close()
        await access.close()

    asyncio.run(story())


@pytest.fixture
def said(
    environment: Environment, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """What a command of this very process says: where only its words matter, nobody waits for a new one."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    def run_here(*words: str, status: int = 0) -> str:
        capsys.readouterr()
        assert _run(["keys", *words]) == status
        out, err = capsys.readouterr()
        return out + err

    return run_here


def test_the_table_shows_revoked_keys_when_asked(
    said: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GANGLION_STORE__URL", str(tmp_path / "elsewhere.db"))
    said("create", "old")
    said("create", "new", "--budget", "3")
    (old, _) = json.loads(said("list", "--json"))
    assert "old is revoked" in said("revoke", old["id"])
    assert "was revoked before" in said("revoke", old["id"])
    shown = said("list")
    assert "new" in shown and "3.00 a month" in shown and "old" not in shown
    assert "revoked" in said("list", "--all")
    assert (tmp_path / "elsewhere.db").is_file()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["list"], "There is no database"),
        (["list", "--store", "off"], "nowhere to keep keys"),
        (["create", "two words"], "A name is"),
        (["create", "key_1"], "does not begin with key_"),
        (["create", "a", "--tenant", "x\ny"], "A tenant is"),
        (["create", "a", "--budget", "1.0000001"], "six decimals"),
        (["create", "a", "--budget", "nan"], "six decimals"),
        (["create", "a", "--expires", "2020-01-01"], "is over"),
        (["create", "a", "--expires", "999999999w"], "takes a time"),
    ],
)
def test_what_cannot_be_is_said_with_a_hint(said: Callable[..., str], words: list[str], message: str) -> None:
    told = said(*words, status=2)
    assert message in told
    assert "\n\nhint: " in told


def test_a_name_that_is_taken_or_unknown_is_said_with_a_hint(said: Callable[..., str]) -> None:
    said("create", "shop")
    assert "called 'shop' already" in said("create", "shop", status=2)
    assert "no key 'shup'" in said("revoke", "shup", status=2)
    said("revoke", "shop")
    assert "is revoked" in said("revoke", "shop", status=2)


def test_help_teaches(said: Callable[..., str]) -> None:
    assert "within a second" in said("--help")
    assert "keeps only a digest of the key" in said("create", "--help")
