"""The tables of fields and errors in the documentation are what the code says."""

from pathlib import Path

import pytest
from field_reference import TABLES, filled, main

from ganglion.core.errors import error_classes
from ganglion.core.sampling import PARAMS, SAMPLER_PARAMS

DOCUMENTS = sorted((Path(__file__).parents[2] / "docs").glob("*.md"))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_a_document_is_current(document: Path) -> None:
    text = document.read_text()
    assert filled(text) == text, "make reference"


@pytest.mark.parametrize("name", TABLES)
def test_every_table_stands_somewhere(name: str) -> None:
    assert any(f"<!-- {name} -->" in document.read_text() for document in DOCUMENTS)


def test_every_parameter_and_every_code_has_a_row() -> None:
    chat = next(document for document in DOCUMENTS if document.name == "chat.md").read_text()
    for name in (*PARAMS, *SAMPLER_PARAMS):
        assert f"| `{name}`" in chat
    for kind in error_classes():
        assert f"`{kind.code}`" in chat or not kind.__module__.endswith("core.errors")


def test_a_table_is_written_where_it_stands(tmp_path: Path) -> None:
    file = tmp_path / "page.md"
    file.write_text("before\n<!-- samplers -->\nold\n<!-- end of samplers -->\nafter\n")
    assert main([str(file)]) == 0
    text = file.read_text()
    assert text.startswith("before\n<!-- samplers -->\n| field |") and text.endswith("-->\nafter\n")
    assert "old\n" not in text
