"""`ganglion engines build`: what is missing is named, what was stopped goes on, what is broken is not used.

llama.cpp is not compiled here: a CMake of ours writes the library that comes with Ganglion, so that what is
tried and used afterwards is real.
"""

import json
import os
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from commands import GANGLION, data, fresh_environment, refusal, run

from ganglion.engines.llama.building import toolchain
from ganglion.engines.llama.native.built import PINNED_VERSION
from ganglion.engines.llama.native.library import bundled_path
from support.waiting import wait_until

BUILD = ("engines", "build", "llama")
CMAKE = """#!{python}
import os, pathlib, shutil, sys, time
words = sys.argv[1:]
print("$", *words)
if words == ["--version"]:
    print("cmake version 9")
elif "-S" in words:
    build = pathlib.Path(words[words.index("-B") + 1])
    build.mkdir(parents=True, exist_ok=True)
    (build / "CMakeCache.txt").write_text("CMAKE_HOME_DIRECTORY:INTERNAL=" + words[words.index("-S") + 1])
    if said := os.environ.get("CMAKE_SAYS"):
        sys.exit(said)
else:
    build = pathlib.Path(words[words.index("--build") + 1])
    print("[1/2] Building CXX object a.o", flush=True)
    (build / "began").touch()
    time.sleep(float(os.environ.get("CMAKE_TAKES", "0")))
    if said := os.environ.get("COMPILER_SAYS"):
        sys.exit(said)
    (build / "bin").mkdir(exist_ok=True)
    library = build / "bin" / "libllama.so"
    library.unlink(missing_ok=True)
    if content := os.environ.get("LIBRARY_IS"):
        library.write_text(content)
    else:
        library.symlink_to({bundled!r})
"""


@pytest.fixture
def source(tmp_path: Path) -> tuple[str, str]:
    """Enough of llama.cpp's folder to be taken for it."""
    folder = tmp_path / "llama.cpp"
    (folder / "include").mkdir(parents=True)
    (folder / "CMakeLists.txt").write_text("")
    (folder / "include" / "llama.h").write_text("")
    return "--source", str(folder)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A machine whose only programs are our CMake, a compiler and Ninja."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "cmake").write_text(CMAKE.format(python=sys.executable, bundled=str(bundled_path())))
    for name in ("c++", "ninja"):
        (programs / name).write_text(f"#!/bin/sh\necho {name} 1.0\n")
    for program in programs.iterdir():
        program.chmod(0o755)
    hidden = ("VULKAN_SDK", "ROCM_PATH", "HIP_PATH", "CUDA_HOME", "CUDA_PATH", "LD_LIBRARY_PATH")
    fresh = {name: value for name, value in fresh_environment(tmp_path).items() if name not in hidden}
    return fresh | {"PATH": str(programs)}


def llamas(environment: dict[str, str]) -> dict[str, dict[str, object]]:
    """Each library of llama.cpp by where it comes from."""
    found = data(environment, "engines", "list")
    return {each["source"]: each for each in found if each["engine"] == "llama"}


def built_folder(environment: dict[str, str]) -> Path:
    return (Path(environment["GANGLION_HOME"]) / "engines" / "llama").resolve()


