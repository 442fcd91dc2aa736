"""The reference of the configuration is what the code says."""

from pathlib import Path

import pytest
from reference import filled, keys, main

from ganglion.cli.main import app
from ganglion.config import load

DOCUMENT = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_document_is_current() -> None:
    text = DOCUMENT.read_text()
    assert filled(text) == text, "make reference"


def test_every_key_of_the_reference_can_be_set_as_it_says() -> None:
    lines = DOCUMENT.read_text().splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if "| `GANGLION_" in line]
    rows = [row for row in rows if len(row) == 6]
    assert sorted(row[0].strip("`") for row in rows) == sorted(
        key.path for key in keys() if not key.is_listed
    )
    for _, _, variable, _, default, _ in rows:
        value = default.strip("`")
        if value not in ("-", "none"):
            load(None, {variable.strip("`"): value}, {})


def test_what_only_a_file_can_hold_stands_there_too() -> None:
    rows = [line for line in DOCUMENT.read_text().splitlines() if line.startswith("| `nodes.")]
    assert len(rows) == len([key for key in keys() if key.is_listed])
    assert "| `nodes.url` | - | - | text | required |" in "".join(rows)


def test_every_flag_of_the_reference_is_one_of_serve_or_gateway() -> None:
    text = DOCUMENT.read_text()
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| `")]
    flags = {row[1].strip("`") for row in rows if len(row) == 6 and row[1].startswith("`--")}
    known = {
        name
        for command in ("serve", "gateway")
        for argument in app[command].assemble_argument_collection()
        for name in argument.names
    }
    assert len(flags) > 15
    assert flags <= known


def test_a_section_without_a_place_is_named(tmp_path: Path) -> None:
    text = DOCUMENT.read_text()
    with pytest.raises(ValueError, match=r"keys: server\.deadlines"):
        filled(text.replace("<!-- keys: server.deadlines -->", ""))
    file = tmp_path / "document.md"
    file.write_text(text.replace("| `8080` |", "| `9999` |"))
    assert main([str(file)]) == 0
    assert file.read_text() == text
