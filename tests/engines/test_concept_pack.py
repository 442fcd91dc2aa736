"""Concept packs on disk: what was written is read, and damage is told as LoadFailed and as nothing else."""

import json
import random
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from gguf import GGUFReader

from ganglion.core.errors import InvalidValue, LoadFailed, ModelMismatch
from ganglion.engines.concepts.pack import (
    ConceptPack,
    PackModel,
    manifest_path,
    merge_packs,
    read_pack,
    write_control_vector,
    write_pack,
)
from ganglion.engines.llama.concepts.training import (
    TrainedConcept,
    add_concept,
    check_model,
    digest_of,
    new_pack,
    notes_of,
    train,
)

MODEL = PackModel("tiny", "llama", 16, 12)
MUTANTS = 300


def concept(name: str, seed: int = 1, layers: tuple[int, ...] = (0, 3, 7)) -> TrainedConcept:
    chance = np.random.default_rng(seed)
    positive, negative = chance.normal(size=(2, 12, len(layers), 16)).astype(np.float32)
    return train(name, positive + 1, negative, layers, block_count=12, choice="named", digest="d")


@pytest.fixture
def pack() -> ConceptPack:
    return add_concept(new_pack("pair", MODEL, concept("up")), concept("right", 2), "two directions")


def test_a_pack_is_read_as_it_was_written(pack: ConceptPack, tmp_path: Path) -> None:
    path = tmp_path / "made" / "pair.safetensors"
    write_pack(pack, path)
    again = read_pack(path)
    assert again.manifest == pack.manifest
    assert again.manifest.concepts == ["up", "right"]
    assert sorted(file.name for file in path.parent.iterdir()) == ["pair.json", "pair.safetensors"]
    for layer in (0, 3, 7):
        np.testing.assert_array_equal(again.vectors[layer], pack.vectors[layer])
    notes = notes_of(again.manifest, "right")
    assert notes is not None
    assert (notes.positive, notes.pool, sorted(notes.layers)) == (12, "mean", ["0", "3", "7"])


def test_a_concept_that_is_there_is_replaced(pack: ConceptPack) -> None:
    newer = concept("up", 9)
    changed = add_concept(pack, newer)
    assert changed.manifest.concepts == ["right", "up"]
    np.testing.assert_array_equal(changed.vectors[3][1], newer.directions[3].vector)
    np.testing.assert_array_equal(changed.vectors[3][0], pack.vectors[3][1])
    assert changed.manifest.spans["3"][1] == newer.directions[3].span


def test_a_concept_on_other_layers_is_refused(pack: ConceptPack) -> None:
    with pytest.raises(InvalidValue, match="layers"):
        add_concept(pack, concept("left", 3, (1, 2)))


def test_a_pack_of_another_model_is_told_apart(pack: ConceptPack) -> None:
    check_model(pack, msgspec.structs.replace(MODEL, name="the same by another name"))
    for other in (
        msgspec.structs.replace(MODEL, hidden_size=32),
        msgspec.structs.replace(MODEL, block_count=13),
        msgspec.structs.replace(MODEL, architecture="qwen3"),
    ):
        with pytest.raises(ModelMismatch, match="tiny"):
            check_model(pack, other)


def test_packs_bind_side_by_side_on_the_same_layers(pack: ConceptPack) -> None:
    other = new_pack("more", MODEL, concept("deep", 4))
    book = merge_packs([pack, other])
    assert book is not None
    assert book.manifest.concepts == ("up", "right", "deep")
    assert [each.shape for each in book.vectors] == [(3, 16)] * 3
    with pytest.raises(LoadFailed, match="name the concept"):
        merge_packs([pack, pack])
    thin = new_pack("thin", MODEL, concept("thin", 4, (3,)))
    with pytest.raises(LoadFailed, match="different layers") as refused:
        merge_packs([pack, thin])
    command = "ganglion concepts train thin --concept thin --positive FILE --negative FILE --layers 0,3,7"
    assert command in (refused.value.hint or "")
    with pytest.raises(LoadFailed) as refused:
        merge_packs([thin, pack])
    words = "--positive FILE --negative FILE"
    assert (refused.value.hint or "").endswith(
        f"ganglion concepts train pair-again --concept up {words} --layers 3; "
        f"ganglion concepts train pair-again --concept right {words} --add"
    )


