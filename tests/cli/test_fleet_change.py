"""`ganglion fleet drain` and `move`: what an operator asks of a gateway, and what comes back."""

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import GANGLION, data, fresh_environment, in_terminal, refusal, run
from played_gateway import KEY, PlayedGateway, playing

from ganglion.wire.fleet_overview import Drain, Move
from support.waiting import wait_until


@pytest.fixture
def gateway() -> Iterator[tuple[PlayedGateway, str]]:
    with playing() as played:
        yield played


def environment_of(folder: Path, url: str) -> dict[str, str]:
    return fresh_environment(folder, GANGLION_GATEWAY=url, GANGLION_API_KEY=KEY)


def test_a_node_is_drained_and_taken_back(gateway: tuple[PlayedGateway, str], tmp_path: Path) -> None:
    played, url = gateway
    environment = environment_of(tmp_path, url)
    done = run(environment, "fleet", "drain", "a")
    assert (done.returncode, done.stdout) == (0, "a gets no new work\n")
    assert "requests that run there are finished" in done.stderr
    assert data(environment, "fleet", "drain", "a", "--undo")["status"] == "done"
    assert data(environment, "fleet", "drain", "a", "--force")["status"] == "done"
    assert played.asked == [Drain(node="a"), Drain(node="a", undo=True), Drain(node="a", force=True)]


def test_a_node_that_is_not_there_or_no_name_is_refused(
    gateway: tuple[PlayedGateway, str], tmp_path: Path
) -> None:
    played, url = gateway
    environment = environment_of(tmp_path, url)
    done = run(environment, "fleet", "drain", "z")
    assert done.returncode == 1
    assert done.stderr == "error: There is no node 'z'.\n"
    assert "not the name of a node" in refusal(environment, "fleet", "move", "m", "a b", status=2)[0]
    assert played.asked == [Drain(node="z")]


def test_a_move_turns_until_it_is_done_and_says_what_was_done(
    gateway: tuple[PlayedGateway, str], tmp_path: Path
) -> None:
    played, url = gateway
    played.pause_s = 0.4
    status, stdout, shown = in_terminal(
        environment_of(tmp_path, url), "fleet", "move", "smollm2", "b", "--keep"
    )
    assert (status, stdout) == (0, "loaded smollm2 on b\nunloaded smollm2 on a\n")
    assert "smollm2 to b" in shown
    assert "0:00:00" in shown
    assert played.asked == [Move(model="smollm2", node="b", keep=True)]


def test_who_stops_waiting_is_told_that_the_move_goes_on(
    gateway: tuple[PlayedGateway, str], tmp_path: Path
) -> None:
    played, url = gateway
    played.pause_s = 1.0
    command = [*GANGLION, "fleet", "move", "smollm2", "b"]
    with subprocess.Popen(
        command, env=environment_of(tmp_path, url), stderr=subprocess.PIPE, text=True
    ) as process:
        wait_until(lambda: bool(played.asked))
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=10)
    assert process.returncode == 130
    assert said.startswith("no longer waiting; the gateway goes on")
