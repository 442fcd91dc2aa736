"""Renders the chat template that a model file carries into a prompt.

The dialect is the one Hugging Face's `apply_chat_template` speaks. The sandbox keeps template code from
reaching Python; it does not bound time or memory (`'a' * 10**9`), so a template nobody vouched for is
rendered in a process that can be killed: `ganglion.engines.rendering`.

Message content is rendered verbatim, control tokens written out in it included. Text cannot say which of
its characters the template meant as control tokens, so that is decided where the prompt is tokenized
(`parse_special` of the token engine), not here.
"""

import json
from collections.abc import Callable
from datetime import datetime
from functools import lru_cache
from typing import NoReturn

from jinja2 import Template, TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ganglion.core.errors import InvalidValue
from ganglion.core.request import ChatPrompt, JsonValue, Message

# Enough for every model of a node; a compiled template holds about a hundred kilobytes.
COMPILED_TEMPLATES = 16

MAX_QUOTED_CHARACTERS = 500

# What template code can raise besides Jinja's own errors: it computes with Python values.
FAULTS = (
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
GLOBALS = ("range", "dict", "namespace", "cycler", "joiner")


class TemplateRefused(Exception):
    """The template called `raise_exception`: it does not accept these messages."""


def render(source: str, prompt: ChatPrompt, *, bos_token: str, eos_token: str, now: datetime) -> str:
    """Render a prompt up to the assistant's turn; raises InvalidValue in the template's own words."""
    try:
        template = _compile(source)
        return template.render(
            {
                "tools": None,
                "documents": None,
                "add_generation_prompt": True,
                **prompt.template_arguments,
                "messages": [_variables(message, source) for message in prompt.messages],
                "bos_token": bos_token,
                "eos_token": eos_token,
                "strftime_now": _clock(now),
            }
        )
    except TemplateRefused as refusal:
        raise InvalidValue(
            f"The model's chat template refused the messages: {_quoted(refusal)}", param="messages"
        ) from refusal
    except FAULTS as fault:
        raise InvalidValue(
            f"The model's chat template failed on the messages: {_described(fault)}", param="messages"
        ) from fault


@lru_cache(maxsize=COMPILED_TEMPLATES)
def _compile(source: str) -> Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
    )
    environment.globals = {name: environment.globals[name] for name in GLOBALS}
    environment.globals["raise_exception"] = _refuse
    environment.filters["tojson"] = _tojson
    return environment.from_string(source)


def _variables(message: Message, source: str) -> dict[str, str]:
    is_unknown = message.role == "developer" and "developer" not in source
    variables = {"role": "system" if is_unknown else message.role, "content": message.content}
    if message.reasoning is not None:
        variables["reasoning_content"] = message.reasoning
    if message.name is not None:
        variables["name"] = message.name
    if message.tool_call_id is not None:
        variables["tool_call_id"] = message.tool_call_id
    return variables


def _clock(now: datetime) -> Callable[[str], str]:
    def strftime_now(pattern: str) -> str:
        return now.strftime(pattern)

    return strftime_now


def _refuse(message: str) -> NoReturn:
    raise TemplateRefused(message)


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
