from dataclasses import replace
from pathlib import Path

import pytest

from ganglion.core.errors import LoadFailed
from ganglion.engines.llama.native.library import open_library
from ganglion.engines.llama.native.repack import load_planned
from ganglion.engines.llama.plan import plan
from ganglion.engines.settings import EngineSettings
from ganglion.registry.files.gguf import read_facts
from ganglion.registry.hub.embedded import SMOLLM2, find

found = find(SMOLLM2, Path("nowhere"))


@pytest.mark.model
@pytest.mark.skipif(found is None, reason="the embedded model is not installed")
@pytest.mark.parametrize("layers", [0, 5])
def test_layers_for_a_gpu_that_the_library_does_not_know_are_told_of(
    layers: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert found is not None
    settings = EngineSettings("m", gpu_layers=layers, is_recast=False)
    asked = plan(settings, read_facts(found.path), cores=1, free_bytes=2**40)
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF and nothing more")
    with pytest.raises(LoadFailed):
        load_planned(open_library(), replace(asked, path=str(broken)))
    assert ("knows none" in caplog.text) is bool(layers)
