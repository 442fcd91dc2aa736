"""A real node with the real model on a real socket, started as a person starts it."""

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

MODEL = "smollm2-135m-instruct"


@dataclass(frozen=True)
class Node:
    """A running `ganglion serve`."""

    url: str
    process: subprocess.Popen[bytes]

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    def get(self, path: str) -> bytes:
        with urllib.request.urlopen(self.url + path, timeout=10) as response:
            body: bytes = response.read()
        return body

    def health(self) -> dict[str, object]:
        model: dict[str, object] = json.loads(self.get("/health"))["models"][0]
        return model

    def worker(self) -> psutil.Process:
        """The worker process, told by its command line."""
        for child in psutil.Process(self.process.pid).children():
            if "ganglion.engines.llama.worker" in child.cmdline():
                return child
        raise AssertionError("no worker is running")

    def gauge(self, name: str) -> float:
        found = re.search(rf"^{name}(?:\{{[^}}]*\}})? (\S+)$", self.get("/metrics").decode(), re.MULTILINE)
        assert found is not None, f"no metric {name}"
        return float(found[1])


@contextmanager
def running_node(home: Path, *flags: str) -> Iterator[Node]:
    command = [sys.executable, "-m", "ganglion.cli.main", "serve", "--port", "0", *flags]
    environment = {**os.environ, "GANGLION_HOME": str(home)}
    log = home / "node.log"
    with log.open("wb") as stderr:
        process = subprocess.Popen(command, stderr=stderr, env=environment)
    try:
        url = wait_until_ready(process, log)
        yield Node(url, process)
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(5)


def wait_until_ready(process: subprocess.Popen[bytes], log: Path, timeout_s: float = 60.0) -> str:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()
        found = re.search(r"listens on (http://\S+)", log.read_text())
        if found is not None:
            try:
                with urllib.request.urlopen(found[1] + "/health/ready", timeout=5):
                    return found[1]
            except OSError:
                pass
        time.sleep(0.05)
    raise AssertionError(log.read_text())


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running_node(tmp_path_factory.mktemp("home"), "--context", "2048") as running:
        yield running
