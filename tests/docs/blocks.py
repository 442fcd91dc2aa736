"""The code blocks of a page of documentation, as one program that runs them in order.

A block runs as it stands unless a comment right above it says otherwise:

    <!-- not run: why -->      it is only parsed, where its language allows
    <!-- with a session -->    it has a `client` of the node and a `session` on it
    <!-- starts a server -->   it goes on until the page ends; the next block waits until all of it answers

Blocks without a language are what something printed.
"""

import json
import random
import re
import shlex
import socket
import tomllib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import yaml

FENCE = re.compile(
    r"(?:<!-- (?P<mark>[^>]+?) -->\n)?```(?P<language>[a-z]+)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)
NOT_RUN, SERVER, SESSION = "not run: ", "starts a server", "with a session"
PORT = re.compile(r"(?<=[: ])(8[0-9]{3}|9000)\b")
"""Ports as pages write them: behind a host's colon or a flag."""
FIRST_PORT, LAST_PORT = 8000, 8120
DEFAULT_PORTS = {"ganglion serve": 8080, "ganglion gateway": 8000}


@dataclass(frozen=True, slots=True)
class Block:
    """One block, the line it begins on, and what is said about running it."""

    line: int
    language: str
    text: str
    mark: str

    @property
    def is_run(self) -> bool:
        return not self.mark.startswith(NOT_RUN) and self.language in ("sh", "bash", "python")


def blocks_of(page: str) -> list[Block]:
    """All blocks of a page that are written in some language."""
    return [
        Block(page.count("\n", 0, found.start("text")), found["language"], found["text"], found["mark"] or "")
        for found in FENCE.finditer(page)
    ]


def check_data(block: Block) -> None:
    """Raise what is wrong with a block that is data."""
    text = block.text.replace("…", "0")
    match block.language:
        case "json":
            json.loads(text)
        case "toml":
            tomllib.loads(text)
        case "yaml":
            yaml.safe_load(text)
        case "python":
            compile(text, "block", "exec")


@dataclass(frozen=True, slots=True)
class Ports:
    """Where the ports of a page really are, each as far from the others as it is written."""

    shift: int

    @classmethod
    def free(cls) -> "Ports":
        """Somewhere where nothing listens on any of them."""
        while True:
            shift = random.randrange(3000, 20000)
            with suppress(OSError):
                for port in range(FIRST_PORT, LAST_PORT):
                    with socket.socket() as each:
                        each.bind(("127.0.0.1", port + shift))
                return cls(shift)

    def moved(self, text: str) -> str:
        """A block with its ports where they are, those that are left out too."""
        for words, port in DEFAULT_PORTS.items():
            text = re.sub(rf"({words})\b(?![^\n]*--port)", rf"\1 --port {port}", text)
        return PORT.sub(lambda found: str(int(found[0]) + self.shift), text)


IN_SESSION = """from ganglion import Client
client = Client()
session = client.session("smollm2")
"""
HEAD = """
set -eo pipefail
trap 'status=$?; set +e; kill $(jobs -p) 2>/dev/null; wait 2>/dev/null; exit $status' EXIT
ready() {
  for _ in $(seq 600); do
    curl -sf -o /dev/null "http://127.0.0.1:$1/health/$2" && return
    sleep 0.1
  done
  echo "nothing is ready on port $1" >&2
  return 1
}
"""


def program_of(blocks: list[Block], ports: Ports, *, python: str) -> str:
    """A bash program that runs the blocks of a page; it says which one it is at on stdout."""
    parts = [HEAD]
    for block in blocks:
        if not block.is_run:
            continue
        text = ports.moved(block.text)
        parts.append(f"echo '== line {block.line}'")
        if block.language == "python":
            text = (IN_SESSION + text) if block.mark == SESSION else text
            parts.append(f"{shlex.quote(python)} - <<'END_OF_BLOCK'\n{text}END_OF_BLOCK")
        elif block.mark == SERVER:
            # One server a line, each in a terminal of its own.
            lines = [line.split(" #")[0] for line in text.replace("\\\n", " ").splitlines()]
            parts.extend(line if re.search(r"& \w+=\$!$", line) else f"{line} &" for line in lines)
            parts.extend(_signs(lines))
        else:
            parts.append(text)
    return "\n".join(parts)


def _signs(lines: list[str]) -> list[str]:
    """What to wait for after servers were started, one a line: gateways are ready once a node has come."""
    found = [(re.search(r"--port (\d+)", line), "gateway" in line.split("--")[0]) for line in lines]
    servers = [(port[1], is_gateway) for port, is_gateway in found if port is not None]
    signs = [f"ready {port} {'live' if is_gateway else 'ready'}" for port, is_gateway in servers]
    if not all(is_gateway for _, is_gateway in servers):
        signs += [f"ready {port} ready" for port, is_gateway in servers if is_gateway]
    return signs


def environment_of(ports: Ports, home: Path, path: str) -> dict[str, str]:
    """What commands of a page see: our command first, and the defaults moved along."""
    return {
        "PATH": path,
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "GANGLION_URL": f"http://127.0.0.1:{8080 + ports.shift}",
        "GANGLION_GATEWAY": f"http://127.0.0.1:{8000 + ports.shift}",
    }
