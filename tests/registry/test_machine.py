"""What the machine is, on this one and on ones laid out in folders."""

import os
import platform
import socket
import struct
import sys
from pathlib import Path

import pytest

from ganglion import __version__
from ganglion.cli.system.this_machine import installed_engines
from ganglion.core.machine import Accelerator, Device, EngineFacts, Memory
from ganglion.engines.llama.native import library_files
from ganglion.engines.llama.native.library_files import accelerators_of, needed_by
from ganglion.registry.machine.describe import (
    can_accelerate,
    describe,
    gpu_engine,
    has_nvidia_card,
    read_cpu,
    why_unusable,
)
from ganglion.registry.machine.nvml import GpuSurvey, load_nvml

pytestmark = pytest.mark.process  # the platform module runs `uname`
MEMORY = Memory(16 * 2**30, 8 * 2**30)
CARD = GpuSurvey(Accelerator("CUDA 12.8", "570.86"), (Device(0, "H200", 143771, "9.0"),))
CPU_ONLY = EngineFacts("llama", "2026.1", "bundled", ())
WITH_CUDA = EngineFacts("llama", "2026.1", "GANGLION_LIBLLAMA", ("cuda",))


def test_this_machine_is_described_without_loading_the_library() -> None:
    machine = describe(
        engines=installed_engines(),
        memory=MEMORY,
        cores=2,
        environment=os.environ,
        nvml=load_nvml(),
    )
    assert machine.hostname == socket.gethostname()
    assert machine.kernel == platform.release()
    assert machine.os
    assert machine.cpu.model
    assert machine.cpu.cores == 2
    assert machine.memory_total_mb == 16 * 1024
    assert [engine.name for engine in machine.engines] == ["echo", "llama"]
    assert machine.engines[0].version == __version__
    assert machine.devices
    assert "xllamacpp" not in sys.modules


def test_without_an_accelerator_the_processor_is_the_device() -> None:
    machine = describe(engines=(), memory=MEMORY, cores=1, environment={}, nvml=None, root=Path("nowhere"))
    assert [(device.index, device.memory_total_mb) for device in machine.devices] == [(-1, 16 * 1024)]
    assert machine.accelerator is None
    assert machine.accelerator_unusable is None


@pytest.mark.parametrize(
    ("cpuinfo", "model", "flags"),
    [
        (
            "processor\t: 0\nmodel name\t: A Processor\nflags\t\t: fpu sse4_2 fma f16c bmi2 avx2 avx512f\n"
            "\nprocessor\t: 1\nmodel name\t: Another\nflags\t\t: fpu\n",
            "A Processor",
            ("sse4_2", "avx2", "fma", "f16c", "bmi2", "avx512f"),
        ),
        ("Features\t: fp asimd asimddp i8mm\nHardware\t: Board\n", "Board", ("asimd", "asimddp", "i8mm")),
    ],
)
def test_flags_that_matter_are_picked_from_the_first_core(
    tmp_path: Path, cpuinfo: str, model: str, flags: tuple[str, ...]
) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(cpuinfo)
    cpu = read_cpu(tmp_path, 4)
    assert (cpu.model, cpu.flags, cpu.cores) == (model, flags, 4)


def test_a_card_on_the_bus_is_seen_and_a_sound_chip_is_not(tmp_path: Path) -> None:
    card = tmp_path / "sys/bus/pci/devices/0000:01:00.0"
    card.mkdir(parents=True)
    (card / "vendor").write_text("0x10de\n")
    (card / "class").write_text("0x040300\n")
    assert not has_nvidia_card(tmp_path)
    (card / "class").write_text("0x030200\n")
    assert has_nvidia_card(tmp_path)
    assert not has_nvidia_card(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("found", "library", "environment", "has_card", "words"),
    [
        (GpuSurvey(), CPU_ONLY, {}, False, None),
        (GpuSurvey(), CPU_ONLY, {}, True, "no driver"),
        (GpuSurvey(problem="Driver/library version mismatch"), CPU_ONLY, {}, True, "version mismatch"),
        (CARD, CPU_ONLY, {}, True, "built for the CPU only. Build it for the GPU (ganglion engines build"),
        (CARD, EngineFacts("llama", "1", "GANGLION_LIBLLAMA", ()), {}, True, "-DGGML_CUDA=ON"),
        (CARD, EngineFacts("llama", "1", "built", ()), {}, True, "build llama --cuda"),
        (CARD, None, {}, True, "pip install xllamacpp"),
        (CARD, WITH_CUDA, {"CUDA_VISIBLE_DEVICES": ""}, True, "CUDA_VISIBLE_DEVICES hides"),
        (CARD, WITH_CUDA, {"CUDA_VISIBLE_DEVICES": "0"}, True, None),
        (CARD, EngineFacts("llama", "1", "bundled", None), {}, True, None),
    ],
)
def test_an_accelerator_that_does_nothing_is_explained(found, library, environment, has_card, words) -> None:
    reason = why_unusable(found, library, environment, has_card=has_card)
    if words is None:
        assert reason is None
    else:
        assert words in reason
        assert not (found.devices and can_accelerate(library, environment))


