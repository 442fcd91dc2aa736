"""The native library, tried in a process that may die of it."""

import sys
from pathlib import Path

import numpy
import pytest

from ganglion.core.errors import EngineUnavailable
from ganglion.engines.llama.native import probe as subject
from ganglion.engines.llama.native.probe import probe
from support.embedded_model import embedded_model

pytestmark = pytest.mark.model


def test_the_library_here_works_and_reads_the_embedded_model() -> None:
    found = embedded_model()
    works = probe(found.path)
    assert works.vocabulary == 49152
    assert works.can_offload is False
    assert "CPU" in works.system_info
    assert "xllamacpp" not in sys.modules


def test_a_library_that_is_none_is_refused_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    other = next(Path(numpy.__file__).parent.rglob("_multiarray_umath*.so"))
    monkeypatch.setenv("GANGLION_LIBLLAMA", str(other))
    with pytest.raises(EngineUnavailable, match="lacks llama_") as caught:
        probe(None)
    assert "GANGLION_LIBLLAMA" in str(caught.value.hint)


def test_a_model_that_is_none_is_refused_with_its_reason(tmp_path: Path) -> None:
    junk = tmp_path / "junk.gguf"
    junk.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(EngineUnavailable, match=r"junk\.gguf could not be loaded"):
        probe(junk)


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
        ("raise SystemExit('no such thing')", "exit code 1: no such thing"),
        ("import time; time.sleep(60)", "did not load within 0.5 s"),
    ],
)
def test_a_process_that_dies_or_hangs_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, reason: str
) -> None:
    (tmp_path / "crashing_child.py").write_text(program)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(subject, "CHILD", "crashing_child")
    with pytest.raises(EngineUnavailable, match=reason):
        probe(None, timeout_s=0.5 if "sleep" in program else 10)
