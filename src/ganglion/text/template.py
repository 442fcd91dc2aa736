"""Renders the chat template that a model file carries into a prompt.

The dialect is the one Hugging Face's `apply_chat_template` speaks. The sandbox keeps template code from
reaching Python; it does not bound time or memory (`'a' * 10**9`), so a template nobody vouched for is
rendered in a process that can be killed: `ganglion.engines.rendering.renderer`.

Message content is rendered verbatim, control tokens written out in it included. Text cannot say which of
its characters the template meant as control tokens, so that is decided where the prompt is tokenized
(`parse_special` of the token engine), not here.
"""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import lru_cache, partial
from typing import NoReturn

from jinja2 import Template, TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ganglion.core.errors import InvalidValue
from ganglion.core.request import NEAREST_EFFORT, ChatPrompt, JsonValue, Message, Thinking
from ganglion.text.message_order import stricter_orders
from ganglion.text.tools.families import knows_tools
from ganglion.text.tools.tool_prompt import (
    calls_as_text,
    function_schema,
    parse_arguments,
    short_id,
    with_tool_instructions,
    with_tool_names,
)

# A variable that a template does not know changes nothing, so all that fit are set.


def _template_arguments(thinking: Thinking, source: str) -> dict[str, JsonValue]:
    """The variables for one template; an effort whose own word it quotes is passed as it is."""
    arguments: dict[str, JsonValue] = {}
    is_enabled = thinking.is_enabled
    if is_enabled is None and (thinking.effort is not None or thinking.budget_tokens is not None):
        is_enabled = thinking.effort != "none" and thinking.budget_tokens != 0
    if is_enabled is not None:
        arguments |= {"enable_thinking": is_enabled, "thinking": is_enabled}
    if thinking.effort is not None and thinking.effort != "none":
        is_known = f'"{thinking.effort}"' in source or f"'{thinking.effort}'" in source
        arguments["reasoning_effort"] = thinking.effort if is_known else NEAREST_EFFORT[thinking.effort]
    if thinking.budget_tokens is not None:
        arguments["thinking_budget"] = thinking.budget_tokens
    return arguments


# Enough for every model of a node; a compiled template holds about a hundred kilobytes.
_COMPILED_TEMPLATES = 16

MAX_QUOTED_CHARACTERS = 500

# Stands where a message goes on. The last one counts, so content that says it itself does no harm.
_OPEN_END = "\x02the message goes on here\x03"
_WANTS_SHORT_IDS = "!= 9"

# What template code can raise besides Jinja's own errors: it computes with Python values.
_FAULTS = (
    TemplateError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)

# `lipsum` draws random numbers and no chat template wants it.
_GLOBALS = ("range", "dict", "namespace", "cycler", "joiner")


class _TemplateRefused(Exception):
    """The template called `raise_exception`: it does not accept these messages."""


def render(
    source: str,
    prompt: ChatPrompt,
    *,
    bos_token: str,
    eos_token: str,
    now: datetime,
    is_typed: bool = False,
) -> str:
    """Render a prompt up to the assistant's turn, or into it where the last message goes on.

    With `is_typed` contents are lists of parts. Raises InvalidValue in the template's own words.
    """
    fill = partial(_render, is_typed=is_typed)
    use = prompt.tool_use
    tools = () if use.choice == "none" else use.tools
    fixed: dict[str, object] = {"bos_token": bos_token, "eos_token": eos_token, "strftime_now": _clock(now)}
    arguments = {
        "tools": None,
        "documents": None,
        "add_generation_prompt": not prompt.is_continued,
        **_template_arguments(prompt.thinking, source),
        **prompt.template_arguments,
    }
    messages = _opened(prompt) if prompt.is_continued else prompt.messages
    if knows_tools(source):
        if tools:
            fixed["tools"] = [function_schema(tool) for tool in tools]
        text = fill(source, with_tool_names(messages), arguments | fixed)
    else:
        written = calls_as_text(messages)
        text = fill(source, with_tool_instructions(written, tools) if tools else written, arguments | fixed)
    return _cut(text) if prompt.is_continued else text


