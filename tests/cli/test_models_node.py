"""`ganglion models load`, `unload` and `ps` against running nodes, and a first user's whole way."""

import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest
from commands import GANGLION, data, fresh_environment, in_terminal, refusal, run

from ganglion.registry.hub.embedded import SMOLLM2, find
from support.hub_server import Fault, HubServer
from support.ports import free_port

Environment = dict[str, str]


@contextmanager
def serving(environment: Environment, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A node on a free port, whose address is GANGLION_URL from then on."""
    command = [*GANGLION, "serve", "--port", "0", *arguments]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        address = next(line for line in process.stderr if line.startswith("ganglion "))
        environment["GANGLION_URL"] = address.split()[-1]
        reader = threading.Thread(target=process.stderr.read)
        reader.start()
        try:
            yield process
        finally:
            process.terminate()
            process.wait(20)
            reader.join(5)


def statuses(environment: Environment) -> dict[str, str]:
    return {model["id"]: model["status"] for model in data(environment, "models", "ps")}


def test_models_come_and_go(tmp_path: Path) -> None:
    environment = fresh_environment(tmp_path, GANGLION_API_KEY="s3cret")
    with serving(environment, "--engine", "echo", "--admin-key", "s3cret", "parrot", "magpie"):
        loaded = run(environment, "models", "load", "parrot", "--pin")
        assert (loaded.returncode, loaded.stdout) == (0, "parrot loaded\n")
        assert "loaded in " in loaded.stderr
        assert data(environment, "models", "load", "magpie", "--no-wait")["model"] == "magpie"
        [parrot, magpie] = data(environment, "models", "ps")
        assert (parrot["id"], parrot["status"], parrot["pinned"]) == ("parrot", "loaded", True)
        assert (magpie["pinned"], magpie["in_flight"]) == (False, 0)

        table = run(environment, "models", "ps").stdout
        for words in ("parrot", "loaded", "last used", "pinned", "yes"):
            assert words in table
        assert re.search(r"just now|seconds? ago", table)

        gone = run(environment, "models", "unload", "parrot", "--force")
        assert (gone.returncode, gone.stdout) == (0, "parrot unloaded\n")
        assert statuses(environment)["parrot"] == "unloaded"
        assert run(environment, "models", "load", "parrot", "--no-wait").stdout == "parrot loading\n"

        error, hint = refusal(environment, "models", "ps", "--api-key", "wrong")
        assert "key" in error
        assert "GANGLION_API_KEY" in hint
        unknown = run(environment, "models", "load", "nobody")
        assert unknown.returncode == 1
        assert "error: The model 'nobody' does not exist here." in unknown.stderr
        assert "magpie" in unknown.stderr, "the node's own hint"


def test_a_node_that_is_not_there_is_a_clear_error(tmp_path: Path) -> None:
    environment = fresh_environment(tmp_path)
    url = f"http://127.0.0.1:{free_port()}"
    for command in (("ps",), ("load", "smollm2"), ("unload", "smollm2")):
        error, hint = refusal(environment, "models", *command, "--url", url)
        assert error == f"error: No node at {url}: Connection refused."
        assert "ganglion serve" in hint
    assert "looks like http://" in refusal(environment, "models", "ps", "--url", "ftp://x", status=2)[1]


class _Stranger(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", "13")
        self.end_headers()
        self.wfile.write(b"<html></html>")

    def do_POST(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'event: progress\ndata: {"model":"x","status":"loading"}\n\n')

    def log_message(self, *_: object) -> None:
        pass


def test_what_is_no_node_or_breaks_off_is_said_so(tmp_path: Path) -> None:
    environment = fresh_environment(tmp_path)
    with ThreadingHTTPServer(("127.0.0.1", 0), _Stranger) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}"
            assert "is not a Ganglion node" in refusal(environment, "models", "ps", "--url", url)[0]
            assert "broke off" in refusal(environment, "models", "load", "x", "--url", url)[0]
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.model
def test_a_new_user_pulls_loads_evicts_and_sees_a_worker_recover(tmp_path: Path) -> None:
    embedded = find(SMOLLM2, tmp_path)
    assert embedded is not None
    content = embedded.path.read_bytes()
    with HubServer() as hub:
        hub.add("org/one-GGUF", {"one-Q4_1.gguf": content})
        hub.add("org/two-GGUF", {"two-Q4_1.gguf": content})
        environment = fresh_environment(tmp_path, HF_ENDPOINT=hub.url)
        assert [model["id"] for model in data(environment, "models", "list")] == [SMOLLM2.id]
        pulled = run(environment, "models", "pull", "org/one-GGUF")
        assert pulled.returncode == 0, pulled.stderr
        assert "one-Q4_1" in run(environment, "models", "list").stdout

        small = ("--context", "512", "--kv-tokens", "512", "--max-models", "2")
        with serving(environment, *small) as node:
            run(environment, "models", "load", "smollm2")
            assert run(environment, "models", "load", "org/one-GGUF").stdout == "one-Q4_1 loaded\n"
            run(environment, "models", "load", "smollm2")  # used last
            assert statuses(environment) == {SMOLLM2.id: "loaded", "one-Q4_1": "loaded"}

            hub.fail(Fault("cdn", pause_s=0.002))
            status, stdout, shown = in_terminal(environment, "models", "load", "org/two-GGUF")
            assert (status, stdout) == (0, "org/two-GGUF loaded\n")
            assert "downloading" in shown
            assert "MB/s" in shown
            assert statuses(environment) == {
                SMOLLM2.id: "loaded",
                "one-Q4_1": "unloaded",
                "org/two-GGUF": "loaded",
            }
            see_a_worker_recover(environment, node.pid)


def see_a_worker_recover(environment: Environment, node_id: int) -> None:
    """Kill one of the node's two workers until `ps` was quick enough to see it recover, then see it back."""
    seen: set[str] = set()
    killed = 0
    while "recovering" not in seen and killed < 4:
        victims = [each for each in psutil.Process(node_id).children() if _is_worker(each)]
        os.kill(victims[0].pid, signal.SIGKILL)
        killed += 1
        seen |= set(statuses(environment).values())
    assert "recovering" in seen
    for _ in range(40):
        now = statuses(environment)
        if sorted(now.values()) == ["loaded", "loaded", "unloaded"]:
            return
    raise AssertionError(json.dumps(now))


def _is_worker(process: psutil.Process) -> bool:
    try:
        return "ganglion.engines.llama.worker.main" in process.cmdline()
    except psutil.Error:
        return False
