"""Clients from npm, run as a person runs them, against a node in this process.

`make clients` installs them. The model is played, since a small one would not choose a tool; the wire is
real. What would call anybody else is sent to a proxy that is not there.
"""

import asyncio
import json
import os
import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ganglion.core.engine import ManagedEngine
from ganglion.server.life.storage import StoreTarget
from support.served import serving

ROOT = Path(__file__).parents[2]
MODULES = ROOT / ".clients" / "node_modules"
CLIENTS_PAGE = ROOT / "docs" / "clients.md"
TIMEOUT_S = 60.0
NOWHERE = "http://127.0.0.1:9"
ALONE = {"HTTP_PROXY": NOWHERE, "HTTPS_PROXY": NOWHERE, "NO_PROXY": "127.0.0.1,localhost"}


@dataclass(frozen=True, slots=True)
class Ran:
    """What a program left behind."""

    status: int
    output: str
    errors: str

    def lines(self) -> list[dict[str, Any]]:
        """Its output, where every line is JSON."""
        return [json.loads(line) for line in self.output.splitlines() if line.strip()]


def program(name: str) -> Path:
    """Where npm puts a program."""
    return MODULES / ".bin" / name


def needs(installed: Path) -> pytest.MarkDecorator:
    """Skips the tests of a client that is not installed."""
    return pytest.mark.skipif(
        not installed.exists(), reason=f"{installed.name} is not installed: make clients"
    )


@asynccontextmanager
async def node(engine: ManagedEngine, store: Path | None = None) -> AsyncIterator[str]:
    """A strict node around the engine: its URL."""
    storage = None if store is None else StoreTarget(store)
    async with serving(engine, storage=storage, is_strict=True) as node:
        yield node.url


async def run(*command: str | Path, home: Path, **environment: str) -> Ran:
    """Run a program in an empty home, and everything that it starts for as long as it runs."""
    process = await asyncio.create_subprocess_exec(
        *map(str, command),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={"HOME": str(home), "PATH": os.environ["PATH"], **ALONE, **environment},
        cwd=home,
        start_new_session=True,
    )
    try:
        output, errors = await asyncio.wait_for(process.communicate(), TIMEOUT_S)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode is not None
    return Ran(process.returncode, output.decode(), errors.decode())


def documented(section: str, language: str, url: str) -> str:
    """What docs/clients.md tells people to write, for this node and its model."""
    (told,) = re.findall(rf"^## {section}\n(.*?)(?=^## |\Z)", CLIENTS_PAGE.read_text(), re.M | re.S)
    snippet: str = re.findall(rf"^```{language}\n(.*?)^```", told, re.M | re.S)[0]
    return snippet.replace("http://127.0.0.1:8080", url).replace("qwen3-4b", "echo")
