"""Which file a name means."""

from pathlib import Path

import pytest

from ganglion.core.errors import ModelNotFound
from ganglion.registry.embedded import SMOLLM2
from ganglion.registry.resolver import EmbeddedNamed, FileNamed, models_in, resolve


@pytest.mark.parametrize(
    "name",
    ["smollm2", "SmolLM2", "smollm2:135m", "smollm2-135m", "SmolLM2-135M-Instruct", "smollm2-135m-instruct"],
)
def test_the_embedded_model_has_several_names_in_any_case(name: str) -> None:
    assert resolve(name, {}) == EmbeddedNamed(SMOLLM2)


@pytest.mark.parametrize("name", ["./tiny", "models/Tiny.gguf", "tiny.gguf", "/abs/tiny.gguf"])
def test_what_is_written_as_a_path_is_one(name: str) -> None:
    resolution = resolve(name, {})
    assert isinstance(resolution, FileNamed)
    assert resolution.path == Path(name)
    assert resolution.id == Path(name).stem


def test_a_tilde_is_the_user_s_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    resolution = resolve("~/tiny.gguf", {})
    assert isinstance(resolution, FileNamed)
    assert resolution.path == Path("/home/someone/tiny.gguf")


def test_files_in_the_models_folder_are_found_by_stem_in_any_case(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    for name in ("Qwen3-4B.gguf", "deep/Other.gguf", "notes.txt"):
        (tmp_path / name).write_bytes(b"")
    models = models_in(tmp_path)
    assert resolve("qwen3-4b", models) == FileNamed(tmp_path / "Qwen3-4B.gguf", "Qwen3-4B", "models folder")
    assert resolve("OTHER", models) == FileNamed(tmp_path / "deep/Other.gguf", "Other", "models folder")


def test_an_unknown_name_lists_what_is_here_and_what_is_near() -> None:
    with pytest.raises(ModelNotFound) as raised:
        resolve("qwen3", {"qwen3-4b": Path("a"), "llama": Path("b")})
    hint = raised.value.hint or ""
    assert hint.startswith("Did you mean qwen3-4b?")
    assert "smollm2-135m-instruct" in hint
    assert "llama" in hint


def test_a_models_folder_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert models_in(tmp_path / "missing") == {}
