"""Fields that nobody knows inside messages, items, parts and tools: refused by their path, or listed."""

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest

from ganglion.core.errors import UnknownParameter
from ganglion.wire import chat, completions, messages, ollama, responses, unknown_fields
from ganglion.wire.answer_format import ParseContext
from ganglion.wire.score import ScoreBody
from ganglion.wire.seal import HmacSeal
from ganglion.wire.unknown_fields import MAX_LISTED_BYTES
from support.golden import GOLDEN

SEAL = HmacSeal(bytes(32))
HELLO = {"role": "user", "content": "hi"}
SCHEMA = {"type": "object", "properties": {"foo": {"type": "string", "novelty": 1}}}


def ids() -> Callable[[str], str]:
    numbers = itertools.count()
    return lambda prefix: f"{prefix}_{next(numbers)}"


def parse_chat(body: bytes, *, is_strict: bool) -> tuple[str, ...]:
    return chat.parse(body, ParseContext("1", 0, is_strict=is_strict)).unknown_fields


def parse_completions(body: bytes, *, is_strict: bool) -> tuple[str, ...]:
    return completions.parse(body, ParseContext("1", 0, is_strict=is_strict)).unknown_fields


def parse_responses(body: bytes, *, is_strict: bool) -> tuple[str, ...]:
    asked = responses.parse_body(body, is_strict=is_strict)
    arrival = responses.ResponsesParseContext("resp_1", 0, ids(), seal=SEAL.of("t"))
    return responses.build_call(asked, arrival).unknown_fields


def parse_messages(body: bytes, *, is_strict: bool) -> tuple[str, ...]:
    return messages.parse(
        body, ParseContext("1", request_id="r", seal=SEAL, is_strict=is_strict)
    ).unknown_fields


def parse_ollama(body: bytes, *, is_strict: bool) -> tuple[str, ...]:
    return ollama.parse_chat(body, ParseContext("1", 0, is_strict=is_strict)).unknown_fields


Parse = Callable[..., tuple[str, ...]]
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
UNKNOWN: list[tuple[Parse, dict[str, Any], str]] = [
    (parse_chat, {"messages": [HELLO | {"foo": 1}]}, "messages[0].foo"),
    (
        parse_chat,
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "foo": 1}]}]},
        "messages[0].content[0].foo",
    ),
    (
        parse_chat,
        {"messages": [HELLO], "tools": [{"type": "function", "function": {"name": "f"}, "foo": 1}]},
        "tools[0].foo",
    ),
    (
        parse_chat,
        {"messages": [HELLO], "tools": [{"type": "function", "function": {"name": "f", "foo": 1}}]},
        "tools[0].function.foo",
    ),
    (parse_chat, {"messages": [HELLO], "stream": True, "stream_options": {"foo": 1}}, "stream_options.foo"),
    (
        parse_completions,
        {"prompt": "x", "stream": True, "stream_options": {"foo": 1}},
        "stream_options.foo",
    ),
    (parse_responses, {"input": [HELLO | {"foo": 1}]}, "input[0].foo"),
    (parse_responses, {"input": [{"type": "message", **HELLO, "foo": 1}]}, "input[0].foo"),
    (
        parse_responses,
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": "a", "foo": 1}]}]},
        "input[0].content[0].foo",
    ),
    (parse_responses, {"input": [HELLO, CALL | {"foo": 1}]}, "input[1].foo"),
    (parse_responses, {"input": "x", "tools": [{"type": "function", "name": "f", "foo": 1}]}, "tools[0].foo"),
    (
        parse_responses,
        {
            "input": "x",
            "tools": [
                {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f", "foo": 1}]}
            ],
        },
        "tools[0].tools[0].foo",
    ),
    (parse_responses, {"input": "x", "reasoning": {"foo": 1}}, "reasoning.foo"),
    (parse_messages, {"messages": [HELLO | {"foo": 1}]}, "messages[0].foo"),
    (
        parse_messages,
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "foo": 1}]}]},
        "messages[0].content[0].foo",
    ),
    (
        parse_messages,
        {"messages": [HELLO], "tools": [{"name": "f", "input_schema": SCHEMA, "foo": 1}]},
        "tools[0].foo",
    ),
    (parse_messages, {"messages": [HELLO], "thinking": {"type": "adaptive", "foo": 1}}, "thinking.foo"),
    (parse_ollama, {"messages": [HELLO | {"foo": 1}]}, "messages[0].foo"),
]


