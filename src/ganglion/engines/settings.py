"""The `[engine]` section of the configuration, and what the loader adds to it for one model.

A field that its class docstring describes is a key of the section. Any other is the program's own: no file
sets it.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from ganglion.engines.supervision.watchdog import WorkerLimits
from ganglion.engines.table import DEFAULT_ENGINE, EngineName
from ganglion.engines.vllm_settings import VllmSettings

_KvType = Literal["f16", "q8_0", "q4_0"]


_SHARES = r"^\d{1,6}(\.\d{1,6})?(,\d{1,6}(\.\d{1,6})?){0,63}$"


class EngineSettings(Struct, frozen=True):
    """How models are run; None lets the engine decide from the model and the machine.

    name: The engine: one that runs GGUF files, or an echo that repeats the prompt, for trying out clients.
    threads: Threads of each worker; left out, the cores that this process may use.
    context: Longest single sequence, prompt and answer, in tokens; left out, the trained length, at most
        8192. A longer one is allowed, with a warning.
    kv_tokens: KV cache of all sequences together, in tokens, at least the context; left out, the context
        and 8192.
    parallel: Sequences that run at once; further ones wait.
    queue_limit: Requests that may wait besides; more are refused with `overloaded`.
    kv_type: Element type of the KV cache.
    gpu_layers: Layers to run on a GPU, the output counted as one; left out, all where the library knows a GPU
        and they fit, else as many as do; 0 for none.
    gpu_split: How much of the layers each GPU takes, in their order, as in `3,1`; left out, by what is free
        on each.
    gpu_main: The GPU, counted from 0, that takes the whole model in place of a split.
    graph_sampling: Draw tokens on the device that computes the logits, so that these need not leave it; a
        request that this cannot express is sampled on the processor. Left out, on a GPU only.
    deterministic: Make an answer independent of what else is running; slower.
    recast: Repack Q4_1 weights into another form of the same numbers, which is faster for batches and
        prompts.
    hang_s: Restart a worker that has work and takes no step for so many seconds.
    chat_template: A Jinja file, or the template itself, in place of the model's own; left out, the model's
        own, else ChatML.
    mmproj: The projector that lets a GGUF model see or hear; left out, the one beside the model; `none` loads
        it for text alone.
    converter_python: A Python with torch and transformers, to convert Hugging Face checkpoints for an engine
        that does not read them; left out, that of an installed engine.
    concepts: Concept packs to read out and to steer by: files, or names of those in the home folder's
        `concepts`. Each is loaded with the models that it was made for.
    """

    model_id: str = ""
    aliases: tuple[str, ...] = ()
    name: EngineName = DEFAULT_ENGINE
    threads: Annotated[int, Meta(ge=1)] | None = None
    context: Annotated[int, Meta(ge=1)] | None = None
    kv_tokens: Annotated[int, Meta(ge=1)] | None = None
    parallel: Annotated[int, Meta(ge=1)] = 64
    queue_limit: Annotated[int, Meta(ge=0)] = 256
    kv_type: _KvType = "f16"
    gpu_layers: Annotated[int, Meta(ge=0)] | None = None
    gpu_split: Annotated[str, Meta(pattern=_SHARES)] | None = None
    gpu_main: Annotated[int, Meta(ge=0, le=63)] | None = None
    graph_sampling: bool | None = None
    # An answer does not depend on its neighbours; decoding is 20 to 30 % slower.
    is_deterministic: bool = field(default=False, name="deterministic")
    is_recast: bool = field(default=True, name="recast")
    hang_s: Annotated[float, Meta(gt=0)] = WorkerLimits().hang_s
    chat_template: str | None = None
    mmproj: str | None = None
    converter_python: str | None = None
    concepts: tuple[str, ...] = ()
    vllm: VllmSettings = VllmSettings()

    kv_folder: str | None = None
    """Where hot prefixes are kept while the model is unloaded; None keeps none."""
    kv_folder_bytes: int = 2**30
    """How much may lie in that folder, over all models."""
    limits: WorkerLimits = WorkerLimits()
    """How long the worker may take for what, and how often it may die."""
