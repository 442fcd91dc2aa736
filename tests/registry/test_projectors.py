"""Projector files: which belongs to which model, where they are found, and what a model can take with one."""

from pathlib import Path

import pytest

from ganglion.core.errors import InvalidValue, LoadFailed
from ganglion.registry.files.projectors import choose_projector, read_projector
from ganglion.registry.hub.wanted import WantedModel
from ganglion.registry.naming.manifest import read_manifest
from ganglion.registry.stores.finder import StoreRoot, scan_stores
from ganglion.registry.stores.index import FileIndex
from ganglion.registry.stores.sighted import read_whole_facts
from support.model_files import bare_gguf, boolean, gguf, model, number, projector, string

SEER = "Seer-4B-Instruct-Q4_K_M.gguf"
CHOICES = {
    "alone": (["mmproj-model-f16.gguf"], "mmproj-model-f16.gguf"),
    "precision": (["mmproj-F32.gguf", "mmproj-Q8_0.gguf", "mmproj-BF16.gguf"], "mmproj-BF16.gguf"),
    "best precision": (["mmproj-BF16.gguf", "mmproj-F16.gguf"], "mmproj-F16.gguf"),
    "other quantisations": (["Seer-4B-Instruct-Q8_0.gguf", "mmproj-F16.gguf"], "mmproj-F16.gguf"),
    "nearest name": (
        ["mmproj-Seer-4B-Q8_0.gguf", "mmproj-F16.gguf", "Other-7B-Q4_0.gguf"],
        "mmproj-Seer-4B-Q8_0.gguf",
    ),
    "of a neighbour": (["mmproj-Other-7B-f16.gguf", "Other-7B-Q4_0.gguf"], None),
    "of nobody in particular": (["mmproj-F16.gguf", "Other-7B-Q4_0.gguf"], None),
    "none": (["imatrix.gguf", "notes.txt"], None),
}


@pytest.mark.parametrize("beside", CHOICES)
def test_the_projector_of_a_model_is_chosen_by_name_and_precision(beside: str) -> None:
    files, expected = CHOICES[beside]
    assert choose_projector(SEER, [SEER, *files]) == expected


def test_a_split_model_has_the_projector_of_its_first_part() -> None:
    parts = [f"Seer-4B-Q4_0-0000{part}-of-00002.gguf" for part in (1, 2)]
    assert choose_projector(parts[0], [*parts, "mmproj-F16.gguf"]) == "mmproj-F16.gguf"


def test_its_senses_are_read_from_the_file(tmp_path: Path) -> None:
    hearing = tmp_path / "mmproj-ear.gguf"
    hearing.write_bytes(
        bare_gguf(
            [
                string("general.architecture", "clip"),
                boolean("clip.has_audio_encoder", value=True),
                string("clip.projector_type", "ultravox"),
                number("clip.audio.projection_dim", 64),
            ]
        )
    )
    found = read_projector(hearing)
    assert (found.sees, found.hears, found.kind, found.width) == (False, True, "ultravox", 64)
    no_projector = tmp_path / "model.gguf"
    no_projector.write_bytes(gguf())
    with pytest.raises(LoadFailed, match="no projector"):
        read_projector(no_projector)


def test_a_model_sees_with_the_projector_beside_it_and_without_one_it_does_not(tmp_path: Path) -> None:
    file = tmp_path / "Seer.gguf"
    file.write_bytes(model("qwen2vl"))
    assert "vision" not in read_whole_facts(file).capabilities
    (tmp_path / "mmproj-f16.gguf").write_bytes(projector())
    seeing = read_whole_facts(file)
    assert seeing.capabilities == ("vision", "completion")
    assert seeing.projector is not None
    assert seeing.projector.path == str(tmp_path / "mmproj-f16.gguf")
    assert "vision" not in read_whole_facts(file, named="none").capabilities


def test_a_projector_that_is_named_is_taken_wherever_it_lies_and_must_be_one(tmp_path: Path) -> None:
    file, named = tmp_path / "Seer.gguf", tmp_path / "elsewhere" / "eyes.gguf"
    named.parent.mkdir()
    file.write_bytes(gguf())
    named.write_bytes(projector())
    assert "vision" in read_whole_facts(file, named=str(named)).capabilities
    with pytest.raises(LoadFailed, match="no projector"):
        read_whole_facts(file, named=str(file))


def test_a_projector_that_cannot_be_read_leaves_the_model_to_read_text(tmp_path: Path) -> None:
    file = tmp_path / "Seer.gguf"
    file.write_bytes(gguf())
    (tmp_path / "mmproj-f16.gguf").write_bytes(projector()[:40])
    assert read_whole_facts(file).capabilities == ("chat", "completion")


def test_every_store_lists_that_a_model_sees(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    for place in (folder / "own", folder / "publisher" / "repo-GGUF"):
        place.mkdir(parents=True)
        (place / SEER).write_bytes(gguf())
        (place / "mmproj-model-f16.gguf").write_bytes(projector())
    index = FileIndex(tmp_path / "cache")
    for store in ("models folder", "LM Studio"):
        for _ in range(2):  # the second time from the index
            found = scan_stores([StoreRoot(store, folder)], index)
            assert {each.capabilities for each in found} == {("chat", "vision", "completion")}
            assert all(each.projector is not None for each in found)


def test_a_repository_s_projector_comes_with_its_model() -> None:
    paths = ["Seer-Q4_K_M.gguf", "Seer-Q8_0.gguf", "mmproj-Seer-f16.gguf", "mmproj-Seer-f32.gguf"]
    assert WantedModel("org/Seer-GGUF", None).among(paths).paths == (
        "Seer-Q4_K_M.gguf",
        "mmproj-Seer-f16.gguf",
    )
    nested = ["Q8_0/Seer-Q8_0.gguf", "mmproj-f16.gguf"]
    assert WantedModel("org/Seer-GGUF", None).among(nested).paths == (*nested,)


def test_the_manifest_names_a_projector_or_none(tmp_path: Path) -> None:
    file = tmp_path / "models.yaml"
    file.write_text(
        "seer:\n  path: ./seer.gguf\n  mmproj: ./eyes.gguf\nblind:\n  path: ./b.gguf\n  mmproj: none\n"
    )
    entries = {entry.key: entry.mmproj for entry in read_manifest(file).entries}
    assert entries == {"seer": str(tmp_path / "eyes.gguf"), "blind": "none"}
    file.write_text("seer:\n  path: ./seer.gguf\n  mmproj: 7\n")
    with pytest.raises(InvalidValue, match="mmproj"):
        read_manifest(file)
