"""Real questions about pictures that the model was not taught, by people's own clients on every wire.

The model is the embedded one with the projector of `tools/eyes`, in one folder as a user lays them.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Final

import anthropic
import ollama
import openai
import pytest
from tools.eyes.describe import Question, is_right

from ganglion.client import Client, Image
from support.pictures import base64_of, data_uri
from support.ports import free_port
from support.real_node import Node, running_node
from support.seeing import SeeingModel, laid_side_by_side, questions

pytestmark = pytest.mark.model

ANSWER_TOKENS: Final = 16
LEAST_RIGHT: Final = 0.9
SYSTEM: Final = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> SeeingModel:
    return laid_side_by_side(tmp_path_factory.mktemp("seeing"))


@pytest.fixture(scope="module")
def node(files: SeeingModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    home = tmp_path_factory.mktemp("home")
    with running_node(home, str(files.model), "--context", "2048", "--port", str(free_port())) as running:
        yield running


@pytest.fixture(scope="module")
def model(node: Node) -> str:
    (listed,) = json.loads(node.get("/v1/models"))["data"]
    assert "vision" in listed["capabilities"]
    name: str = listed["id"]
    return name


@cache
def openai_client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", _strict_response_validation=True)


def by_chat(node: Node, model: str, asked: Question) -> str:
    picture = {"type": "image_url", "image_url": {"url": data_uri(asked.png)}}
    content = [picture, {"type": "text", "text": asked.text}]
    answer = openai_client(node.url).chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": content}],  # type: ignore[list-item, misc]
        temperature=0,
        max_completion_tokens=ANSWER_TOKENS,
    )
    return answer.choices[0].message.content or ""


def by_responses(node: Node, model: str, asked: Question) -> str:
    content = [
        {"type": "input_image", "image_url": data_uri(asked.png), "detail": "auto"},
        {"type": "input_text", "text": asked.text},
    ]
    answer = openai_client(node.url).responses.create(
        model=model,
        input=[{"role": "user", "content": content}],  # type: ignore[list-item, misc]
        temperature=0,
        max_output_tokens=ANSWER_TOKENS,
    )
    return answer.output_text


def by_messages(node: Node, model: str, asked: Question) -> str:
    client = anthropic.Anthropic(base_url=node.url, api_key="none", _strict_response_validation=True)
    source = {"type": "base64", "media_type": "image/png", "data": base64_of(asked.png)}
    content = [{"type": "image", "source": source}, {"type": "text", "text": asked.text}]
    with client:
        answer = client.messages.create(
            model=model,
            messages=[{"role": "user", "content": content}],  # type: ignore[typeddict-item]
            extra_body={"temperature": 0},  # the newest SDK no longer names it
            max_tokens=ANSWER_TOKENS,
        )
    (block,) = answer.content
    assert block.type == "text"
    return block.text


def by_ollama(node: Node, model: str, asked: Question) -> str:
    client = ollama.Client(node.url, timeout=60)
    try:
        message = {"role": "user", "content": asked.text, "images": [base64_of(asked.png)]}
        options = {"temperature": 0, "num_predict": ANSWER_TOKENS}
        return client.chat(model, [message], options=options).message.content or ""
    finally:
        client.close()


def by_session(node: Node, model: str, asked: Question) -> str:
    with Client(node.url) as client, client.session(model) as session:
        session.append(f"{SYSTEM}<|im_start|>user\n")
        session.append(Image.of(asked.png))
        session.append(f"{asked.text}<|im_end|>\n<|im_start|>assistant\n")
        return session.generate(max_tokens=ANSWER_TOKENS, temperature=0.0).text().removesuffix("<|im_end|>")


def test_it_answers_nine_of_ten_questions_about_pictures_that_it_was_not_taught(
    node: Node, model: str
) -> None:
    asked, right = Counter[str](), Counter[str]()
    for question in questions(80, seed=11):
        asked[question.kind] += 1
        right[question.kind] += is_right(by_chat(node, model, question), question.answer)
    assert {"colour", "shape", "digit"} <= asked.keys()
    wrong = {kind: (right[kind], asked[kind]) for kind in asked if right[kind] < LEAST_RIGHT * asked[kind]}
    assert not wrong


@pytest.mark.parametrize("ask", [by_responses, by_messages, by_ollama, by_session])
def test_every_wire_is_told_the_same(
    node: Node, model: str, ask: Callable[[Node, str, Question], str]
) -> None:
    for question in questions(6, seed=3):
        assert ask(node, model, question) == by_chat(node, model, question)


def test_a_terminal_shows_a_picture(files: SeeingModel, tmp_path: Path) -> None:
    question = next(each for each in questions(20, seed=4) if each.kind == "colour")
    (tmp_path / "thing.png").write_bytes(question.png)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "ganglion.cli.main", "chat", str(files.model), "--temperature", "0"),
            *("--image", "thing.png", "--ask", question.text),
        ],
        env={**os.environ, "GANGLION_HOME": str(tmp_path / "home"), "NO_COLOR": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert is_right(done.stdout, question.answer)


def test_a_picture_survives_fork_save_and_restore(node: Node, model: str) -> None:
    question = next(each for each in questions(20, seed=5) if each.kind == "colour")
    with Client(node.url) as client, client.session(model) as session:
        session.append(f"{SYSTEM}<|im_start|>user\n")
        session.append(Image.of(question.png))
        session.append(f"{question.text}<|im_end|>\n<|im_start|>assistant\n")
        with session.fork() as fork, client.restore(session.save()) as restored:
            for each in (fork, restored, session):
                said = each.generate(max_tokens=ANSWER_TOKENS, temperature=0.0).text()
                assert is_right(said.removesuffix("<|im_end|>"), question.answer)
