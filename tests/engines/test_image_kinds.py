"""Pictures of each kind, on models of random weights: slices with marker tokens, rows that see each other in
both directions, and rows with coordinates. Each is answered as the library's own server answers.
"""

import asyncio
import base64
import io
import json
import os
import sys
import wave
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from attention_kinds import COORDINATES, WIDTH, write_model
from gguf import GGUFReader

from ganglion.core.errors import InvalidValue, VisionUnsupported
from ganglion.core.events import Delta, Failed, Finished
from ganglion.core.request import PLACEHOLDER, Attachment, ChatPrompt, Message, Request
from ganglion.core.sampling import Sampling
from ganglion.engines.llama.engine import LlamaEngine
from ganglion.engines.settings import EngineSettings
from ganglion.registry.stores.sighted import read_whole_facts
from support import reference_eyes
from support.embedded_model import kept_open
from support.projector_files import noise_png, write_ears, write_projector

pytestmark = [pytest.mark.model, pytest.mark.asyncio]
KINDS = {
    "slices": ("full", "idefics3", ("\n\n", "<fake_token_around_image>", "<global-img>")),
    "both directions": ("sliding window", "gemma3", ("<start_of_image>", "<end_of_image>")),
    "coordinates": (COORDINATES, "qwen2vl_merger", ("<|vision_start|>", "<|vision_end|>")),
}
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '; ' }}"
    "{% endfor %}"
)
CLOSE = 0.03
"""Nats: activations have 8 bits."""
UNREADABLE = tuple(range(3, 3 + 32)) + tuple(range(3 + 127, 3 + 256))
"""Bytes that are no letters: answers stay text."""


def kind_of(path: Path, kind: str) -> tuple[Path, Path]:
    text, projector, signs = KINDS[kind]
    model = path / "model.gguf"
    write_model(model, text, signs)
    eyes = write_projector(path / "mmproj-f16.gguf", kind=projector, width=WIDTH, seed=3)
    return model, eyes


def asking(*files: bytes, kind: Literal["image", "audio"] = "image") -> Request:
    attachments = tuple(Attachment(file, 0, kind) for file in files)
    message = Message("user", "what is it", attachments=attachments)
    sampling = Sampling(temperature=0.0, logit_bias=tuple((token, -100.0) for token in UNREADABLE))
    return Request("r", "m", ChatPrompt((message,)), sampling=sampling, max_tokens=6, top_logprobs=3)


@dataclass(frozen=True, slots=True)
class Answer:
    """`likeliest` are the logprobs of what could have come first."""

    text: str
    prompt_tokens: int
    cached_tokens: int
    likeliest: tuple[float, ...]


async def answer(engine: LlamaEngine, request: Request) -> Answer:
    text = ""
    likeliest: tuple[float, ...] = ()
    async for event in engine.generate(request):
        match event:
            case Delta():
                text += event.text
                likeliest = likeliest or tuple(each.logprob for each in event.tokens[0].top)
            case Failed(error=error):
                raise error
            case Finished(usage=usage):
                return Answer(text, usage.prompt_tokens, usage.cached_tokens, likeliest)
            case _:
                pass
    raise AssertionError("no end")


async def reference(
    model: Path, eyes: Path, questions: list[list[dict[str, object]]]
) -> list[tuple[str, int, list[float]]]:
    """What the library's own server answers when these parts stand before the question."""
    bodies = [
        {
            "messages": [{"role": "user", "content": [*parts, {"type": "text", "text": "what is it"}]}],
            "max_tokens": 6,
            "temperature": 0,
            "logprobs": True,
            "top_logprobs": 3,
            "logit_bias": [[token, -100.0] for token in UNREADABLE],
        }
        for parts in questions
    ]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, reference_eyes.__file__, str(model), str(eyes), TEMPLATE),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=os.environ | {"GOMP_SPINCOUNT": "1000"},  # else a busy neighbour costs it ten times the time
    )
    output, _ = await asyncio.wait_for(process.communicate(json.dumps(bodies).encode()), 120)
    answers: list[tuple[str, int, list[float]]] = json.loads(output)
    return answers


