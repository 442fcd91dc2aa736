"""Vectors and ranks of a model that vLLM runs to pool what it read, and not to generate.

Law: what leaves is what the checkpoint's pooling made, without vLLM's own last step (a length of 1, a
sigmoid): those are the same for every engine, and are done by ours.
"""

import asyncio
import math
from collections.abc import Sequence
from contextlib import aclosing
from itertools import count
from typing import Any, Final, Literal

from vllm.inputs.engine import tokens_input
from vllm.pooling_params import PoolingParams
from vllm.v1.engine.async_llm import AsyncLLM

from ganglion.core.errors import LoadFailed
from ganglion.engines.supervision.ipc import Embed, Vectors
from ganglion.engines.vllm.worker.checkpoint_vocabulary import CheckpointVocabulary

_PooledAs = Literal["embed", "classify"]
_SECOND_KIND: Final = 2
"""Kinds of tokens of a model that was trained to tell the second text of a pair from the first."""


class Pooler:
    """Answers questions for vectors."""

    def __init__(self, llm: AsyncLLM, task: _PooledAs, separator: int | None) -> None:
        """`separator` ends the first text of a pair, where the model is told which one a token is of."""
        self._llm = llm
        self._task: _PooledAs = task
        self._separator = separator
        self._numbers = count()

    @property
    def ranks(self) -> bool:
        """Whether what it makes of an input is a rank and not a vector."""
        return self._task == "classify"

    async def answer(self, question: Embed) -> Vectors:
        """A vector of each input, read together."""
        reading = [asyncio.create_task(self._read(tokens)) for tokens in question.inputs]
        try:
            found = [await each for each in reading]
        finally:
            for each in reading:
                each.cancel()
            await asyncio.gather(*reading, return_exceptions=True)
        if question.is_normalized and not self.ranks:
            found = [_normalized(vector) for vector in found]
        return Vectors(question.id, [vector.numpy().tobytes() for vector in found])

    async def _read(self, tokens: list[int]) -> Any:
        params = PoolingParams(task=self._task, use_activation=False, extra_kwargs=self._second_text(tokens))
        answer = self._llm.encode(tokens_input(tokens), params, f"pool-{next(self._numbers)}")
        found: Any = None
        async with aclosing(answer) as outputs:
            async for output in outputs:
                found = output.outputs.data
        return found.float().reshape(-1).contiguous()

    def _second_text(self, tokens: Sequence[int]) -> dict[str, Any] | None:
        """Where the second text of a pair begins, in vLLM's words."""
        if self._separator is None or self._separator not in tokens:
            return None
        return {"compressed_token_type_ids": tokens.index(self._separator) + 1}


async def open_pooler(llm: AsyncLLM, vocabulary: CheckpointVocabulary) -> Pooler:
    """The pooler of an engine, once it has read an input; raises LoadFailed for a model of another kind."""
    tasks = await llm.get_supported_tasks()
    config = llm.vllm_config.model_config.hf_config
    if "embed" in tasks:
        pooler = Pooler(llm, "embed", None)
    elif "classify" in tasks and getattr(config, "num_labels", 1) == 1:
        has_kinds = getattr(config, "type_vocab_size", 0) >= _SECOND_KIND
        special = vocabulary.special_tokens
        separator = special.eos if special.eos is not None else special.separator
        pooler = Pooler(llm, "classify", separator if has_kinds else None)
    else:
        raise LoadFailed(
            f"The checkpoint makes neither vectors nor one rank of an input, but {', '.join(sorted(tasks))}.",
            hint="Models that sort into several classes are not served.",
        )
    await pooler.answer(Embed(0, [[0, 1, 2, 3]], is_normalized=False))
    return pooler


def _normalized(vector: Any) -> Any:
    """The vector with a length of 1; nothing stays nothing."""
    length = math.sqrt(float(vector.double().square().sum()))
    return vector if length == 0.0 else (vector.double() / length).float()
