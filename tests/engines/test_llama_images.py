"""Pictures in chats and token lists, read by a projector of random weights beside the embedded model.

What it sees is noise, and noise has its own greedy answer: one wrong position would give another.
"""

import asyncio
import base64
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import pytest_asyncio

from ganglion.core.errors import (
    ContextLengthExceeded,
    GanglionError,
    InvalidValue,
    LoadFailed,
    UnsupportedParameter,
    VisionUnsupported,
)
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
from ganglion.engines.llama.engine import LlamaEngine
from ganglion.engines.settings import EngineSettings
from ganglion.registry.hub.embedded import SMOLLM2, find
from ganglion.registry.stores.sighted import read_whole_facts
from support import reference_eyes
from support.embedded_model import kept_open
from support.projector_files import noise_png, write_projector
from support.waiting import until

found = find(SMOLLM2, Path("nowhere"))
pytestmark = [
    pytest.mark.model,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(found is None, reason="the embedded model is not installed"),
]
ROWS = 64
FIRST, SECOND = noise_png(1), noise_png(2)
QUESTION = "\nWhat do you see?"


@dataclass(frozen=True, slots=True)
class Answer:
    text: str
    usage: Usage


@pytest.fixture(scope="module")
def eyes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_projector(tmp_path_factory.mktemp("eyes") / "mmproj-f16.gguf")


@asynccontextmanager
async def opened(eyes: Path | None, **settings: object) -> AsyncIterator[LlamaEngine]:
    assert found is not None
    facts = read_whole_facts(found.path, named="none" if eyes is None else str(eyes))
    asked = {"context": 1024, "parallel": 8} | settings
    subject = LlamaEngine(facts, EngineSettings("m", **asked))  # type: ignore[arg-type]
    async with kept_open(subject):
        yield subject


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(eyes: Path) -> AsyncIterator[LlamaEngine]:
    async with opened(eyes) as subject:
        yield subject


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def blind() -> AsyncIterator[LlamaEngine]:
    async with opened(None) as subject:
        yield subject


def asking(*messages: Message, count: int = 8, **fields: object) -> Request:
    greedy = Sampling(temperature=0.0)
    return Request("r", "m", ChatPrompt(messages), sampling=greedy, max_tokens=count, **fields)  # type: ignore[arg-type]


def seeing(*files: bytes, text: str = QUESTION) -> Message:
    return Message("user", text, attachments=tuple(Attachment(file, 0) for file in files))


async def answer(engine: LlamaEngine, request: Request) -> Answer:
    text = ""
    async with aclosing(engine.generate(request)) as events:
        async for event in events:
            match event:
                case Delta():
                    text += event.text
                case Failed(error=error):
                    raise error
                case Finished(usage=usage):
                    return Answer(text, usage)
                case _:
                    pass
    raise AssertionError("no end")


async def test_it_answers_as_the_library_s_own_server_does(engine: LlamaEngine, eyes: Path) -> None:
    assert found is not None
    bodies = [
        {
            "messages": [{"role": "user", "content": [*pictures, {"type": "text", "text": QUESTION}]}],
            "max_tokens": 8,
            "temperature": 0,
        }
        for pictures in (
            [image_part(FIRST)],
            [image_part(SECOND)],
            [image_part(SECOND), image_part(FIRST)],
        )
    ]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, reference_eyes.__file__, str(found.path), str(eyes)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=os.environ | {"GOMP_SPINCOUNT": "1000"},  # else a busy neighbour costs it ten times the time
    )
    output, _ = await asyncio.wait_for(process.communicate(json.dumps(bodies).encode()), 120)
    ours = [await answer(engine, asking(seeing(*files))) for files in ((FIRST,), (SECOND,), (SECOND, FIRST))]
    expected = [each[:2] for each in json.loads(output)]
    assert [[each.text, each.usage.prompt_tokens] for each in ours] == expected
    assert len({each.text for each in ours}) > 1, "what it sees makes a difference"


def image_part(file: bytes) -> dict[str, object]:
    return {
        "type": "image_url",
        "image_url": {"url": f"data:image/png;base64,{base64.b64encode(file).decode()}"},
    }


async def test_the_same_picture_in_the_next_turn_is_cached_and_another_is_not(engine: LlamaEngine) -> None:
    first = await answer(engine, asking(seeing(FIRST, text="\nTell me.")))
    turn = asking(
        seeing(FIRST, text="\nTell me."), Message("assistant", first.text), Message("user", "More.")
    )
    second = await answer(engine, turn)
    assert second.usage.cached_tokens >= first.usage.prompt_tokens
    other = await answer(engine, asking(seeing(noise_png(40), text="\nTell me.")))
    assert other.usage.cached_tokens < ROWS, "it is reused up to the picture at most"
    assert other.text != first.text


