"""What the Open Responses specification says of every body, item, part and event, as facts to check against.

Required fields, their types, which may be null, closed sets of values; what else stands in an object is
nobody's business. `OPENAI_TOO` holds items that OpenAI's own wire has besides and we send: those are checked
in the same way.
"""

from collections.abc import Callable, Mapping
from typing import Any

Shape = Callable[[Any, str], None]
"""Raises an AssertionError that names the place of what does not fit."""


def text(value: Any, path: str) -> None:
    assert isinstance(value, str), f"{path} is no text: {value!r}"


def integer(value: Any, path: str) -> None:
    assert isinstance(value, int) and not isinstance(value, bool), f"{path} is no whole number: {value!r}"


def number(value: Any, path: str) -> None:
    assert isinstance(value, int | float) and not isinstance(value, bool), f"{path} is no number: {value!r}"


def boolean(value: Any, path: str) -> None:
    assert isinstance(value, bool), f"{path} is neither true nor false: {value!r}"


def anything(value: Any, path: str) -> None:
    """Whatever it is, null included."""


def one_of(*values: str) -> Shape:
    def check(value: Any, path: str) -> None:
        assert value in values, f"{path} is {value!r}, not one of {values}"

    return check


def maybe(shape: Shape) -> Shape:
    def check(value: Any, path: str) -> None:
        if value is not None:
            shape(value, path)

    return check


def listed(shape: Shape) -> Shape:
    def check(value: Any, path: str) -> None:
        assert isinstance(value, list), f"{path} is no list: {value!r}"
        for place, each in enumerate(value):
            shape(each, f"{path}[{place}]")

    return check


def record(required: Mapping[str, Shape], optional: Mapping[str, Shape] | None = None) -> Shape:
    """An object; an optional field is absent or fits, and null fits only where its shape says so."""

    def check(value: Any, path: str) -> None:
        assert isinstance(value, dict), f"{path} is no object: {value!r}"
        missing = required.keys() - value.keys()
        assert not missing, f"{path} lacks {sorted(missing)}"
        for name, shape in {**required, **(optional or {})}.items():
            if name in value:
                shape(value[name], f"{path}.{name}")

    return check


def tagged(shapes: Mapping[str, Shape]) -> Shape:
    """One of several objects, told apart by `type`."""

    def check(value: Any, path: str) -> None:
        assert isinstance(value, dict), f"{path} is no object: {value!r}"
        kind: Any = value.get("type")
        assert kind in shapes, f"{path}.type is {kind!r}, not one of {sorted(shapes)}"
        shapes[kind](value, path)

    return check


def either(plain: Shape, structured: Shape) -> Shape:
    """A text, or something with a structure."""

    def check(value: Any, path: str) -> None:
        (plain if isinstance(value, str) else structured)(value, path)

    return check


TOP_LOGPROB = record({"token": text, "logprob": number, "bytes": listed(integer)})
LOGPROB = record(
    {"token": text, "logprob": number, "bytes": listed(integer), "top_logprobs": listed(TOP_LOGPROB)}
)
CITATION = record({"url": text, "start_index": integer, "end_index": integer, "title": text})
PART = tagged(
    {
        "input_text": record({"text": text}),
        "output_text": record(
            {"text": text, "annotations": listed(tagged({"url_citation": CITATION}))},
            {"logprobs": listed(LOGPROB)},
        ),
        "text": record({"text": text}),
        "summary_text": record({"text": text}),
        "reasoning_text": record({"text": text}),
        "refusal": record({"refusal": text}),
        "input_image": record({"image_url": maybe(text), "detail": one_of("low", "high", "auto")}),
        "input_file": record({}, {"filename": text, "file_url": text}),
    }
)

ITEM_STATUS = one_of("in_progress", "completed", "incomplete")
_CALLED = {"id": text, "call_id": text, "status": ITEM_STATUS}
_ANSWERED = {**_CALLED, "output": either(text, listed(PART))}
OPENAI_TOO: Mapping[str, Shape] = {
    "custom_tool_call": record({**_CALLED, "name": text, "input": text}),
    "custom_tool_call_output": record(_ANSWERED),
}
ITEM = tagged(
    {
        "message": record(
            {
                "id": text,
                "status": ITEM_STATUS,
                "role": one_of("user", "assistant", "system", "developer"),
                "content": listed(PART),
            },
            {"phase": one_of("commentary", "final_answer")},
        ),
        "function_call": record({**_CALLED, "name": text, "arguments": text}),
        "function_call_output": record(_ANSWERED),
        "reasoning": record(
            {"id": text, "summary": listed(PART)}, {"content": listed(PART), "encrypted_content": text}
        ),
        "compaction": record({"id": text, "encrypted_content": text}, {"created_by": text}),
        **OPENAI_TOO,
    }
)

FUNCTION_TOOL = record(
    {"name": text, "description": maybe(text), "parameters": maybe(record({})), "strict": maybe(boolean)}
)