@pytest.mark.model
def test_a_build_is_tried_used_outdated_and_removed(
    environment: dict[str, str], source: tuple[str, str]
) -> None:
    done = run(environment, *BUILD, "--cpu", *source)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{environment['GANGLION_HOME']}/engines/llama/libllama.so\n"
    assert "configuring" in done.stderr
    found = llamas(environment)
    assert (found["built"]["is_used"], found["bundled"]["is_used"]) == (True, False)
    assert found["built"]["version"] == PINNED_VERSION
    assert any(str(device).startswith("CPU") for device in found["built"]["devices"])  # type: ignore[attr-defined]
    asked = ("complete", "Once upon", "--max-tokens", "2", "--temperature", "0")
    with_build = run(environment, *asked)
    assert (with_build.returncode, with_build.stderr) == (0, "")

    # GANGLION_LIBLLAMA wins.
    elsewhere = {**environment, "GANGLION_LIBLLAMA": str(bundled_path())}
    assert llamas(elsewhere)["GANGLION_LIBLLAMA"]["is_used"]
    assert not llamas(elsewhere)["built"]["is_used"]

    # One whose library does not load is said and not used.
    library = built_folder(environment) / "libllama.so"
    library.unlink()
    library.write_bytes(b"junk")
    broken = run(environment, *asked)
    assert (broken.returncode, broken.stdout) == (0, with_build.stdout)
    assert "not used" in broken.stderr
    assert "ganglion engines build llama --cpu" in broken.stderr
    checks = json.loads(run(environment, "doctor", "--json").stdout)["checks"]
    assert {each["check"]: each["verdict"] for each in checks}["built llama.cpp"] == "warn"
    assert {each["check"]: each["verdict"] for each in checks}["llama.cpp"] == "ok"

    # So is one of another version, or without its file.
    receipt = built_folder(environment) / "ganglion.json"
    whole = receipt.read_text()
    receipt.write_text(whole.replace(PINNED_VERSION, "2020.1.1"))
    found = llamas(environment)
    assert "built from 2020.1.1" in str(found["built"]["problem"])
    assert (found["built"]["is_used"], found["bundled"]["is_used"]) == (False, True)
    assert run(environment, *asked).stdout == with_build.stdout
    receipt.write_text(whole)
    library.unlink()
    assert "is missing" in str(llamas(environment)["built"]["problem"])
    receipt.write_text("{")
    assert "no finished build" in str(llamas(environment)["built"]["problem"])

    # Another build takes its place.
    assert run(environment, *BUILD, "--cpu", *source).returncode == 0
    assert llamas(environment)["built"]["is_used"]
    folder = built_folder(environment)
    assert run(environment, "engines", "remove", "llama").returncode == 0
    assert not folder.exists()
    assert set(llamas(environment)) == {"bundled"}


def test_everything_that_is_missing_is_named_at_once(environment: dict[str, str], tmp_path: Path) -> None:
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    error, hint = refusal(environment | {"PATH": str(nothing)}, *BUILD, "--vulkan")
    for what in ("CMake", "a C++ compiler", "Ninja or Make", "glslc"):
        assert what in error
    assert "apt install cmake" in hint
    error, hint = refusal(environment, *BUILD, "--vulkan")
    assert error.endswith("lacks Vulkan's shader compiler glslc.")
    assert "VULKAN_SDK" in hint


