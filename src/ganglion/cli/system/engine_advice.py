"""Which engine would serve this machine best, why, and what to type for it. Pure: facts in, words out."""

from dataclasses import dataclass
from typing import Final

_INSTALL: Final = "ganglion engines install vllm --cuda"
_BUILD: Final = "ganglion engines build llama"


@dataclass(frozen=True, slots=True)
class EngineSituation:
    """What the advice depends on."""

    has_nvidia: bool
    """A GPU that NVIDIA's driver shows, and that is not hidden."""
    has_amd: bool
    """An AMD card on the bus."""
    has_rocm: bool
    """The kernel's interface for ROCm."""
    is_apple: bool
    """A Mac with a processor of Apple's."""
    llama_offloads: bool
    """The library that a worker would open can put layers on an accelerator."""
    vllm_version: str | None
    vllm_has_cuda: bool
    """The vLLM that is installed was built for CUDA."""


@dataclass(frozen=True, slots=True)
class EngineAdvice:
    """The best engine in words, and what to type while it is not here."""

    best: str
    to_do: str | None = None


def advise(here: EngineSituation) -> EngineAdvice:
    """The engine that would serve this machine best."""
    if here.has_nvidia:
        return _for_nvidia(here)
    if here.is_apple:
        return _for_llama(here, "Apple's GPU", "--metal")
    if here.has_amd:
        return _for_llama(here, "the AMD GPU", "--hip" if here.has_rocm else "--vulkan")
    if here.llama_offloads:
        return EngineAdvice("llama.cpp on the accelerator that its library found, for GGUF files")
    best = "the bundled llama.cpp, for GGUF files: there is no GPU here that we know how to use"
    if here.vllm_version is not None:
        return EngineAdvice(f"{best}; vLLM {here.vllm_version} runs checkpoints on the processor, slowly")
    return EngineAdvice(best)


def _for_nvidia(here: EngineSituation) -> EngineAdvice:
    """vLLM where many clients share a GPU; llama.cpp for the files that vLLM is not made for."""
    has_vllm = here.vllm_version is not None and here.vllm_has_cuda
    checkpoints = (
        f"vLLM {here.vllm_version} for Hugging Face checkpoints"
        if has_vllm
        else "vLLM for Hugging Face checkpoints and many clients (not here)"
    )
    files = f"llama.cpp on the GPU for GGUF files{'' if here.llama_offloads else ' (not here)'}"
    missing = [
        *(() if has_vllm else (_INSTALL,)),
        *(() if here.llama_offloads else (f"{_BUILD} --cuda",)),
    ]
    to_do = " and, for GGUF files, ".join(missing) if len(missing) > 1 else "".join(missing)
    return EngineAdvice(f"{checkpoints}; {files}", to_do or None)


def _for_llama(here: EngineSituation, gpu: str, flag: str) -> EngineAdvice:
    if here.llama_offloads:
        return EngineAdvice(f"llama.cpp on {gpu}, for GGUF files")
    return EngineAdvice(
        f"llama.cpp on {gpu}, for GGUF files; the library that is used now was built without it",
        f"{_BUILD} {flag}",
    )
