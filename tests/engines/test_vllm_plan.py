"""What a vLLM worker is told, what the settings may not say, and what becomes of vLLM's own errors."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from ganglion.core.attachments import MAX_ATTACHMENTS
from ganglion.core.errors import (
    GanglionError,
    InsufficientMemory,
    InsufficientVideoMemory,
    InvalidValue,
    LoadFailed,
    UnsupportedParameter,
)
from ganglion.core.model import ModelFacts
from ganglion.core.request import TokenRequest
from ganglion.core.sampling import ResolvedSampling, Samplers
from ganglion.engines.settings import EngineSettings
from ganglion.engines.vllm.unsupported import check_request
from ganglion.engines.vllm.vllm_plan import VllmPlan, plan
from ganglion.engines.vllm.worker.load_errors import load_error
from ganglion.engines.vllm_settings import VllmSettings

FACTS = ModelFacts(
    path="/models/one/model.safetensors",
    size_bytes=2**30,
    modified_s=0,
    architecture="llama",
    name="one",
    context_length=4096,
    block_count=2,
    kv_values_per_token=1024,
    vocabulary_size=1000,
)


SEEING = replace(FACTS, capabilities=("chat", "vision", "completion"))


def planned(
    *,
    facts: ModelFacts = FACTS,
    free_bytes: int = 2**40,
    variables: dict[str, str] | None = None,
    **changes: object,
) -> VllmPlan:
    own = {name: changes.pop(name) for name in list(changes) if name in VllmSettings.__struct_fields__}
    settings = EngineSettings(model_id="m", vllm=structs.replace(VllmSettings(), **own))
    settings = structs.replace(settings, **changes)
    return plan(settings, facts, free_bytes=free_bytes, on_processor=True, variables=variables or {})


SAID = {
    "dtype": ("float16", "dtype", "float16"),
    "quantization": ("awq", "quantization", "awq"),
    "gpu_memory_share": (0.5, "gpu_memory_utilization", 0.5),
    "kv_dtype": ("fp8", "kv_cache_dtype", "fp8"),
    "kv_cache_gb": (3, "kv_cache_memory_bytes", 3 * 2**30),
    "chunked_prefill": (False, "enable_chunked_prefill", False),
    "eager": (True, "enforce_eager", True),
    "speculative": ('{"method": "ngram"}', "speculative_config", {"method": "ngram"}),
    "attention_backend": ("FLASH_ATTN", "attention_backend", "FLASH_ATTN"),
    "tensor_parallel": (2, "tensor_parallel_size", 2),
    "pipeline_parallel": (2, "pipeline_parallel_size", 2),
    "data_parallel": (2, "data_parallel_size", 2),
    "executor": ("ray", "distributed_executor_backend", "ray"),
    "trust_remote_code": (True, "trust_remote_code", True),
    "extra": ('{"seed": 7}', "seed", 7),
}
"""Each setting, a value, and the argument of vLLM's that it becomes."""


@pytest.mark.parametrize("name", SAID)
def test_every_setting_becomes_the_argument_that_it_stands_for(name: str) -> None:
    value, argument, expected = SAID[name]
    assert planned(**{name: value}).arguments[argument] == expected
    assert planned().arguments.get(argument) != expected


def test_no_setting_is_left_out() -> None:
    elsewhere = {"python", "devices"}
    assert set(SAID) | elsewhere == set(VllmSettings.__struct_fields__)


def test_a_checkpoint_that_sees_takes_as_many_pictures_as_a_request_may_have_and_no_films() -> None:
    seeing = planned(facts=SEEING)
    assert seeing.sees
    assert seeing.arguments["limit_mm_per_prompt"] == {"image": MAX_ATTACHMENTS, "video": 0, "audio": 0}
    fewer = planned(facts=SEEING, extra='{"limit_mm_per_prompt": {"image": 2}}')
    assert fewer.sees
    assert fewer.arguments["limit_mm_per_prompt"] == {"image": 2, "video": 0, "audio": 0}
    assert not planned().sees
    assert "limit_mm_per_prompt" not in planned().arguments


@pytest.mark.parametrize(
    "extra",
    [
        '{"limit_mm_per_prompt": {"image": 0}}',
        '{"limit_mm_per_prompt": {"image": {"count": 0}}}',
        '{"language_model_only": true}',
    ],
)
def test_a_checkpoint_that_sees_can_be_loaded_for_text_alone(extra: str) -> None:
    assert not planned(facts=SEEING, extra=extra).sees


def test_devices_are_all_that_the_worker_sees() -> None:
    environment = planned(devices=("1", "3")).environment
    assert environment["CUDA_VISIBLE_DEVICES"] == environment["HIP_VISIBLE_DEVICES"] == "1,3"
    assert "CUDA_VISIBLE_DEVICES" not in planned().environment


