"""vLLM without a server: AsyncLLM in this process, for `benchmarks.gpu`, which runs it in vLLM's environment.

Its argument is JSON; each line of stdout that begins with {"measure" is one figure. Weights are made up.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import sys
import time


async def measure(asked: dict) -> None:  # type: ignore[type-arg]  # this file runs in another environment
    from vllm import SamplingParams
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine.async_llm import AsyncLLM

    longest = max([*asked["long"], asked["prompt"] + asked["output"]]) + 16
    engine = AsyncLLM.from_engine_args(
        AsyncEngineArgs(
            model=asked["checkpoint"],
            load_format="dummy",
            skip_tokenizer_init=True,
            max_model_len=longest,
            max_num_seqs=max(asked["streams"]),
            disable_log_stats=True,
        )
    )
    numbers = itertools.count()

    async def one(
        prompt: int, output: int, temperature: float, top_p: float
    ) -> tuple[float, float, float, int]:
        ids = [random.randrange(300, asked["vocabulary"]) for _ in range(prompt)]
        params = SamplingParams(
            max_tokens=output,
            min_tokens=output,
            ignore_eos=True,
            temperature=temperature,
            top_p=top_p,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        sent_s, first_s, tokens = time.perf_counter(), 0.0, 0
        async for part in engine.generate({"prompt_token_ids": ids}, params, f"r{next(numbers)}"):
            tokens += len(part.outputs[0].token_ids)
            first_s = first_s or time.perf_counter()
        return sent_s, first_s, time.perf_counter(), tokens

    def say(measure: str, value: float, unit: str) -> None:
        print(json.dumps({"measure": measure, "value": value, "unit": unit}), flush=True)

    await one(asked["prompt"], asked["output"], 0.0, 1.0)
    for streams in asked["streams"]:
        for kind, chance in (("streams", (0.0, 1.0)), ("sampled", tuple(asked["sampled"]))):
            runs = await asyncio.gather(
                *(one(asked["prompt"], asked["output"], *chance) for _ in range(streams))
            )
            lasted_s = max(run[2] for run in runs) - min(run[0] for run in runs)
            say(f"{streams} {kind}", sum(run[3] for run in runs) / lasted_s, "tok/s")
            if kind == "streams":
                first = sorted(run[1] - run[0] for run in runs)
                say(f"first token of {streams}", first[len(first) // 2], "s")
                say(f"all first tokens of {streams}", first[-1], "s")
    for length in asked["long"]:
        sent_s, first_s, _, _ = await one(length, 4, 0.0, 1.0)
        say(f"prompt of {length}", first_s - sent_s, "s")
    engine.shutdown()


if __name__ == "__main__":
    asyncio.run(measure(json.loads(sys.argv[1])))
