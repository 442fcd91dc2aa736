"""What went wrong while vLLM loaded a model, as an error of ours with what to do about it.

vLLM raises what it finds in the configuration; what happens in processes of its own it only writes down, and
what is raised then says "see above". Both are read for the few reasons that a person can do something about.
"""

import re
from collections.abc import Callable, Iterable
from typing import Final

from ganglion.core.errors import GanglionError, InsufficientMemory, InsufficientVideoMemory, LoadFailed

_LONGEST: Final = 1200
_GIB: Final = 1024
_PREFIX: Final = re.compile(r"^\s*(?:\([^)]*pid=\d+[^)]*\)\s*)?(?:[A-Z]+ \d\d-\d\d [\d:]+ \[[^\]]*\]\s?)?")
"""What vLLM writes before a line: the process, the level, the time and the place."""
_RAISED: Final = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception|Interrupt): \S")
_SECOND_HAND: Final = (
    "Engine core initialization failed",
    "WorkerProc initialization failed",
    "See root cause",
    "failed to be inspected",
)
_VALIDATION: Final = re.compile(r"^\d+ validation errors? for \w+\s*\n\s*", re.MULTILINE)
_DETAILS: Final = re.compile(r"\s*\[type=.*", re.DOTALL)


def load_error(error: BaseException, lines: Iterable[str], *, on_processor: bool) -> GanglionError:
    """The error of a failed load: from what was raised, and from the last lines that were written."""
    if isinstance(error, GanglionError):
        return error
    raised = _worded(f"{type(error).__name__}: {error}")
    is_second_hand = any(each in raised for each in _SECOND_HAND)
    reason = _root_cause(lines) or raised if is_second_hand else raised
    for pattern, make in _KNOWN:
        if (found := pattern.search(reason)) is not None:
            return make(reason, found, on_processor)
    return LoadFailed(f"vLLM cannot load the model: {_short(reason)}", hint=_GENERAL)


_GENERAL: Final = (
    "vLLM's own messages stand in the log; engine.vllm in the configuration changes how it loads."
)


def _root_cause(lines: Iterable[str]) -> str | None:
    """The last error that some process wrote which is not about another process's."""
    found = None
    bare = [_PREFIX.sub("", line) for line in lines]
    for number, line in enumerate(bare):
        if _RAISED.match(line) and not any(each in line for each in _SECOND_HAND):
            found = _worded(
                "\n".join([line, *bare[number + 1 : number + 4]]) if "validation" in line else line
            )
    return found


def _worded(message: str) -> str:
    """An error without its class and without what pydantic writes around it."""
    message = re.sub(r"^(?:\w+\.)*\w*(?:Error|Exception): ", "", message)
    if _VALIDATION.search(message):
        message = _DETAILS.sub("", _VALIDATION.sub("", message)).removeprefix("Value error, ")
    return message.strip()


def _short(reason: str) -> str:
    text = " ".join(reason.split())[:_LONGEST].rstrip(".")
    return f"{text}."


_MakeError = Callable[[str, "re.Match[str]", bool], GanglionError]


def _remote_code(reason: str, _: "re.Match[str]", __: bool) -> GanglionError:
    return LoadFailed(
        "The checkpoint brings Python code of its own, which is not run.",
        hint="If you trust whoever wrote it with all that this user may do, set "
        "engine.vllm.trust_remote_code; else choose another checkpoint.",
    )


def _missing_package(_: str, found: "re.Match[str]", __: bool) -> GanglionError:
    return LoadFailed(
        f"vLLM reads this family of models with the Python package {found['name']!r}, which its environment "
        "lacks.",
        hint="vLLM's build for processors comes without torchvision, torchaudio and torchcodec. Run the "
        "model on a GPU, or look for it as GGUF.",
    )


def _unknown_kind(reason: str, _: "re.Match[str]", __: bool) -> GanglionError:
    return LoadFailed(
        f"vLLM does not know what this model is: {_short(reason)}",
        hint="A newer vLLM may: `ganglion engines install vllm`. Else look for the model as GGUF.",
    )


