"""`ganglion gateway` in processes of its own, with nodes that join it and commands that steer it."""

import json
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from commands import GANGLION, data, fresh_environment, run

from support.waiting import wait_until

Environment = dict[str, str]
CATALOGUE = '[[models]]\nid = "parrot"\nmemory_mb = 1\naliases = ["bird"]\n'
NEEDS_A_KEY = '[[nodes]]\nurl = "http://x:1"\nkey_env = "NONE"\n'
CHAT = {"model": "parrot", "messages": [{"role": "user", "content": "one two"}]}


@contextmanager
def started(environment: Environment, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A server that leaves when it is told to, and complains of nothing."""
    with subprocess.Popen([*GANGLION, *words], env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            said = process.stderr.read()
            status = process.wait(20)
        assert (status, "Traceback" in said) == (0, False), said


def url_of(process: subprocess.Popen[str]) -> str:
    """Where it listens, once it does."""
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        if line.startswith("ganglion ") and "listens on" in line:
            return line.split()[-1]
    raise AssertionError(said)


def ask(url: str, path: str, body: object = None, key: str = "") -> tuple[int, Any]:
    request = urllib.request.Request(url + path, None if body is None else json.dumps(body).encode())
    request.add_header("content-type", "application/json")
    if key:
        request.add_header("authorization", f"Bearer {key}")
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Environment, str]]:
    """A gateway whose catalogue stands beside its config file, and two nodes that joined it."""
    folder = tmp_path_factory.mktemp("fleet")
    (folder / "fleet.toml").write_text(
        '[server]\nport = 0\ngrpc = false\n[gateway]\ncatalogue = "models.toml"\n'
    )
    (folder / "models.toml").write_text(CATALOGUE)
    environment = fresh_environment(folder, GANGLION_GATEWAY__NODE_KEY="between-us")
    node = environment | {"GANGLION_SERVER__GATEWAY_KEYS": "between-us"}
    echo = ("serve", "parrot", "--engine", "echo", "--port", "0", "--no-grpc")
    with ExitStack() as stack:
        url = url_of(
            stack.enter_context(started(environment, "gateway", "--config", str(folder / "fleet.toml")))
        )
        environment |= {"GANGLION_GATEWAY": url, "CATALOGUE": str(folder / "models.toml")}
        for name in "ab":
            stack.enter_context(started(node, *echo, "--join", url, "--node-name", name))
        wait_until(lambda: len(_healthy(environment)) == 2)
        yield environment, url


def _healthy(environment: Environment) -> list[str]:
    told = ask(environment["GANGLION_GATEWAY"], "/fleet")[1]
    return [node["name"] for node in told["nodes"] if node["healthy"]]


def test_nodes_join_and_are_seen_drained_and_planned_for(fleet: tuple[Environment, str]) -> None:
    environment, url = fleet
    assert ask(url, "/v1/chat/completions", CHAT)[1]["choices"][0]["message"]["content"] == "one two"
    assert ask(url, "/v1/chat/completions", CHAT | {"model": "bird"})[0] == 200
    status = run(environment, "fleet", "status")
    assert status.returncode == 0, status.stderr
    assert status.stdout.startswith("ok: 2 of 2 nodes healthy")
    drained = run(environment, "fleet", "drain", "a")
    assert drained.stdout == "a takes no new work\nparrot is served elsewhere\n"
    assert ask(url, "/v1/chat/completions", CHAT)[0] == 200
    assert run(environment, "fleet", "drain", "a", "--undo").stdout == "a takes work again\n"
    steps = data(environment, "fleet", "plan", "--catalogue", environment["CATALOGUE"])
    assert {(step["model"], step["action"]) for step in steps} == {("parrot", "stays")}
    moved = run(environment, "fleet", "move", "bird", "b", "--keep")
    assert (moved.returncode, moved.stdout) == (0, "bird is loaded on b\n"), moved.stderr
    unknown = run(environment, "fleet", "drain", "zz")
    assert (unknown.returncode, "There is no node 'zz'" in unknown.stderr) == (1, True)
    assert "There are: a, b." in unknown.stderr
    nobody = run(environment, "fleet", "move", "nobody", "b")
    assert (nobody.returncode, "'nobody'" in nobody.stderr) == (1, True)


def test_keys_made_beside_a_running_gateway_count_there_and_end_there(fleet: tuple[Environment, str]) -> None:
    environment, url = fleet
    made = run(environment, "keys", "create", "shop", "--model", "bird", "--requests-per-minute", "9")
    key = made.stdout.strip()
    assert (made.returncode, key.count("\n")) == (0, 0), made.stderr
    wait_until(lambda: ask(url, "/v1/models")[0] == 401, 2.0)
    assert [model["id"] for model in ask(url, "/v1/models", key=key)[1]["data"]] == ["bird"]
    assert ask(url, "/v1/chat/completions", CHAT, key)[0] == 403
    assert ask(url, "/v1/chat/completions", CHAT | {"model": "bird"}, key)[0] == 200
    refused = run(environment | {"GANGLION_API_KEY": key}, "fleet", "status")
    assert (refused.returncode, "a key of role admin" in refused.stderr) == (1, True)
    assert [each["name"] for each in data(environment, "keys", "list")] == ["shop"]
    wait_until(
        lambda: bool(data(environment, "usage")) and data(environment, "usage")[-1]["key"] == "shop", 5
    )
    (line,) = [each for each in data(environment, "usage") if each["key"] == "shop"]
    assert (line["requests"], line["prompt_tokens"], line["completion_tokens"]) == (1, 2, 2)
    assert run(environment, "keys", "revoke", "shop").returncode == 0
    wait_until(lambda: ask(url, "/v1/models", key=key)[0] == 401, 1.5)


def test_what_a_gateway_cannot_be_started_with_is_said(tmp_path: Path) -> None:
    environment = fresh_environment(tmp_path)

    def file(name: str, text: str) -> str:
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        cases: list[tuple[tuple[str, ...], int, str, str]] = [
            (("--config", file("a.toml", "[gateway]\nlease = 1\n")), 2, "gateway.lease", "gateway.lease_s"),
            (("--config", file("c.toml", NEEDS_A_KEY)), 2, "NONE", "Set"),
            (("--host", "0.0.0.0", "--port", "0"), 2, "no key", "keys create"),
            (("--port", port), 1, "in use", "another port"),
        ]
        with ThreadPoolExecutor(4) as pool:
            starts = [pool.submit(run, environment, "gateway", "--no-grpc", *words) for words, *_ in cases]
    for (words, status, message, hint), start in zip(cases, starts, strict=True):
        done = start.result()
        assert done.returncode == status, (words, done.stderr)
        assert "Traceback" not in done.stderr
        assert done.stderr.startswith("error: "), done.stderr
        assert message in done.stderr.splitlines()[0], done.stderr
        assert hint in done.stderr.partition("hint: ")[2], done.stderr