def test_the_digest_of_examples_does_not_depend_on_their_order() -> None:
    assert digest_of(["a", "b"], ["c"]) == digest_of(["b", "a"], ["c"])
    assert digest_of(["a", "b"], ["c"]) != digest_of(["a"], ["b", "c"])


@pytest.mark.parametrize("which", ["vectors", "manifest"])
def test_a_mutant_is_a_pack_or_is_refused(pack: ConceptPack, tmp_path: Path, which: str) -> None:
    path = tmp_path / "pair.safetensors"
    write_pack(pack, path)
    target = path if which == "vectors" else manifest_path(path)
    whole = target.read_bytes()
    chance = random.Random(which)
    refused = 0
    for _ in range(MUTANTS):
        data = bytearray(whole)
        kind = chance.randrange(4)
        # Half of the blows into the head, where structure is.
        place = chance.randrange(min(len(data), 400) if chance.random() < 0.5 else len(data))
        if kind == 0:
            data[place] = chance.randrange(256)
        elif kind == 1:
            del data[place:]
        elif kind == 2:
            data[place:place] = chance.randbytes(chance.randrange(1, 9))
        else:
            data[place : place + chance.randrange(1, 9)] = chance.choice(
                [b"", b"-1", b"null", b"1e999", b"{"]
            )
        target.write_bytes(data)
        try:
            merge_packs([read_pack(path)])
        except LoadFailed as error:
            refused += 1
            assert error.hint
    assert refused > MUTANTS // 3


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("layers", [3, 0, 7]),
        ("layers", [0, 3, 12]),
        ("layers", []),
        ("concepts", ["up", "up"]),
        ("concepts", []),
        ("spans", {"0": [1.0]}),
        ("format", 2),
        ("model", {"name": "x", "architecture": "y", "hidden_size": 2**62, "block_count": 12}),
        ("trained", None),
    ],
)
def test_a_manifest_that_does_not_fit_its_vectors_is_refused(
    pack: ConceptPack, tmp_path: Path, field: str, value: object
) -> None:
    path = tmp_path / "pair.safetensors"
    write_pack(pack, path)
    manifest = json.loads(manifest_path(path).read_text())
    manifest_path(path).write_text(json.dumps({**manifest, field: value}))
    with pytest.raises(LoadFailed):
        read_pack(path)


def test_a_manifest_nested_without_end_is_refused(pack: ConceptPack, tmp_path: Path) -> None:
    path = tmp_path / "pair.safetensors"
    write_pack(pack, path)
    text = (
        manifest_path(path).read_text().replace('"trained": {', f'"trained": {{"deep": {"[" * 200_000},', 1)
    )
    manifest_path(path).write_text(text)
    with pytest.raises(LoadFailed):
        read_pack(path)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 3e38, 0.5])
def test_vectors_that_are_not_of_unit_length_are_refused(
    pack: ConceptPack, tmp_path: Path, bad: float
) -> None:
    path = tmp_path / "pair.safetensors"
    vectors = {layer: each.copy() for layer, each in pack.vectors.items()}
    vectors[3][1] = bad
    write_pack(replace(pack, vectors=vectors), path)
    with pytest.raises(LoadFailed, match="unit length"):
        read_pack(path)


def test_a_control_vector_is_what_llama_cpp_expects(pack: ConceptPack, tmp_path: Path) -> None:
    path = tmp_path / "right.gguf"
    write_control_vector(pack, "right", path)
    reader = GGUFReader(path)
    fields = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    assert fields == {
        "general.architecture": "controlvector",
        "controlvector.model_hint": "llama",
        "controlvector.layer_count": 2,
    }
    assert [tensor.name for tensor in reader.tensors] == ["direction.3", "direction.7"]
    for tensor, layer in zip(reader.tensors, (3, 7), strict=True):
        np.testing.assert_allclose(tensor.data, pack.vectors[layer][1] * pack.spans(layer)[1] / 2, rtol=1e-6)
