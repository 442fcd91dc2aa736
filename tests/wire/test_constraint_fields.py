"""What clients of three servers write when the text must be something."""

import json

import pytest

from ganglion.core.errors import InvalidRequest
from ganglion.core.request import Choice, Constraint, Gbnf, JsonSchema, Lark, Regex
from ganglion.wire import chat, completions
from ganglion.wire.answer_format import ParseContext

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
GBNF = 'root ::= "yes" | "no"'
LARK = 'start: "yes" | "no" // ::= is how GBNF writes it'


def asked(wire: str, **fields: object) -> Constraint | None:
    if wire == "chat":
        fields = {"model": "m", "messages": [{"role": "user", "content": "hello"}]} | fields
        return chat.parse(json.dumps(fields).encode(), ParseContext("a", 1)).requests[0].constraint
    fields = {"model": "m", "prompt": "hello"} | fields
    return completions.parse(json.dumps(fields).encode(), ParseContext("a", 1)).requests[0].constraint


def named(**fields: object) -> dict[str, object]:
    return {"type": "json_schema", "json_schema": {"name": "n"} | fields}


MEANINGS = [
    ({}, None),
    ({"response_format": {"type": "text"}}, None),
    ({"response_format": None, "guided_json": None, "structured_outputs": {}}, None),
    ({"response_format": {"type": "json_object"}}, JsonSchema({"type": "object"})),
    ({"response_format": {"type": "json_object", "schema": SCHEMA}}, JsonSchema(SCHEMA)),
    ({"response_format": named(schema=SCHEMA, strict=True, description="d")}, JsonSchema(SCHEMA)),
    ({"response_format": named()}, JsonSchema({})),
    ({"guided_json": SCHEMA, "guided_decoding_backend": "outlines"}, JsonSchema(SCHEMA)),
    ({"guided_json": json.dumps(SCHEMA)}, JsonSchema(SCHEMA)),
    ({"guided_regex": "a+"}, Regex("a+")),
    ({"guided_choice": ["yes", "no"]}, Choice(("yes", "no"))),
    ({"guided_grammar": GBNF}, Gbnf(GBNF)),
    ({"guided_grammar": LARK}, Lark(LARK)),
    ({"structured_outputs": {"json": SCHEMA}}, JsonSchema(SCHEMA)),
    ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, JsonSchema(SCHEMA)),
    ({"structured_outputs": {"regex": "a+", "json_object": False}}, Regex("a+")),
    ({"structured_outputs": {"choice": ["a"]}}, Choice(("a",))),
    ({"structured_outputs": {"grammar": LARK}}, Lark(LARK)),
    ({"structured_outputs": {"json_object": True}}, JsonSchema({"type": "object"})),
    ({"structured_outputs": {"regex": "a", "disable_any_whitespace": False}}, Regex("a")),
    ({"grammar": GBNF}, Gbnf(GBNF)),
    ({"grammar": LARK}, Gbnf(LARK)),
    ({"json_schema": SCHEMA}, JsonSchema(SCHEMA)),
    ({"json_schema": SCHEMA, "response_format": {"type": "text"}}, JsonSchema(SCHEMA)),
]


@pytest.mark.parametrize("wire", ["chat", "completions"])
@pytest.mark.parametrize(("fields", "expected"), MEANINGS)
def test_every_name_of_a_constraint_is_understood(
    wire: str, fields: dict[str, object], expected: Constraint | None
) -> None:
    assert asked(wire, **fields) == expected


def nested(depth: int) -> dict[str, object]:
    schema: dict[str, object] = {}
    for _ in range(depth):
        schema = {"not": schema}
    return schema


WRONG = [
    ({"response_format": "json"}, "invalid_value", "response_format"),
    ({"response_format": {}}, "missing_required_parameter", "response_format.type"),
    ({"response_format": {"type": "structural_tag"}}, "invalid_value", "response_format.type"),
    (
        {"response_format": {"type": "json_schema"}},
        "missing_required_parameter",
        "response_format.json_schema",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
        "missing_required_parameter",
        "response_format.json_schema.name",
    ),
    ({"response_format": named(schema=True)}, "invalid_value", "response_format.json_schema.schema"),
    (
        {"response_format": named(schema=nested(200))},
        "invalid_value",
        "response_format.json_schema.schema",
    ),
    ({"guided_json": "{"}, "invalid_value", "guided_json"),
    ({"guided_json": "[]"}, "invalid_value", "guided_json"),
    ({"guided_json": "[" * 5000}, "invalid_value", "guided_json"),
    ({"guided_json": []}, "invalid_value", "guided_json"),
    ({"guided_regex": ""}, "invalid_value", "guided_regex"),
    ({"guided_regex": "a" * 70_000}, "invalid_value", "guided_regex"),
    ({"guided_choice": []}, "invalid_value", "guided_choice"),
    ({"guided_choice": ["a", ""]}, "invalid_value", "guided_choice[1]"),
    ({"guided_choice": ["a"] * 4097}, "invalid_value", "guided_choice"),
    ({"grammar": "x" * 2**18}, "invalid_value", "grammar"),
    ({"json_schema": "x"}, "invalid_value", "json_schema"),
    ({"guided_regex": "a", "grammar": GBNF}, "invalid_value", "grammar"),
    ({"response_format": {"type": "json_object"}, "guided_json": SCHEMA}, "invalid_value", "guided_json"),
    (
        {"structured_outputs": {"regex": "a", "json_object": True}},
        "invalid_value",
        "structured_outputs.json_object",
    ),
    (
        {"structured_outputs": {"structural_tag": "{}"}},
        "unsupported_parameter",
        "structured_outputs.structural_tag",
    ),
    (
        {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}},
        "unsupported_parameter",
        "structured_outputs.disable_any_whitespace",
    ),
    ({"guided_whitespace_pattern": " "}, "unsupported_parameter", "guided_whitespace_pattern"),
    ({"regex": "a"}, "unsupported_parameter", "regex"),
]


@pytest.mark.parametrize("wire", ["chat", "completions"])
@pytest.mark.parametrize(("fields", "code", "param"), WRONG)
def test_what_is_wrong_with_a_constraint_is_named(
    wire: str, fields: dict[str, object], code: str, param: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        asked(wire, **fields)
    assert (caught.value.status, caught.value.code, caught.value.param) == (400, code, param)
    assert len(caught.value.message) < 500
