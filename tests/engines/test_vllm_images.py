"""Pictures in chats and token lists with vLLM, read by a small checkpoint of random weights.

What it sees is noise, and noise has its own greedy answer: one wrong position would give another.
"""

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
from msgspec import structs

from ganglion.core.errors import GanglionError, InvalidValue, UnsupportedParameter, VisionUnsupported
from ganglion.core.events import Failed, Finished, Pieces, Scored, Usage
from ganglion.core.fold import Answer, fold
from ganglion.core.request import (
    PLACEHOLDER,
    Attachment,
    ChatPrompt,
    ImageBlock,
    Message,
    Regex,
    Request,
    Score,
    TokenRequest,
)
from ganglion.core.sampling import ResolvedSampling, Sampling
from ganglion.engines.settings import EngineSettings
from ganglion.engines.vllm.engine import VllmEngine
from ganglion.registry.files.safetensors import read_facts
from support import transformers_reference
from support.embedded_model import embedded_model
from support.projector_files import noise_png
from support.seeing_checkpoint import TILE_POSITIONS, write_seeing_checkpoint
from support.vllm_node import needed_python, vllm_settings

pytestmark = [
    pytest.mark.model,
    pytest.mark.vllm,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="module"),
]
FIRST, SECOND = noise_png(1), noise_png(2)
QUESTION = "\nWhat do you see?"
MOST = 4
KV_BLOCK = 32


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    needed_python()
    return write_seeing_checkpoint(embedded_model().path, tmp_path_factory.mktemp("sees") / "m")


def settings(**own: object) -> EngineSettings:
    few = json.dumps({"limit_mm_per_prompt": {"image": MOST}})
    return structs.replace(vllm_settings("m", **({"dtype": "float32", "extra": few} | own)), parallel=8)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(checkpoint: Path) -> AsyncIterator[VllmEngine]:
    subject = VllmEngine(read_facts(checkpoint), settings())
    await subject.open()
    yield subject
    await subject.close()


def asking(*messages: Message, count: int = 8, **fields: object) -> Request:
    greedy = Sampling(temperature=0.0)
    return Request("r", "m", ChatPrompt(messages), sampling=greedy, max_tokens=count, **fields)  # type: ignore[arg-type]


def seeing(*files: bytes, text: str = QUESTION) -> Message:
    return Message("user", text, attachments=tuple(Attachment(file, 0) for file in files))


async def answered(engine: VllmEngine, request: Request) -> Answer:
    async with aclosing(engine.generate(request)) as events:
        return fold([event async for event in events])


async def answer(engine: VllmEngine, request: Request) -> tuple[str, Usage]:
    done = await answered(engine, request)
    return done.text("text"), done.finished.usage


async def test_it_answers_as_transformers_does_with_the_same_weights(
    engine: VllmEngine, checkpoint: Path, tmp_path: Path
) -> None:
    paths = [tmp_path / f"{number}.png" for number in range(2)]
    for path, data in zip(paths, (FIRST, SECOND), strict=True):
        path.write_bytes(data)
    requests = [asking(seeing(*files), wants_token_ids=True) for files in ((FIRST,), (FIRST, SECOND))]
    texts = [(await engine.read(request)).text for request in requests]
    asked, expected = tmp_path / "asked.json", tmp_path / "expected.json"
    asked.write_text(json.dumps([[text, list(map(str, paths[: at + 1]))] for at, text in enumerate(texts)]))
    command = [needed_python(), transformers_reference.__file__, checkpoint, asked, expected]
    await asyncio.to_thread(subprocess.run, command, check=True, timeout=300, capture_output=True)
    for request, (prompt, tokens) in zip(requests, json.loads(expected.read_text()), strict=True):
        done = await answered(engine, request)
        assert done.finished.usage.prompt_tokens == len(prompt)
        assert list(done.finished.token_ids or ()) == tokens


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
    assert len(set(texts)) == len(texts)
    together = await asyncio.gather(*(answer(engine, asking(seeing(*files))) for files in asked))
    assert [text for text, _ in together] == texts


async def test_the_same_picture_is_a_cached_prefix_in_the_next_turn_of_its_own_tenant(
    engine: VllmEngine,
) -> None:
    picture = noise_png(100)
    text, first = await answer(engine, asking(seeing(picture), tenant="one"))
    turns = (seeing(picture), Message("assistant", text), Message("user", "And now?"))
    _, next_turn = await answer(engine, asking(*turns, tenant="one"))
    assert next_turn.cached_tokens >= first.prompt_tokens // KV_BLOCK * KV_BLOCK
    _, foreign = await answer(engine, asking(*turns, tenant="two"))
    assert foreign.cached_tokens == 0
    _, other = await answer(engine, asking(seeing(noise_png(101)), tenant="one"))
    assert other.cached_tokens <= (await engine.read(asking(seeing(picture)))).tokens.index(PLACEHOLDER)


