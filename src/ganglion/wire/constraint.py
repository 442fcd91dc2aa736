"""Constraints on an answer's text: OpenAI's `response_format` and the fields of vLLM and llama-server.

Null means the same as absent everywhere; more than one constraint at once is refused.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from ganglion.core.errors import InvalidRequest, InvalidValue, UnsupportedParameter
from ganglion.core.request import Choice, Constraint, Gbnf, JsonSchema, JsonValue, Lark, Regex, WithoutWords
from ganglion.wire.decode import decode
from ganglion.wire.fields import SamplingFields

_MAX_NESTING = 128
"""How deep a schema may nest: whoever walks it later recurses."""
CONSTRAINT_BYTES = 2**18

_Pattern = Annotated[str, Meta(min_length=1, max_length=2**16)]
Grammar = Annotated[str, Meta(min_length=1, max_length=CONSTRAINT_BYTES)]
_Options = Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(min_length=1, max_length=4096)]
_BadWords = Annotated[list[Annotated[str, Meta(min_length=1, max_length=128)]], Meta(max_length=64)]
_SchemaName = Annotated[str, Meta(min_length=1, max_length=256)]

CONSTRAINTS = MappingProxyType(
    dict.fromkeys(
        (
            "response_format",
            "structured_outputs",
            "guided_json",
            "guided_regex",
            "guided_choice",
            "guided_grammar",
            "grammar",
            "json_schema",
        ),
        CONSTRAINT_BYTES,
    )
)
"""The fields that hold constraints, and how large each may be."""

_OBJECT: dict[str, JsonValue] = {"type": "object"}
_GBNF_RULE = re.compile(r"^\s*[\w-]+\s*::=", re.MULTILINE)
_value: msgspec.json.Decoder[Any] = msgspec.json.Decoder(Any)


class TextFormat(Struct, frozen=True, tag_field="type", tag="text"):
    """Any text."""


class JsonObjectFormat(Struct, frozen=True, tag_field="type", tag="json_object"):
    """A JSON object; llama-server's clients put its schema here."""

    schema: dict[str, Any] | None = None


class NamedSchema(Struct, frozen=True):
    """A schema; it is enforced whatever `strict` says."""

    name: _SchemaName
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class JsonSchemaFormat(Struct, frozen=True, tag_field="type", tag="json_schema"):
    """JSON that a schema accepts."""

    json_schema: NamedSchema


_ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat


class StructuredOutputs(Struct, frozen=True):
    """One constraint in vLLM's newer words."""

    json: str | dict[str, Any] | None = None
    regex: _Pattern | None = None
    choice: _Options | None = None
    grammar: Grammar | None = None
    json_object: bool | None = None
    structural_tag: Any = None
    whitespace_pattern: str | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None
    disable_fallback: bool | None = None


class ConstraintFields(SamplingFields, frozen=True, kw_only=True):
    """Sampling fields, and the fields that say what the text must be."""

    response_format: _ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: str | dict[str, Any] | None = None
    guided_regex: _Pattern | None = None
    guided_choice: _Options | None = None
    guided_grammar: Grammar | None = None
    grammar: Grammar | None = None
    json_schema: dict[str, Any] | None = None
    bad_words: _BadWords | None = None


def constraint_of(fields: ConstraintFields) -> Constraint | None:
    """The one constraint that was asked for; raises InvalidValue when there are several."""
    return _only(_asked(fields))


def schema_of(value: str | dict[str, Any], param: str) -> dict[str, JsonValue]:
    """A JSON schema that is an object of bounded depth; some clients send it as text."""
    schema = _parsed(value, param) if isinstance(value, str) else value
    if not isinstance(schema, dict):
        raise InvalidValue(f"'{param}' must be a JSON schema, which is an object.", param=param)
    if _is_deeper(schema, _MAX_NESTING):
        raise InvalidValue(f"'{param}' is nested more than {_MAX_NESTING} levels deep.", param=param)
    return schema


_KINDS: Mapping[str, Callable[[Any, str], Constraint]] = {
    "json": lambda value, param: JsonSchema(schema_of(value, param)),
    "regex": lambda value, _: Regex(value),
    "choice": lambda value, _: Choice(tuple(value)),
    "grammar": lambda value, _: _grammar(value),
    "gbnf": lambda value, _: Gbnf(value),
}
_FIELDS = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "grammar": "gbnf",
    "json_schema": "json",
}
"""Which kind of constraint a field holds."""


def _asked(fields: ConstraintFields) -> Iterator[tuple[str, Constraint]]:
    if fields.response_format is not None:
        wanted = _of_format(fields.response_format)
        if wanted is not None:
            yield "response_format", wanted
    if fields.structured_outputs is not None:
        outputs = _only(_of_outputs(fields.structured_outputs))
        if outputs is not None:
            yield "structured_outputs", outputs
    for param, kind in _FIELDS.items():
        value = getattr(fields, param)
        if value is not None:
            yield param, _KINDS[kind](value, param)
    if fields.bad_words:
        yield "bad_words", WithoutWords(tuple(dict.fromkeys(fields.bad_words)))


def _of_format(wanted: _ResponseFormat) -> Constraint | None:
    match wanted:
        case TextFormat():
            return None
        case JsonObjectFormat(schema=schema):
            return JsonSchema(_OBJECT if schema is None else schema_of(schema, "response_format.schema"))
        case JsonSchemaFormat(json_schema=named):
            return JsonSchema(schema_of(named.schema or {}, "response_format.json_schema.schema"))


def _of_outputs(outputs: StructuredOutputs) -> Iterator[tuple[str, Constraint]]:
    _refuse_variants(outputs)
    for kind in ("json", "regex", "choice", "grammar"):
        value, param = getattr(outputs, kind), f"structured_outputs.{kind}"
        if value is not None:
            yield param, _KINDS[kind](value, param)
    if outputs.json_object:
        yield "structured_outputs.json_object", JsonSchema(_OBJECT)


def _refuse_variants(outputs: StructuredOutputs) -> None:
    variants = {
        "structural_tag": outputs.structural_tag is not None,
        "whitespace_pattern": outputs.whitespace_pattern is not None,
        "disable_any_whitespace": outputs.disable_any_whitespace,
        "disable_additional_properties": outputs.disable_additional_properties,
    }
    for name, is_asked in variants.items():
        if is_asked:
            param = f"structured_outputs.{name}"
            raise UnsupportedParameter(f"The parameter '{param}' is not supported.", param=param)


def _only(found: Iterator[tuple[str, Constraint]]) -> Constraint | None:
    first = next(found, None)
    if first is None:
        return None
    second = next(found, None)
    if second is not None:
        raise InvalidValue(
            f"'{first[0]}' and '{second[0]}' both say what the answer must be.",
            param=second[0],
            hint="Give one of them.",
        )
    return first[1]


def _grammar(text: str) -> Constraint:
    # vLLM's field takes both languages, and only GBNF writes its rules with `::=`.
    return Gbnf(text) if _GBNF_RULE.search(text) else Lark(text)


def _parsed(text: str, param: str) -> object:
    try:
        return decode(_value, text.encode())
    except InvalidRequest:
        raise InvalidValue(f"'{param}' is text that is not JSON.", param=param) from None


def _is_deeper(value: JsonValue, limit: int) -> bool:
    level: list[JsonValue] = [value]
    for _ in range(limit):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return False
    return True
