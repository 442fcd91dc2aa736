"""The table of engines is the only place that knows them by name."""

import re
from pathlib import Path
from typing import get_args

import ganglion
from ganglion.engines.table import DEFAULT_ENGINE, ENGINES, EngineName

SOURCE = Path(ganglion.__file__).parent
OTHER_MEANINGS = {
    "cli/concepts/pack_files.py": "the architecture of a model",
    "client/": "a model's name in examples",
    "cli/engines/": "the commands that build and install single engines",
    "engines/installing/": "an environment is called like its engine",
    "engines/llama/": "the engine says its own name, and the architecture of its files",
    "engines/echo/": "the engine says its own name",
    "engines/vllm/": "the engine says its own name",
    "registry/hub/embedded.py": "the architecture of a GGUF file",
    "text/tools/": "a family of tool calls",
    "wire/completions/": "the field `echo`",
    "wire/field_policy.py": "the field `echo`",
    "wire/responses/": "the field `echo`",
    "wire/ollama/": "nodes of any version say by the engine's name which format their files have",
}
"""Files and folders that may hold one of the words, and why."""


def test_every_engine_can_be_configured_and_built() -> None:
    assert set(get_args(EngineName)) == set(ENGINES)
    assert DEFAULT_ENGINE in ENGINES
    for kind in ENGINES.values():
        assert callable(kind.load())


def test_no_other_file_names_an_engine() -> None:
    literal = re.compile(rf"""["']({"|".join(ENGINES)})["']""")
    found = {
        str(file.relative_to(SOURCE)) for file in SOURCE.rglob("*.py") if literal.search(file.read_text())
    }
    unexpected = {file for file in found if not file.startswith(tuple(OTHER_MEANINGS))}
    assert unexpected == {"engines/table.py"}, "look an engine up in engines/table.py instead of naming it"
