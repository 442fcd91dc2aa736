"""The example programs, run as they stand against a node."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))
MOUNTED = "mounted.py"
"""It is an app and asks no node anything; `server/test_mounted.py` runs it."""
WALKS = ("concepts.py",)
"""Longer, with parts of their own; they start what they need."""
EXPECTED = {
    "chat_openai.py": "Name three colours.\n",
    "stream_raw.py": "Name three colours.\n",
    "logprobs.py": "'The'",
}


@pytest.fixture(scope="module")
def base_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    environment = {**os.environ, "GANGLION_HOME": str(tmp_path_factory.mktemp("home"))}
    command = [sys.executable, "-m", "ganglion.cli.main", "serve", "--engine", "echo", "--port", "0"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        url = next(line.split()[-1] for line in process.stderr if line.startswith("ganglion "))
        yield f"{url}/v1"
        process.terminate()
        process.communicate(timeout=10)


@pytest.mark.parametrize(
    "example", [path for path in EXAMPLES if path.name not in (MOUNTED, *WALKS)], ids=lambda path: path.name
)
def test_an_example_runs_and_prints_its_answer(example: Path, base_url: str) -> None:
    done = subprocess.run(
        [sys.executable, str(example), base_url], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert EXPECTED[example.name] in done.stdout


@pytest.mark.model
def test_the_walk_through_concepts_trains_one(tmp_path: Path) -> None:
    walk = next(path for path in EXAMPLES if path.name == "concepts.py")
    done = subprocess.run(
        [sys.executable, str(walk), "--part", "train", "--out", str(tmp_path)],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("<- kept") == 4
    assert sorted(file.name for file in tmp_path.iterdir()) == ["formal.json", "formal.safetensors"]


@pytest.mark.parametrize(
    "example", [path for path in EXAMPLES if path.name not in WALKS], ids=lambda path: path.name
)
def test_an_example_is_short(example: Path) -> None:
    assert len(example.read_text().splitlines()) <= 30
