"""The command line, as a person or a script meets it: real processes, their streams and exit codes."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

import ganglion
from ganglion.cli.terminal.progress import show_downloads
from ganglion.core.engine import ModelState

GANGLION = (sys.executable, "-m", "ganglion.cli.main")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GANGLION_")}
    return {**kept, "GANGLION_HOME": str(tmp_path / "home"), "COLUMNS": "100", "NO_COLOR": "1"}


def run(
    environment: dict[str, str], *arguments: str, stdin: str = "", timeout_s: float = 20
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*GANGLION, *arguments],
        check=False,
        input=stdin,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


def error_lines(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The error, a blank line, the hint; nothing on stdout and no traceback."""
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    lines = done.stderr.splitlines()
    assert lines[0].startswith("error: ")
    assert lines[-2] == ""
    assert lines[-1].startswith("hint: ")
    return lines


@contextmanager
def node(
    environment: dict[str, str], *arguments: str
) -> Iterator[tuple[subprocess.Popen[str], str, list[str]]]:
    """A node on a free port: its process, its address and what it has said so far."""
    command = [*GANGLION, "serve", "--engine", "echo", "--port", "0", *arguments]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            said: list[str] = []
            assert process.stderr is not None
            for line in process.stderr:
                said.append(line)
                if "in a browser" in line:
                    break
            [url] = [line.split()[-1] for line in said if line.startswith("ganglion ")]
            yield process, url, said
        finally:
            process.kill()


