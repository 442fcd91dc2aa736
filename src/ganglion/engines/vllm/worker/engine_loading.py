"""Loads a checkpoint into vLLM's engine, and gets it ready for its first request."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.inputs import TokensPrompt
from vllm.inputs.engine import MultiModalInput
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.metrics.loggers import StatLoggerBase
from vllm.v1.metrics.stats import IterationStats, SchedulerStats

from ganglion.engines.concepts.pack import ConceptBook, check_shape, merge_packs, read_pack
from ganglion.engines.vllm.vllm_plan import VllmPlan
from ganglion.engines.vllm.worker.checkpoint_vocabulary import CheckpointVocabulary, written_tokenizer
from ganglion.engines.vllm.worker.picture_processing import PictureProcessor, open_pictures, with_pictures
from ganglion.engines.vllm.worker.pooling import Pooler, open_pooler
from ganglion.engines.vllm.worker.readout_exchange import ReadoutExchange, load_concepts
from ganglion.engines.vllm.worker.text_tokenizer import write_text_tokenizer

_PROCESSOR_BLOCK: Final = 32
"""Tokens of a block of KV on a processor, whose kernels want multiples of it; vLLM's own 128 is too coarse to
find most conversations again."""

_WARM_TOKENS: Final = 2

OnStep = Callable[[SchedulerStats], None]


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that answers."""

    llm: AsyncLLM
    vocabulary: CheckpointVocabulary
    kv_tokens: int
    """How many tokens the cache has room for."""
    can_bias: bool
    """Whether single tokens can be made likelier or impossible."""
    readouts: ReadoutExchange | None = None
    """None where no concepts are loaded."""
    pooler: Pooler | None = None
    """What makes vectors; None for a model that generates."""
    pictures: PictureProcessor | None = None
    """What processes pictures; None for a model that reads text alone."""


def is_on_processor() -> bool:
    """Whether vLLM computes on the processor here."""
    return bool(current_platform.is_cpu())


async def load(plan: VllmPlan, on_step: OnStep) -> LoadedModel:
    """Start vLLM's engine; `on_step` is called with the figures of each of its steps."""
    engine_config = _engine_arguments(plan).create_engine_config()
    concepts = _read_concepts(plan, engine_config.model_config)
    llm = AsyncLLM.from_vllm_config(
        engine_config,
        stat_loggers=[lambda config, index=0: _StepListener(on_step)],
        disable_log_stats=True,
    )
    config = llm.vllm_config
    tokenizer = llm.get_tokenizer()
    checkpoint = Path(plan.arguments["model"])
    vocabulary = CheckpointVocabulary(
        written_tokenizer(checkpoint, tokenizer),
        bos=plan.bos_token,
        eos=tokenizer.eos_token_id,
        ends=_ends(llm),
        vocabulary_size=config.model_config.get_vocab_size(),
    )
    cache = config.cache_config
    readouts = None
    if concepts is not None:

        async def call(method: str, arguments: tuple[Any, ...]) -> list[Any]:
            return list(await llm.collective_rpc(method, args=arguments))

        readouts = await load_concepts(call, concepts, plan.context)
    if config.model_config.runner_type == "pooling":
        pooler, pictures = await open_pooler(llm, vocabulary), None
    else:
        pooler, pictures = None, open_pictures(llm)
        await _warm_up(llm, pictures)
    return LoadedModel(
        llm,
        vocabulary,
        kv_tokens=(cache.num_gpu_blocks or 0) * (cache.block_size or 0),
        can_bias=config.speculative_config is None,
        readouts=readouts,
        pooler=pooler,
        pictures=pictures,
    )


def _read_concepts(plan: VllmPlan, model: Any) -> ConceptBook | None:
    """The plan's packs side by side, None for none; raises LoadFailed for what is not this model's."""
    packs = [read_pack(Path(path)) for path in plan.concepts]
    for pack in packs:
        check_shape(pack, model.get_hidden_size(), model.get_total_num_hidden_layers())
    return merge_packs(packs)


def _engine_arguments(plan: VllmPlan) -> AsyncEngineArgs:
    arguments: dict[str, Any] = dict(plan.arguments)
    checkpoint = Path(arguments["model"])
    arguments["tokenizer"] = str(
        write_text_tokenizer(checkpoint, Path(plan.folder) / "tokenizer", sees=plan.sees)
    )
    if "kv_cache_memory_bytes" in arguments:
        os.environ.pop("VLLM_CPU_KVCACHE_SPACE", None)  # it would win over what the settings say
    if is_on_processor():
        arguments.setdefault("kv_cache_memory_bytes", plan.processor_kv_bytes)
        arguments.setdefault("block_size", _PROCESSOR_BLOCK)
        if plan.sees:
            # The largest pictures, read to see what memory is left for a cache whose size is known.
            arguments.setdefault("skip_mm_profiling", True)
    return AsyncEngineArgs(**{name: value for name, value in arguments.items() if value is not None})


def _ends(llm: AsyncLLM) -> frozenset[int]:
    """The tokens that end an answer: the tokenizer's, and those that the checkpoint generates with."""
    ends = {llm.get_tokenizer().eos_token_id}
    configured = llm.input_processor.generation_config_fields.get("eos_token_id")
    ends.update(configured if isinstance(configured, list) else [configured])
    return frozenset(end for end in ends if end is not None)


async def _warm_up(llm: AsyncLLM, pictures: PictureProcessor | None) -> None:
    """Run what is compiled when it first runs: a greedy and a sampled token, as the first clients would."""
    prompts: list[TokensPrompt | MultiModalInput] = [
        TokensPrompt(prompt_token_ids=[0, 1, 2, 3], cache_salt="warm up")
    ]
    if pictures is not None:
        seen = pictures.probe()
        if len(seen.tokens) + _WARM_TOKENS < llm.model_config.max_model_len:
            prompts.append(with_pictures([*seen.tokens, 0], [(0, seen)], "warm up"))
    for number, prompt in enumerate(prompts):
        await _generate_two(llm, prompt, f"warm-up-{number}")


async def _generate_two(llm: AsyncLLM, prompt: TokensPrompt | MultiModalInput, name: str) -> None:
    """Two tokens twice, greedy and sampled."""
    for temperature in (0.0, 1.0):
        params = SamplingParams(
            temperature=temperature,
            top_p=0.9,
            top_k=10,
            max_tokens=_WARM_TOKENS,
            logprobs=1,
            prompt_logprobs=1,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        async for _ in llm.generate(prompt, params, f"{name}-{temperature}"):
            pass


class _StepListener(StatLoggerBase):  # type: ignore[misc]  # vLLM is absent where types are checked
    """Hears of each step of the engine."""

    def __init__(self, on_step: OnStep) -> None:
        self._on_step = on_step

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: object = None,
        engine_idx: int = 0,
    ) -> None:
        """Hand the scheduler's figures on."""
        if scheduler_stats is not None:
            self._on_step(scheduler_stats)

    def log_engine_initialized(self) -> None:
        """Nothing to say."""
