"""The programs that a build of llama.cpp takes, found before it begins, or named with what to install.

Law: nothing is compiled before everything that we can look for is there. What only CMake can look for, such
as a header, it says itself, and `explain` adds what to install.
"""

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

from ganglion.core.errors import EngineUnavailable, InvalidValue

BackendName = Literal["cpu", "cuda", "vulkan", "hip", "metal"]
BACKENDS: Final[tuple[BackendName, ...]] = get_args(BackendName)
_ASK_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class _Tool:
    """One program that a build takes, by the names that it goes by."""

    what: str
    names: tuple[str, ...]
    hint: str
    folders: tuple[str, ...] = ()
    """Where it lies when it is not on the path; `$NAME` is a variable of the environment."""

    def find(self) -> Path | None:
        """Where it is; None where it is not."""
        for name in self.names:
            found = shutil.which(name)
            if found is not None:
                return Path(found)
            for folder in self.folders:
                expanded = os.path.expandvars(folder)
                found = None if "$" in expanded else shutil.which(name, path=expanded)
                if found is not None:
                    return Path(found)
        return None


_CMAKE: Final = _Tool("CMake", ("cmake",), "apt install cmake, brew install cmake, or pip install cmake")
_COMPILER: Final = _Tool(
    "a C++ compiler", ("c++", "g++", "clang++"), "apt install g++, or xcode-select --install on a Mac"
)
_MAKE: Final = _Tool("Ninja or Make", ("ninja", "make", "gmake"), "apt install ninja-build")
_NVCC: Final = _Tool(
    "CUDA's compiler nvcc",
    ("nvcc",),
    "Install NVIDIA's CUDA toolkit (developer.nvidia.com/cuda-downloads), or set CUDA_HOME to where it lies",
    ("$CUDA_HOME/bin", "$CUDA_PATH/bin", "/usr/local/cuda/bin", "/opt/cuda/bin"),
)
_GLSLC: Final = _Tool(
    "Vulkan's shader compiler glslc",
    ("glslc",),
    "apt install glslc libvulkan-dev, or install the Vulkan SDK and set VULKAN_SDK",
    ("$VULKAN_SDK/bin",),
)
_HIPCC: Final = _Tool(
    "ROCm's compiler hipcc",
    ("hipcc",),
    "Install AMD's ROCm with its HIP packages, or set ROCM_PATH to where it lies",
    ("$ROCM_PATH/bin", "$HIP_PATH/bin", "/opt/rocm/bin"),
)
_XCRUN: Final = _Tool("Xcode's command line tools", ("xcrun",), "xcode-select --install")


@dataclass(frozen=True, slots=True)
class _Backend:
    """What a build for one kind of device takes, and tells CMake."""

    tools: tuple[_Tool, ...]
    options: tuple[str, ...]
    system: str | None = None
    """The only system that it can be built on."""


_BACKENDS: Final[dict[BackendName, _Backend]] = {
    "cpu": _Backend((), ("GGML_METAL=OFF",)),
    "cuda": _Backend((_NVCC,), ("GGML_CUDA=ON",)),
    "vulkan": _Backend((_GLSLC,), ("GGML_VULKAN=ON",)),
    "hip": _Backend((_HIPCC,), ("GGML_HIP=ON",)),
    "metal": _Backend((_XCRUN,), ("GGML_METAL=ON", "GGML_METAL_EMBED_LIBRARY=ON"), system="Darwin"),
}


@dataclass(frozen=True, slots=True)
class Toolchain:
    """Everything for one build, found."""

    backend: BackendName
    cmake: Path
    generator: str
    options: tuple[str, ...]
    environment: dict[str, str]
    compiler: str
    """In words, for the receipt."""