def test_the_engines_own_settings_are_honoured_as_well() -> None:
    arguments = planned(context=512, parallel=3, kv_tokens=4096, threads=3).arguments
    assert (arguments["max_model_len"], arguments["max_num_seqs"]) == (512, 3)
    assert arguments["kv_cache_memory_bytes"] == 256 * 2**20, "vLLM needs some for its own"
    assert planned(kv_tokens=2**20).arguments["kv_cache_memory_bytes"] == 2**20 * 1024 * 2
    assert planned(threads=3).environment["OMP_NUM_THREADS"] == "3"


def test_the_operators_environment_wins_over_our_defaults_and_not_over_what_must_be() -> None:
    written = {"VLLM_LOGGING_LEVEL": "DEBUG", "VLLM_WORKER_MULTIPROC_METHOD": "fork"}
    environment = planned(variables=written).environment
    assert "VLLM_LOGGING_LEVEL" not in environment
    assert environment["VLLM_WORKER_MULTIPROC_METHOD"] == "spawn"


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"is_deterministic": True}, "engine.deterministic"),
        ({"kv_type": "q8_0"}, "engine.kv_type"),
        ({"gpu_layers": 3}, "engine.gpu_layers"),
        ({"extra": "seed=7"}, "engine.vllm.extra"),
        ({"extra": "[7]"}, "engine.vllm.extra"),
        ({"extra": '{"trust_remote_code": true}'}, "engine.vllm.extra"),
        ({"extra": '{"model": "/elsewhere"}'}, "engine.vllm.extra"),
        ({"speculative": "{"}, "engine.vllm.speculative"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_its_name(changes: dict[str, object], param: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        planned(**changes)
    assert caught.value.param == param
    assert caught.value.hint


def test_too_little_memory_is_told_before_anything_starts() -> None:
    with pytest.raises(InsufficientMemory) as caught:
        planned(free_bytes=2**30)
    assert caught.value.free_mb == 1024 < caught.value.required_mb
    assert caught.value.hint


def test_weights_that_do_not_fit_the_gpus_are_told_before_anything_starts() -> None:
    settings = EngineSettings(model_id="m")
    with pytest.raises(InsufficientVideoMemory) as caught:
        plan(settings, FACTS, free_bytes=2**40, free_video_bytes=2**29, on_processor=False, variables={})
    assert (caught.value.free_mb, caught.value.required_mb) == (512, 1024)
    spread = structs.replace(settings, vllm=VllmSettings(tensor_parallel=8, executor="ray"))
    far = plan(spread, FACTS, free_bytes=2**40, free_video_bytes=2**29, on_processor=False, variables={})
    assert far.arguments["distributed_executor_backend"] == "ray", "other machines have the rest"


def test_devices_are_counted_as_the_driver_counts_them() -> None:
    settings = EngineSettings(model_id="m", vllm=VllmSettings(devices=("1", "3"), tensor_parallel=2))
    environment = plan(
        settings, FACTS, free_bytes=2**40, free_video_bytes=2**40, on_processor=False, variables={}
    ).environment
    assert (environment["CUDA_VISIBLE_DEVICES"], environment["CUDA_DEVICE_ORDER"]) == ("1,3", "PCI_BUS_ID")


@pytest.mark.parametrize(
    ("samplers", "param"),
    [
        (Samplers(typical_p=0.5), "typical_p"),
        (Samplers(top_n_sigma=1.0), "top_n_sigma"),
        (Samplers(xtc_probability=0.5), "xtc_probability"),
        (Samplers(dry_multiplier=1.0), "dry_multiplier"),
        (Samplers(mirostat=2), "mirostat"),
        (Samplers(dynatemp_range=0.5), "dynatemp_range"),
        (Samplers(repeat_last_n=64), "repeat_last_n"),
    ],
)
def test_a_sampler_that_vllm_has_not_is_refused_by_its_name(samplers: Samplers, param: str) -> None:
    with pytest.raises(UnsupportedParameter) as caught:
        check_request(TokenRequest("r", (1,), 8, sampling=ResolvedSampling(samplers=samplers)))
    assert caught.value.param == param


@pytest.mark.parametrize(
    "samplers",
    [
        Samplers(),
        Samplers(repeat_last_n=0, xtc_threshold=0.5, dry_base=2.0, mirostat_tau=1.0, dynatemp_exponent=2.0),
        Samplers(top_n_sigma=0.0, dry_multiplier=1.0, dry_penalty_last_n=0),
        Samplers(allowed_token_ids=(1, 2)),
    ],
)
def test_a_sampler_that_does_nothing_is_not_refused(samplers: Samplers) -> None:
    check_request(TokenRequest("r", (1,), 8, sampling=ResolvedSampling(samplers=samplers)))


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"min_tokens": 3}, "min_tokens"),
        (
            {"sampling": ResolvedSampling(samplers=Samplers(allowed_token_ids=(1,)))},
            "allowed_token_ids",
        ),
    ],
)
def test_what_vllm_cannot_do_beside_a_format_is_refused(changes: dict[str, object], param: str) -> None:
    with pytest.raises(UnsupportedParameter) as caught:
        check_request(TokenRequest("r", (1,), 8, grammar='start: "a"', **changes))  # type: ignore[arg-type]
    assert caught.value.param == param


