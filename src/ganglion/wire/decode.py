"""Decodes body bytes into typed structs; an error names the parameter that it is about."""

import re
from typing import Any, Final, TypeVar

import msgspec

from ganglion.core.errors import InvalidJson, InvalidRequest, InvalidValue, MissingParameter

_T = TypeVar("_T")

# Greedy on purpose: the offending value is quoted before the path and may itself look like one.
_WITH_PATH = re.compile(r"(?P<problem>.*) - at (?:`key` in )?`\$\.?(?P<path>[^`]*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<field>[^`]*)`")
_QUOTED_LIMIT = 300
_NOT_BLANK = r"matching regex '\\S'"
_MODEL = "model"

FIELDS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
"""The fields of an object, each as it is written."""


class ModelOmitted(MissingParameter):
    """A body names no model: whoever knows which are loaded may fill in the only one."""

    def __init__(self, body: bytes) -> None:
        super().__init__("The parameter 'model' is required.", param=_MODEL)
        self.body = body


def with_model(body: bytes, model: str) -> bytes:
    """A body that names its model."""
    return msgspec.json.encode(FIELDS.decode(body) | {_MODEL: msgspec.Raw(msgspec.json.encode(model))})


def decode(decoder: msgspec.json.Decoder[_T], body: bytes | msgspec.Raw, within: str = "") -> _T:
    """Decode what stood `within` a body, or raise the InvalidRequest that names the first thing wrong."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _refusal(str(error), within, bytes(body)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidJson(f"The body is not valid JSON: {error}.") from None
    except RecursionError:
        raise InvalidJson("The body is JSON nested too deeply to read.") from None


def _refusal(report: str, within: str, body: bytes) -> InvalidRequest:
    located = _WITH_PATH.fullmatch(report)
    problem, path = (located["problem"], located["path"]) if located else (report, "")
    if within:
        path = f"{within}{path}" if path.startswith("[") or not path else f"{within}.{path}"
    path = path.removesuffix("[...]")
    missing = _MISSING.fullmatch(problem)
    if missing:
        if not path and missing["field"] == _MODEL:
            return ModelOmitted(body)
        param = f"{path}.{missing['field']}" if path else missing["field"]
        return MissingParameter(f"The parameter '{param}' is required.", param=param)
    subject = f"for '{path}'" if path else "for the body"
    return InvalidValue(f"Invalid value {subject}: {_shown(problem)}.", param=path or None)


def _shown(problem: str) -> str:
    text = problem[:1].lower() + problem[1:].replace(_NOT_BLANK, "that is not blank")
    return text if len(text) <= _QUOTED_LIMIT else text[:_QUOTED_LIMIT] + "…"


_object: msgspec.json.Decoder[dict[str, Any]] = msgspec.json.Decoder(dict[str, Any])


def read_object(raw: msgspec.Raw, path: str, max_bytes: int) -> dict[str, Any]:
    """The object, or the InvalidRequest that says what is wrong with it."""
    found = bytes(raw)
    if len(found) > max_bytes:
        raise InvalidValue(f"'{path}' is larger than {max_bytes} bytes.", param=path)
    if not found.startswith(b"{"):
        raise InvalidValue(f"'{path}' must be an object.", param=path)
    return decode(_object, found)