def body_of(parse: Parse, fields: dict[str, Any]) -> bytes:
    least = {"model": "m", "max_tokens": 9} if parse is parse_messages else {"model": "m"}
    return json.dumps(least | fields).encode()


@pytest.mark.parametrize(("parse", "fields", "path"), UNKNOWN)
def test_an_unknown_field_is_listed_by_its_path_and_with_strict_refused(
    parse: Parse, fields: dict[str, Any], path: str
) -> None:
    body = body_of(parse, fields)
    assert parse(body, is_strict=False) == (path,)
    with pytest.raises(UnknownParameter) as caught:
        parse(body, is_strict=True)
    assert caught.value.param == path
    assert path in caught.value.message


def test_the_smaller_routes_refuse_them_too() -> None:
    body = b'{"model": "m", "prompt": "x", "score_ranges": [[0, 1]], "foo": 1}'
    unknown_fields.refuse_unknown(body, ScoreBody, is_strict=False)
    with pytest.raises(UnknownParameter) as caught:
        unknown_fields.refuse_unknown(body, ScoreBody, is_strict=True)
    assert caught.value.param == "foo"


CALLED = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
KNOWN: list[tuple[Parse, dict[str, Any]]] = [
    (
        parse_chat,
        {
            "messages": [
                HELLO | {"foo": None},
                {
                    "role": "assistant",
                    "content": None,
                    "refusal": None,
                    "annotations": [],
                    "audio": None,
                    "function_call": None,
                    "tool_calls": [
                        {
                            "index": 0,
                            "id": "c",
                            "type": "function",
                            "function": {"name": "f", "arguments": "{}"},
                        }
                    ],
                },
                {"role": "tool", "tool_call_id": "c", "content": "x"},
            ],
            "tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}],
            "chat_template_kwargs": {"foo": {"bar": 1}},
        },
    ),
    (
        parse_responses,
        {
            "input": [
                HELLO,
                CALL | {"id": "fc_1", "status": "completed", "caller": {"type": "direct"}},
                {"type": "function_call_output", "call_id": "c", "output": "x"},
                {"type": "web_search_call", "id": "ws_1", "action": {"foo": 1}, "foo": 1},
                {
                    "type": "message",
                    "role": "assistant",
                    "content": [
                        {"type": "output_text", "text": "a", "annotations": [{"foo": 1}], "logprobs": []}
                    ],
                },
            ],
            "tools": [
                {"type": "function", "name": "f", "parameters": SCHEMA, "defer_loading": True},
                {"type": "web_search", "filters": {"foo": 1}, "foo": 1},
            ],
            "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}},
        },
    ),
    (
        parse_messages,
        {
            "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral", "foo": 1}}],
            "messages": [
                HELLO,
                {
                    "role": "assistant",
                    "content": [
                        {"type": "text", "text": "a", "citations": [{"foo": 1}]},
                        {"type": "tool_use", "id": "t", "name": "f", "input": {"foo": 1}, "caller": {}},
                    ],
                },
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "x"}]},
            ],
            "tools": [
                {"name": "f", "input_schema": SCHEMA, "cache_control": {"type": "ephemeral"}},
                {"type": "web_search_20250305", "name": "web_search", "max_uses": 5, "foo": 1},
            ],
        },
    ),
]


@pytest.mark.parametrize(("parse", "fields"), KNOWN)
def test_what_the_vendors_know_nulls_and_free_form_json_are_no_unknown_fields(
    parse: Parse, fields: dict[str, Any]
) -> None:
    assert parse(body_of(parse, fields), is_strict=True) == ()


@pytest.mark.parametrize(
    ("parse", "path"),
    [(parse_responses, "responses/codex.json"), (parse_messages, "messages/claude_code.json")],
)
def test_what_agents_send_is_known_through_and_through(parse: Parse, path: str) -> None:
    assert parse((GOLDEN / path).read_bytes(), is_strict=True) == ()


def test_a_large_body_is_searched_only_where_it_matters() -> None:
    sent = {"messages": [HELLO | {"content": "x" * MAX_LISTED_BYTES, "foo": 1}]}
    assert parse_chat(body_of(parse_chat, sent), is_strict=False) == ()
    with pytest.raises(UnknownParameter):
        parse_chat(body_of(parse_chat, sent), is_strict=True)


def test_however_many_there_are_a_few_are_listed() -> None:
    sent = {"messages": [HELLO | {f"foo{number}": 1} for number in range(1000)]}
    assert 0 < len(parse_chat(body_of(parse_chat, sent), is_strict=False)) < 100
