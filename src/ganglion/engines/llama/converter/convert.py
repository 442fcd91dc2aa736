"""Converts a checkpoint to a GGUF file, in a process of another Python."""

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from ganglion.core.errors import LoadFailed
from ganglion.engines.child import ChildLimits, command, describe_exit, environment
from ganglion.engines.llama.converter.pinned_source import Report, converter_script

_CHILD: Final = "ganglion.engines.llama.converter.converter_child"
_POLL_S: Final = 0.2
_STALL_S: Final = 1800.0
"""Without a new byte: of shards of hundreds of gigabytes on a slow disk the first takes minutes."""
_TALK_BYTES: Final = 1 << 16
# A converter reads no image and no sound. Where one of these does not match torch, which happens in
# environments that others made, transformers cannot even import a tokenizer.
_RUN: Final = """
import os, runpy, sys
sys.modules.update(dict.fromkeys(("torchvision", "torchaudio", "torchcodec")))
sys.argv = sys.argv[1:]
sys.path[0] = os.path.dirname(sys.argv[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def convert_checkpoint(
    checkpoint: Path,
    target: Path,
    *,
    python: Path,
    cache: Path,
    size_bytes: int,
    report: Report,
    check: Callable[[], None],
) -> None:
    """Write `target`; `check` is asked meanwhile and may raise to stop it. Raises LoadFailed.

    The weights keep their type where it is a float of 16 bits, else they become the nearest such. `target`
    is not to be trusted before this returns.
    """
    script = converter_script(cache, report, check)
    arguments = [str(script), "--outfile", str(target), "--outtype", "auto", str(checkpoint)]
    with tempfile.TemporaryFile() as talk:
        process = _start([str(python), "-s", "-c", _RUN, *arguments], talk.fileno(), target.parent)
        try:
            _wait(process, target, size_bytes, report, check)
        finally:
            _end(process)
        if process.returncode or not target.is_file():
            talk.seek(max(talk.seek(0, os.SEEK_END) - _TALK_BYTES, 0))
            raise _failed(checkpoint, process.returncode, talk.read().decode("utf-8", "replace"))


def _start(line: list[str], talk: int, folder: Path) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            command(_CHILD, str(os.getpid()), *line),
            stdin=subprocess.DEVNULL,
            stdout=talk,
            stderr=talk,
            cwd=folder,
            env=environment(ChildLimits(wall_s=_STALL_S)),
            start_new_session=True,
        )
    except OSError as error:
        raise LoadFailed(f"The converter could not be started: {error.strerror or error}.") from error


def _wait(
    process: subprocess.Popen[bytes],
    target: Path,
    size_bytes: int,
    report: Report,
    check: Callable[[], None],
) -> None:
    done, since_s = 0, time.monotonic()
    while process.poll() is None:
        check()
        with suppress(OSError):
            now = target.stat().st_size
            if now > done:
                done, since_s = now, time.monotonic()
                report(min(done, size_bytes), size_bytes)
        if time.monotonic() - since_s > _STALL_S:
            raise LoadFailed(f"The conversion wrote nothing for {_STALL_S:.0f} s, and was ended.")
        with suppress(subprocess.TimeoutExpired):
            process.wait(_POLL_S)


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _failed(checkpoint: Path, code: int, talk: str) -> LoadFailed:
    lines = [line.strip() for line in talk.splitlines() if line.strip()]
    said = [line for line in lines if line.startswith("ERROR") or "Error" in line.partition(" ")[0]]
    reason = (said or lines or [f"it {describe_exit(code)} and said nothing"])[-1][:300]
    return LoadFailed(
        f"{checkpoint} could not be converted to GGUF: {reason}",
        hint="llama.cpp may not know this kind of model; an engine that reads safetensors may: "
        "`ganglion engines list`.",
    )