def test_help_teaches_and_is_quick(environment: dict[str, str]) -> None:
    done = run(environment, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    for word in ("serve", "chat", "complete", "version", "Examples:", "GANGLION_HOME"):
        assert word in done.stdout


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (
            "serve",
            [
                "--host",
                "--port",
                "--grpc-port",
                "--config",
                "--engine",
                "--threads",
                "--context",
                "--kv-tokens",
            ],
        ),
        (
            "serve",
            [
                "--parallel",
                "--kv-type",
                "--gpu-layers",
                "--deterministic",
                "--chat-template",
                "--served-name",
            ],
        ),
        ("serve", ["--api-key", "--tls-cert", "--tls-key", "--cors-origin", "--strict", "--drain-timeout"]),
        (
            "serve",
            ["--log-level", "--log-format", "Default: 8080", "Security", "Examples:", '--api-key "$KEY"'],
        ),
        ("chat", ["--system", "--temperature", "Ctrl-C", "Examples:"]),
        ("doctor", ["--json", "--config", "Examples:", "warn"]),
        ("complete", ["--model", "--max-tokens", "--seed", "stdin", "Examples:"]),
        ("score", ["--prompt", "--file", "--node", "--top", "--tokens", "--json", "stdin", "Examples:"]),
    ],
)
def test_each_command_has_its_own_help(environment: dict[str, str], command: str, words: list[str]) -> None:
    done = run(environment, command, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert [word for word in words if word not in done.stdout] == []


def test_version_is_data(environment: dict[str, str]) -> None:
    done = run(environment, "version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("ganglion ")
    assert "xllamacpp" in done.stdout
    assert run(environment, "--version").stdout.splitlines() == done.stdout.splitlines()[:1]


def test_version_is_json_where_that_is_asked_for(environment: dict[str, str]) -> None:
    told = json.loads(run(environment, "version", "--json").stdout)
    assert told["ganglion"] == ganglion.__version__
    assert {"python", "xllamacpp"} <= told.keys()


def test_an_address_that_is_not_this_machines_is_not_called_a_busy_port(environment: dict[str, str]) -> None:
    done = run(
        environment, "serve", "--engine", "echo", "--host", "192.0.2.1", "--api-key", "k", "--port", "0"
    )
    assert done.returncode == 1
    assert "hint: --host takes an address of this machine" in done.stderr


def test_a_gateways_help_files_its_nodes_under_the_fleet(environment: dict[str, str]) -> None:
    told = run(environment, "gateway", "--help").stdout
    assert "─ Fleet ─" in told and "Joining" not in told
    assert "─ Joining a fleet ─" in run(environment, "serve", "--help").stdout


def test_the_package_names_what_it_has() -> None:
    assert {"Client", "build_app", "__version__"} <= set(dir(ganglion))


async def test_a_start_says_how_far_its_downloads_are(capsys: pytest.CaptureFixture[str]) -> None:
    state = ModelState("big", "llama", "downloading", 0, 0, bytes_done=3 << 20, bytes_total=9 << 20)
    told = iter([state, state, replace(state, status="loaded")])
    last = [state]

    def models() -> tuple[ModelState, ...]:
        last[0] = next(told, last[0])
        return (last[0],)

    opening = asyncio.create_task(asyncio.sleep(0))
    await asyncio.wait_for(show_downloads(models, opening), 10)
    assert capsys.readouterr().err == "downloading big: 3 of 9 MiB\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("serv",),
        ("serve", "--prot", "1"),
        ("serve", "--port", "many"),
        ("serve", "--port", "70000"),
        ("complete",),
        ("complete", "x", "--temperature", "-1"),
        ("complete", "--engin", "echo", "x"),
        ("complete", "--engin"),
        ("serve", "--engine", "echo", "--tls-cert", "only.pem"),
        ("serve", "--chat-template", "missing.jinja"),
        ("serve", "--config", "missing.toml"),
        ("serve", "--served-name", "a", "--served-name", "b", "smollm2"),
    ],
    ids=" ".join,
)
def test_bad_usage_exits_2_and_says_what_is_wrong(
    environment: dict[str, str], arguments: tuple[str, ...]
) -> None:
    done = run(environment, *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


def test_a_missing_file_exits_1_with_a_hint(environment: dict[str, str], tmp_path: Path) -> None:
    done = run(environment, "serve", str(tmp_path / "missing.gguf"))
    assert done.returncode == 1
    assert "missing.gguf" in error_lines(done)[0]


def test_a_file_that_is_no_gguf_exits_1_with_a_hint(environment: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "weights.safetensors.gguf"
    file.write_bytes(b"PK and so on")
    done = run(environment, "complete", "--model", str(file), "hello")
    assert done.returncode == 1
    assert "GGUF" in error_lines(done)[-1]


def test_an_unknown_name_lists_what_is_here(environment: dict[str, str], tmp_path: Path) -> None:
    models = tmp_path / "home" / "models"
    models.mkdir(parents=True)
    (models / "qwen3-4b.gguf").write_bytes(b"")
    done = run(environment, "serve", "qwen3")
    assert done.returncode == 1
    assert error_lines(done)[-1].startswith("hint: Did you mean qwen3-4b?")


def test_a_busy_port_exits_1_and_names_it(environment: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = str(busy.getsockname()[1])
        done = run(environment, "serve", "--engine", "echo", "--port", port)
    assert done.returncode == 1
    lines = error_lines(done)
    assert port in lines[0]
    assert "--port" in lines[-1]


def test_a_bind_that_others_reach_without_a_key_exits_2(environment: dict[str, str]) -> None:
    done = run(environment, "serve", "--engine", "echo", "--host", "0.0.0.0")
    assert done.returncode == 2
    assert "key" in error_lines(done)[0]


def test_a_config_typo_exits_2_and_names_the_nearest_key(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    file = tmp_path / "home" / "config.toml"
    file.write_text("[server]\nprot = 9000\n")
    done = run(environment, "serve", "--engine", "echo")
    assert done.returncode == 2
    assert error_lines(done) == [
        f"error: Unknown key server.prot in {file}.",
        "",
        "hint: Did you mean server.port?",
    ]


def test_a_home_that_cannot_be_written_stops_nothing_that_does_not_need_it(
    environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    done = run(
        environment | {"GANGLION_HOME": str(tmp_path / "file" / "home")}, "complete", "--engine", "echo", "hi"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "hi\n", "")


def test_a_home_that_cannot_be_written_is_named_when_the_model_must_be_kept(
    environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    program = (
        "import sys\nfrom ganglion.registry.hub import embedded\nembedded._installed = lambda model: None\n"
        "sys.argv = ['ganglion', 'complete', 'hi']\nfrom ganglion.cli.main import main\nmain()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        check=False,
        env=environment | {"GANGLION_HOME": str(tmp_path / "file" / "home")},
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert done.returncode == 1
    assert "error: The embedded model cannot be kept" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("hint: Set GANGLION_HOME")


def test_python_without_docstrings_is_refused_by_name(environment: dict[str, str]) -> None:
    command = [sys.executable, "-OO", "-m", "ganglion.cli.main", "complete", "--engine", "echo", "hi"]
    done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=20)
    assert done.returncode == 2
    assert "without docstrings (-OO)" in done.stderr


def test_complete_prints_only_the_text(environment: dict[str, str]) -> None:
    done = run(
        environment, "complete", "--engine", "echo", "--max-tokens", "3", "-", stdin="one two three four"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "one two three\n", "")
    stopped = run(environment, "complete", "--engine", "echo", "--stop", " thr", "one two three four")
    assert stopped.stdout == "one two\n"


def test_complete_says_why_it_failed(environment: dict[str, str]) -> None:
    done = run(environment, "complete", "--engine", "echo", "!echo fail_at=1\none two")
    assert (done.returncode, done.stdout) == (1, "one")
    assert done.stderr == "error: The echo was told to fail.\n"


def test_ctrl_c_ends_complete_with_130(environment: dict[str, str]) -> None:
    command = [*GANGLION, "complete", "--engine", "echo", "!echo delay=30\none two"]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(3) == b"one"
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=10)
    assert (process.returncode, stderr) == (130, b"")


def test_a_reader_that_leaves_early_is_no_error(environment: dict[str, str]) -> None:
    command = [*GANGLION, "complete", "--engine", "echo", "!echo unbounded delay=0.001\none two"]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(3) == b"one"
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
        assert process.wait(10) == 141


def test_a_node_says_where_it_is_answers_and_leaves_on_sigterm(environment: dict[str, str]) -> None:
    with node(environment, "--api-key", "s3cret", "--grpc-port", "0", "parrot") as (process, url, said):
        talk = "".join(said)
        assert "parrot repeats the prompt" in talk
        assert f"curl {url}/v1/chat/completions" in talk
        assert f"base_url='{url}/v1'" in talk
        assert "token sessions over gRPC on 127.0.0.1:" in talk
        assert "s3cret" not in talk
        body = {"model": "parrot", "messages": [{"role": "user", "content": "hello there"}]}
        request = urllib.request.Request(
            f"{url}/v1/chat/completions",
            json.dumps(body).encode(),
            {"content-type": "application/json", "authorization": "Bearer s3cret"},
        )
        with urllib.request.urlopen(request, timeout=10) as response:
            answer = json.load(response)
        assert answer["choices"][0]["message"]["content"] == "hello there"
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
        assert process.stderr is not None
        assert "s3cret" not in process.stderr.read()


def test_the_environment_configures_a_node_and_its_logs_can_be_json(environment: dict[str, str]) -> None:
    settings = {"GANGLION_SERVER__HOST": "localhost", "GANGLION_LOG__FORMAT": "json"}
    with node(environment | settings) as (process, _, said):
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0
        assert process.stderr is not None
        logged = [json.loads(line) for line in (*said, *process.stderr) if line.startswith("{")]
    assert {"ganglion.registry"} <= {entry["logger"] for entry in logged}


@pytest.mark.alone
def test_help_takes_a_sixth_of_a_second_of_work(environment: dict[str, str]) -> None:
    took_s = []
    for _ in range(3):
        before = os.times()
        run(environment, "--help")
        after = os.times()
        took_s.append(
            after.children_user + after.children_system - before.children_user - before.children_system
        )
    assert min(took_s) < 0.3, "measured 0.14 s; the bound leaves room for a slow machine"
