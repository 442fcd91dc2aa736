"""Opening a model: what was started beside a load that fails does not stay."""

from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from ganglion.core.errors import LoadFailed
from ganglion.engines.llama.engine import LlamaEngine
from ganglion.engines.settings import EngineSettings
from ganglion.registry.files.gguf import read_facts
from ganglion.registry.hub.embedded import SMOLLM2, find

found = find(SMOLLM2, Path("nowhere"))
pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(found is None, reason="the embedded model is not installed"),
]


@pytest.mark.parametrize("is_recast", [True, False])
async def test_a_file_that_was_cut_short_since_is_refused_and_leaves_no_process(
    tmp_path: Path, is_recast: bool
) -> None:
    assert found is not None
    short = tmp_path / "short.gguf"
    short.write_bytes(found.path.read_bytes()[: 40 * 2**20])
    facts = replace(read_facts(found.path), path=str(short))
    engine = LlamaEngine(facts, EngineSettings("m", context=256, is_recast=is_recast))
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    with pytest.raises(LoadFailed):
        await engine.open()
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before