def _too_little(free_gib: float, required_gib: float, on_processor: bool, hint: str) -> GanglionError:
    kind = InsufficientMemory if on_processor else InsufficientVideoMemory
    where = "memory" if on_processor else "GPU memory"
    return kind(
        f"The model needs about {required_gib * _GIB:.0f} MiB of {where} and {free_gib * _GIB:.0f} MiB are "
        "free.",
        free_mb=round(free_gib * _GIB),
        required_mb=round(required_gib * _GIB),
        hint=hint,
    )


def _over_budget(_: str, found: "re.Match[str]", on_processor: bool) -> GanglionError:
    return _too_little(
        float(found["free"]),
        float(found["needed"]),
        on_processor,
        "Lower engine.vllm.gpu_memory_share, or unload what else is there.",
    )


def _cache_too_small(_: str, found: "re.Match[str]", on_processor: bool) -> GanglionError:
    return _too_little(
        float(found["free"]),
        float(found["needed"]),
        on_processor,
        "Lower engine.context, or raise engine.vllm.gpu_memory_share (kv_cache_gb on a processor).",
    )


def _no_cache(_: str, __: "re.Match[str]", on_processor: bool) -> GanglionError:
    kind = InsufficientMemory if on_processor else InsufficientVideoMemory
    return kind(
        "The weights leave no memory for a KV cache.",
        free_mb=0,
        required_mb=1,
        hint="Raise engine.vllm.gpu_memory_share, use more GPUs, or choose a smaller model.",
    )


def _allocation(_: str, found: "re.Match[str]", on_processor: bool) -> GanglionError:
    scale = {"KiB": 2.0**-20, "MiB": 2.0**-10, "GiB": 1.0}
    needed = float(found["needed"]) * scale[found["unit"]]
    free = float(found["free"]) * scale[found["free_unit"]]
    return _too_little(
        free, needed, on_processor, "Choose a smaller model, more GPUs, or a shorter engine.context."
    )


def _bytes_allocation(_: str, found: "re.Match[str]", on_processor: bool) -> GanglionError:
    return _too_little(
        0.0, int(found["needed"]) / 2**30, on_processor, "Choose a smaller model, or a smaller KV cache."
    )


_KNOWN: Final[tuple[tuple["re.Pattern[str]", _MakeError], ...]] = (
    (re.compile(r"trust_remote_code|custom code"), _remote_code),
    (re.compile(r"No module named '(?P<name>torchvision|torchaudio|torchcodec)"), _missing_package),
    (
        re.compile(
            r"[Mm]odel architectures? .{0,200}(?:not supported|failed to be inspected)"
            r"|does not recognize this architecture|no vLLM implementation|Cannot find model module"
            r"|has no SupportedModel",
            re.DOTALL,
        ),
        _unknown_kind,
    ),
    (
        re.compile(
            r"(?:Free|Available) memory on .{1,40}? \((?P<free>[\d.]+)/[\d.]+ GiB\).*?"
            r"(?:, |\()(?P<needed>[\d.]+)(?:/[\d.]+)? GiB\)",
            re.DOTALL,
        ),
        _over_budget,
    ),
    (
        re.compile(
            r"(?P<needed>[\d.]+) GiB KV\s+cache is needed.*?"
            r"available KV cache\s+memory \((?P<free>[\d.]+) GiB",
            re.DOTALL,
        ),
        _cache_too_small,
    ),
    (re.compile(r"No available memory for the cache blocks"), _no_cache),
    (
        re.compile(
            r"out of memory\. Tried to allocate (?P<needed>[\d.]+) (?P<unit>[KMG]iB).*?"
            r"of which (?P<free>[\d.]+) (?P<free_unit>[KMG]iB) is free",
            re.DOTALL,
        ),
        _allocation,
    ),
    (re.compile(r"can't allocate memory: you tried to allocate (?P<needed>\d+) bytes"), _bytes_allocation),
)
"""Words in vLLM's messages, and what they mean to a person; the first that is found is taken."""
