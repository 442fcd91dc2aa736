"""Pictures of each kind, on models of random weights: slices with marker tokens, rows that see each other in
both directions, and rows with coordinates. Each is answered as the library's own server answers.
"""

import asyncio
import base64
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from gguf import GGUFReader

from engines.attention_kinds import COORDINATES, WIDTH, write_model
from ganglion.core.events import Delta, Failed, Finished
from ganglion.core.request import PLACEHOLDER, Attachment, ChatPrompt, Message, Request
from ganglion.core.sampling import Sampling
from ganglion.engines.llama.engine import LlamaEngine
from ganglion.engines.settings import EngineSettings
from ganglion.registry.stores.sighted import read_whole_facts
from support import reference_eyes
from support.embedded_model import kept_open
from support.projector_files import noise_png, write_projector

pytestmark = [pytest.mark.model, pytest.mark.asyncio]
KINDS = {
    "slices": ("full", "idefics3", ("\n\n", "<fake_token_around_image>", "<global-img>")),
    "both directions": ("sliding window", "gemma3", ("<start_of_image>", "<end_of_image>")),
    "coordinates": (COORDINATES, "qwen2vl_merger", ("<|vision_start|>", "<|vision_end|>")),
}
TEMPLATE = "{{ bos_token }}{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '; ' }}{% endfor %}"
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


def asking(*files: bytes, text: str = "what is it", more: tuple[Message, ...] = ()) -> Request:
    message = Message("user", text, attachments=tuple(Attachment(file, 0) for file in files))
    sampling = Sampling(temperature=0.0, logit_bias=tuple((token, -100.0) for token in UNREADABLE))
    return Request("r", "m", ChatPrompt((message, *more)), sampling=sampling, max_tokens=6, top_logprobs=3)


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


async def reference(model: Path, eyes: Path, questions: list[list[bytes]]) -> list[list[object]]:
    bodies = [
        {
            "messages": [
                {
                    "role": "user",
                    "content": [*map(image_part, files), {"type": "text", "text": "what is it"}],
                }
            ],
            "max_tokens": 6,
            "temperature": 0,
            "logprobs": True,
            "top_logprobs": 3,
            "logit_bias": [[token, -100.0] for token in UNREADABLE],
        }
        for files in questions
    ]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, reference_eyes.__file__, str(model), str(eyes), TEMPLATE),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    output, _ = await asyncio.wait_for(process.communicate(json.dumps(bodies).encode()), 120)
    answers: list[list[object]] = json.loads(output)
    return answers


def image_part(file: bytes) -> dict[str, object]:
    url = f"data:image/png;base64,{base64.b64encode(file).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


@pytest.mark.parametrize("kind", KINDS)
async def test_each_kind_is_answered_as_by_the_library_s_own_server(kind: str, tmp_path: Path) -> None:
    model, eyes = kind_of(tmp_path, kind)
    wide, small = noise_png(1, 320, 200), noise_png(2, 90, 140)
    questions = [[wide], [small], [small, wide]]
    expected = await reference(model, eyes, questions)
    facts = read_whole_facts(model)
    settings = EngineSettings("m", context=1024, parallel=4, chat_template=TEMPLATE)
    engine = LlamaEngine(facts, settings)
    async with kept_open(engine):
        ours = [await answer(engine, asking(*files)) for files in questions]
        for own, (text, prompt_tokens, likeliest) in zip(ours, expected, strict=True):
            assert (own.text, own.prompt_tokens) == (text, prompt_tokens)
            assert own.likeliest == pytest.approx(likeliest, abs=CLOSE)
        firsts = [own.likeliest[0] for own in ours]
        assert max(firsts) - min(firsts) > 2 * CLOSE, "what it sees makes a difference"
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
