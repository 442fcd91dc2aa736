"""The functions on the path of a request through a node and through a gateway, as they are called.

    python scripts/request_path.py [ROOT]

A server of the tree at ROOT is started as its command line starts it, over the echo engine, with a profiler
in each of its threads. A function is on the path when it is entered from another file of ours or from a
library: helpers inside a file are that file's own matter. What lies below the Engine port is left out. Of
several requests over one warm connection, what all of them called counts: what a poller does at the same time
is not on the path.
"""

import argparse
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

ROUNDS = 4
"""Traced requests after the first, which is not traced."""
Request = tuple[str, dict[str, object]]
"""Where it goes, and the fields of its body."""
CHAT: Request = ("/v1/chat/completions", {"messages": [{"role": "user", "content": "one two three"}]})
RESPONSES: Request = ("/v1/responses", {"input": "one two three"})

CallPath = set[tuple[str, str]]
"""Files, from the package's folder, and the functions in them."""


class Tracer:
    """What is called in any thread while it is on."""

    def __init__(self, package: Path) -> None:
        self._package = f"{package}{os.sep}"
        self._below = f"{package / 'engines'}{os.sep}"
        self.is_on = False
        self.found: CallPath = set()

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if not self.is_on or event != "call":
            return
        code, caller = frame.f_code, frame.f_back
        file = code.co_filename
        if not file.startswith(self._package) or code.co_name.startswith("<"):
            return
        if caller is not None and caller.f_code.co_filename == file:
            return
        if not self._is_below_port(frame):
            self.found.add((file.removeprefix(self._package), code.co_qualname))

    def _is_below_port(self, frame: FrameType | None) -> bool:
        while frame is not None:
            if frame.f_code.co_filename.startswith(self._below):
                return True
            frame = frame.f_back
        return False


def serve_traced(package: Path, port: int, path: str, body: bytes, words: list[str]) -> None:
    """Be that server, while a thread asks it; prints the path as JSON and ends the process."""
    tracer = Tracer(package)
    threading.setprofile(tracer)

    def ask() -> None:
        sys.setprofile(None)
        _await_ready(port)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        kept: list[CallPath] = []
        for _ in range(1 + ROUNDS):
            tracer.found, tracer.is_on = set(), True
            _post(connection, path, body)
            time.sleep(0.05)  # what follows the last byte: accounts, the log's line
            tracer.is_on = False
            kept.append(tracer.found)
        print(json.dumps(sorted(set.intersection(*kept[1:]))), flush=True)
        os._exit(0)

    threading.Thread(target=ask, daemon=True).start()
    sys.argv = ["ganglion", *words]
    sys.setprofile(tracer)
    from ganglion.cli.main import main

    main()


def _await_ready(port: int, within_s: float = 60.0) -> None:
    ends_s = time.monotonic() + within_s
    while time.monotonic() < ends_s:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/health/ready")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        time.sleep(0.05)
    sys.exit(f"nothing is ready on port {port}")


def _post(connection: http.client.HTTPConnection, path: str, body: bytes) -> None:
    connection.request("POST", path, body, {"content-type": "application/json"})
    response = connection.getresponse()
    said = response.read()
    if response.status != 200:
        sys.exit(f"{path} answered {response.status}: {said[:300]!r}")


def paths(root: Path) -> dict[str, CallPath]:
    """The path of a chat request through a node, and of a Responses request through a gateway."""
    port, other = _free_ports()
    node = ["serve", "--engine", "echo", "--port", str(port), "--no-grpc"]
    gateway = ["gateway", "--port", str(other), "--node", f"http://127.0.0.1:{port}", "--no-grpc"]
    with tempfile.TemporaryDirectory() as home:
        through_node = _traced(root, home, port, CHAT, node)
        with _running(root, home, node):
            _await_ready(port)
            through_gateway = _traced(root, home, other, RESPONSES, gateway)
    return {"chat through a node": through_node, "Responses through a gateway": through_gateway}


def _traced(root: Path, home: str, port: int, request: Request, words: list[str]) -> CallPath:
    path, fields = request
    body = json.dumps({"model": "echo", "stream": True, **fields})
    command = [sys.executable, __file__, "--serve", str(port), path, body, *words]
    done = subprocess.run(
        command,
        env=_environment(root, home),
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    try:
        return {(file, function) for file, function in json.loads(done.stdout.splitlines()[-1])}
    except (IndexError, ValueError):
        sys.exit(f"no trace of {words[0]}:\n{done.stdout[-1000:]}{done.stderr[-2000:]}")


@contextmanager
def _running(root: Path, home: str, words: list[str]) -> Iterator[None]:
    command = [sys.executable, "-m", "ganglion.cli.main", *words]
    process = subprocess.Popen(
        command, env=_environment(root, home), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def _environment(root: Path, home: str) -> dict[str, str]:
    """Ours, with that tree's package before the one that is installed, and a home folder that is nobody's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GANGLION_")}
    return {**kept, "PYTHONPATH": str(root / "src"), "GANGLION_HOME": home, "HOME": home, "NO_COLOR": "1"}


def _free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as other:
        for each in (one, other):
            each.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]


def main() -> None:
    if sys.argv[1:2] == ["--serve"]:
        port, path, body, *words = sys.argv[2:]
        package = Path(os.environ["PYTHONPATH"]) / "ganglion"
        serve_traced(package, int(port), path, body.encode(), words)
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).parents[1])
    root = parser.parse_args().root.resolve()
    for name, found in paths(root).items():
        print(f"{name}: {len(found)} functions in {len({file for file, _ in found})} files")
        for file, function in sorted(found):
            print(f"  {file} {function}")


if __name__ == "__main__":
    main()
