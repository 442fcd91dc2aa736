"""Embeddings and ranks by vLLM: what transformers makes of the same weights; a model that comes and goes."""

import json
import math
import os
import subprocess
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from msgspec import structs

from ganglion.core.engine import EmbedRequest, RankRequest
from ganglion.core.errors import ContextLengthExceeded, InvalidValue
from ganglion.core.events import Failed
from ganglion.core.request import Request, TextPrompt, TokenPrompt
from ganglion.engines.vllm.engine import VllmEngine
from ganglion.registry.files.safetensors import read_facts
from ganglion.registry.loading.candidate import Candidate, build_without_options
from ganglion.registry.loading.residency import Residency
from support import pooling_checkpoints
from support.vllm_node import living, needed_python, processes_of, vllm_settings
from support.waiting import until

pytestmark = [pytest.mark.model, pytest.mark.vllm, pytest.mark.timeout(600)]
TEXTS = ["the sea is blue", "an old boat sails on the river, it was cold"]
QUERY = "what is deep?"
DOCUMENTS = ("the sea is deep", "a boat sails", "cold, cold and deep under the river")
KEEP_ALIVE_S = 0.5


@dataclass(frozen=True)
class Checkpoints:
    """Where they are, and what transformers makes of the texts."""

    folder: Path
    vectors: list[list[float]]
    logits: list[float]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    folder = tmp_path_factory.mktemp("pooling")
    texts = folder / "texts.json"
    texts.write_text(json.dumps({"texts": TEXTS, "pairs": [[QUERY, each] for each in DOCUMENTS]}))
    command = [needed_python(), pooling_checkpoints.__file__, folder, texts]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run(command, check=True, env=environment, timeout=300, capture_output=True)
    expected = json.loads((folder / "expected.json").read_text())
    return Checkpoints(folder, expected["vectors"], expected["logits"])


@dataclass
class Shelf:
    """A model that a registry holds, and the engines that it built of it."""

    residency: Residency
    engines: list[VllmEngine]


@asynccontextmanager
async def held(folder: Path, name: str) -> AsyncIterator[Shelf]:
    """A registry that loads the checkpoint on request, and lets it go soon after the last one."""
    settings = structs.replace(vllm_settings(name, dtype="float32"), context=None, parallel=8)
    engines: list[VllmEngine] = []

    def build() -> VllmEngine:
        engines.append(VllmEngine(read_facts(folder / name), settings))
        return engines[-1]

    candidate = Candidate(name, build_without_options(build), engine="vllm", keep_alive_s=KEEP_ALIVE_S)
    residency = Residency([], [candidate], free_bytes=lambda: psutil.virtual_memory().available)
    await residency.open()
    try:
        yield Shelf(residency, engines)
    finally:
        await residency.close()


def embedding(name: str, *inputs: TextPrompt | TokenPrompt, is_normalized: bool) -> EmbedRequest:
    return EmbedRequest("e", name, inputs, is_normalized=is_normalized)


async def test_vectors_are_those_of_the_same_weights_before_and_after_the_model_was_let_go(
    checkpoints: Checkpoints,
) -> None:
    async with held(checkpoints.folder, "embedder") as shelf:
        ask = shelf.residency.embed
        inputs = [TextPrompt(text) for text in TEXTS]
        plain = await ask(embedding("embedder", *inputs, is_normalized=False))
        for vector, expected in zip(plain.vectors, checkpoints.vectors, strict=True):
            assert array("f", vector).tolist() == pytest.approx(expected, abs=1e-4)
        unit = await ask(embedding("embedder", *inputs, is_normalized=True))
        for vector, expected in zip(unit.vectors, checkpoints.vectors, strict=True):
            length = math.hypot(*expected)
            assert array("f", vector).tolist() == pytest.approx(
                [each / length for each in expected], abs=1e-5
            )
        # [CLS] the sea is blue [SEP]
        tokens = await ask(embedding("embedder", TokenPrompt((2, 5, 7, 8, 11, 3)), is_normalized=True))
        assert array("f", tokens.vectors[0]) == pytest.approx(array("f", unit.vectors[0]), abs=1e-6)
        assert tokens.prompt_tokens == 6
        many = await ask(embedding("embedder", *inputs * 40, is_normalized=True))
        assert len(many.vectors) == 80
        assert array("f", many.vectors[78]) == pytest.approx(array("f", unit.vectors[0]), abs=1e-5)
        with pytest.raises(ContextLengthExceeded):
            await ask(embedding("embedder", TextPrompt("sea " * 500), is_normalized=True))
        request = Request("r", "embedder", TextPrompt("the sea"))
        events = [event async for event in shelf.residency.generate(request)]
        assert isinstance(events[-1], Failed)
        assert "does not generate text" in events[-1].error.message
        [engine] = shelf.engines
        processes = processes_of(engine)
        assert living(processes)
        await until(lambda: shelf.residency.models()[0].status == "unloaded", 60)
        assert not living(processes), "what is let go holds no memory"
        again = await ask(embedding("embedder", *inputs, is_normalized=True))
        assert len(shelf.engines) == 2
        for one, other in zip(again.vectors, unit.vectors, strict=True):
            assert array("f", one) == pytest.approx(array("f", other), abs=1e-6)


async def test_ranks_are_those_of_the_same_weights_which_are_told_the_two_texts_apart(
    checkpoints: Checkpoints,
) -> None:
    async with held(checkpoints.folder, "ranker") as shelf:
        ranked = await shelf.residency.rank(RankRequest("r", "ranker", QUERY, DOCUMENTS))
        expected = [1 / (1 + math.exp(-logit)) for logit in checkpoints.logits]
        assert ranked.scores == pytest.approx(expected, abs=1e-4)
        assert max(expected) - min(expected) > 0.01
        with pytest.raises(InvalidValue, match="makes no embeddings"):
            await shelf.residency.embed(embedding("ranker", TextPrompt("a"), is_normalized=True))
