"""`ganglion fleet status`: what an operator sees of a fleet, once and again and again."""

import json
import os
import pty
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from commands import GANGLION, data, fresh_environment, refusal, run
from played_gateway import KEY, PlayedGateway, fleet, node, playing

from ganglion.cli.fleet.status import MODELS_SHOWN, fleet_tables
from ganglion.wire.fleet import ReplicaState
from ganglion.wire.fleet_overview import FleetOverview, NodeDevice, Unservable
from support.ports import free_port
from support.waiting import wait_until

SMOL = ReplicaState(id="smollm2", status="loaded", in_flight=3, queued=2, slots_total=8)
COLD = ReplicaState(id="qwen3-4b", status="unloaded")
Environment = dict[str, str]


@pytest.fixture
def gateway() -> Iterator[tuple[PlayedGateway, str]]:
    with playing() as played:
        yield played


def environment_of(folder: Path, url: str) -> Environment:
    return fresh_environment(folder, GANGLION_GATEWAY=url, GANGLION_API_KEY=KEY)


def shown(overview: FleetOverview, trouble: str | None = None) -> str:
    from rich.console import Console

    console = Console(width=140, color_system=None)
    with console.capture() as capture:
        console.print(fleet_tables(overview, trouble))
    return capture.get()


def line_of(text: str, word: str) -> str:
    return next(line for line in text.splitlines() if word in line)


def test_a_well_fleet_is_a_table_and_status_0(gateway: tuple[PlayedGateway, str], tmp_path: Path) -> None:
    played, url = gateway
    played.overview = fleet(node("a", SMOL, COLD, in_flight=3), node("b"))
    done = run(environment_of(tmp_path, url), "fleet", "status")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ok: 2 of 2 nodes healthy, 3 requests in flight")
    assert line_of(done.stdout, "smollm2").split()[0] == "a"
    for words in ("3 of 8 + 2 waiting", "6.0 GiB", "just now", "1 not loaded"):
        assert words in done.stdout
    assert "cannot be served" not in done.stdout


def test_what_cannot_be_served_is_said_with_its_reason_and_status_1(
    gateway: tuple[PlayedGateway, str], tmp_path: Path
) -> None:
    played, url = gateway
    gone = node("b", healthy=False, heard_s_ago=75.0, error="Connection refused.", devices=())
    why = Unservable("qwen3-4b", "insufficient_memory", "It needs 5000 MiB, and 3000 are free on a.")
    played.overview = fleet(node("a", SMOL), gone, unservable=(why,))
    environment = environment_of(tmp_path, url)
    done = run(environment, "fleet", "status")
    assert done.returncode == 1
    assert done.stdout.startswith("degraded: 1 of 2 nodes healthy")
    assert "unreachable" in line_of(done.stdout, "1 minute ago")
    assert "\nb: Connection refused.\n" in done.stdout
    assert "insufficient_memory" in line_of(done.stdout, "It needs 5000 MiB")

    played.overview = fleet(node("a", SMOL), gone)
    assert run(environment, "fleet", "status").returncode == 0, "a missing node alone stops nobody"


def test_json_is_what_the_gateway_said(gateway: tuple[PlayedGateway, str], tmp_path: Path) -> None:
    played, url = gateway
    played.overview = fleet(node("a", SMOL), node("cloud", kind="openai"))
    told = data(environment_of(tmp_path, url), "fleet", "status")
    assert told["status"] == "ok"
    assert [(each["name"], each["kind"]) for each in told["nodes"]] == [
        ("a", "ganglion"),
        ("cloud", "openai"),
    ]
    assert told["nodes"][0]["models"][0]["queued"] == 2


def test_every_state_of_a_node_has_a_word_of_its_own() -> None:
    text = shown(
        fleet(
            node("one", draining=True),
            node("two", cooling=True),
            node("three", healthy=False, heard_s_ago=None),
            node("four", kind="openai", devices=()),
            node("five", devices=(NodeDevice(0, "x", 24576, 2048), NodeDevice(1, "x", 24576, 1024))),
            node("six", ReplicaState(id="m", status="failed", error="out of memory")),
        )
    )
    assert "draining" in line_of(text, "one")
    assert "cooling down" in line_of(text, "two")
    assert line_of(text, "three").split() == ["three", "unreachable", "0", "-", "never", "-"]
    assert "four (openai)" in text
    assert "2.0 GiB + 1.0 GiB" in line_of(text, "five")
    assert "failed: out of memory" in line_of(text, "six")


