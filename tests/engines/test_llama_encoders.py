"""Models that only embed or rank: loaded, asked, and refused what they cannot do."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from encoder_file import CONTEXT, SIZE, write_encoder

from ganglion.core.engine import EmbedRequest, RankRequest
from ganglion.core.errors import ContextLengthExceeded, InvalidValue
from ganglion.core.events import Failed
from ganglion.core.request import Request, TextPrompt, TokenPrompt
from ganglion.engines.llama.engine import LlamaEngine
from ganglion.engines.settings import EngineSettings
from ganglion.registry.files.gguf import read_facts
from support.embedded_model import kept_open

pytestmark = pytest.mark.model


@asynccontextmanager
async def encoder(folder: Path, pooling: int) -> AsyncIterator[LlamaEngine]:
    path = folder / "encoder.gguf"
    write_encoder(path, pooling=pooling)
    subject = LlamaEngine(read_facts(path), EngineSettings("tiny"))
    async with kept_open(subject):
        yield subject


def asking(*texts: str) -> EmbedRequest:
    return EmbedRequest("e", "tiny", tuple(map(TextPrompt, texts)))


async def test_an_encoder_embeds_each_input_as_if_it_were_alone(tmp_path: Path) -> None:
    async with encoder(tmp_path, 1) as subject:
        texts = ("red cat", "green", "blue dog red")
        together = (await subject.embed(asking(*texts))).vectors
        for text, vector in zip(texts, together, strict=True):
            (alone,) = (await subject.embed(asking(text))).vectors
            values = np.frombuffer(vector, np.float32)
            assert len(values) == SIZE
            assert values == pytest.approx(np.frombuffer(alone, np.float32), abs=1e-4)
            assert np.linalg.norm(values) == pytest.approx(1.0, abs=1e-5)
        assert len(set(together)) == 3


async def test_an_encoder_says_what_it_can_and_refuses_to_generate(tmp_path: Path) -> None:
    async with encoder(tmp_path, 1) as subject:
        assert subject.models()[0].capabilities == ("embeddings",)
        events = [event async for event in subject.generate(Request("g", "tiny", TextPrompt("red")))]
        assert isinstance(events[-1], Failed)
        assert isinstance(events[-1].error, InvalidValue)
        assert events[-1].error.param == "model"
        with pytest.raises(ContextLengthExceeded):
            await subject.embed(EmbedRequest("e", "tiny", (TokenPrompt((5,) * (CONTEXT + 1)),)))


async def test_a_classifier_ranks_pairs(tmp_path: Path) -> None:
    async with encoder(tmp_path, 4) as subject:
        documents = ("red cat", "green", "blue dog")
        ranked = await subject.rank(RankRequest("r", "tiny", "red", documents))
        assert len(set(ranked.scores)) == 3
        assert all(0.0 <= score <= 1.0 for score in ranked.scores)
        (alone,) = (await subject.rank(RankRequest("r", "tiny", "red", documents[2:]))).scores
        assert alone == pytest.approx(ranked.scores[2], abs=1e-4)
        with pytest.raises(InvalidValue, match="ranks"):
            await subject.embed(asking("red"))
