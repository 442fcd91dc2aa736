"""Hugging Face checkpoints from a folder or a hub, as a person meets them, up to their engine."""

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import data, fresh_environment, refusal, run
from small_models import tiny_gguf

from ganglion.cli.compose import compose
from ganglion.core.engine import LoadOptions
from ganglion.core.errors import EngineUnavailable, InvalidValue, LoadFailed
from ganglion.registry.loading.residency import Residency
from support.configured import configured
from support.hub_server import HubServer
from support.model_files import CONFIG, safetensors, safetensors_model

REPO = "org/Tiny-1B"
FILES = {
    "config.json": json.dumps(CONFIG).encode(),
    "model.safetensors": safetensors(),
    "tokenizer_config.json": b'{"chat_template": "{{ messages }}"}',
    "pytorch_model.bin": b"pickle",
    "modeling_tiny.py": b"raise SystemExit",
}
INSTALL = "`ganglion engines install vllm`"
Environment = dict[str, str]


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
    """A machine without any engine that reads checkpoints; the test's own process is on it, too."""
    given = fresh_environment(tmp_path)
    for name in {*os.environ, *given}:
        if name in given:
            monkeypatch.setenv(name, given[name])
        else:
            monkeypatch.delenv(name)
    return given


@pytest.fixture
def hub(environment: Environment, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with HubServer() as server:
        environment["HF_ENDPOINT"] = server.url
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


def installed_python(folder: Path) -> Path:
    """The Python of an environment that has the engine, as far as its files say."""
    packages = folder / "lib/python3.11/site-packages"
    (packages / "vllm-0.32.0.dist-info").mkdir(parents=True)
    (folder / "bin").mkdir()
    python = folder / "bin" / "python"
    python.symlink_to(sys.executable)
    return python


def test_a_checkpoint_is_listed_shown_and_resolved_with_the_engine_that_would_run_it(
    environment: Environment, tmp_path: Path
) -> None:
    folder = safetensors_model(tmp_path / "home/models/Tiny-1B")
    (half,) = [row for row in data(environment, "models", "list") if row["id"] == "Tiny-1B"]
    assert (half["engine"], half["format"], half["quantisation"]) == (None, "safetensors", "BF16")
    assert INSTALL in half["error"]
    environment["GANGLION_VLLM_PYTHON"] = str(installed_python(tmp_path / "env"))
    (row,) = [row for row in data(environment, "models", "list") if row["id"] == "Tiny-1B"]
    assert (row["engine"], row["error"], row["size_bytes"]) == (
        "vllm",
        None,
        (folder / "model.safetensors").stat().st_size,
    )
    shown = data(environment, "models", "show", "Tiny-1B")
    assert (shown["engine"], shown["context_length"], shown["memory"]) == ("vllm", 2048, None)
    meaning = data(environment, "models", "resolve", "tiny-1b")
    assert (meaning["path"], meaning["format"], meaning["engine"]) == (str(folder), "safetensors", "vllm")
    assert "installed" in meaning["engine_reason"]
    assert "vllm" in run(environment, "models", "resolve", str(folder)).stdout


def test_the_same_name_in_both_formats_is_explained(environment: Environment, tmp_path: Path) -> None:
    folder = safetensors_model(tmp_path / "home/models/Tiny-1B")
    file = tmp_path / "home/models/Tiny-1B-Q4_K_M.gguf"
    file.write_bytes(tiny_gguf())
    meaning = data(environment, "models", "resolve", "tiny-1b")
    assert (meaning["path"], meaning["engine"]) == (str(file), "llama")
    assert "safetensors would be here too" in meaning["steps"][-1]["gave"]
    assert data(environment, "models", "resolve", "tiny-1b:safetensors")["path"] == str(folder)
    (tmp_path / "home/config.toml").write_text('[engine]\nname = "vllm"\n')
    assert data(environment, "models", "resolve", "tiny-1b")["path"] == str(folder)
    assert data(environment, "models", "resolve", "tiny-1b:gguf")["path"] == str(file)


def test_half_a_checkpoint_is_listed_as_such_and_not_served(environment: Environment, tmp_path: Path) -> None:
    folder = safetensors_model(tmp_path / "home/models/Tiny-1B")
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    (row,) = [row for row in data(environment, "models", "list") if row["id"] == "Tiny-1B"]
    assert "lacks model-00002-of-00002.safetensors" in row["error"]
    error, _ = refusal(environment, "models", "show", "Tiny-1B")
    assert "incomplete" in error


def test_a_checkpoint_is_pulled_verified_and_removed(
    environment: Environment, hub: HubServer, tmp_path: Path
) -> None:
    hub.add(REPO, FILES)
    done = run(environment, "models", "pull", REPO)
    assert done.returncode == 0, done.stderr
    assert INSTALL in done.stderr, "it is here, and nothing here runs it yet"
    folder = Path(done.stdout.strip())
    assert {path.name for path in folder.iterdir()} == {
        "config.json",
        "model.safetensors",
        "tokenizer_config.json",
    }
    assert run(environment, "models", "pull", f"{REPO}:safetensors").stdout.strip() == str(folder)
    assert run(environment, "models", "verify", "tiny-1b").returncode == 0
    blob = (folder / "model.safetensors").resolve()
    blob.write_bytes(blob.read_bytes()[:-1] + b"x")
    damaged = run(environment, "models", "verify", "tiny-1b")
    assert damaged.returncode == 1
    assert f"ganglion models pull {REPO}:safetensors" in damaged.stderr
    assert run(environment, "models", "rm", REPO, "--yes").returncode == 0
    assert not folder.exists()
    assert not list((tmp_path / "hf").glob("hub/models--*/blobs/*"))


def opened(*names: str, **settings: object) -> Residency:
    return compose(configured(dict(settings)), names, []).engine


async def failure(engine: Residency, name: str, options: LoadOptions | None = None) -> Exception:
    try:
        with pytest.raises((EngineUnavailable, LoadFailed, InvalidValue)) as raised:
            async for _ in engine.load(name, options or LoadOptions()):
                pass
        return raised.value
    finally:
        await engine.close()


async def test_what_nothing_here_runs_is_not_even_downloaded(
    environment: Environment, hub: HubServer
) -> None:
    hub.add(REPO, FILES)
    error = await failure(opened(), REPO)
    assert isinstance(error, EngineUnavailable)
    assert INSTALL in (error.hint or "")
    assert not hub.gets("resolve")


async def test_a_load_names_an_engine_that_can_run_it_or_is_refused(
    environment: Environment, hub: HubServer
) -> None:
    hub.add(REPO, FILES)
    error = await failure(opened(), REPO, LoadOptions(engine="llama"))
    assert isinstance(error, EngineUnavailable)
    assert "engine.converter_python" in (error.hint or "")
    for name in ("echo", "made-up"):
        error = await failure(opened(), REPO, LoadOptions(engine=name))
        assert isinstance(error, InvalidValue)
        assert error.param == "engine"


async def test_code_runs_only_where_the_operator_trusts_it(
    environment: Environment, hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GANGLION_VLLM_PYTHON", str(installed_python(tmp_path / "env")))
    config = CONFIG | {"auto_map": {"AutoModel": "modeling_tiny.TinyModel"}}
    hub.add(REPO, FILES | {"config.json": json.dumps(config).encode()})
    safetensors_model(tmp_path / "home/models/Local", config=config)
    for name in (REPO, "Local"):
        error = await failure(opened(), name)
        assert isinstance(error, LoadFailed)
        assert "modeling_tiny.TinyModel" in error.message
    assert {seen.path.rpartition("/")[2] for seen in hub.gets("resolve")} == {"config.json"}


def test_the_models_of_a_node_say_which_engine_each_takes(
    environment: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GANGLION_VLLM_PYTHON", str(installed_python(tmp_path / "env")))
    folder = safetensors_model(tmp_path / "home/models/Tiny-1B")
    (tmp_path / "home/models/Other.gguf").write_bytes(tiny_gguf())
    (tmp_path / "home/models.yaml").write_text(f"copy: {{path: {folder}, engine: llama}}\n")
    engine = opened("Other", "copy")
    assert {model.id: model.engine for model in engine.models()} == {"Other": "llama", "copy": "llama"}
    (tmp_path / "home/models.yaml").write_text("far: {hub: org/Far, engine: vllm}\nnear: org/Near-GGUF\n")
    engine = opened(str(folder), "Other")
    assert {model.id: model.engine for model in engine.models()} == {
        "Tiny-1B": "vllm",
        "Other": "llama",
        "far": "vllm",
        "near": "llama",
    }
    asyncio.run(engine.close())
