"""What this machine already has: real folder layouts of every store, and links that lead astray."""

import json
import os
from pathlib import Path

import pytest

from ganglion.registry.stores import walk
from ganglion.registry.stores.finder import StoreRoot, scan_stores, store_roots
from ganglion.registry.stores.index import FileIndex
from ganglion.registry.stores.stored_models import Store, StoredModel
from support.model_files import gguf, model, number, projector, split_into

BLOB = "a" * 64


def write(file: Path, content: bytes | None = None) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(gguf() if content is None else content)
    return file


def look(store: Store, path: Path, cache: Path | None = None) -> tuple[StoredModel, ...]:
    return scan_stores([StoreRoot(store, path)], FileIndex(cache or path.parent / "cache"))


def by_name(models: tuple[StoredModel, ...]) -> dict[str, StoredModel]:
    assert len({model.name for model in models}) == len(models)
    return {model.name: model for model in models}


def test_every_place_has_its_variable_and_its_default(tmp_path: Path) -> None:
    home, user, extra = tmp_path / "ganglion", tmp_path / "user", tmp_path / "extra"
    assert store_roots(home, {"HOME": str(user)}, [extra]) == (
        StoreRoot("models folder", home / "models"),
        StoreRoot("folder", extra),
        StoreRoot("Hugging Face cache", user / ".cache/huggingface/hub"),
        StoreRoot("LM Studio", user / ".lmstudio/models"),
        StoreRoot("LM Studio", user / ".cache/lm-studio/models"),
        StoreRoot("Ollama", user / ".ollama/models"),
        StoreRoot("Ollama", Path("/usr/share/ollama/.ollama/models")),
    )


@pytest.mark.parametrize(
    ("variables", "store", "expected"),
    [
        ({"HF_HUB_CACHE": "/a", "HF_HOME": "/b"}, "Hugging Face cache", ["/a"]),
        ({"HF_HOME": "/b", "XDG_CACHE_HOME": "/c"}, "Hugging Face cache", ["/b/hub"]),
        ({"HF_HOME": "~/b"}, "Hugging Face cache", ["/home/b/hub"]),
        ({"XDG_CACHE_HOME": "/c", "HF_HOME": ""}, "Hugging Face cache", ["/c/huggingface/hub"]),
        ({"OLLAMA_MODELS": "/d"}, "Ollama", ["/d"]),
    ],
)
def test_a_variable_moves_a_store(variables: dict[str, str], store: str, expected: list[str]) -> None:
    found = store_roots(Path("/g"), {"HOME": "/home", **variables}, [])
    assert [str(root.path) for root in found if root.store == store] == expected


