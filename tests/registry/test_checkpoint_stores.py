"""Checkpoints that this machine already has, in every kind of store, whole and half."""

import json
from pathlib import Path

import pytest

from ganglion.registry.naming.catalogue import NameCatalogue
from ganglion.registry.naming.names import operator_path, real_file
from ganglion.registry.naming.resolver import LocalFileSource, Resolution, resolve
from ganglion.registry.stores.finder import StoreRoot, scan_stores
from ganglion.registry.stores.index import FileIndex
from ganglion.registry.stores.stored_models import Store, StoredModel
from support.model_files import CONFIG, gguf, safetensors, safetensors_model

INDEX = "model.safetensors.index.json"
COMMIT = "c" * 40


def look(store: Store, path: Path) -> dict[str, StoredModel]:
    found = scan_stores([StoreRoot(store, path)], FileIndex(path.parent / "cache"))
    assert len({model.name for model in found}) == len(found)
    return {model.name: model for model in found}


def snapshot(cache: Path, repo: str, files: dict[str, bytes], *, leave_out: str = "") -> Path:
    """A repository as huggingface_hub keeps it: blobs, and links to them."""
    folder = cache / f"models--{repo.replace('/', '--')}"
    revision = folder / "snapshots" / COMMIT
    revision.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(COMMIT)
    (folder / "blobs").mkdir()
    for number, (name, content) in enumerate(files.items()):
        blob = folder / "blobs" / f"{number:064x}"
        if name == leave_out:
            blob.with_suffix(".incomplete").write_bytes(content[:10])
            continue
        blob.write_bytes(content)
        (revision / name).symlink_to(Path("../../blobs") / blob.name)
    return revision


FILES = {"config.json": json.dumps(CONFIG).encode(), "model.safetensors": safetensors()}


def test_a_folder_of_a_models_folder_is_one_model_with_all_its_files(tmp_path: Path) -> None:
    folder = safetensors_model(
        tmp_path / "models/org/Tiny-1B", tokenizer_config={"chat_template": "{{ messages }}"}
    )
    (folder / "README.md").write_text("hello")
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    weights = folder / "model.safetensors"
    assert look("models folder", tmp_path / "models") == {
        "Tiny-1B": StoredModel(
            name="Tiny-1B",
            path=folder,
            files=(folder / "config.json", weights, folder / "tokenizer_config.json"),
            store="models folder",
            size_bytes=weights.stat().st_size,
            architecture="llama",
            quantisation="BF16",
            parameters=40,
            context_length=2048,
            capabilities=("chat", "completion"),
            format="safetensors",
        )
    }


def test_every_store_gives_a_checkpoint_its_name_and_where_it_came_from(tmp_path: Path) -> None:
    revision = snapshot(tmp_path / "hub", "org/Tiny-1B", FILES)
    cached = look("Hugging Face cache", tmp_path / "hub")["Tiny-1B"]
    assert (cached.hub_id, cached.path, cached.error) == ("org/Tiny-1B", revision, None)
    studio = safetensors_model(tmp_path / "studio/maker/Tiny-2B")
    found = look("LM Studio", tmp_path / "studio")["Tiny-2B"]
    assert (found.hub_id, found.path, found.error) == ("maker/Tiny-2B", studio, None)


def test_modules_inside_a_checkpoint_are_no_models_of_their_own(tmp_path: Path) -> None:
    folder = safetensors_model(tmp_path / "models/Embedder", modules=[])
    safetensors_model(folder / "2_Dense")
    safetensors_model(folder / "original")
    assert look("models folder", tmp_path / "models").keys() == {"Embedder"}


INCOMPLETE = {
    "a shard that is missing": (("model-00001-of-00002.safetensors",), "lacks model-00002-of-00002"),
    "an index and no weights": ((INDEX,), r"lacks model.safetensors"),
}


@pytest.mark.parametrize(("names", "reason"), INCOMPLETE.values(), ids=INCOMPLETE)
def test_half_a_checkpoint_is_listed_with_what_it_lacks(
    tmp_path: Path, names: tuple[str, ...], reason: str
) -> None:
    folder = tmp_path / "models/Half"
    folder.mkdir(parents=True)
    for name in ("config.json", *names):
        (folder / name).write_bytes(safetensors() if name.endswith(".safetensors") else b"{}")
    found = look("models folder", tmp_path / "models")["Half"]
    assert "incomplete" in (found.error or "")
    assert reason in (found.error or "")
    assert (found.architecture, found.capabilities) == (None, ())


def test_an_index_that_names_a_file_that_is_not_here_is_listed_with_it(tmp_path: Path) -> None:
    folder = safetensors_model(tmp_path / "models/Half")
    (folder / "model.safetensors").rename(folder / "layers-1.safetensors")
    (folder / INDEX).write_text('{"weight_map": {"a": "layers-1.safetensors", "b": "layers-2.safetensors"}}')
    assert "lacks layers-2.safetensors" in (look("models folder", tmp_path / "models")["Half"].error or "")
    (folder / INDEX).write_text('{"weight_map": {"a": "../layers-1.safetensors"}}')
    assert "beside it" in (look("models folder", tmp_path / "models")["Half"].error or "")
    (folder / INDEX).write_text('{"weight_map": {"a": "layers-1.safetensors"}}')
    assert look("models folder", tmp_path / "models")["Half"].error is None, "read anew once it changed"


