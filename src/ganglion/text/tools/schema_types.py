"""Converts plain text that a model wrote into JSON of the type that the tool's schema states."""

import json
import re
from typing import NoReturn

from ganglion.core.request import JsonValue, Tool
from ganglion.text.tools.json_text import NUMBER

_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)")
_BOOLEANS = {"true": "true", "True": "true", "false": "false", "False": "false"}
_NULLS = frozenset({"null", "None"})
_TYPE_NAMES = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
# What a schema may nest before we look no further for types.
_MAX_DEPTH = 8


def json_of_text(text: str, tool: Tool, parameter: str) -> str:
    """JSON of what was written for a parameter; a string wherever no other type of the schema fits it."""
    types = types_of(_schema(tool, parameter), tool.parameters)
    bare = text.strip()
    if "null" in types and bare in _NULLS:
        return "null"
    if "boolean" in types and bare in _BOOLEANS:
        return _BOOLEANS[bare]
    if "integer" in types and _INTEGER.fullmatch(bare):
        return bare
    if "number" in types and NUMBER.fullmatch(bare):
        return bare
    is_nested = ("object" in types and bare[:1] == "{") or ("array" in types and bare[:1] == "[")
    if is_nested and _is_json(bare):
        return bare
    return json.dumps(text, ensure_ascii=False)


def types_of(schema: JsonValue, root: JsonValue, depth: int = 0) -> frozenset[str]:
    """The types that a schema allows, as far as it says so, itself or by reference into its root."""
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return frozenset()
    kind = schema.get("type")
    if isinstance(kind, str):
        return frozenset({kind})
    if isinstance(kind, list):
        return frozenset(one for one in kind if isinstance(one, str))
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    types = {_TYPE_NAMES[type(one)] for one in _list(values) if type(one) in _TYPE_NAMES}
    nested = [one for word in ("anyOf", "oneOf", "allOf") for one in _list(schema.get(word))]
    for one in [*nested, _referred(schema.get("$ref"), root)]:
        types |= types_of(one, root, depth + 1)
    if "properties" in schema:
        types.add("object")
    if "items" in schema:
        types.add("array")
    return frozenset(types)


def _referred(reference: JsonValue, root: JsonValue) -> JsonValue:
    """The schema that `#/$defs/name` refers to."""
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    found = root
    for step in reference[2:].split("/"):
        found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
    return found


def _list(found: JsonValue) -> list[JsonValue]:
    return found if isinstance(found, list) else []


def _schema(tool: Tool, parameter: str) -> JsonValue:
    properties = (tool.parameters or {}).get("properties")
    return properties.get(parameter) if isinstance(properties, dict) else None


def _is_json(text: str) -> bool:
    try:
        json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)
