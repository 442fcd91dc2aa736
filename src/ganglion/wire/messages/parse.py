"""A Messages body to the one request it means."""

from dataclasses import dataclass, field, replace
from functools import cache
from typing import assert_never

import msgspec

from ganglion.core.errors import InvalidValue, UnsupportedParameter
from ganglion.core.request import ChatPrompt, JsonSchema, Request, Thinking
from ganglion.wire.decode import decode, read_object
from ganglion.wire.fields import sampling_of, stop_of
from ganglion.wire.messages.conversation import MessagesConversation, conversation_of
from ganglion.wire.messages.errors import thread_unsupported
from ganglion.wire.messages.message_object import MessagesReplyContext
from ganglion.wire.messages.messages_tools import tool_use_of
from ganglion.wire.messages.schema import (
    AdaptiveThinking,
    CountBody,
    DisabledThinking,
    EnabledThinking,
    MessagesBody,
    MessagesTool,
    ToolThinking,
    is_absent,
)
from ganglion.wire.seal import HmacSeal
from ganglion.wire.unknown_fields import FieldShape, FieldShapes, check_unknown, fields_of, list_of

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_body = msgspec.json.Decoder(MessagesBody)
_count = msgspec.json.Decoder(CountBody)
_MAX_FIELDS = 512
_MAX_SCHEMA_BYTES = 2**18

HARMLESS = frozenset(
    {
        "metadata",
        "service_tier",
        "speed",
        "inference_geo",
        "cache_control",
        "context_management",
        "diagnostics",
        "fallbacks",
        "fallback_credit_token",
        "betas",
        "user_profile_id",
        "workspace_id",
    }
)
"""Fields that ask nothing of the answer."""

HOSTED = frozenset({"container", "mcp_servers"})
"""Fields that go with hosted tools, and are dropped as those are."""

REFUSED = frozenset(
    {
        *("compaction", "response_format", "n", "logprobs", "top_logprobs", "functions"),
        *("readout", "steering"),
    }
)
"""Fields that ask for what this wire does not do here; null and an empty list ask for nothing."""

_NOTHING = (b"null", b"[]", b"{}", b"false", b"0")
_HARMLESS_INSIDE = frozenset(
    {
        *("cache_control", "citations", "caller", "toolset_name", "server_name", "media_type"),
        *("encrypted_content", "signature", "tool_changes"),
        *("defer_loading", "eager_input_streaming", "input_examples"),
    }
)
"""Fields inside others that ask nothing of the answer."""
_NULL = msgspec.Raw(b"null")
_KNOWN = frozenset(MessagesBody.__struct_fields__) | HARMLESS | HOSTED | REFUSED | {"thread"}

PromptBody = MessagesBody | CountBody


@dataclass(frozen=True, slots=True)
class MessagesParseContext:
    """What the door knows of a request besides its body."""

    id: str
    request_id: str
    seal: HmacSeal = field(repr=False)
    tenant: str = ""
    is_strict: bool = False


@dataclass(frozen=True, slots=True)
class MessagesCall:
    """What one body asks for, how to answer it, and what of it was set aside."""

    request: Request
    reply: MessagesReplyContext
    is_streamed: bool
    unknown_fields: tuple[str, ...] = ()
    dropped_tools: tuple[str, ...] = ()
    unsealed_thoughts: int = 0
    left_out: tuple[str, ...] = ()
    """What else of it was, for the log."""


@dataclass(frozen=True, slots=True)
class CountCall:
    """A prompt whose tokens are to be counted."""

    request: Request
    unknown_fields: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _BuiltPrompt:
    prompt: ChatPrompt
    dropped: tuple[str, ...]
    turns: MessagesConversation


