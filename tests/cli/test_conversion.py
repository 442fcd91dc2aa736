"""Checkpoints made into GGUF files by llama.cpp's own converter, where a Python here can run it."""

import json
import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

import numpy as np
import psutil
import pytest
from commands import fresh_environment, run

from ganglion.cli.compose import compose
from ganglion.cli.conversion import Conversion
from ganglion.core.errors import EngineUnavailable, LoadFailed
from ganglion.core.events import Event
from ganglion.core.fold import fold
from ganglion.core.request import Request, TextPrompt
from ganglion.core.sampling import Sampling
from ganglion.engines.llama.converter.pinned_source import DISTRIBUTION, VERSION, converter_script
from ganglion.registry.files.gguf import read_facts
from ganglion.registry.hub.flights import FlightCancelled
from support.checkpoint_files import write_checkpoint, write_safetensors
from support.configured import configured
from support.embedded_model import embedded_model

VARIABLE = "GANGLION_VLLM_PYTHON"
_SCRIPT = "import torch, transformers, sentencepiece"


def test_the_converter_is_that_of_the_library_that_runs_its_files() -> None:
    assert metadata.version(DISTRIBUTION) == VERSION


@pytest.fixture(scope="module")
def python() -> Path:
    """A Python with torch and transformers."""
    named = os.environ.get(VARIABLE)
    if not named:
        pytest.skip(f"{VARIABLE} is not set: nothing was converted, no Python with torch is known")
    done = subprocess.run([named, "-c", _SCRIPT], check=False, capture_output=True, timeout=300)
    if done.returncode:
        pytest.skip(f"{named} lacks what a conversion takes: nothing was converted")
    return Path(named)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The converter, fetched once."""
    cache = tmp_path_factory.mktemp("converter")
    try:
        return converter_script(cache, lambda done, total: None, lambda: None).parent
    except EngineUnavailable as error:
        pytest.skip(f"nothing was converted: {error.message}")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_checkpoint(embedded_model().path, tmp_path_factory.mktemp("models") / "Smol-HF")
    (folder / "generation_config.json").write_text('{"temperature": 0.25}')
    return folder


PARAMETERS = 49_152 * 64 + 64 + 2 * (64 + 64 + 4 * 64 * 64 + 3 * 64 * 128)


@pytest.fixture(scope="module")
def small(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same tokenizer, and few weights that mean nothing."""
    folder = shutil.copytree(
        checkpoint,
        tmp_path_factory.mktemp("models") / "Small",
        ignore=shutil.ignore_patterns("*.safetensors"),
    )
    config = json.loads((folder / "config.json").read_text()) | {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
    }
    (folder / "config.json").write_text(json.dumps(config))
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens": (49_152, 64), "model.norm": (64,)}
    for block in range(2):
        layer = f"model.layers.{block}"
        shapes |= {f"{layer}.self_attn.{part}_proj": (64, 64) for part in "qkvo"}
        shapes |= {f"{layer}.mlp.{part}_proj": (128, 64) for part in ("gate", "up")}
        shapes |= {f"{layer}.mlp.down_proj": (64, 128)}
        shapes |= {f"{layer}.{part}_layernorm": (64,) for part in ("input", "post_attention")}
    tensors = {f"{name}.weight": np.ones(shape, np.float32) for name, shape in shapes.items()}
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


