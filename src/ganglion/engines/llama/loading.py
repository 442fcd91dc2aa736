"""Which way a plan's model is loaded."""

from ganglion.engines.llama.library import Library
from ganglion.engines.llama.native_model import NativeModel, load_model
from ganglion.engines.llama.plan import EnginePlan
from ganglion.engines.llama.recast import load_recast


def load(library: Library, plan: EnginePlan) -> NativeModel:
    """Load the model of a plan; raises LoadFailed."""
    if plan.is_recast:
        return load_recast(library, plan.path)
    return load_model(library, plan.path, gpu_layers=plan.gpu_layers)
