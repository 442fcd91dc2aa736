"""Models of a real node: reloaded names, and conversations that outlive a swap."""

import json
import signal
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from support.real_node import Node, running_node

pytestmark = pytest.mark.model

STORY = "Once upon a time there was a cat who lived by the sea and counted the waves. " * 8


def call(node: Node, path: str, body: object = None, key: str | None = None) -> tuple[int, dict]:
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{node.url}{path}", data, headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def chat(node: Node, messages: list, key: str | None = None, model: str = "smollm2") -> tuple[int, dict]:
    body = {"model": model, "messages": messages, "max_tokens": 8, "temperature": 0}
    return call(node, "/v1/chat/completions", body, key)


def reload(node: Node, home: Path, said: str) -> None:
    """Send SIGHUP, and wait until the log says what came of it."""
    before = (home / "node.log").read_text().count(said)
    node.process.send_signal(signal.SIGHUP)
    deadline_s = time.monotonic() + 10
    while (home / "node.log").read_text().count(said) == before:
        assert time.monotonic() < deadline_s, (home / "node.log").read_text()
        time.sleep(0.02)


def test_sighup_puts_names_and_keys_into_force_and_a_wrong_file_changes_nothing(tmp_path: Path) -> None:
    config, manifest = tmp_path / "config.toml", tmp_path / "models.yaml"
    config.write_text('[server]\napi_keys = ["first"]\n')
    hello = [{"role": "user", "content": "Hello"}]
    with running_node(tmp_path, "--context", "512", "--kv-tokens", "2048") as node:
        assert chat(node, hello, "first", "tiny")[0] == 404
        manifest.write_text("smollm2-135m-instruct: {aliases: [tiny]}\n")
        config.write_text('[server]\napi_keys = ["second"]\n')
        reload(node, tmp_path, "the configuration was reloaded")
        assert chat(node, hello, "first", "tiny")[0] == 401
        status, answer = chat(node, hello, "second", "tiny")
        assert (status, answer["usage"]["completion_tokens"]) == (200, 8)
        manifest.write_text("smollm2-135m-instruct: {aliasses: [other]}\n")
        config.write_text('[server]\napi_keys = ["third"]\n')
        reload(node, tmp_path, "the configuration was not reloaded")
        assert "Did you mean" in (tmp_path / "node.log").read_text()
        assert chat(node, hello, "second", "tiny")[0] == 200
        assert chat(node, hello, "third", "tiny")[0] == 401


def test_a_conversation_finds_its_prompt_again_after_its_model_was_swapped(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": STORY}]
    with running_node(tmp_path, "--context", "1024", "--kv-tokens", "4096") as node:
        _, answer = chat(node, turns)
        prompt_tokens = answer["usage"]["prompt_tokens"]
        assert call(node, "/models/unload", {"model_id": "smollm2"})[0] == 200
        assert call(node, "/models/load", {"model_id": "smollm2"})[0] == 200
        turns += [answer["choices"][0]["message"], {"role": "user", "content": "And then?"}]
        _, answer = chat(node, turns)
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] >= prompt_tokens - 1
    with running_node(tmp_path, "--context", "1024", "--kv-tokens", "4096") as node:
        _, answer = chat(node, turns)
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] >= prompt_tokens - 1