async def test_a_prompt_says_what_it_takes_before_anything_is_read(engine: LlamaEngine) -> None:
    with_picture = await engine.read(asking(seeing(noise_png(30))))
    without = await engine.read(asking(Message("user", QUESTION)))
    assert with_picture.tokens.count(PLACEHOLDER) == ROWS
    assert len(with_picture.tokens) == len(without.tokens) + ROWS
    assert "<image>" in (with_picture.text or "")
    many = asking(*(seeing(*[noise_png(30)] * 20) for _ in range(2)))
    with pytest.raises(ContextLengthExceeded) as raised:
        await answer(engine, many)
    assert int(raised.value.message.split("it holds ")[1].split()[0]) > 40 * ROWS


async def test_pictures_stand_where_their_messages_have_them(engine: LlamaEngine) -> None:
    request = asking(
        Message("user", "one two", attachments=(Attachment(FIRST, 3), Attachment(SECOND, 7))),
    )
    read = await engine.read(request)
    assert (read.text or "").count("one<image> two<image>") == 1
    swapped = Message("user", "one two", attachments=(Attachment(SECOND, 3), Attachment(FIRST, 7)))
    one, other = await answer(engine, request), await answer(engine, asking(swapped))
    assert one.text != other.text


async def test_eight_pictures_at_once_are_each_answered_as_alone(engine: LlamaEngine) -> None:
    requests = [asking(seeing(noise_png(100 + number))) for number in range(8)]
    together = await asyncio.gather(*(answer(engine, request) for request in requests))
    assert len({each.text for each in together}) > 4
    assert all(each.usage.prompt_tokens == together[0].usage.prompt_tokens for each in together)


async def test_a_model_without_eyes_refuses_by_name_and_reads_on(blind: LlamaEngine) -> None:
    with pytest.raises(VisionUnsupported):
        await answer(blind, asking(seeing(b"never looked at")))
    with pytest.raises(VisionUnsupported):
        await blind.place_image("m", FIRST, "image/png")
    assert "vision" not in blind.models()[0].capabilities
    assert (await answer(blind, asking(Message("user", "Hello.")))).text


async def test_what_is_no_picture_and_what_is_no_sound_for_it_are_refused(engine: LlamaEngine) -> None:
    with pytest.raises(InvalidValue) as raised:
        await answer(engine, asking(seeing(b"no picture at all")))
    assert raised.value.param == "messages"
    sound = Message("user", "?", attachments=(Attachment(b"RIFF\0\0\0\0WAVE", 0, "audio"),))
    with pytest.raises(UnsupportedParameter, match="hear"):
        await answer(engine, asking(sound))


async def test_a_projector_of_another_model_is_refused_when_it_is_loaded(tmp_path: Path) -> None:
    other = write_projector(tmp_path / "mmproj-other.gguf", width=320)
    with pytest.raises(LoadFailed, match="projector"):
        async with opened(other):
            pass


async def test_truncation_drops_a_picture_that_it_would_cut(engine: LlamaEngine) -> None:
    whole = len((await engine.read(asking(seeing(FIRST)))).tokens)
    cut = await answer(engine, asking(seeing(FIRST), truncate_prompt=whole - 40))
    assert cut.usage.prompt_tokens < whole - ROWS


# Token lists


async def listed(engine: LlamaEngine, *files: bytes) -> TokenRequest:
    before = await engine.tokens.tokenize("Here it is: ", add_special=False, parse_special=False)
    after = await engine.tokens.tokenize(" That was it.", add_special=False, parse_special=False)
    tokens, images = list(before), []
    for file in files:
        placed = await engine.place_image("m", file, "image/png")
        images.append(ImageBlock(len(tokens), placed.count, placed.digest, file))
        tokens += [PLACEHOLDER] * placed.count
    return TokenRequest(
        "r",
        (*tokens, *after),
        6,
        sampling=ResolvedSampling(temperature=0.0),
        images=tuple(images),
        in_tokens=True,
    )


async def run(engine: LlamaEngine, request: TokenRequest) -> tuple[list[int], Usage, list[object]]:
    tokens: list[int] = []
    scored: list[object] = []
    async with aclosing(engine.continue_tokens("m", request)) as events:
        async for event in events:
            match event:
                case Pieces(pieces=pieces):
                    tokens += [token.id for piece in pieces for token in piece.tokens]
                case Scored(tokens=records):
                    scored += records
                case Failed(error=error):
                    raise error
                case Finished(usage=usage):
                    return tokens, usage, scored
                case _:
                    pass
    raise AssertionError("no end")


async def test_a_token_list_continues_after_a_picture_and_a_fork_shares_it(engine: LlamaEngine) -> None:
    request = await listed(engine, noise_png(200))
    tokens, usage, _ = await run(engine, request)
    assert usage.prompt_tokens == len(request.tokens)
    again, cached, _ = await run(engine, request)
    assert again == tokens
    assert cached.cached_tokens == len(request.tokens) - 1
    forked = replace(request, tokens=(*request.tokens, *tokens[:2]))
    assert (await run(engine, forked))[1].cached_tokens >= len(request.tokens)


