"""Logging for the programs: text or JSON lines on stderr.

Law: a record carries ids, counts and times; prompts, answers and keys are never handed to a logger.
"""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Final, Literal

_LogFormat = Literal["text", "json"]

_STANDARD: Final = frozenset(logging.makeLogRecord({}).__dict__) | {
    "message",
    "asctime",
    "taskName",
    "color_message",
}


class TextFormatter(logging.Formatter):
    """`12:00:00 info ganglion.server: listening port=8080`."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, with what was handed in as `extra` behind it."""
        moment = datetime.fromtimestamp(record.created).astimezone()
        fields = "".join(f" {key}={value}" for key, value in _fields(record).items())
        line = f"{moment:%H:%M:%S} {record.levelname.lower()} {record.name}: {record.getMessage()}{fields}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """The record, with what was handed in as `extra` as its own keys."""
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str, ensure_ascii=False)


def set_up_logging(level: str, log_format: _LogFormat) -> None:
    """Send all log records to stderr; called once, by a program's own command."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # uvicorn's own greetings repeat what the server says itself.
    logging.getLogger("uvicorn").setLevel(logging.DEBUG if level == "debug" else logging.WARNING)


def _fields(record: logging.LogRecord) -> dict[str, object]:
    return {key: value for key, value in record.__dict__.items() if key not in _STANDARD}