SECOND_HAND = RuntimeError("Engine core initialization failed. See root cause above. Failed core proc(s): {}")
BEFORE = "(EngineCore pid=7) ERROR 11-18 22:07:41 [core.py:1512] "


@pytest.mark.parametrize(
    ("line", "kind", "free_mb", "required_mb"),
    [
        (
            "ValueError: Free memory on device cuda:0 (3.50/79.10 GiB) on startup is less than desired GPU "
            "memory utilization (0.9, 71.19 GiB). Decrease GPU memory utilization.",
            InsufficientVideoMemory,
            3584,
            72899,
        ),
        (
            "ValueError: To serve at least one request with the model's max seq len (131072), (16.00 GiB KV "
            "cache is needed, which is larger than the available KV cache memory (2.50 GiB). Based on",
            InsufficientVideoMemory,
            2560,
            16384,
        ),
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
            "capacity of 79.10 GiB of which 512.00 MiB is free. Process 1 has",
            InsufficientVideoMemory,
            512,
            2048,
        ),
        ("ValueError: No available memory for the cache blocks. Try", InsufficientVideoMemory, 0, 1),
    ],
)
def test_too_little_gpu_memory_is_read_out_of_what_another_process_wrote(
    line: str, kind: type[InsufficientMemory], free_mb: int, required_mb: int
) -> None:
    lines = [
        BEFORE + "Traceback (most recent call last):",
        BEFORE + line,
        "RuntimeError: " + str(SECOND_HAND),
    ]
    error = load_error(SECOND_HAND, lines, on_processor=False)
    assert type(error) is kind
    assert (error.free_mb, error.required_mb) == (free_mb, required_mb)
    assert error.hint


@pytest.mark.parametrize(
    ("raised", "said", "hinted"),
    [
        (
            "1 validation error for ModelConfig\n  Value error, Model architectures ['OddForCausalLM'] are "
            "not supported for now. [type=value_error, input_value=1]",
            "OddForCausalLM",
            "GGUF",
        ),
        (
            "Please pass the argument `trust_remote_code=True` to allow custom code to be run.",
            "Python code",
            "trust",
        ),
        ("AsyncEngineArgs.__init__() got an unexpected keyword argument 'sede'", "sede", "engine.vllm"),
    ],
)
def test_what_vllm_refuses_is_told_with_what_to_do(raised: str, said: str, hinted: str) -> None:
    error = load_error(ValueError(raised), [], on_processor=False)
    assert isinstance(error, LoadFailed)
    assert said in error.message
    assert "type=value_error" not in error.message
    assert error.hint is not None
    assert hinted in error.hint


def test_a_family_that_wants_torchvision_is_refused_with_the_package_that_is_missing() -> None:
    raised = ValueError("Model architectures ['OddForConditionalGeneration'] failed to be inspected. Please")
    lines = [
        BEFORE + "Traceback (most recent call last):",
        BEFORE + "ModuleNotFoundError: No module named 'torchvision'",
    ]
    error = load_error(raised, lines, on_processor=True)
    assert "torchvision" in error.message
    assert error.hint is not None
    assert "GGUF" in error.hint
    assert "OddFor" in load_error(raised, [], on_processor=True).message


def test_an_error_of_ours_stays_what_it_is() -> None:
    error: GanglionError = LoadFailed("no tokenizer")
    assert load_error(error, [], on_processor=True) is error


ALLOWED = {"PIL", "msgspec", "numpy", "psutil", "safetensors", "tokenizers", "torch", "vllm", "ganglion"}
"""What vLLM's environment has for certain: vLLM depends on the first seven."""


def test_what_a_worker_imports_of_ours_needs_nothing_but_what_vllm_brings() -> None:
    """In an interpreter that finds nothing but what is allowed, and in place of vLLM what has all names."""
    code = """
import importlib, importlib.abc, importlib.machinery, pathlib, sys, types
allowed = set(sys.argv[2:]) | set(sys.stdlib_module_names)
class Any(types.ModuleType):
    __path__ = []
    def __getattr__(self, name):
        return type(name, (), {})
class Guard(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        root = name.partition(".")[0]
        if root in {"vllm", "tokenizers", "torch"}:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        if root not in allowed and not root.startswith("_"):
            raise ModuleNotFoundError(f"a worker imports {name}", name=name)
    def create_module(self, spec):
        return Any(spec.name)
    def exec_module(self, module):
        pass
sys.meta_path.insert(0, Guard())
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.py")):
    importlib.import_module(f"ganglion.engines.vllm.worker.{path.stem}")
"""
    worker = Path(sys.modules[load_error.__module__].__file__ or "").parent
    done = subprocess.run(
        [sys.executable, "-c", code, str(worker), *ALLOWED], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