async def test_a_list_whose_images_are_not_its_placeholders_is_refused(engine: LlamaEngine) -> None:
    request = await listed(engine, FIRST)
    (image,) = request.images
    for images in ((), (replace(image, start=image.start + 1),), (replace(image, count=image.count - 1),)):
        with pytest.raises(GanglionError):
            await run(engine, replace(request, images=images))
    with pytest.raises(InvalidValue, match="no longer held"):
        await run(engine, replace(request, images=(replace(image, digest="0" * 64, data=b""),)))


async def test_an_image_that_the_worker_lost_is_read_again_from_its_file(eyes: Path) -> None:
    async with opened(eyes) as engine:
        request = await listed(engine, noise_png(300))
        before, _, _ = await run(engine, request)
        process = engine.tokens.supervisor.process_id
        assert process is not None
        os.kill(process, signal.SIGKILL)
        for _ in range(100):
            try:
                after, usage, _ = await run(engine, request)
                break
            except GanglionError:
                await asyncio.sleep(0.1)
        assert after == before
        assert usage.cached_tokens == 0
        assert engine.tokens.restarts == 1


async def test_a_worker_that_dies_while_it_reads_pictures_is_replaced_and_all_are_told(eyes: Path) -> None:
    async with opened(eyes) as engine:
        asked = [
            asyncio.create_task(answer(engine, asking(seeing(noise_png(number, 640, 480)))))
            for number in range(500, 508)
        ]
        await until(lambda: engine.models()[0].in_flight == len(asked))
        process = engine.tokens.supervisor.process_id
        assert process is not None
        os.kill(process, signal.SIGKILL)
        ends = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 60)
        assert all(isinstance(end, (Answer, GanglionError)) for end in ends)
        assert any(isinstance(end, GanglionError) for end in ends)
        await until(lambda: engine.models()[0].status == "loaded", 30.0)
        assert (await answer(engine, asking(seeing(FIRST)))).text
        assert engine.tokens.restarts == 1


async def test_another_tenant_s_picture_is_its_own(engine: LlamaEngine) -> None:
    request = await listed(engine, noise_png(400))
    await run(engine, request)
    with pytest.raises(InvalidValue, match="no longer held"):
        await run(engine, replace(request, salt="other", images=(replace(request.images[0], data=b""),)))


async def test_scores_leave_pictures_out(engine: LlamaEngine) -> None:
    request = replace(await listed(engine, FIRST), score=Score(((0, None),)), max_tokens=1)
    _, _, scored = await run(engine, request)
    (image,) = request.images
    positions = [record.position for record in scored]  # type: ignore[attr-defined]
    outside = [*range(image.start), *range(image.start + image.count, len(request.tokens))]
    assert positions == outside
    again = await run(engine, request)
    assert [record.logprob for record in again[2]] == [record.logprob for record in scored]  # type: ignore[attr-defined]


async def test_aborts_while_pictures_are_read_leave_nothing(engine: LlamaEngine) -> None:
    tasks = [
        asyncio.create_task(answer(engine, asking(seeing(noise_png(500 + number)), count=64)))
        for number in range(6)
    ]
    for number, task in enumerate(tasks):
        await asyncio.sleep(0.02 * number)
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for _ in range(100):
        if engine.tokens.load.running == engine.tokens.load.waiting == 0:
            break
        await asyncio.sleep(0.05)
    assert (engine.tokens.load.running, engine.tokens.load.waiting) == (0, 0)
    assert (await answer(engine, asking(seeing(FIRST)))).text


async def test_a_deterministic_answer_does_not_depend_on_who_else_sees(eyes: Path) -> None:
    async with opened(eyes, is_deterministic=True, kv_tokens=4096) as engine:
        alone = await answer(engine, asking(seeing(FIRST)))
        both = await asyncio.gather(
            answer(engine, asking(seeing(SECOND))), answer(engine, asking(seeing(FIRST)))
        )
        assert both[1].text == alone.text


TYPED = (
    "{% for message in messages %}{% for part in message['content'] %}{% if part['type'] == 'text' %}"
    "{{ message['role'] + ':' + part['text'] + ';' }}{% endif %}{% endfor %}{% endfor %}"
)


async def test_a_template_that_reads_contents_as_parts_gets_them_so(eyes: Path) -> None:
    async with opened(eyes, chat_template=TYPED) as engine:
        messages = (Message("system", "be brief"), seeing(FIRST, text="what"))
        for _ in range(2):
            assert (await engine.read(asking(*messages))).text == "system:be brief;user:<image>what;"
        with pytest.raises(InvalidValue, match=r"no picture|in no format"):
            await engine.read(asking(seeing(b"nothing")))
    async with opened(eyes, chat_template="{{ messages[0]['role'] }}") as engine:
        with pytest.raises(InvalidValue, match="exactly once"):
            await engine.read(asking(seeing(FIRST)))


async def test_hot_prefixes_with_pictures_outlive_their_worker(eyes: Path, tmp_path: Path) -> None:
    texts = []
    for cached in (0, ROWS):
        async with opened(eyes, kv_folder=str(tmp_path / "kv")) as engine:
            found_answer = await answer(engine, asking(seeing(FIRST)))
            texts.append(found_answer.text)
            assert found_answer.usage.cached_tokens >= cached
    assert texts[0] == texts[1]