def check(ours: list[Answer], expected: list[tuple[str, int, list[float]]]) -> None:
    for own, (text, prompt_tokens, likeliest) in zip(ours, expected, strict=True):
        assert (own.text, own.prompt_tokens) == (text, prompt_tokens)
        assert own.likeliest == pytest.approx(likeliest, abs=CLOSE)
    firsts = [own.likeliest[0] for own in ours]
    assert max(firsts) - min(firsts) > 2 * CLOSE, "what it takes in makes a difference"


def image_part(file: bytes) -> dict[str, object]:
    url = f"data:image/png;base64,{base64.b64encode(file).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


@pytest.mark.parametrize("kind", KINDS)
async def test_each_kind_is_answered_as_by_the_library_s_own_server(kind: str, tmp_path: Path) -> None:
    model, eyes = kind_of(tmp_path, kind)
    wide, small = noise_png(1, 320, 200), noise_png(2, 90, 140)
    questions = [[wide], [small], [small, wide]]
    expected = await reference(model, eyes, [list(map(image_part, files)) for files in questions])
    facts = read_whole_facts(model)
    settings = EngineSettings("m", context=1024, parallel=4, chat_template=TEMPLATE)
    engine = LlamaEngine(facts, settings)
    async with kept_open(engine):
        ours = [await answer(engine, asking(*files)) for files in questions]
        check(ours, expected)
        again = await answer(engine, asking(wide))
        assert again.text == ours[0].text
        if kind != "both directions":  # whose cache keeps windows, and is not cut
            assert again.cached_tokens == again.prompt_tokens - 1
        # What follows a picture, and what comes beside another, is where it was.
        together = await asyncio.gather(*(answer(engine, asking(*files)) for files in reversed(questions)))
        assert [each.text for each in reversed(together)] == [each.text for each in ours]


async def test_marker_tokens_are_tokens_and_rows_are_not(tmp_path: Path) -> None:
    model, eyes = kind_of(tmp_path, "coordinates")
    engine = LlamaEngine(read_whole_facts(model), EngineSettings("m", context=1024, chat_template=TEMPLATE))
    async with kept_open(engine):
        placed = await engine.place_image("m", noise_png(2, 90, 140), "image/png")
        read = await engine.read(asking(noise_png(2, 90, 140)))
        assert read.tokens.count(PLACEHOLDER) == placed.count
    assert GGUFReader(eyes).fields["clip.projector_type"].contents() == "qwen2vl_merger"


def tone(pitch: float) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as written:
        written.setnchannels(1)
        written.setsampwidth(2)
        written.setframerate(16_000)
        samples = 8_000 * np.sin(2 * np.pi * pitch * np.arange(24_000) / 16_000)
        written.writeframes(samples.astype("<i2").tobytes())
    return file.getvalue()


def sound_part(file: bytes) -> dict[str, object]:
    return {
        "type": "input_audio",
        "input_audio": {"data": base64.b64encode(file).decode(), "format": "wav"},
    }


async def test_a_sound_is_answered_as_by_the_library_s_own_server(tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    write_model(model, "full")
    ears = write_ears(tmp_path / "mmproj-f16.gguf", width=WIDTH)
    files = [tone(220), tone(1760)]
    expected = await reference(model, ears, [[sound_part(file)] for file in files])
    facts = read_whole_facts(model)
    assert "audio" in facts.capabilities
    assert "vision" not in facts.capabilities
    engine = LlamaEngine(facts, EngineSettings("m", context=1024, chat_template=TEMPLATE))
    async with kept_open(engine):
        ours = [await answer(engine, asking(file, kind="audio")) for file in files]
        check(ours, expected)
        with pytest.raises(VisionUnsupported):
            await answer(engine, asking(noise_png(1)))
        with pytest.raises(InvalidValue, match="WAV"):
            await answer(engine, asking(b"ID3", kind="audio"))
