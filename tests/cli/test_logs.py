"""Log lines, for people and for machines."""

import json
import logging

import pytest

from ganglion.cli.terminal.logs import JsonFormatter, TextFormatter


@pytest.fixture
def record() -> logging.LogRecord:
    made = logging.LogRecord("ganglion.request", logging.INFO, "file.py", 1, "answered %s", ("it",), None)
    made.tokens = 7
    return made


def test_a_text_line_ends_with_its_fields(record: logging.LogRecord) -> None:
    assert TextFormatter().format(record).endswith(" info ganglion.request: answered it tokens=7")


def test_a_json_line_is_one_object(record: logging.LogRecord) -> None:
    entry = json.loads(JsonFormatter().format(record))
    assert entry.pop("time").endswith("+00:00")
    assert entry == {"level": "info", "logger": "ganglion.request", "message": "answered it", "tokens": 7}