async def test_an_answer_about_a_picture_is_held_to_a_format(engine: VllmEngine) -> None:
    text, _ = await answer(engine, asking(seeing(FIRST), count=40, constraint=Regex("(yes|no), I do")))
    assert text in ("yes, I do", "no, I do")


async def test_more_pictures_than_the_model_takes_are_refused(engine: VllmEngine) -> None:
    small = [noise_png(200 + number) for number in range(MOST + 1)]
    await answer(engine, asking(seeing(*small[:MOST]), count=1))
    with pytest.raises(UnsupportedParameter, match=f"{MOST} images"):
        await answer(engine, asking(seeing(*small), count=1))


async def test_what_is_no_picture_and_what_is_a_sound_are_refused(engine: VllmEngine) -> None:
    with pytest.raises(InvalidValue) as raised:
        await answer(engine, asking(seeing(b"no picture at all")))
    assert raised.value.param == "messages"
    sound = Message("user", "?", attachments=(Attachment(b"RIFF\0\0\0\0WAVE", 0, "audio"),))
    with pytest.raises(UnsupportedParameter, match="hear"):
        await answer(engine, asking(sound))


async def test_a_checkpoint_that_reads_text_alone_refuses_pictures_by_name(
    checkpoint: Path, tmp_path: Path
) -> None:
    blind = tmp_path / "blind"
    shutil.copytree(checkpoint, blind, copy_function=os.link)
    language = json.loads((checkpoint / "config.json").read_text())["text_config"]
    (blind / "config.json").unlink()
    (blind / "config.json").write_text(json.dumps(language))
    left_out = settings(extra='{"limit_mm_per_prompt": {"image": 0}}')
    for subject in (VllmEngine(read_facts(blind), settings()), VllmEngine(read_facts(checkpoint), left_out)):
        assert "vision" not in subject.models()[0].capabilities
        with pytest.raises(VisionUnsupported):
            await subject.read(asking(seeing(FIRST)))
        with pytest.raises(VisionUnsupported):
            await subject.place_image("m", FIRST, "image/png")


# Token lists


async def listed(engine: VllmEngine, *files: bytes) -> TokenRequest:
    before = await engine.tokens.tokenize("Here it is: ", add_special=False, parse_special=False)
    after = await engine.tokens.tokenize(" That was it.", add_special=False, parse_special=False)
    tokens, images = list(before), []
    for file in files:
        placed = await engine.place_image("m", file, "image/png")
        images.append(ImageBlock(len(tokens), placed.count, placed.digest, file))
        tokens += [PLACEHOLDER] * placed.count
    greedy = ResolvedSampling(temperature=0.0)
    return TokenRequest("r", (*tokens, *after), 6, sampling=greedy, images=tuple(images), in_tokens=True)


async def run(engine: VllmEngine, request: TokenRequest) -> tuple[list[int], Usage, list[int]]:
    tokens: list[int] = []
    scored: list[int] = []
    async with aclosing(engine.continue_tokens("m", request)) as events:
        async for event in events:
            match event:
                case Pieces(pieces=pieces):
                    tokens += [token.id for piece in pieces for token in piece.tokens]
                case Scored(tokens=records):
                    scored += [record.position for record in records]
                case Failed(error=error):
                    raise error
                case Finished(usage=usage):
                    return tokens, usage, scored
                case _:
                    pass
    raise AssertionError("no end")


async def test_a_token_list_continues_after_a_picture_and_a_fork_shares_it(engine: VllmEngine) -> None:
    request = await listed(engine, noise_png(300))
    tokens, usage, _ = await run(engine, request)
    assert usage.prompt_tokens == len(request.tokens)
    again, cached, _ = await run(engine, request)
    assert again == tokens
    assert cached.cached_tokens >= KV_BLOCK
    forked, _, _ = await run(engine, replace(request, tokens=(*request.tokens, *tokens[:2]), max_tokens=4))
    assert forked == tokens[2:]
    with pytest.raises(InvalidValue, match="no longer held"):
        await run(engine, replace(request, salt="other", images=(replace(request.images[0], data=b""),)))
    with pytest.raises(GanglionError):
        await run(engine, replace(request, images=()))


async def test_the_rows_of_a_picture_have_no_score(engine: VllmEngine) -> None:
    request = replace(await listed(engine, FIRST), score=Score(((0, None),)), max_tokens=1)
    _, _, scored = await run(engine, request)
    (image,) = request.images
    inside = [at for at in scored if image.start <= at < image.start + image.count]
    assert len(inside) == image.count - 5 * TILE_POSITIONS
    assert len(scored) == len(request.tokens) - 5 * TILE_POSITIONS