def test_cuda_and_rocm_are_looked_for_where_their_variables_point(
    environment: dict[str, str], source: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = {"cuda": tmp_path / "toolkit" / "bin" / "nvcc", "hip": tmp_path / "rocm" / "bin" / "hipcc"}
    for program in (*tools.values(), tools["hip"].with_name("hipconfig")):
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(
            '#!/bin/sh\ncase "$1" in -l) echo /rocm/llvm/bin;; -R) echo /rocm;; *) echo v;; esac\n'
        )
        program.chmod(0o755)
    for name in ("HIPCXX", "HIP_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", environment["PATH"])
    monkeypatch.setenv("CUDA_HOME", str(tools["cuda"].parent.parent))
    monkeypatch.setenv("ROCM_PATH", str(tools["hip"].parent.parent))
    assert f"CMAKE_CUDA_COMPILER={tools['cuda']}" in toolchain.find_toolchain("cuda").options
    assert toolchain.find_toolchain("hip").environment == {
        "HIPCXX": "/rocm/llvm/bin/clang",
        "HIP_PATH": "/rocm",
    }


@pytest.mark.parametrize(
    ("variables", "words", "advice"),
    [
        ({"CMAKE_SAYS": "Target links to: CUDA::cublas but the target was not found"}, "cuBLAS", "libcublas"),
        (
            {"CMAKE_SAYS": "Could NOT find Vulkan (missing: Vulkan_INCLUDE_DIR)"},
            "Vulkan's headers",
            "libvulkan",
        ),
        ({"CMAKE_SAYS": "CMake Error: something new"}, "CMake Error: something new", "build.log"),
        ({"COMPILER_SAYS": "a.cpp:1: error: no such thing"}, "a.cpp:1: error: no such thing", "build.log"),
        ({"COMPILER_SAYS": "cc1plus: No space left on device"}, "no space left", "GANGLION_HOME"),
        ({"LIBRARY_IS": "junk"}, "was built and is not used", "Build the pinned source"),
    ],
)
def test_a_build_that_fails_says_why_and_leaves_no_engine(
    environment: dict[str, str], source: tuple[str, str], variables: dict[str, str], words: str, advice: str
) -> None:
    error, hint = refusal(environment | variables, *BUILD, "--cpu", *source)
    assert words in error
    assert advice in hint
    assert "built" not in llamas(environment)


def test_a_build_that_was_killed_is_waited_for_and_gone_on_with(
    environment: dict[str, str], source: tuple[str, str]
) -> None:
    work = Path(environment["GANGLION_HOME"]) / "engines" / ".build" / f"llama-{PINNED_VERSION}-cpu"
    slow = environment | {"CMAKE_TAKES": "8"}
    with subprocess.Popen([*GANGLION, *BUILD, "--cpu", *source], env=slow) as process:
        wait_until((work / "build" / "began").exists, within_s=30)
        process.kill()
        process.wait()
    assert process.returncode == -signal.SIGKILL
    done = run(environment, *BUILD, "--cpu", *source, timeout_s=60)
    assert done.returncode == 0, done.stderr
    assert "waiting for another build" in done.stderr, "its compilers outlived it, and held the place"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "What to build for is missing"),
        (("--cpu", "--cuda"), "one kind of device"),
        (("--metal",), "macOS only"),
        (("--cpu", "--define", "no value"), "NAME=VALUE"),
        (("--cpu", "--source", "/no/such/file"), "cannot be unpacked"),
        (("--cpu", "--source", "/usr"), "is no source of llama.cpp"),
        (("--cpu", "--jobs", "0"), "--jobs"),
    ],
)
@pytest.mark.skipif(sys.platform == "darwin", reason="--metal is right there")
def test_a_mistake_in_the_command_is_a_mistake(
    environment: dict[str, str], arguments: tuple[str, ...], words: str
) -> None:
    done = run(environment, *BUILD, *arguments)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr


def test_another_archive_than_the_pinned_one_is_refused(environment: dict[str, str], tmp_path: Path) -> None:
    archive = tmp_path / "source.tar.gz"
    (tmp_path / "file.txt").write_text("x")
    with tarfile.open(archive, "w:gz") as package:
        package.add(tmp_path / "file.txt", "../../outside.txt")
    error, hint = refusal(environment, *BUILD, "--cpu", "--source", str(archive), status=2)
    assert "its SHA-256 differs" in error
    assert PINNED_VERSION in hint


def test_the_source_is_that_of_the_version_that_is_pinned() -> None:
    project = Path(__file__).parents[2] / "pyproject.toml"
    assert f'"xllamacpp=={PINNED_VERSION}"' in project.read_text()


def test_a_source_that_cannot_be_fetched_names_the_way_without(environment: dict[str, str]) -> None:
    alone = {name: value for name, value in environment.items() if not name.startswith("PIP_")}
    alone |= {"PIP_CONFIG_FILE": os.devnull, "PIP_RETRIES": "0", "PIP_NO_CACHE_DIR": "1"}
    error, hint = refusal(alone, *BUILD, "--cpu", "--index-url", "http://127.0.0.1:9/simple")
    assert "The source of llama.cpp could not be fetched" in error
    assert "--source" in hint