def parse(body: bytes, arrival: MessagesParseContext) -> MessagesCall:
    """Read a body, or raise the InvalidRequest that names the first thing wrong with it."""
    fields, unknown = _checked(body, arrival)
    asked = decode(_body, body)
    prompted = _built_prompt(asked, arrival)
    stop = stop_of(asked)
    request = Request(
        id=arrival.id,
        model=asked.model,
        prompt=prompted.prompt,
        sampling=sampling_of(asked),
        stop=replace(stop, strings=(*(asked.stop_sequences or ()), *stop.strings)),
        max_tokens=asked.max_tokens,
        constraint=_constraint(asked),
        priority=asked.priority or 0,
        tenant=arrival.tenant,
    )
    reply = MessagesReplyContext(
        id=arrival.id,
        model=asked.model,
        request_id=arrival.request_id,
        tenant=arrival.tenant,
        seal=arrival.seal,
        is_thinking_omitted=_is_omitted(asked),
    )
    hosted = tuple(name for name in fields if name in HOSTED and bytes(fields[name]) not in _NOTHING)
    dropped = prompted.dropped + hosted
    turns = prompted.turns
    return MessagesCall(request, reply, bool(asked.stream), unknown, dropped, turns.unsealed, turns.left_out)


def parse_count(body: bytes, arrival: MessagesParseContext) -> CountCall:
    """Read a body whose prompt is only counted, or raise what is wrong with it."""
    _, unknown = _checked(body, arrival)
    asked = decode(_count, body)
    prompt = _built_prompt(asked, arrival).prompt
    _constraint(asked)
    return CountCall(Request(arrival.id, asked.model, prompt, tenant=arrival.tenant), unknown)


def _checked(body: bytes, arrival: MessagesParseContext) -> tuple[dict[str, msgspec.Raw], tuple[str, ...]]:
    fields = decode(_fields, body)
    if len(fields) > _MAX_FIELDS:
        raise InvalidValue(f"The body holds {len(fields)} parameters; {_MAX_FIELDS} is the most.")
    if bytes(fields.get("thread", _NULL)) not in _NOTHING:
        raise thread_unsupported()
    for name, raw in fields.items():
        if name in REFUSED and bytes(raw) not in _NOTHING:
            raise UnsupportedParameter(
                f"The parameter '{name}' is not supported.", param=name, hint="Leave it out."
            )
    unknown = tuple(name for name in fields if name not in _KNOWN)
    return fields, check_unknown(unknown, fields, _shapes(), _HARMLESS_INSIDE, is_strict=arrival.is_strict)


@cache
def _shapes() -> FieldShapes:
    """What is read inside a body's fields; of hosted tools nothing is."""
    fields = fields_of(MessagesBody)
    tool = FieldShape({"custom": fields_of(MessagesTool)}, tag="type", untagged="custom")
    return {**fields, "tools": list_of(tool)}


def _built_prompt(asked: PromptBody, arrival: MessagesParseContext) -> _BuiltPrompt:
    turns = conversation_of(
        asked.system,
        asked.messages,
        model=asked.model,
        tenant=arrival.tenant,
        seal=arrival.seal,
    )
    tooling = tool_use_of(asked.tools, asked.tool_choice)
    prompt = ChatPrompt(
        turns.messages,
        tool_use=tooling.use,
        thinking=_thinking(asked),
        is_continued=turns.is_continued,
    )
    return _BuiltPrompt(prompt, tooling.dropped, turns)


def _thinking(asked: PromptBody) -> Thinking:
    effort = asked.output_config.effort if asked.output_config else None
    match asked.thinking:
        case None | AdaptiveThinking() | ToolThinking():
            return Thinking(effort=effort)
        case EnabledThinking(budget_tokens=budget_tokens):
            return Thinking(True, effort, budget_tokens)
        case DisabledThinking():
            return Thinking(False, effort)
        case _:
            assert_never(asked.thinking)


def _is_omitted(asked: MessagesBody) -> bool:
    match asked.thinking:
        case EnabledThinking(display=display) | AdaptiveThinking(display=display):
            return display == "omitted"
        case _:
            return False


def _constraint(asked: PromptBody) -> JsonSchema | None:
    config = asked.output_config
    if config is not None and not is_absent(config.task_budget):
        param = "output_config.task_budget"
        raise UnsupportedParameter(f"The parameter '{param}' is not supported.", param=param)
    inside = config.format if config else None
    if inside is not None and asked.output_format is not None:
        raise InvalidValue(
            "'output_format' and 'output_config.format' mean the same, so give one.", param="output_format"
        )
    if inside is not None:
        return JsonSchema(read_object(inside.schema, "output_config.format.schema", _MAX_SCHEMA_BYTES))
    if asked.output_format is not None:
        schema = asked.output_format.schema
        return JsonSchema(read_object(schema, "output_format.schema", _MAX_SCHEMA_BYTES))
    return None
