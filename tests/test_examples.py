"""The example programs, run as they stand against a node."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from ganglion.engines.concepts.pack import ConceptPack, PackManifest, PackModel, write_pack
from support.ports import free_port

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))
MOUNTED = "mounted.py"
"""It is an app and asks no node anything; `server/test_mounted.py` runs it."""
WALKS = ("concepts.py",)
"""Longer, with parts of their own; they start what they need."""
EXPECTED = {
    "chat_openai.py": "Name three colours.\n",
    "stream_raw.py": "Name three colours.\n",
    "logprobs.py": "'The'",
    "session.py": "14 of 15 tokens cost nothing",
    "scoring.py": " a token  the moon.",
    "best_of_n.py": " cached  'People have",
}
READING = {
    "guided.py": "one of two: ",
    "readout.py": "concepts: calm after layers (7, 14, 21)",
    "steering.py": "calm +2.0: ",
}
"""Those that need a model, or a node with concepts."""


@pytest.fixture(scope="module")
def base_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(tmp_path_factory.mktemp("home"), "--engine", "echo", "--served-name", "smollm2") as url:
        yield url


@pytest.fixture(scope="module")
def reading_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    home = tmp_path_factory.mktemp("home")
    write_pack(pack_of_chance(), home / "concepts" / "calm.safetensors")
    with served(home, "--concepts", "calm", "--context", "1024") as url:
        yield url


@contextmanager
def served(home: Path, *flags: str) -> Iterator[str]:
    """A node whose gRPC port follows that of HTTP, as clients expect."""
    environment = {**os.environ, "GANGLION_HOME": str(home)}
    port = free_port()
    command = [sys.executable, "-m", "ganglion.cli.main", "serve", *flags, "--port", str(port)]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        url = next(line.split()[-1] for line in process.stderr if line.startswith("ganglion "))
        yield f"{url}/v1"
        process.terminate()
        process.communicate(timeout=20)


def pack_of_chance() -> ConceptPack:
    drawn = np.random.default_rng(5).standard_normal((3, 1, 576)).astype(np.float32)
    vectors = {layer: each / np.linalg.norm(each) for layer, each in zip((7, 14, 21), drawn, strict=True)}
    model = PackModel("SmolLM2", "llama", hidden_size=576, block_count=30)
    return ConceptPack(PackManifest("calm", ["calm"], list(vectors), model), vectors)


def output_of(example: Path, url: str) -> str:
    done = subprocess.run(
        [sys.executable, str(example), url], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize(
    "example",
    [path for path in EXAMPLES if path.name not in (MOUNTED, *WALKS, *READING)],
    ids=lambda path: path.name,
)
def test_an_example_runs_and_prints_its_answer(example: Path, base_url: str) -> None:
    assert EXPECTED[example.name] in output_of(example, base_url)


@pytest.mark.model
@pytest.mark.parametrize("name", READING)
def test_an_example_that_looks_inside_a_model_runs(name: str, reading_url: str) -> None:
    example = next(path for path in EXAMPLES if path.name == name)
    assert READING[name] in output_of(example, reading_url)


@pytest.mark.model
@pytest.mark.parametrize("page", ["README.md", "docs/sessions.md", "docs/client.md"])
def test_the_first_session_that_a_page_shows_runs(page: str, reading_url: str, tmp_path: Path) -> None:
    text = (Path(__file__).parent.parent / page).read_text()
    blocks = text.split("```python\n")[1:]
    shown = next(block.split("```")[0] for block in blocks if "from ganglion import Client" in block)
    program = tmp_path / "shown.py"
    program.write_text(shown.replace("http://127.0.0.1:8080", reading_url.removesuffix("/v1")))
    assert "Paris" in output_of(program, reading_url)
    assert len(shown.splitlines()) <= 14


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
