"""The residual stream of texts, read from the real embedded model."""

from pathlib import Path

import numpy as np
import pytest

from ganglion.core.errors import EngineFailed, InvalidValue, LoadFailed
from ganglion.engines.llama.concepts.directions import auc, difference_of_means, score_layer
from ganglion.engines.llama.concepts.residuals import Residuals, read_residuals
from ganglion.engines.llama.concepts.training import train
from ganglion.registry.hub.embedded import SMOLLM2, find

found = find(SMOLLM2, Path("nowhere"))
pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(found is None, reason="the embedded model is not installed"),
]
EXAMPLES = Path(__file__).parents[2] / "examples" / "concepts"
COUNT = 24
LAYERS = (6, 12, 18, 24)


def examples(name: str) -> list[str]:
    return (EXAMPLES / f"{name}.txt").read_text().splitlines()[:COUNT]


def read(texts: list[str], **options: object) -> Residuals:
    assert found is not None
    return read_residuals(found.path, texts, threads=1, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def formal() -> Residuals:
    return read(examples("formal") + examples("casual"), layers=LAYERS)


def test_a_concept_is_found_in_layers_that_were_asked_for(formal: Residuals) -> None:
    assert formal.layers == LAYERS
    assert formal.values.shape == (2 * COUNT, 4, 576)
    assert (formal.model.architecture, formal.model.block_count) == ("llama", 30)
    made = train(
        "formal", formal.values[:COUNT], formal.values[COUNT:], LAYERS, block_count=30, choice="named"
    )
    assert max(each.auc for each in made.judged) >= 0.9
    assert max(each.auc_logistic for each in made.judged) >= 0.9


def test_shuffled_labels_give_chance(formal: Residuals) -> None:
    values = []
    for seed in range(8):
        shuffled = np.random.default_rng(seed).permutation(formal.values[:, 2])
        values.append(score_layer(shuffled[:COUNT], shuffled[COUNT:], 18, rounds=4).auc)
    assert 0.35 < np.mean(values) < 0.62


def test_a_concept_separates_examples_that_it_never_saw(formal: Residuals) -> None:
    values, half = formal.values[:, 3], COUNT // 2
    vector = difference_of_means(values[:half], values[COUNT : COUNT + half]).vector
    assert auc(values[half:COUNT] @ vector, values[COUNT + half :] @ vector) >= 0.9


def test_a_text_reads_the_same_whoever_is_read_beside_it(formal: Residuals) -> None:
    alone = read(examples("formal")[3:4], layers=LAYERS).values[0]
    beside = formal.values[3]
    cosine = (alone * beside).sum(1) / np.linalg.norm(alone, axis=1) / np.linalg.norm(beside, axis=1)
    assert cosine.min() > 0.999


def test_all_layers_but_the_last_are_read_and_progress_is_told() -> None:
    told: list[tuple[int, int]] = []
    texts = ["one", "two words", "x" * 3000]
    all_of_it = read(texts, pool="last", report=lambda done, total: told.append((done, total)))
    assert all_of_it.layers == tuple(range(29))
    assert told == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert all_of_it.cut == 1
    assert np.isfinite(all_of_it.values).all()


def test_the_last_token_and_the_mean_of_all_differ() -> None:
    last, mean = (read(["a cat sat on the mat"], layers=[9], pool=pool).values for pool in ("last", "mean"))
    assert np.linalg.norm(last - mean) > 1


@pytest.mark.parametrize("layers", [[29], [3, 400], []])
def test_a_layer_that_cannot_be_read_is_refused(layers: list[int]) -> None:
    with pytest.raises(InvalidValue, match="0 to 28"):
        read(["text"], layers=layers)


def test_a_file_that_is_no_model_is_refused_and_the_program_lives(tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(LoadFailed, match=r"broken\.gguf"):
        read_residuals(path, ["text"])


def test_a_child_that_dies_is_told_by_how_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "ganglion.engines.llama.concepts.residuals.CHILD", "ganglion.engines.llama.concepts.no_such_child"
    )
    with pytest.raises(EngineFailed, match="exit code 1"):
        read_residuals(tmp_path / "any.gguf", ["text" * 100_000])
