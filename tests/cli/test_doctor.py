"""`ganglion doctor`, as a person or a script meets it: real processes on real machines."""

import json
import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.ports import free_port

GANGLION = (sys.executable, "-m", "ganglion.cli.main")
OK, FAILED = 0, 1


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A home of its own and a free port, so that what else runs here is no finding."""
    hidden = ("GANGLION_", "HF_", "HUGGING")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    return {
        **kept,
        "GANGLION_HOME": str(tmp_path / "home"),
        "GANGLION_SERVER__PORT": str(free_port()),
        "HF_HOME": str(tmp_path / "hub"),
        "COLUMNS": "100",
        "NO_COLOR": "1",
    }


def run(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*GANGLION, "doctor", *arguments],
        check=False,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


def checks(environment: dict[str, str], *arguments: str) -> dict[str, dict[str, str]]:
    done = run(environment, "--json", *arguments)
    report = json.loads(done.stdout)
    assert done.returncode == (FAILED if report["has_failed"] else OK)
    assert report["has_failed"] == any(each["verdict"] == "fail" for each in report["checks"])
    return {each["check"]: each for each in report["checks"]}


def test_a_table_can_be_read_without_colour(environment: dict[str, str], tmp_path: Path) -> None:
    done = run(environment)
    assert done.returncode == OK, done.stdout
    assert "\x1b" not in done.stdout
    for words in ("python", "llama.cpp", "embedded model (49152 tokens)", "free of", "processor", "ok"):
        assert words in done.stdout
    assert done.stderr.endswith(" 0 failed\n")
    assert not (tmp_path / "home").exists(), "a check-up changes nothing"


def test_json_holds_every_check(environment: dict[str, str]) -> None:
    found = checks(environment)
    port = int(environment["GANGLION_SERVER__PORT"])
    assert set(found) == {
        "python",
        "config",
        "home",
        "disk of home",
        "disk of the hub cache",
        "processor",
        "memory",
        "llama.cpp",
        "accelerator",
        "best engine",
        f"port {port} (http)",
        f"port {port + 1} (sessions)",
        "hub token",
    }
    assert found["python"]["verdict"] == "ok"
    assert "free on 127.0.0.1" in found[f"port {port} (http)"]["finding"]


def test_a_token_is_noticed_and_not_told(environment: dict[str, str]) -> None:
    done = run({**environment, "HF_TOKEN": "hf_s3cret"}, "--json")
    assert "HF_TOKEN is set" in done.stdout
    assert "s3cret" not in done.stdout + done.stderr
    assert "HF_TOKEN is set" not in run(environment, "--json").stdout


def test_the_token_is_looked_for_where_downloads_look_for_it(
    environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "token").write_text("hf_s3cret")
    beside = {**environment, "HF_HUB_CACHE": str(tmp_path / "elsewhere" / "cache")}
    kept = f"read from {tmp_path / 'hub' / 'token'}"
    assert checks(beside)["hub token"]["finding"] == kept
    variable = {**environment, "FOLDER": str(tmp_path / "hub"), "HF_TOKEN_PATH": "$FOLDER/token"}
    assert checks(variable)["hub token"]["finding"] == kept
    implicit = {**environment, "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"}
    assert checks(implicit)["hub token"]["finding"].startswith("none")


def test_a_config_typo_fails_and_the_other_checks_run(environment: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[server]\nprot = 9000\n")
    found = checks(environment, "--config", str(file))
    assert found["config"]["verdict"] == "fail"
    assert "server.prot" in found["config"]["finding"]
    assert found["config"]["advice"] == "Did you mean server.port?"
    assert found["llama.cpp"]["verdict"] == "ok"


def test_a_library_that_is_none_fails_with_its_reason(environment: dict[str, str], tmp_path: Path) -> None:
    found = checks({**environment, "GANGLION_LIBLLAMA": str(tmp_path / "missing.so")})
    assert found["llama.cpp"]["verdict"] == "fail"
    assert "missing.so" in found["llama.cpp"]["finding"]
    assert "GANGLION_LIBLLAMA" in found["llama.cpp"]["advice"]


def test_a_home_that_cannot_be_written_fails(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = checks({**environment, "GANGLION_HOME": str(tmp_path / "file" / "home")})
    assert found["home"]["verdict"] == "fail"
    assert "GANGLION_HOME" in found["home"]["advice"]


def test_a_list_of_models_is_checked(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "models.yaml").write_text("models: [this is, not a map\n")
    found = checks(environment)["models.yaml"]
    assert found["verdict"] == "fail"
    assert "models.yaml" in found["finding"]
    (tmp_path / "home" / "models.yaml").write_text("models:\n  tiny: /models/tiny.gguf\n")
    assert checks(environment)["models.yaml"]["verdict"] == "ok"


def test_a_port_that_others_hold_is_told_with_who_holds_it(environment: dict[str, str]) -> None:
    port = int(environment["GANGLION_SERVER__PORT"])
    with socket.create_server(("127.0.0.1", port)):
        found = checks(environment)[f"port {port} (http)"]
    assert found["verdict"] == "fail"
    assert f"pid {os.getpid()}" in found["finding"]
    assert "--port" in found["advice"]


def test_a_bind_that_others_reach_without_a_key_fails(environment: dict[str, str]) -> None:
    found = checks({**environment, "GANGLION_SERVER__HOST": "0.0.0.0"})
    assert found["access"]["verdict"] == "fail"
    assert "key" in found["access"]["advice"]


@contextmanager
def node(environment: dict[str, str]) -> Iterator[str]:
    command = [*GANGLION, "serve", "--engine", "echo", "--api-key", "s3cret"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            lines = iter(process.stderr.readline, "")
            yield next(line.split()[-1] for line in lines if " listens on " in line)
        finally:
            process.kill()


def ask(url: str) -> dict[str, object]:
    request = urllib.request.Request(url, headers={"x-api-key": "s3cret"})
    with urllib.request.urlopen(request, timeout=10) as response:
        return json.load(response)


def test_a_running_node_is_recognised_and_tells_of_its_machine(environment: dict[str, str]) -> None:
    port = int(environment["GANGLION_SERVER__PORT"])
    with node(environment) as url:
        done = run(environment, "--json")
        described, health = ask(f"{url}/discovery"), ask(f"{url}/health")
    found = {each["check"]: each for each in json.loads(done.stdout)["checks"]}[f"port {port} (http)"]
    assert (found["verdict"], "a node listens here" in found["finding"]) == ("ok", True)
    assert "s3cret" not in done.stdout
    assert described["hostname"] == socket.gethostname()
    assert health["devices"]
