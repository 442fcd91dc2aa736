"""Ollama's own client against a real node with the real model."""

import ollama
import pytest

from support.real_node import MODEL, Node

pytestmark = pytest.mark.model

ASKED = [{"role": "user", "content": "Name one colour."}]


def test_a_real_model_answers_ollamas_client(node: Node) -> None:
    client = ollama.Client(node.url, timeout=60)
    try:
        options = {"temperature": 0, "num_predict": 12, "num_ctx": 4096}
        whole = client.chat(MODEL, ASKED, options=options)
        parts = list(client.chat(f"{MODEL}:latest", ASKED, options=options, stream=True))
        assert whole.message.content
        assert "".join(part.message.content for part in parts) == whole.message.content
        assert parts[-1].done_reason == whole.done_reason
        assert whole.prompt_eval_count > 0
        assert 0 < whole.eval_count <= 12
        assert whole.total_duration >= whole.eval_duration > 0
        raw = client.generate(MODEL, "One, two, three,", raw=True, options=options)
        assert raw.response
        (listed,) = client.list().models
        assert (listed.model, listed.details.family) == (MODEL, "llama")
        assert listed.size > 10_000_000
        shown = client.show(MODEL)
        assert shown.modelinfo["llama.context_length"] == 2048
        assert "completion" in shown.capabilities
        assert shown.template
        assert client.ps().models[0].model == MODEL
    finally:
        client.close()
