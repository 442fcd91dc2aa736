"""Which way a plan's model is loaded."""

import logging

from ganglion.engines.llama.library import Library
from ganglion.engines.llama.native_model import NativeModel, load_model
from ganglion.engines.llama.plan import EnginePlan
from ganglion.engines.llama.recast import load_recast

logger = logging.getLogger("ganglion.engines")


def load(library: Library, plan: EnginePlan) -> NativeModel:
    """Load the model of a plan; raises LoadFailed."""
    if plan.gpu_layers and not library.lib.llama_supports_gpu_offload():
        logger.warning(
            "%d layers were to run on a GPU, and this llama.cpp knows none: all run on the processor."
            " docs/gpu.md says how to build one that does.",
            plan.gpu_layers,
        )
    if plan.is_recast:
        return load_recast(library, plan.path)
    return load_model(library, plan.path, gpu_layers=plan.gpu_layers)
