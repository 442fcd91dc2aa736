"""lm-eval against a node with the embedded model: the scores are those of the model itself.

The harness speaks completions with echo and logprobs, and takes the node's own tokenizer; the expected scores
come from raw logits in this process, without engine or wire.
"""

import asyncio
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from python_clients import HERE, needs, run_in

from ganglion.engines.llama.native.library import open_library
from ganglion.engines.llama.native.repack import load_repacked
from ganglion.registry.hub.embedded import SMOLLM2, find
from support.real_node import MODEL, Node, running_node

found = find(SMOLLM2, Path("nowhere"))
pytestmark = [
    needs("lm_eval"),
    pytest.mark.model,
    pytest.mark.skipif(found is None, reason="the embedded model is not installed"),
]
Json = dict[str, Any]
FACTS = HERE / "python" / "facts"
CLOSE = 1e-3
HOW = {
    "token ids, one by one": ("num_concurrent=1", "1"),
    "token ids, many at once": ("num_concurrent=4", "8"),
    "texts, many at once": ("num_concurrent=4,tokenized_requests=False", "8"),
}
"""Further arguments of the model, and the size of a batch."""


@dataclass(frozen=True)
class Answered:
    """A question as a model answers it: the logprob of each choice, and whether it is the likeliest text."""

    logprobs: list[float]
    are_greedy: list[bool]
    lengths: list[int]
    answer: int

    @property
    def is_right(self) -> bool:
        return int(np.argmax(self.logprobs)) == self.answer

    @property
    def is_right_by_length(self) -> bool:
        return int(np.argmax(np.array(self.logprobs) / np.array(self.lengths))) == self.answer


@pytest.fixture(scope="module")
def direct() -> list[Answered]:
    """Every choice scored by the log-softmax over the raw logits of its tokens, in float64."""
    assert found is not None
    model = load_repacked(open_library(), str(found.path))
    context = model.new_context(
        cells=512, slots=1, is_unified=True, batch=512, threads=1, kv_type="f16", flash_attention=None
    )

    def score(asked: list[int], choice: list[int]) -> tuple[float, bool]:
        """After a question that was run up to its last token."""
        context.trim(0, len(asked) - 1)
        rows = context.decode(
            [(0, len(asked) - 1 + at, [token], True) for at, token in enumerate([asked[-1], *choice[:-1]])]
        )
        logprob, is_greedy = 0.0, True
        for row, token in zip(rows, choice, strict=True):
            assert row is not None
            logits = context.logits(row).astype(np.float64)
            logprob += float(logits[token] - logits.max() - np.log(np.exp(logits - logits.max()).sum()))
            is_greedy &= int(np.argmax(logits)) == token
        return logprob, is_greedy

    answers = []
    for line in (FACTS / "facts.jsonl").read_text().splitlines():
        fact = json.loads(line)
        question = f"Question: {fact['question']}\nAnswer:"
        asked, *whole = (
            list(model.tokenize(text, add_special=False, parse_special=True))
            for text in (question, *(f"{question} {choice}" for choice in fact["choices"]))
        )
        assert all(tokens[: len(asked)] == asked for tokens in whole)
        context.trim(0, 0)
        context.decode([(0, 0, asked[:-1], False)])
        scores = [score(asked, tokens[len(asked) :]) for tokens in whole]
        lengths = [len(choice) for choice in fact["choices"]]
        answers.append(
            Answered([each for each, _ in scores], [each for _, each in scores], lengths, fact["answer"])
        )
    return answers


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running_node(tmp_path_factory.mktemp("home"), "--strict") as running:
        yield running


async def harness(node: Node, home: Path, further: str, batch_size: str) -> tuple[Json, list[Json]]:
    """The results and the samples that lm-eval writes of the task."""
    shutil.copytree(FACTS, home, dirs_exist_ok=True)
    arguments = f"model={MODEL},base_url={node.url}/v1/completions,{further}"
    await run_in(
        "lm_eval",
        *("lm_eval", "--model", "local-completions", "--model_args", arguments),
        *("--batch_size", batch_size),
        *("--tasks", "facts", "--include_path", ".", "--output_path", "out", "--log_samples"),
        home=home,
    )
    (results,) = await asyncio.to_thread(lambda: list(home.glob("out/**/results_*.json")))
    (samples,) = await asyncio.to_thread(lambda: list(home.glob("out/**/samples_*.jsonl")))
    told = [json.loads(line) for line in samples.read_text().splitlines()]
    return json.loads(results.read_text())["results"]["facts"], sorted(told, key=lambda each: each["doc_id"])


@pytest.mark.parametrize("how", HOW)
async def test_the_score_is_that_of_the_model_itself(
    node: Node, direct: list[Answered], tmp_path: Path, how: str
) -> None:
    results, samples = await harness(node, tmp_path, *HOW[how])
    assert len(samples) == len(direct) == 20
    for sample, answered in zip(samples, direct, strict=True):
        heard = [(float(logprob), str(is_greedy) == "True") for [[logprob, is_greedy]] in sample["resps"]]
        assert [logprob for logprob, _ in heard] == pytest.approx(answered.logprobs, abs=CLOSE)
        assert [is_greedy for _, is_greedy in heard] == answered.are_greedy
    assert results["acc,none"] == np.mean([answered.is_right for answered in direct])
    assert results["acc_norm,none"] == np.mean([answered.is_right_by_length for answered in direct])
    assert 0.25 < results["acc,none"] < 1.0, "a score that anything would give says nothing"
