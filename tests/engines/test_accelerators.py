"""What the library says of its devices, and what is told of a model that was placed on them, or was not."""

import pytest

from ganglion.core.errors import InsufficientVideoMemory, LoadFailed
from ganglion.engines.llama.native.accelerators import placement, refusal
from ganglion.engines.llama.native.model import split_shares
from ganglion.engines.llama.native.probe import LibraryDevice, accelerators_among, probe
from ganglion.engines.llama.plan import EnginePlan

GIBIBYTE = 2**30
PLAN = EnginePlan(
    path="/models/eight.gguf",
    context=8192,
    kv_contexts=(),
    parked_tokens=0,
    parallel=64,
    threads=4,
    kv_type="f16",
    gpu_layers=99,
    is_deterministic=False,
    required_bytes=0,
    video_bytes=15 * GIBIBYTE,
    is_accelerated=True,
    layer_count=33,
)


def devices(*free_gib: float) -> tuple[LibraryDevice, ...]:
    return tuple(
        LibraryDevice(f"CUDA{number}", "H200", "gpu", int(free * GIBIBYTE), 139 * GIBIBYTE)
        for number, free in enumerate(free_gib)
    )


@pytest.mark.process
def test_the_bundled_library_knows_no_device_beside_the_processor(monkeypatch) -> None:
    monkeypatch.delenv("GANGLION_LIBLLAMA", raising=False)
    found = probe(None).devices
    assert found, "at least the processor"
    assert accelerators_among(found) == ()


@pytest.mark.parametrize(
    ("before", "after", "line"),
    [
        ((139,), (123.8,), "33 of 33 layers on CUDA0 (H200), 15.2 GiB of 139.0 GiB"),
        (
            (139, 100),
            (131, 93),
            "33 of 33 layers on CUDA0 (H200), 8.0 GiB of 139.0 GiB and CUDA1 (H200), 7.0 GiB of 139.0 GiB",
        ),
        ((139, 100), (139, 93), "33 of 33 layers on CUDA1 (H200), 7.0 GiB of 139.0 GiB"),
        ((), (), ""),
    ],
)
def test_one_line_says_where_the_layers_went(before, after, line) -> None:
    assert placement(PLAN, devices(*before), devices(*after)) == line


def test_a_load_that_ran_out_of_video_memory_says_how_much_there_was() -> None:
    error = LoadFailed("the file could not be loaded: cudaMalloc failed: out of memory")
    told = refusal(PLAN, error, devices(4, 2))
    assert isinstance(told, InsufficientVideoMemory)
    assert (told.extras["free_mb"], told.extras["required_mb"]) == (6 * 1024, 15 * 1024)


def test_any_other_failure_stays_what_it_is() -> None:
    error = LoadFailed("unknown model architecture: 'bert9'")
    assert refusal(PLAN, error, devices(4)) is error
    full = LoadFailed("out of memory")
    assert refusal(PLAN, full, ()) is full, "without an accelerator it was the machine's"


def test_shares_are_filled_up_and_too_many_are_refused() -> None:
    assert split_shares((3.0, 1.0), 4) == [3.0, 1.0, 0.0, 0.0]
    with pytest.raises(LoadFailed, match="knows 2 at most"):
        split_shares((1.0, 1.0, 1.0), 2)