def tool(value: Any, path: str) -> None:
    """The specification knows functions; whatever else a client offers is echoed as it came."""
    if isinstance(value, dict) and value.get("type") == "function":
        FUNCTION_TOOL(value, path)
    else:
        record({"type": text})(value, path)


CHOICE = one_of("none", "auto", "required")
TOOL_CHOICE = either(
    CHOICE,
    tagged(
        {
            "function": record({}, {"name": text}),
            "allowed_tools": record({"tools": listed(record({"type": text})), "mode": CHOICE}),
            "custom": record({"name": text}),
        }
    ),
)
FORMAT = tagged(
    {
        "text": record({}),
        "json_object": record({}),
        "json_schema": record(
            {"name": text, "description": maybe(text), "schema": anything, "strict": boolean}
        ),
    }
)
USAGE = record(
    {
        "input_tokens": integer,
        "output_tokens": integer,
        "total_tokens": integer,
        "input_tokens_details": record({"cached_tokens": integer}),
        "output_tokens_details": record({"reasoning_tokens": integer}),
    }
)
RESPONSE = record(
    {
        "id": text,
        "object": one_of("response"),
        "created_at": integer,
        "completed_at": maybe(integer),
        "status": one_of("queued", "in_progress", "completed", "incomplete", "failed", "cancelled"),
        "incomplete_details": maybe(record({"reason": text})),
        "model": text,
        "previous_response_id": maybe(text),
        "instructions": maybe(text),
        "output": listed(ITEM),
        "error": maybe(record({"code": text, "message": text})),
        "tools": listed(tool),
        "tool_choice": TOOL_CHOICE,
        "truncation": one_of("auto", "disabled"),
        "parallel_tool_calls": boolean,
        "text": record({"format": FORMAT}, {"verbosity": one_of("low", "medium", "high")}),
        "top_p": number,
        "presence_penalty": number,
        "frequency_penalty": number,
        "top_logprobs": integer,
        "temperature": number,
        "reasoning": maybe(record({"effort": maybe(text), "summary": maybe(text)})),
        "usage": maybe(USAGE),
        "max_output_tokens": maybe(integer),
        "max_tool_calls": maybe(integer),
        "store": boolean,
        "background": boolean,
        "service_tier": text,
        "metadata": record({}),
        "safety_identifier": maybe(text),
        "prompt_cache_key": maybe(text),
    },
    {"user": maybe(text), "conversation": maybe(record({"id": text}))},
)
COMPACTED = record(
    {
        "id": text,
        "object": one_of("response.compaction"),
        "created_at": integer,
        "output": listed(ITEM),
        "usage": USAGE,
    }
)
ITEM_PAGE = record(
    {
        "object": one_of("list"),
        "data": listed(ITEM),
        "first_id": maybe(text),
        "last_id": maybe(text),
        "has_more": boolean,
    }
)

_NUMBERED = {"sequence_number": integer}
_LIFE = record({**_NUMBERED, "response": RESPONSE})
_ITEM_EVENT = record({**_NUMBERED, "output_index": integer, "item": ITEM})
_INSIDE = {**_NUMBERED, "item_id": text, "output_index": integer}
_IN_PART = {**_INSIDE, "content_index": integer}
_LOGPROBS = {"logprobs": listed(LOGPROB)}
EVENT = tagged(
    {
        "response.created": _LIFE,
        "response.queued": _LIFE,
        "response.in_progress": _LIFE,
        "response.completed": _LIFE,
        "response.incomplete": _LIFE,
        "response.failed": _LIFE,
        "response.output_item.added": _ITEM_EVENT,
        "response.output_item.done": _ITEM_EVENT,
        "response.content_part.added": record({**_IN_PART, "part": PART}),
        "response.content_part.done": record({**_IN_PART, "part": PART}),
        "response.output_text.delta": record({**_IN_PART, "delta": text}, _LOGPROBS),
        "response.output_text.done": record({**_IN_PART, "text": text}, _LOGPROBS),
        "response.function_call_arguments.delta": record({**_INSIDE, "delta": text}),
        "response.function_call_arguments.done": record({**_INSIDE, "arguments": text}),
        # OpenAI's own names for what the specification calls `response.reasoning.delta` and `.done`, and for
        # what it has none: its SDKs read these and pass the others over.
        "response.reasoning_text.delta": record({**_IN_PART, "delta": text}),
        "response.reasoning_text.done": record({**_IN_PART, "text": text}),
        "response.custom_tool_call_input.delta": record({**_INSIDE, "delta": text}),
        "response.custom_tool_call_input.done": record({**_INSIDE, "input": text}),
    }
)
SOCKET_ERROR = record(
    {"type": one_of("error"), "status": integer, "error": record({"code": text, "message": text})},
)


def check_response(response: Any) -> None:
    """A whole response, as it is answered, stored or told inside an event."""
    RESPONSE(response, "response")


def check_event(event: Any) -> None:
    """One event of a stream."""
    EVENT(event, str(event.get("type") if isinstance(event, dict) else event))