def test_a_card_that_one_engine_uses_does_work() -> None:
    vllm = EngineFacts("vllm", "0.32.0", accelerators=("cuda",))
    assert CPU_ONLY is not None
    assert gpu_engine((CPU_ONLY, vllm)) == vllm
    assert gpu_engine((WITH_CUDA, vllm)) == WITH_CUDA
    assert gpu_engine((CPU_ONLY, EngineFacts("vllm", "0.32.0", accelerators=()))) == CPU_ONLY
    assert gpu_engine(()) is None


def elf(*needed: str) -> bytes:
    """A small shared library: a header, one segment that holds all, and the table of what it needs."""
    strings = b"\0" + b"".join(name.encode() + b"\0" for name in needed)
    offsets = [strings.index(name.encode() + b"\0") for name in needed]
    strings_at = 64 + 2 * 56
    dynamic_at = strings_at + len(strings)
    tags = [(1, offset) for offset in offsets] + [(5, 0x1000 + strings_at), (0, 0)]
    dynamic = b"".join(struct.pack("<qQ", *tag) for tag in tags)
    size = dynamic_at + len(dynamic)
    header = b"\x7fELF\x02\x01" + bytes(10)
    header += struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0)
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, 0x1000, 0x1000, size, size, 4096)
    of_dynamic = struct.pack(
        "<IIQQQQQQ", 2, 6, dynamic_at, 0x1000 + dynamic_at, 0, len(dynamic), len(dynamic), 8
    )
    return header + load + of_dynamic + strings + dynamic


def test_what_a_library_was_built_for_is_read_from_its_file(tmp_path: Path) -> None:
    whole, split = tmp_path / "whole.so", tmp_path / "libllama.so"
    whole.write_bytes(elf("libc.so.6", "libcublas-1a2b3c.so.12", "libcuda.so.1"))
    split.write_bytes(elf("libggml.so", "libm.so.6"))
    assert needed_by(whole) == ("libc.so.6", "libcublas-1a2b3c.so.12", "libcuda.so.1")
    assert accelerators_of(whole) == ("cuda",)
    assert accelerators_of(split) == ()
    (tmp_path / "libggml.so").write_bytes(elf("libggml-vulkan.so", "libggml.so"))
    assert accelerators_of(split) == ("vulkan",)
    library = library_files.describe("llama", "1", {"GANGLION_LIBLLAMA": str(whole)})
    assert library is not None
    assert (library.library, library.accelerators) == ("GANGLION_LIBLLAMA", ("cuda",))


def test_the_bundled_library_says_what_it_was_built_for() -> None:
    library = library_files.describe("llama", "1", {})
    assert library is not None
    assert library.library == "bundled"
    assert library.accelerators == ()


def test_a_damaged_library_says_nothing_and_breaks_nothing(tmp_path: Path) -> None:
    sound = elf("libcuda.so.1", "libc.so.6")
    file = tmp_path / "damaged.so"
    for place in range(len(sound)):
        for value in (0, 0xFF):
            file.write_bytes(sound[:place] + bytes([value]) + sound[place + 1 :])
            accelerators_of(file)
        file.write_bytes(sound[:place])
        accelerators_of(file)
    assert accelerators_of(tmp_path / "missing.so") is None
