"""Concept packs that an operator names: found by file or name, loaded with the models they were made for."""

import logging
from pathlib import Path

import numpy as np
import pytest
from small_models import tiny_gguf

from ganglion.cli.compose import compose
from ganglion.cli.concepts.pack_files import find_packs, fitting
from ganglion.core.errors import InvalidValue, LoadFailed
from ganglion.engines.concepts.pack import ConceptPack, PackManifest, PackModel, write_pack
from ganglion.registry.files.gguf import read_facts
from support.configured import configured


def make(path: Path, *, hidden: int = 64, blocks: int = 2, architecture: str = "llama") -> Path:
    vectors = {1: np.eye(1, hidden, dtype=np.float32)}
    model = PackModel("tiny", architecture, hidden, blocks)
    write_pack(ConceptPack(PackManifest(path.stem, ["joy"], [1], model), vectors), path)
    return path


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    (home / "models").mkdir(parents=True)
    (home / "models" / "tiny.gguf").write_bytes(tiny_gguf())
    monkeypatch.setenv("GANGLION_HOME", str(home))
    monkeypatch.setenv("HOME", str(home))
    return home


def test_a_pack_is_named_by_its_file_or_by_its_name_in_the_home_folder(home: Path, tmp_path: Path) -> None:
    one = make(home / "concepts" / "mood.safetensors")
    other = make(tmp_path / "tone.safetensors")
    packs = find_packs(["mood", str(other), "mood"], home)
    assert [(pack.name, pack.path) for pack in packs] == [("mood", one), ("tone", other)]


def test_a_pack_that_is_not_there_or_is_none_is_refused_by_name(home: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="mood"):
        find_packs(["mood"], home)
    bare = tmp_path / "bare.safetensors"
    bare.write_bytes(b"")
    with pytest.raises(LoadFailed, match=r"bare\.safetensors"):
        find_packs([str(bare)], home)


def test_a_model_is_loaded_with_its_own_packs_and_without_others(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make(home / "concepts" / "own.safetensors")
    make(home / "concepts" / "wide.safetensors", hidden=128)
    make(home / "concepts" / "deep.safetensors", blocks=3)
    make(home / "concepts" / "foreign.safetensors", architecture="gemma")
    facts = read_facts(home / "models" / "tiny.gguf")
    assert facts.embedding_length == 64
    packs = find_packs(["own", "wide", "deep", "foreign"], home)
    with caplog.at_level(logging.WARNING):
        assert fitting(packs, facts, "tiny") == (str(home / "concepts" / "own.safetensors"),)
    assert [record.args for record in caplog.records] == [
        ("tiny", "wide"),
        ("tiny", "deep"),
        ("tiny", "foreign"),
    ]


def test_a_start_with_a_pack_that_fits_no_model_is_refused_and_names_both(home: Path) -> None:
    make(home / "concepts" / "own.safetensors")
    make(home / "concepts" / "wide.safetensors", hidden=128)
    model = str(home / "models" / "tiny.gguf")
    with pytest.raises(InvalidValue) as caught:
        compose(configured({"engine.concepts": ["own", "wide"]}), [model], [])
    assert all(word in caught.value.message for word in ("'wide'", "128", "tiny", "64"))
    compose(configured({"engine.concepts": ["own"]}), [model], [])