def find_toolchain(backend: BackendName) -> Toolchain:
    """The programs for a backend; raises what is missing, all of it at once."""
    kind = _BACKENDS[backend]
    if kind.system is not None and platform.system() != kind.system:
        raise InvalidValue(
            f"--{backend} builds on macOS only; this is {platform.system()}.",
            param=backend,
            hint="ganglion doctor says what fits this machine.",
        )
    tools = (_CMAKE, _COMPILER, _MAKE, *kind.tools)
    found = {tool.what: tool.find() for tool in tools}
    missing = [tool for tool in tools if found[tool.what] is None]
    if missing:
        raise EngineUnavailable(
            f"To build llama.cpp for {backend}, this machine lacks "
            f"{' and '.join(tool.what for tool in missing)}.",
            hint=" ".join(
                f"{tool.hint[0].upper()}{tool.hint[1:]}."
                if len(missing) == 1
                else f"{tool.what}: {tool.hint}."
                for tool in missing
            ),
        )
    cmake, make = found[_CMAKE.what], found[_MAKE.what]
    assert cmake is not None and make is not None
    more, environment = _SPECIFICS.get(backend, _nothing)(found)
    return Toolchain(
        backend,
        cmake,
        "Ninja" if make.name == "ninja" else "Unix Makefiles",
        (*kind.options, *more),
        environment,
        _first_line(found[(kind.tools or (_COMPILER,))[0].what], "--version"),
    )


_Found = dict[str, Path | None]
_Specifics = Callable[[_Found], tuple[tuple[str, ...], dict[str, str]]]


def _nothing(_: _Found) -> tuple[tuple[str, ...], dict[str, str]]:
    return (), {}


def _for_cuda(found: _Found) -> tuple[tuple[str, ...], dict[str, str]]:
    return (f"CMAKE_CUDA_COMPILER={found[_NVCC.what]}",), {}


def _for_hip(found: _Found) -> tuple[tuple[str, ...], dict[str, str]]:
    """CMake wants ROCm's clang, which only its own program knows the place of."""
    hipcc = found[_HIPCC.what]
    assert hipcc is not None
    hipconfig = hipcc.with_name("hipconfig")
    clang, root = _first_line(hipconfig, "-l"), _first_line(hipconfig, "-R")
    chosen = {"HIPCXX": f"{clang}/clang"} if clang and "HIPCXX" not in os.environ else {}
    return (), chosen | ({"HIP_PATH": root} if root and "HIP_PATH" not in os.environ else {})


_SPECIFICS: Final[dict[BackendName, _Specifics]] = {"cuda": _for_cuda, "hip": _for_hip}


def _first_line(program: Path | None, argument: str) -> str:
    try:
        done = subprocess.run(
            [str(program), argument], check=False, capture_output=True, text=True, timeout=_ASK_S
        )
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return ""
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    return next((line for line in lines if "release" in line), lines[0]) if lines else ""


_EXPLANATIONS: Final = (
    (
        r"CUDA::cublas|cublas_v2\.h",
        "CUDA's library cuBLAS with its headers",
        "apt install libcublas-dev-13-0",
    ),
    (r"CUDA Toolkit not found|CUDAToolkit", "the CUDA toolkit", _NVCC.hint),
    (
        r"Failed to detect a default CUDA architecture|CUDA_ARCHITECTURES.*(native|empty)",
        "a GPU to build for",
        "Name the architecture of the GPU, 90 for an H200: --define CMAKE_CUDA_ARCHITECTURES=90",
    ),
    (r"unsupported GNU version", "a C++ compiler that nvcc takes", "Name an older one: CUDAHOSTCXX=g++-12"),
    (r"Could NOT find Vulkan|Vulkan_INCLUDE_DIR|vulkan\.hpp", "Vulkan's headers", _GLSLC.hint),
    (r"SPIRV-Headers|spirv\.hpp", "the headers of SPIR-V", "apt install spirv-headers"),
    (r"hip(blas|BLAS)|rocblas|hip-lang|HIP compiler", "ROCm's libraries", _HIPCC.hint),
    (r"No CMAKE_CXX_COMPILER|CMAKE_CXX_COMPILER not set", "a C++ compiler", _COMPILER.hint),
    (r"CMake .* or higher is required", "a newer CMake", _CMAKE.hint),
)


def explain(text: str) -> tuple[str, str] | None:
    """What CMake or a compiler misses, and what to do, in our words; None where we do not know it."""
    for pattern, what, hint in _EXPLANATIONS:
        if re.search(pattern, text):
            return what, hint
    return None
