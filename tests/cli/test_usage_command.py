"""`ganglion usage` as an operator meets it."""

import asyncio
import csv
import io
import time
from hashlib import sha256
from pathlib import Path

import pytest
from commands import data, fresh_environment, refusal, run

from ganglion.store.access_store import HourlyUsage, StoredKey, UsageTotals
from ganglion.store.opening import open_access

HOUR = int(time.time()) // 3600 * 3600
Environment = dict[str, str]


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    """A machine whose gateway has counted something, today and eight days ago."""
    place = tmp_path / "home" / "data" / "ganglion.db"

    async def fill() -> None:
        access = await open_access(place)
        await access.add_key(StoredKey("key_1", sha256(b"1").digest(), "shop", "ann", 1.0))
        old = HourlyUsage("key_1", "ann", "small", HOUR - 8 * 86400, UsageTotals(100, 1000, 500, 0, 0))
        rows = [
            old,
            HourlyUsage("key_1", "ann", "small", HOUR, UsageTotals(2, 30, 12, 8, 1_250_000)),
            HourlyUsage("key_1", "ann", "large", HOUR, UsageTotals(1, 10, 4, 0, 40)),
            HourlyUsage("", "", "large", HOUR, UsageTotals(1, 1, 1, 0, 0)),
        ]
        await access.add_usage("gateway", 1, rows)
        await access.close()

    asyncio.run(fill())
    return fresh_environment(tmp_path)


def test_each_key_has_a_line_with_its_sums(environment: Environment) -> None:
    done = run(environment, "usage")
    assert done.returncode == 0
    lines = [line.split() for line in done.stdout.splitlines() if line.strip() and "─" not in line]
    assert lines == [
        ["key", "requests", "prompt", "cached", "completion", "cost"],
        ["shop", "3", "40", "8", "16", "1.25004"],
        ["-", "1", "1", "0", "1", "0.00"],
    ]
    assert "UTC" in done.stderr


def test_programs_get_json_and_csv(environment: Environment) -> None:
    whole = data(environment, "usage", "--since", "30d", "--by", "tenant", "--by", "model")
    assert [(line["tenant"], line["model"], line["requests"], line["cost"]) for line in whole] == [
        ("ann", "small", 102, "1.25"),
        ("ann", "large", 1, "0.00004"),
        ("", "large", 1, "0.00"),
    ]
    assert {line["key_id"] for line in whole} == {None}
    done = run(environment, "usage", "--since", "2w", "--by", "day", "--by", "key", "--csv")
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [(row["key_id"], row["key"], row["requests"]) for row in rows] == [
        ("key_1", "shop", "100"),
        ("key_1", "shop", "3"),
        ("", "", "1"),
    ]
    assert rows[0]["day"] == time.strftime("%Y-%m-%d", time.gmtime(HOUR - 8 * 86400))


def test_what_cannot_be_is_said_with_a_hint(environment: Environment) -> None:
    assert "exclude each other" in refusal(environment, "usage", "--json", "--csv", status=2)[0]
    assert "takes a time" in refusal(environment, "usage", "--since", "long ago", status=2)[0]
    assert "no database" in refusal(environment, "usage", "--store", "/nowhere/at/all.db", status=2)[0]
