"""`ganglion fleet plan` against a real node, and against what a gateway tells."""

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest
from commands import GANGLION, data, fresh_environment, refusal, run
from played_gateway import fleet, node

from ganglion.wire.fleet import ReplicaState
from ganglion.wire.fleet_overview import NodeDevice

CATALOGUE = """
[[models]]
id = "parrot"

[[models]]
id = "small"
memory_mb = 10

[[models]]
id = "vast"
memory_mb = 2000000000
"""
PARROT = ReplicaState(id="parrot", status="loaded", memory_mb=900, last_used=5.0)
FLEET = fleet(
    node("alpha", PARROT, devices=(NodeDevice(0, "card", 6000, 5000),)),
    node("beta", healthy=False, error="it does not answer", devices=()),
)


@contextmanager
def told(answer: object, status: int = 200) -> Iterator[str]:
    """Something that answers `/fleet` so."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = msgspec.json.encode(answer)
            self.send_response(status if self.path == "/fleet" else 404)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join(5)


@pytest.fixture
def catalogue(tmp_path: Path) -> Path:
    file = tmp_path / "models.toml"
    file.write_text(CATALOGUE)
    return file


def test_a_real_node_is_asked_and_every_model_has_its_line(tmp_path: Path, catalogue: Path) -> None:
    environment = fresh_environment(tmp_path)
    command = [*GANGLION, "serve", "--port", "0", "--no-grpc", "--engine", "echo", "parrot"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        url = next(line for line in process.stderr if line.startswith("ganglion ")).split()[-1]
        try:
            nodes = "--node", f"here={url}", "--node", "gone=http://127.0.0.1:9"
            done = run(environment, "fleet", "plan", "--catalogue", str(catalogue), *nodes)
        finally:
            process.terminate()
            process.stderr.read()
            process.wait(20)
    assert done.returncode == 1, done.stderr
    assert "node gone does not answer" in done.stderr
    lines = [line.strip() for line in done.stdout.splitlines()]
    parrot, small = (next(line for line in lines if line.startswith(name)) for name in ("parrot", "small"))
    assert ("here" in parrot, "stays" in parrot) == (True, True)
    assert "here" in small
    assert "needs 10 MB" in small
    vast = "\n".join(lines[next(at for at, line in enumerate(lines) if line.startswith("vast")) :])
    assert "no place" in vast
    assert "here: needs 2,000,000,000 MB" in vast
    assert "gone: it is not healthy" in vast
    assert "\x1b" not in done.stdout


def test_a_gateway_tells_of_its_nodes(tmp_path: Path, catalogue: Path) -> None:
    environment = fresh_environment(tmp_path)
    catalogue.write_text(CATALOGUE.replace("2000000000", "5500"))
    with told(FLEET) as url:
        steps = data(environment | {"GANGLION_GATEWAY": url}, "fleet", "plan", "--catalogue", str(catalogue))
    assert [(step["model"], step["node"], step["action"]) for step in steps] == [
        ("parrot", "alpha", "stays"),
        ("small", "alpha", "goes"),
        ("vast", "alpha", "goes"),
    ]
    assert steps[2]["evictions"] == ["parrot"]


def test_what_cannot_be_planned_says_why(tmp_path: Path, catalogue: Path) -> None:
    environment = fresh_environment(tmp_path)
    plan = "fleet", "plan", "--catalogue"
    both = "--gateway", "http://127.0.0.1:9", "--node", "http://127.0.0.1:9"
    assert "exclude each other" in refusal(environment, *plan, str(catalogue), *both, status=2)[0]
    error = run(environment, *plan, str(tmp_path / "none.toml"), "--node", "http://127.0.0.1:9")
    assert (error.returncode, "none.toml could not be read" in error.stderr) == (2, True)
    with told({"error": {}}, 401) as url:
        told_so, hint = refusal(environment, *plan, str(catalogue), "--gateway", url)
    assert "refuses the key" in told_so
    assert "--api-key" in hint
    with told({"neither": "nor"}) as url:
        stranger = run(environment, *plan, str(catalogue), "--gateway", url)
    assert (stranger.returncode, "is not what a node or a gateway answers" in stranger.stderr) == (1, True)
    catalogue.write_text('[[models]]\nid = "a"\npriorty = 1')
    told_so, hint = refusal(environment, *plan, str(catalogue), "--node", "x=http://127.0.0.1:9", status=2)
    assert "Unknown key priorty in model 'a'" in told_so
    assert "priority" in hint