def _render(
    source: str, messages: tuple[Message, ...], variables: dict[str, object], *, is_typed: bool
) -> str:
    try:
        return _fill_as_taken(source, messages, variables, is_typed=is_typed)
    except _TemplateRefused as refusal:
        raise InvalidValue(
            f"The model's chat template refused the messages: {_quoted(refusal)}", param="messages"
        ) from refusal
    except _FAULTS as fault:
        raise InvalidValue(
            f"The model's chat template failed on the messages: {_described(fault)}", param="messages"
        ) from fault


def _fill_as_taken(
    source: str, messages: tuple[Message, ...], variables: dict[str, object], *, is_typed: bool
) -> str:
    """Fill the template with the messages, or with the first order of them that it does not refuse."""
    try:
        return _fill(source, messages, variables, is_typed=is_typed)
    except _TemplateRefused:
        for moved in stricter_orders(messages):
            with suppress(_TemplateRefused):
                return _fill(source, moved, variables, is_typed=is_typed)
        raise


def _fill(source: str, messages: tuple[Message, ...], variables: dict[str, object], *, is_typed: bool) -> str:
    shown = [_variables(message, source) for message in messages]
    if is_typed:
        shown = [{**each, "content": [{"type": "text", "text": each["content"]}]} for each in shown]
    return _compile(source).render({**variables, "messages": shown})


def _opened(prompt: ChatPrompt) -> tuple[Message, ...]:
    """The messages with a mark at the end of the last one, which is where the prompt will end."""
    if not prompt.messages or prompt.messages[-1].role != "assistant":
        raise InvalidValue("To be continued, the last message must be the assistant's own.", param="messages")
    *before, last = prompt.messages
    return (*before, replace(last, content=last.content + _OPEN_END))


def _cut(text: str) -> str:
    end = text.rfind(_OPEN_END)
    if end < 0:
        raise InvalidValue(
            "The model's chat template does not show the message that is to be continued.", param="messages"
        )
    return text[:end]


@lru_cache(maxsize=_COMPILED_TEMPLATES)
def _compile(source: str) -> Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
    )
    environment.globals = {name: environment.globals[name] for name in _GLOBALS}
    environment.globals["raise_exception"] = _refuse
    environment.filters["tojson"] = _tojson
    return environment.from_string(source)


def _variables(message: Message, source: str) -> dict[str, object]:
    is_unknown = message.role == "developer" and "developer" not in source
    # Mistral's templates refuse ids of any other length than nine.
    call_id = short_id if _WANTS_SHORT_IDS in source else str
    variables: dict[str, object] = {
        "role": "system" if is_unknown else message.role,
        "content": message.content,
    }
    if message.reasoning is not None:
        variables["reasoning_content"] = message.reasoning
    if message.name is not None:
        variables["name"] = message.name
    if message.tool_call_id is not None:
        variables["tool_call_id"] = call_id(message.tool_call_id)
    if message.tool_calls:
        variables["tool_calls"] = [
            {
                "id": call_id(call.call_id),
                "type": "function",
                "function": {"name": call.name, "arguments": parse_arguments(call)},
            }
            for call in message.tool_calls
        ]
    return variables


def _clock(now: datetime) -> Callable[[str], str]:
    def strftime_now(pattern: str) -> str:
        return now.strftime(pattern)

    return strftime_now


def _refuse(message: str) -> NoReturn:
    raise _TemplateRefused(message)


def _tojson(
    value: JsonValue,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes <, >, & and ' for HTML, which a model would read as it stands.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _quoted(fault: Exception) -> str:
    words = str(fault)
    return words if len(words) <= MAX_QUOTED_CHARACTERS else words[:MAX_QUOTED_CHARACTERS] + "…"


def _described(fault: Exception) -> str:
    match fault:
        case MemoryError():
            return "it needs more memory than it may use."
        case TemplateSyntaxError(lineno=line):
            return f"line {line}: {_quoted(fault)}"
        case _:
            return f"{type(fault).__name__}: {_quoted(fault)}"


class _Generation(Extension):
    """`{% generation %}`, which marks the assistant's words for training and renders as its body."""

    tags = {"generation"}  # noqa: RUF012  Jinja declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