def test_a_folder_is_looked_through_by_file_name(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    file = write(folder / "Tiny-Q4_K_M.gguf")
    write(folder / "maker/family/Deep.GGUF", model("qwen3", number("general.file_type", 7)))
    write(folder / "notes.txt")
    write(folder / ".hidden/Lost.gguf")
    models = by_name(look("models folder", folder))
    assert models.keys() == {"Tiny-Q4_K_M", "Deep"}
    assert models["Tiny-Q4_K_M"] == StoredModel(
        name="Tiny-Q4_K_M",
        path=file,
        files=(file,),
        store="models folder",
        size_bytes=file.stat().st_size,
        architecture="llama",
        quantisation="Q4_K_M",
        parameters=16,
        context_length=512,
        capabilities=("chat", "completion"),
    )
    assert (models["Deep"].architecture, models["Deep"].quantisation) == ("qwen3", "Q8_0")


def test_a_split_model_is_listed_once_with_all_its_parts(tmp_path: Path) -> None:
    files = split_into(tmp_path / "models", "Big", 3)
    (found,) = look("models folder", tmp_path / "models")
    assert (found.name, found.path, found.files) == ("Big", files[0], tuple(files))
    assert found.size_bytes == sum(file.stat().st_size for file in files)
    assert (found.parameters, found.error) == (3 * 16, None)


def test_a_split_model_that_lacks_a_part_says_which_also_when_its_header_is_known(tmp_path: Path) -> None:
    files = split_into(tmp_path / "models", "Big", 3)
    look("models folder", tmp_path / "models")
    files[2].unlink()
    (found,) = look("models folder", tmp_path / "models")
    assert (found.files, found.architecture) == (tuple(files[:2]), "llama")
    assert "lacks Big-00003-of-00003.gguf, part 3 of 3" in (found.error or "")
    files[0].unlink()
    assert look("models folder", tmp_path / "models") == ()


def test_a_part_that_is_another_is_an_error(tmp_path: Path) -> None:
    files = split_into(tmp_path / "models", "Big", 3)
    files[1].write_bytes(files[2].read_bytes())
    (found,) = look("models folder", tmp_path / "models")
    assert "says it is part 3 of 3, its name part 2 of 3" in (found.error or "")


def test_projectors_are_not_models_whatever_their_name(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    write(folder / "Seer.gguf")
    write(folder / "mmproj-Seer-f16.gguf", projector())
    write(folder / "Seer.vision.gguf", projector())
    assert by_name(look("models folder", folder)).keys() == {"Seer"}


def test_a_malformed_file_is_listed_with_its_error(tmp_path: Path) -> None:
    broken = write(tmp_path / "models/Broken.gguf", gguf()[:100])
    (found,) = look("models folder", tmp_path / "models")
    assert (found.name, found.path, found.architecture) == ("Broken", broken, None)
    assert str(broken) in (found.error or "")


def test_the_hub_s_cache_is_used_in_place(tmp_path: Path) -> None:
    hub = tmp_path / "hub"
    repository = hub / "models--org--Tiny-GGUF"
    blob = write(repository / "blobs" / BLOB)
    old_blob = write(repository / "blobs" / ("b" * 64), model("old"))
    for revision, name, target in (
        ("1" * 40, "Tiny.gguf", old_blob),
        ("1" * 40, "Gone-from-main.gguf", old_blob),
        ("2" * 40, "Tiny.gguf", blob),
        ("2" * 40, "Q8_0/Tiny-Q8_0.gguf", blob),
    ):
        link = repository / "snapshots" / revision / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(target, link.parent))
    os.utime(repository / "snapshots" / ("2" * 40), (1, 1))
    write(repository / "refs/main", ("2" * 40).encode())
    write(hub / "datasets--org--data/snapshots/x/Data.gguf")
    write(hub / "models--gpt2/snapshots/r/gpt2.gguf")
    before = sorted(hub.rglob("*"))
    models = by_name(look("Hugging Face cache", hub))
    assert models.keys() == {"Tiny", "Tiny-Q8_0", "Gone-from-main", "gpt2"}
    assert models["Tiny"].path == repository / "snapshots" / ("2" * 40) / "Tiny.gguf"
    assert (models["Tiny"].hub_id, models["Tiny"].architecture) == ("org/Tiny-GGUF", "llama")
    assert models["Gone-from-main"].architecture == "old"
    assert models["gpt2"].hub_id == "gpt2"
    assert sorted(hub.rglob("*")) == before


def test_split_files_of_the_hub_s_cache_are_links_of_one_revision(tmp_path: Path) -> None:
    repository = tmp_path / "hub/models--org--Big"
    blobs = split_into(repository / "blobs", "part", 2)
    snapshot = repository / "snapshots" / ("1" * 40)
    snapshot.mkdir(parents=True)
    links = [snapshot / blob.name.replace("part", "Big") for blob in blobs]
    for link, blob in zip(links, blobs, strict=True):
        link.symlink_to(blob.rename(blob.with_name(f"{len(blob.name):064x}{blob.name[9]}")))
    (found,) = look("Hugging Face cache", tmp_path / "hub")
    assert (found.files, found.error) == (tuple(links), None)


def test_lm_studio_s_folders_say_the_hub_s_name(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    write(folder / "publisher/repo-GGUF/Tiny.gguf")
    write(folder / "Loose.gguf")
    models = by_name(look("LM Studio", folder))
    assert models["Tiny"].hub_id == "publisher/repo-GGUF"
    assert models["Loose"].hub_id is None


def manifest(root: Path, place: str, *layers: tuple[str, str]) -> Path:
    content = {
        "schemaVersion": 2,
        "config": {"mediaType": "application/vnd.docker.container.image.v1+json", "digest": "sha256:00"},
        "layers": [
            {"mediaType": f"application/vnd.ollama.image.{kind}", "digest": digest, "size": 1}
            for kind, digest in layers
        ],
    }
    return write(root / "manifests" / place, json.dumps(content).encode())


def test_ollama_s_manifests_name_their_blobs(tmp_path: Path) -> None:
    root = tmp_path / "models"
    blob = write(root / "blobs" / f"sha256-{BLOB}")
    weights = ("model", f"sha256:{BLOB}")
    manifest(root, "registry.ollama.ai/library/tiny/latest", ("template", "sha256:11"), weights)
    manifest(root, "registry.ollama.ai/library/tiny/1b", weights)
    manifest(root, "registry.ollama.ai/someone/tiny/latest", weights)
    manifest(root, "hf.co/org/Tiny-GGUF/Q4_K_M", weights)
    models = by_name(look("Ollama", root))
    assert models.keys() == {"tiny:latest", "tiny:1b", "someone/tiny:latest", "hf.co/org/Tiny-GGUF:Q4_K_M"}
    assert {model.path for model in models.values()} == {blob}
    assert models["tiny:1b"].architecture == "llama"
    assert models["tiny:1b"].hub_id is None
    assert models["hf.co/org/Tiny-GGUF:Q4_K_M"].hub_id == "org/Tiny-GGUF"


def test_ollama_s_manifests_lead_nowhere_else(tmp_path: Path) -> None:
    root = tmp_path / "models"
    write(tmp_path / "secret.gguf")
    write(root / "blobs" / f"sha256-{BLOB}")
    library = "registry.ollama.ai/library"
    for number_of_try, digest in enumerate(
        ("sha256:../../secret.gguf", "../secret.gguf", f"sha256:{BLOB}/../x", "sha256:" + "b" * 64, "")
    ):
        manifest(root, f"{library}/bad{number_of_try}/latest", ("model", digest))
    manifest(root, f"{library}/none/latest", ("adapter", f"sha256:{BLOB}"))
    for name, content in {"damaged": b'{"layers": [', "list": b"[]", "deep": b'{"layers":' * 9999}.items():
        write(root / "manifests" / library / name / "latest", content)
    with write(root / "manifests" / library / "huge/latest", b"{").open("r+b") as sparse:
        sparse.truncate(1 << 32)
    assert look("Ollama", root) == ()


def test_links_inside_a_root_are_followed_and_links_out_of_it_are_not(tmp_path: Path) -> None:
    folder, outside = tmp_path / "models", tmp_path / "outside"
    file = write(folder / "Real.gguf")
    write(outside / "Secret.gguf")
    (folder / "Alias.gguf").symlink_to("Real.gguf")
    (folder / "Chain.gguf").symlink_to("Alias.gguf")
    (folder / "Out.gguf").symlink_to(outside / "Secret.gguf")
    (folder / "Relative.gguf").symlink_to("../outside/Secret.gguf")
    (folder / "linked").symlink_to(outside)
    (folder / "Through.gguf").symlink_to("linked/Secret.gguf")
    (folder / "Hop.gguf").symlink_to("Out.gguf")
    (folder / "Up.gguf").symlink_to("..")
    (folder / "Nowhere.gguf").symlink_to("missing.gguf")
    (folder / "Self.gguf").symlink_to("Self.gguf")
    (folder / "loop").symlink_to(".")
    models = by_name(look("models folder", folder))
    assert models.keys() == {"Real", "Alias", "Chain"}
    assert all(model.size_bytes == file.stat().st_size for model in models.values())


def test_a_root_that_is_a_link_is_the_folder_it_means(tmp_path: Path) -> None:
    write(tmp_path / "disk/Tiny.gguf")
    (tmp_path / "models").symlink_to(tmp_path / "disk")
    assert [model.name for model in look("models folder", tmp_path / "models")] == ["Tiny"]


@pytest.mark.parametrize(
    ("store", "inner"),
    [("Ollama", "blobs"), ("Ollama", "manifests"), ("Hugging Face cache", "models--a--b/snapshots")],
)
def test_the_folders_of_a_store_may_not_lie_elsewhere(tmp_path: Path, store: Store, inner: str) -> None:
    root = tmp_path / "root"
    write(root / f"blobs/sha256-{BLOB}")
    manifest(root, "registry.ollama.ai/library/tiny/latest", ("model", f"sha256:{BLOB}"))
    write(root / "models--a--b/snapshots/r/Tiny.gguf")
    assert len(look(store, root)) == 1
    (root / inner).rename(tmp_path / "moved")
    (root / inner).symlink_to(tmp_path / "moved")
    assert look(store, root) == ()


def test_one_file_in_two_roots_is_listed_once_where_it_was_found_first(tmp_path: Path) -> None:
    file = write(tmp_path / "models/sub/Tiny.gguf")
    os.link(file, write(tmp_path / "other/Other.gguf").with_name("Linked.gguf"))
    places = [
        StoreRoot("models folder", tmp_path / "models"),
        StoreRoot("folder", tmp_path / "models/sub"),
        StoreRoot("folder", tmp_path / "other"),
        StoreRoot("folder", tmp_path / "missing"),
    ]
    models = scan_stores(places, FileIndex(tmp_path / "cache"))
    assert [(model.name, model.store) for model in models] == [
        ("Tiny", "models folder"),
        ("Linked", "folder"),
        ("Other", "folder"),
    ]


def test_what_is_no_file_or_has_no_name_is_passed_over(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    write(folder / "Tiny.gguf")
    os.mkfifo(folder / "Pipe.gguf")
    (folder / "Folder.gguf").mkdir()
    write(folder / "Folder.gguf/Inside.gguf")
    write(folder / "esc\x1b[2J.gguf")
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff.gguf")).write_bytes(gguf())
    assert by_name(look("models folder", folder)).keys() == {"Tiny", "Inside"}


def test_looking_ends_in_a_folder_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number_of_folder in range(20):
        write(tmp_path / f"models/{number_of_folder:02}/Tiny-{number_of_folder}.gguf")
    deep = tmp_path / "models" / "/".join("d" * 12)
    write(deep / "Deep.gguf")
    assert len(look("models folder", tmp_path / "models")) == 20
    monkeypatch.setattr(walk, "ENTRIES_LIMIT", 25)
    assert 0 < len(look("models folder", tmp_path / "models")) < 10


def test_ollama_s_manifests_name_their_projectors(tmp_path: Path) -> None:
    root = tmp_path / "models"
    write(root / "blobs" / f"sha256-{BLOB}")
    eyes = write(root / "blobs" / ("sha256-" + "c" * 64), projector())
    layers = ("model", f"sha256:{BLOB}"), ("projector", "sha256:" + "c" * 64)
    manifest(root, "registry.ollama.ai/library/seer/latest", *layers)
    manifest(root, "registry.ollama.ai/library/blind/latest", layers[0])
    models = by_name(look("Ollama", root))
    assert (models["seer:latest"].projector, models["blind:latest"].projector) == (eyes, None)
    assert models["seer:latest"].capabilities == ("chat", "vision", "completion")
