"""Parses a Messages body into its request."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import assert_never

import msgspec

from ganglion.core.errors import InvalidValue, UnsupportedParameter
from ganglion.core.request import ChatPrompt, JsonSchema, JsonValue, Request, Thinking
from ganglion.wire.answer_format import ParseContext, ParsedCall
from ganglion.wire.decode import decode, read_object
from ganglion.wire.field_policy import MAX_FREE_FORM_BYTES, FieldPolicy, is_neutral
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
from ganglion.wire.unknown_fields import FieldShape, FieldShapes, fields_of, list_of

_body = msgspec.json.Decoder(MessagesBody)
_count = msgspec.json.Decoder(CountBody)

_IGNORED = frozenset(
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

_HOSTED = frozenset({"container", "mcp_servers"})
"""Fields that go with hosted tools, and are dropped as those are."""

_NOTHING: tuple[JsonValue, ...] = ([], {}, False, 0)
_UNSUPPORTED = dict.fromkeys(
    (
        *("compaction", "response_format", "n", "logprobs", "top_logprobs", "functions"),
        *("readout", "steering"),
    ),
    _NOTHING,
)
_IGNORED_INSIDE = frozenset(
    {
        *("cache_control", "citations", "caller", "toolset_name", "server_name", "media_type"),
        *("encrypted_content", "signature", "tool_changes"),
        *("defer_loading", "eager_input_streaming", "input_examples"),
    }
)
"""Fields inside others that ask nothing of the answer."""

_PromptBody = MessagesBody | CountBody


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


def parse(body: bytes, context: ParseContext) -> ParsedCall[MessagesReplyContext]:
    """Read a body, or raise the InvalidRequest that names the first thing wrong with it."""
    fields, unknown = _checked(body, context)
    given = decode(_body, body)
    prompted = _built_prompt(given, context)
    stop = stop_of(given)
    request = Request(
        id=context.id,
        model=given.model,
        prompt=prompted.prompt,
        sampling=sampling_of(given),
        stop=replace(stop, strings=(*(given.stop_sequences or ()), *stop.strings)),
        max_tokens=given.max_tokens,
        constraint=_constraint(given),
        priority=given.priority or 0,
        tenant=context.tenant,
    )
    reply = MessagesReplyContext(
        id=context.id,
        model=given.model,
        request_id=context.request_id,
        tenant=context.tenant,
        seal=_seal(context),
        is_thinking_omitted=_is_omitted(given),
    )
    hosted = tuple(name for name in fields if name in _HOSTED and _asks(name, fields))
    turns = prompted.turns
    unsealed = f"{turns.unsealed} thinking blocks without our seal were left out"
    return ParsedCall(
        (request,),
        reply,
        bool(given.stream),
        unknown,
        ignored=(
            *(f"the tool {name!r}, which is not run here" for name in prompted.dropped + hosted),
            *turns.left_out,
        ),
        remarks=(unsealed,) if turns.unsealed else (),
    )


def _seal(context: ParseContext) -> HmacSeal:
    assert context.seal is not None, "thoughts of this wire are signed"
    return context.seal


def parse_count(body: bytes, context: ParseContext) -> CountCall:
    """Read a body whose prompt is only counted, or raise what is wrong with it."""
    _, unknown = _checked(body, context)
    fields = decode(_count, body)
    prompt = _built_prompt(fields, context).prompt
    _constraint(fields)
    return CountCall(Request(context.id, fields.model, prompt, tenant=context.tenant), unknown)


def _checked(body: bytes, context: ParseContext) -> tuple[dict[str, msgspec.Raw], tuple[str, ...]]:
    fields = _POLICY.read(body)
    if _asks("thread", fields):
        raise thread_unsupported()
    return fields, _POLICY.check_fields(fields, is_strict=context.is_strict)


def _asks(name: str, fields: Mapping[str, msgspec.Raw]) -> bool:
    return name in fields and not is_neutral(fields[name], _NOTHING)


@cache
def _shapes() -> FieldShapes:
    """The shapes of a body's fields; nothing of hosted tools is read."""
    fields = fields_of(MessagesBody)
    tool = FieldShape({"custom": fields_of(MessagesTool)}, tag="type", untagged="custom")
    return {**fields, "tools": list_of(tool)}


_POLICY = FieldPolicy(
    MessagesBody,
    unsupported=_UNSUPPORTED,
    ignored=(*_IGNORED, *_HOSTED, "thread"),
    ignored_inside=_IGNORED_INSIDE,
    shapes=_shapes,
)


def _built_prompt(fields: _PromptBody, context: ParseContext) -> _BuiltPrompt:
    turns = conversation_of(
        fields.system,
        fields.messages,
        tenant=context.tenant,
        seal=_seal(context),
    )
    tooling = tool_use_of(fields.tools, fields.tool_choice)
    prompt = ChatPrompt(
        turns.messages,
        tool_use=tooling.use,
        thinking=_thinking(fields),
        is_continued=turns.is_continued,
    )
    return _BuiltPrompt(prompt, tooling.dropped, turns)


def _thinking(fields: _PromptBody) -> Thinking:
    effort = fields.output_config.effort if fields.output_config else None
    match fields.thinking:
        case None | AdaptiveThinking() | ToolThinking():
            return Thinking(effort=effort)
        case EnabledThinking(budget_tokens=budget_tokens):
            return Thinking(True, effort, budget_tokens)
        case DisabledThinking():
            return Thinking(False, effort)
        case _:
            assert_never(fields.thinking)


def _is_omitted(fields: MessagesBody) -> bool:
    match fields.thinking:
        case EnabledThinking(display=display) | AdaptiveThinking(display=display):
            return display == "omitted"
        case _:
            return False


def _constraint(fields: _PromptBody) -> JsonSchema | None:
    config = fields.output_config
    if config is not None and not is_absent(config.task_budget):
        param = "output_config.task_budget"
        raise UnsupportedParameter(f"The parameter '{param}' is not supported.", param=param)
    inside = config.format if config else None
    if inside is not None and fields.output_format is not None:
        raise InvalidValue(
            "'output_format' and 'output_config.format' mean the same, so give one.", param="output_format"
        )
    if inside is not None:
        return JsonSchema(read_object(inside.schema, "output_config.format.schema", MAX_FREE_FORM_BYTES))
    if fields.output_format is not None:
        schema = fields.output_format.schema
        return JsonSchema(read_object(schema, "output_format.schema", MAX_FREE_FORM_BYTES))
    return None