@pytest.mark.parametrize("missing", ["model.safetensors", "config.json"])
def test_a_download_that_is_under_way_is_no_model_yet(tmp_path: Path, missing: str) -> None:
    snapshot(tmp_path / "hub", "org/Tiny-1B", FILES, leave_out=missing)
    found = look("Hugging Face cache", tmp_path / "hub")
    if missing == "config.json":
        assert found == {}
    else:
        assert "not here yet" in (found["Tiny-1B"].error or "")


def test_a_tokenizer_that_somebody_fetched_alone_is_no_model(tmp_path: Path) -> None:
    snapshot(tmp_path / "hub", "org/Tiny-1B", {"config.json": b"{}", "tokenizer.json": b"{}"})
    assert look("Hugging Face cache", tmp_path / "hub") == {}


def test_a_blob_that_is_gone_is_a_hole_and_a_link_out_of_the_store_is_not_followed(tmp_path: Path) -> None:
    revision = snapshot(tmp_path / "hub", "org/Tiny-1B", FILES)
    (revision / "model.safetensors").resolve().unlink()
    assert "lacks model.safetensors" in (look("Hugging Face cache", tmp_path / "hub")["Tiny-1B"].error or "")
    outside = safetensors_model(tmp_path / "outside")
    for name in ("config.json", "model.safetensors", "tokenizer_config.json"):
        folder = safetensors_model(tmp_path / "models" / f"through-{name}")
        (folder / name).unlink(missing_ok=True)
        (outside / "tokenizer_config.json").write_text("{}")
        (folder / name).symlink_to(outside / name)
    (tmp_path / "models" / "whole").symlink_to(outside)
    assert look("models folder", tmp_path / "models") == {}


def catalogue_of(path: Path) -> NameCatalogue:
    return NameCatalogue(stored=tuple(look("models folder", path).values()))


def chosen(name: str, catalogue: NameCatalogue) -> tuple[Path, str]:
    resolution: Resolution = resolve(name, catalogue, may_be_path=False)
    assert isinstance(resolution.source, LocalFileSource)
    return resolution.source.path, resolution.id


def test_the_same_name_in_both_formats_is_what_the_engine_prefers_unless_the_name_says_which(
    tmp_path: Path,
) -> None:
    folder = safetensors_model(tmp_path / "models/Tiny-1B")
    file = tmp_path / "models/Tiny-1B-Q4_K_M.gguf"
    file.write_bytes(gguf())
    first = catalogue_of(tmp_path / "models")
    other = NameCatalogue(stored=first.stored, formats=("safetensors", "gguf"))
    table = [
        ("tiny-1b:safetensors", folder, folder),
        ("tiny-1b:SafeTensors", folder, folder),
        ("tiny-1b:gguf", file, file),
        ("tiny-1b:bf16", folder, folder),
        ("tiny-1b:Q4_K_M", file, file),
        ("Tiny-1B-Q4_K_M", file, file),
        ("tiny-1b", file, folder),
        ("llama", file, folder),
    ]
    for name, of_first, of_other in table:
        assert (chosen(name, first)[0], chosen(name, other)[0]) == (of_first, of_other), name
    steps = resolve("llama", first, may_be_path=False).steps
    assert (
        "gguf is the format that the configured engine prefers, safetensors would be here too"
        in steps[-1].gave
    )
    assert chosen("tiny-1b:gguf", first)[1] == "Tiny-1B-Q4_K_M"
    assert chosen("tiny-1b:safetensors", first)[1] == "Tiny-1B:safetensors"
    assert chosen("tiny-1b:safetensors", other)[1] == "Tiny-1B"
    for catalogue in (first, other):
        for model in catalogue.stored:
            assert chosen(catalogue.id_of(model), catalogue) == (model.path, catalogue.id_of(model))


def test_an_incomplete_one_gives_way_to_one_that_can_be_used(tmp_path: Path) -> None:
    folder = safetensors_model(tmp_path / "models/Tiny-1B")
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    file = tmp_path / "models/Tiny-1B-Q4_K_M.gguf"
    file.write_bytes(gguf())
    found = catalogue_of(tmp_path / "models")
    preferring = NameCatalogue(stored=found.stored, formats=("safetensors", "gguf"))
    assert chosen("llama", preferring)[0] == file


def test_a_checkpoint_is_its_folder_however_an_operator_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = safetensors_model(tmp_path / "org/Tiny-1B")
    (tmp_path / "link").symlink_to(folder)
    monkeypatch.chdir(tmp_path)
    for name in ("org/Tiny-1B", "./org/Tiny-1B/", str(folder), "org/Tiny-1B/model.safetensors", "./link"):
        assert operator_path(name) == folder, name
    assert operator_path("org") is None
    assert operator_path("org/Other") is None
    assert real_file(folder / "gone.safetensors") == folder
