"""Pictures in chats and token lists with vLLM, read by a small checkpoint of random weights.

What it sees is noise, and noise has its own greedy answer: one wrong position would give another.
"""

from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest
import pytest_asyncio
from msgspec import structs

from ganglion.core.errors import GanglionError, InvalidValue, UnsupportedParameter, VisionUnsupported
from ganglion.core.events import Delta, Failed, Finished, Pieces, Scored, Usage
from ganglion.core.request import (
    PLACEHOLDER,
    Attachment,
    ChatPrompt,
    ImageBlock,
    Message,
    Request,
    Score,
    TokenRequest,
)
from ganglion.core.sampling import ResolvedSampling, Sampling
from ganglion.engines.vllm.engine import VllmEngine
from ganglion.registry.files.safetensors import read_facts
from support.embedded_model import embedded_model
from support.projector_files import noise_png
from support.seeing_checkpoint import TILE_POSITIONS, write_seeing_checkpoint
from support.vllm_node import vllm_settings

pytestmark = [
    pytest.mark.model,
    pytest.mark.vllm,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="module"),
]
FIRST, SECOND = noise_png(1), noise_png(2)
QUESTION = "\nWhat do you see?"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[VllmEngine]:
    folder = write_seeing_checkpoint(embedded_model().path, tmp_path_factory.mktemp("sees") / "m")
    settings = structs.replace(vllm_settings("m", dtype="float32"), parallel=8)
    subject = VllmEngine(read_facts(folder), settings)
    await subject.open()
    yield subject
    await subject.close()


def asking(*messages: Message, count: int = 8, **fields: object) -> Request:
    greedy = Sampling(temperature=0.0)
    return Request("r", "m", ChatPrompt(messages), sampling=greedy, max_tokens=count, **fields)  # type: ignore[arg-type]


def seeing(*files: bytes, text: str = QUESTION) -> Message:
    return Message("user", text, attachments=tuple(Attachment(file, 0) for file in files))


async def answer(engine: VllmEngine, request: Request) -> tuple[str, Usage]:
    text = ""
    async with aclosing(engine.generate(request)) as events:
        async for event in events:
            match event:
                case Delta():
                    text += event.text
                case Failed(error=error):
                    raise error
                case Finished(usage=usage):
                    return text, usage
                case _:
                    pass
    raise AssertionError("no end")


async def test_it_says_that_it_sees_and_what_a_picture_takes_before_it_reads_it(engine: VllmEngine) -> None:
    assert "vision" in engine.models()[0].capabilities
    placed = await engine.place_image("m", FIRST, "image/png")
    # Two by two tiles and the whole, with signs around each.
    assert placed.count > 5 * TILE_POSITIONS
    _, without = await answer(engine, asking(Message("user", QUESTION)))
    _, with_one = await answer(engine, asking(seeing(FIRST)))
    assert with_one.prompt_tokens == without.prompt_tokens + placed.count
    read = await engine.read(asking(seeing(FIRST)))
    assert len(read.tokens) == with_one.prompt_tokens
    assert read.tokens.count(PLACEHOLDER) == placed.count


async def test_what_it_says_depends_on_the_pictures_and_on_their_order(engine: VllmEngine) -> None:
    asked = [(), (FIRST,), (SECOND,), (FIRST, SECOND), (SECOND, FIRST)]
    texts = [(await answer(engine, asking(seeing(*files))))[0] for files in asked]
    print(texts)
    assert len(set(texts)) == len(texts)