def test_of_many_models_the_busy_ones_are_shown_and_the_others_counted() -> None:
    idle = [ReplicaState(id=f"idle-{number:03}", status="loaded") for number in range(200)]
    text = shown(fleet(node("cloud", *idle, SMOL)))
    assert line_of(text, "cloud").find("smollm2") > 0, "the busy one comes first"
    assert f"and {201 - MODELS_SHOWN} more" in text
    assert len(text.splitlines()) < 25


def test_what_others_wrote_does_nothing_to_the_terminal() -> None:
    text = shown(fleet(node("a", healthy=False, error="\x1b[2Jgone")), "bad\x07")
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "\\x1b[2Jgone" in text


def test_a_watch_redraws_in_a_terminal_until_it_is_interrupted(
    gateway: tuple[PlayedGateway, str], tmp_path: Path
) -> None:
    played, url = gateway
    played.overview = fleet(node("a", SMOL))
    ours, theirs = pty.openpty()
    seen = bytearray()

    def read() -> None:
        with suppress(OSError):
            while more := os.read(ours, 4096):
                seen.extend(more)

    environment = environment_of(tmp_path, url) | {"TERM": "xterm"}
    command = [*GANGLION, "fleet", "status", "--watch"]
    with subprocess.Popen(command, env=environment, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        reader = threading.Thread(target=read)
        reader.start()
        wait_until(lambda: b"smollm2" in seen)
        played.overview = fleet(node("a", SMOL, draining=True))
        wait_until(lambda: b"draining" in seen)
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0
        reader.join(5)
    os.close(ours)
    assert b"\x1b[2K" in seen, "drawn over, not below"


def test_a_watch_without_a_terminal_prints_on(gateway: tuple[PlayedGateway, str], tmp_path: Path) -> None:
    played, url = gateway
    played.overview = fleet(node("a", SMOL))
    environment = environment_of(tmp_path, url)
    command = [*GANGLION, "fleet", "status", "--watch"]
    tables, lines = tmp_path / "tables", tmp_path / "lines"
    with (
        tables.open("w") as one,
        lines.open("w") as other,
        subprocess.Popen(command, env=environment, stdout=one) as plain,
        subprocess.Popen([*command, "--json"], env=environment, stdout=other) as programs,
    ):
        wait_until(lambda: lines.read_text().count("\n") >= 2 and tables.read_text().count("smollm2") >= 2)
        for process in (plain, programs):
            process.send_signal(signal.SIGINT)
            assert process.wait(10) == 0
    assert "\x1b" not in tables.read_text()
    assert {json.loads(line)["status"] for line in lines.read_text().splitlines()} == {"ok"}


def test_a_watch_says_that_the_gateway_is_away_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from ganglion.cli.fleet import status
    from ganglion.cli.remote.gateway_client import GatewayApiClient

    monkeypatch.setattr(status, "PERIOD_S", 0.0)
    with playing() as (played, url):
        played.overview = fleet(node("a"))
        gateway = GatewayApiClient(url, KEY)
        news = status._news(gateway, gateway.overview())
        assert next(news)[1] is None
        assert next(news)[1] is None
    overview, trouble = next(news)
    assert overview.nodes[0].name == "a"
    assert trouble is not None
    assert trouble.startswith(f"No gateway at {url}: ")


def test_errors_say_what_to_do(gateway: tuple[PlayedGateway, str], tmp_path: Path) -> None:
    _, url = gateway
    environment = environment_of(tmp_path, url)
    error, hint = refusal(environment, "fleet", "status", "--api-key", "wrong")
    assert "key" in error
    assert "GANGLION_API_KEY" in hint
    nobody = f"http://127.0.0.1:{free_port()}"
    error, hint = refusal(environment, "fleet", "status", "--gateway", nobody)
    assert error == f"error: No gateway at {nobody}: Connection refused."
    assert "ganglion gateway" in hint
    error, hint = refusal(environment, "fleet", "status", "--gateway", f"{url}/elsewhere")
    assert "is not a Ganglion gateway" in error
    assert "--gateway or GANGLION_GATEWAY" in hint
    assert (
        "http://127.0.0.1:8000"
        in refusal(environment, "fleet", "status", "--gateway", "ftp://x", status=2)[1]
    )
