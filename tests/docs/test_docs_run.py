"""Every code block of README and docs runs as it stands, in order, or says why it does not."""

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from blocks import NOT_RUN, SERVER, SESSION, Ports, blocks_of, check_data, environment_of, program_of

ROOT = Path(__file__).parents[2]
PAGES = {page.name: page for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md"))}
ELSEWHERE = {"client-libraries.md": "clients/test_client_snippets.py, each group in its own environment"}
WITH_NODE = ("README.md", "client.md", "models.md", "scoring.md", "sessions.md")
"""Pages that speak to a node which the reader has running already."""
WITH_GATEWAY = ("keys.md",)
"""The same of a gateway with one node."""
MARKS = (NOT_RUN, SERVER, SESSION)
MISSING = [program for program in ("bash", "curl") if shutil.which(program) is None]
LONGEST_S = 110
EXAMPLES = 8
"""Of a concept, so that training takes a second."""


@pytest.mark.parametrize("name", PAGES)
def test_every_block_is_what_its_language_says_and_every_mark_is_known(name: str) -> None:
    for block in blocks_of(PAGES[name].read_text()):
        if block.mark.startswith(("not run", "starts", "with")):
            assert block.mark.startswith(MARKS), f"line {block.line}: {block.mark}"
            assert block.mark != NOT_RUN.strip(), "a reason is missing"
        if block.language not in ("sh", "bash", "js"):
            check_data(block)


def runnable() -> list[str]:
    return [
        name
        for name, page in PAGES.items()
        if name not in ELSEWHERE and any(block.is_run for block in blocks_of(page.read_text()))
    ]


@pytest.mark.model
@pytest.mark.skipif(MISSING != [], reason=f"not installed: {', '.join(MISSING)}")
@pytest.mark.parametrize("name", runnable())
def test_the_blocks_of_a_page_run_in_order(name: str, tmp_path: Path) -> None:
    ports = Ports.free()
    blocks = blocks_of(PAGES[name].read_text())
    home = tmp_path / "home"
    home.mkdir()
    _lay_out(tmp_path)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = environment_of(ports, home, path)
    script = program_of(blocks, ports, python=sys.executable)
    running = _node(ports) if name in WITH_NODE else _gateway(ports) if name in WITH_GATEWAY else ""
    script = script.replace("\necho '== line", f"\n{running}\necho '== line", 1)
    status, printed, said = _run(script, tmp_path, environment)
    at = [line for line in printed.splitlines() if line.startswith("== line")]
    assert status == 0, f"{name} {at[-1:]}:\n{printed[-1500:]}\n{said[-3000:]}"
    assert '{"error"' not in printed, f"{name}: an answer is an error:\n{printed[-3000:]}"


def _run(script: str, folder: Path, environment: dict[str, str]) -> tuple[int, str, str]:
    """Run a page; whatever it started ends with it, also when it takes too long."""
    with subprocess.Popen(
        ["bash", "-c", script],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            printed, said = process.communicate(timeout=LONGEST_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
    return process.returncode, printed, said


def _node(ports: Ports) -> str:
    port = 8080 + ports.shift
    return f"ganglion serve --port {port} --log-level warning 2>/dev/null &\nready {port} ready"


def _gateway(ports: Ports) -> str:
    port = 8000 + ports.shift
    gateway = (
        f"ganglion gateway --port {port} --node http://127.0.0.1:{8080 + ports.shift} --log-level warning"
    )
    return f"{_node(ports)}\n{gateway} 2>/dev/null &\nready {port} ready"


def _lay_out(folder: Path) -> None:
    """What a reader has in the folder: the checkout's own, and files that pages name as examples."""
    (folder / ".venv").symlink_to(sys.prefix)
    (folder / "essay.txt").write_text("It was the best of times.\n")
    shutil.copytree(ROOT / "examples", folder / "examples")
    for tone, other in (("formal", "glad"), ("casual", "sad")):
        file = folder / "examples" / "concepts" / f"{tone}.txt"
        lines = file.read_text().splitlines(keepends=True)
        known, new = "".join(lines[:EXAMPLES]), "".join(lines[-EXAMPLES:])
        for name in (file, folder / f"{tone}.txt", folder / f"{other}.txt"):
            name.write_text(known)
        (folder / f"new-{tone}.txt").write_text(new)