@pytest.fixture
def home(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in fresh_environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv(VARIABLE, raising=False)
    cache = tmp_path / "home/cache"
    cache.mkdir(parents=True)
    (cache / source.name).symlink_to(source)
    return tmp_path / "home"


def conversion_of(checkpoint: Path, home: Path, python: Path) -> Conversion:
    return Conversion.of(checkpoint, "llama", home, python)


def left_over(home: Path) -> list[str]:
    """What lies beside finished copies, locks left out."""
    return sorted(path.name for path in (home / "cache/converted").iterdir() if path.suffix != ".lock")


async def test_a_checkpoint_is_converted_once_and_answers(checkpoint: Path, home: Path, python: Path) -> None:
    settings = {"engine.converter_python": str(python), "engine.context": 512}
    texts = []
    stamps = []
    for _ in range(2):
        engine = compose(configured(settings), [str(checkpoint)], []).engine
        await engine.open()
        try:
            (state,) = engine.models()
            assert (state.id, state.engine, state.status) == ("Smol-HF", "llama", "loaded")
            assert state.sampling.temperature == 0.25, "as the checkpoint says"
            greedy = Sampling(temperature=0.0)
            request = Request("1", "Smol-HF", TextPrompt("The capital of France is"), greedy, max_tokens=4)
            events: list[Event] = [event async for event in engine.generate(request)]
            texts.append(fold(events).blocks[0].text)
        finally:
            await engine.close()
        (name,) = left_over(home)
        stamps.append((home / "cache/converted" / name).stat().st_mtime_ns)
    assert texts[0].startswith(" Paris")
    assert texts[0] == texts[1]
    assert stamps[0] == stamps[1], "the second node found the copy of the first"


def test_the_copy_holds_the_same_numbers(checkpoint: Path, home: Path, python: Path) -> None:
    from gguf import GGUFReader
    from gguf.quants import dequantize

    conversion = conversion_of(checkpoint, home, python)
    reports: list[tuple[int, int]] = []
    conversion.run(lambda done, total: reports.append((done, total)), lambda: False)
    assert reports and all(done <= total for done, total in reports)
    facts = read_facts(conversion.target)
    assert (facts.quantisation, facts.context_length, bool(facts.chat_template)) == ("BF16", 8192, True)
    ours = {tensor.name: tensor for tensor in GGUFReader(conversion.target).tensors}
    theirs = {tensor.name: tensor for tensor in GGUFReader(embedded_model().path).tensors}
    assert ours.keys() == theirs.keys()
    for name in ("token_embd.weight", "blk.0.attn_q.weight", "blk.29.ffn_down.weight"):
        here = dequantize(ours[name].data, ours[name].tensor_type)
        there = dequantize(theirs[name].data, theirs[name].tensor_type)
        assert np.allclose(here, there, rtol=2**-8, atol=0), "but for the rounding to bfloat16"


def test_another_version_of_a_checkpoint_has_another_copy(
    small: Path, home: Path, python: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(small, tmp_path / "Smol-HF")
    first = conversion_of(folder, home, python).target
    assert conversion_of(folder, home, python).target == first
    (folder / "generation_config.json").write_text('{"temperature": 0.75}')
    assert conversion_of(folder, home, python).target != first


def test_what_the_converter_does_not_know_is_said_in_its_words(
    small: Path, home: Path, python: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(small, tmp_path / "Odd")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["OddForCausalLM"]}))
    with pytest.raises(LoadFailed, match="OddForCausalLM is not supported") as raised:
        conversion_of(folder, home, python).run(lambda done, total: None, lambda: False)
    assert raised.value.hint
    assert left_over(home) == []


def test_one_who_leaves_ends_the_conversion_with_its_process(small: Path, home: Path, python: Path) -> None:
    conversion = conversion_of(small, home, python)
    asked = iter([False] * 10)
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    with pytest.raises(FlightCancelled):
        conversion.run(lambda done, total: None, lambda: next(asked, True))
    assert left_over(home) == []
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before


def test_however_many_ask_one_converts(small: Path, home: Path, python: Path) -> None:
    written: list[int] = []

    def convert(number: int) -> Path:
        conversion = conversion_of(small, home, python)
        conversion.run(lambda done, total: written.append(number), lambda: False)
        return conversion.target

    with ThreadPoolExecutor(4) as pool:
        (target,) = set(pool.map(convert, range(4)))
    assert target.is_file()
    assert len(set(written)) == 1, "the others waited for it"


_CONVERT = """
import sys
from pathlib import Path
from ganglion.cli.conversion import Conversion
checkpoint, home, python = map(Path, sys.argv[1:])
asked = lambda: print(flush=True)
Conversion.of(checkpoint, "llama", home, python).run(lambda done, total: None, asked)
"""


def test_a_conversion_that_is_killed_leaves_no_copy_and_the_next_one_makes_it(
    small: Path, home: Path, python: Path
) -> None:
    arguments = [sys.executable, "-c", _CONVERT, str(small), str(home), str(python)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for _ in range(5):
            process.stdout.readline()
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGKILL)
        process.wait()
    target = conversion_of(small, home, python).target
    assert not target.exists()
    psutil.wait_procs(children, 20)
    assert not any(child.is_running() for child in children), "what it started ends with it"
    conversion_of(small, home, python).run(lambda done, total: None, lambda: False)
    assert read_facts(target).parameters == PARAMETERS
    assert left_over(home) == [target.name]
    assert target.is_file()


def test_pull_converts_what_this_machine_runs_as_a_copy_and_rm_takes_it_along(
    small: Path, home: Path, python: Path, tmp_path: Path
) -> None:
    shutil.copytree(small, home / "models/Smol-HF")
    environment = fresh_environment(tmp_path)
    (home / "config.toml").write_text(f'[engine]\nconverter_python = "{python}"\n')
    done = run(environment, "models", "resolve", "smol-hf")
    assert "it runs a copy" in done.stdout
    conversion = conversion_of(home / "models/Smol-HF", home, python)
    conversion.run(lambda done, total: None, lambda: False)
    assert run(environment, "models", "rm", "Smol-HF", "--yes").returncode == 0
    assert not (home / "models/Smol-HF").exists()
    assert left_over(home) == []
