"""Parses a Responses body into its request, in two steps: the body alone, then with its history.

Between the steps the service fetches what the first one names: the previous response, a conversation,
referenced items. Everything here is pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, assert_never

import msgspec

from ganglion.core.errors import InvalidValue, MissingParameter, UnsupportedParameter
from ganglion.core.request import ChatPrompt, Constraint, JsonSchema, JsonValue, Message, Request, Thinking
from ganglion.core.sampling import Sampling, resolve
from ganglion.wire.decode import decode
from ganglion.wire.field_policy import MAX_FREE_FORM_BYTES, FieldPolicy
from ganglion.wire.fields import sampling_of, stop_of
from ganglion.wire.responses.item_codec import Ids, ReadItem, kept_items, read_items, references
from ganglion.wire.responses.items import AdditionalToolsItem, Item, MessageItem
from ganglion.wire.responses.prompt_builder import PromptBuilder, check_outputs_have_calls
from ganglion.wire.responses.response_object import (
    FormatEcho,
    ReasoningEcho,
    ResponseObject,
    ResponsesReplyContext,
    TextEcho,
)
from ganglion.wire.responses.responses_tools import ToolOffer, echoed, tool_use
from ganglion.wire.responses.schema import (
    CompactBody,
    ConversationReference,
    PromptCacheOptions,
    ResponsesBody,
    ResponsesFormat,
    ResponsesJsonObjectFormat,
    ResponsesJsonSchemaFormat,
    ResponsesTextFormat,
    ResponsesTextOptions,
)
from ganglion.wire.responses.supported_fields import (
    IGNORED,
    IGNORED_INSIDE,
    INSTEAD,
    UNSUPPORTED,
    body_shapes,
)
from ganglion.wire.seal import Seal

_body = msgspec.json.Decoder(ResponsesBody)
_compact = msgspec.json.Decoder(CompactBody)
_POLICY = FieldPolicy(
    ResponsesBody,
    unsupported=UNSUPPORTED,
    ignored=IGNORED,
    max_bytes={
        "tools": 2**20,
        **dict.fromkeys(("chat_template_kwargs", "tool_choice", "text"), MAX_FREE_FORM_BYTES),
    },
    instead=INSTEAD,
    shapes=body_shapes,
    ignored_inside=IGNORED_INSIDE,
)

_DEFAULT_VERBOSITY: Final = "medium"
"""What a template is taken to write where nobody asked for another."""


@dataclass(frozen=True, slots=True)
class ResponsesParseContext:
    """The facts of a request besides its body."""

    id: str
    """Of the response: `resp_…`."""
    created_s: int
    ids: Ids
    tenant: str = ""
    seal: Seal | None = None
    """Without one, sealed items are not understood and none are made."""
    can_store: bool = True
    keep_markers: bool = False
    defaults: Sampling = Sampling()
    """The model's own, as far as they are known before it answers."""


@dataclass(frozen=True, slots=True)
class ParsedResponsesBody:
    """A body that is read, before its history is known."""

    body: ResponsesBody
    items: tuple[ReadItem, ...]
    unknown_fields: tuple[str, ...] = ()

    @property
    def previous_response_id(self) -> str | None:
        return self.body.previous_response_id

    @property
    def conversation_id(self) -> str | None:
        found = self.body.conversation
        return found.id if isinstance(found, ConversationReference) else found

    @property
    def references(self) -> tuple[str, ...]:
        """Ids of kept items that the input refers to."""
        return references(self.items)


@dataclass(frozen=True, slots=True)
class ResponsesCall:
    """A parsed body: its request, the context of its answer, and the items to keep."""

    request: Request
    reply: ResponsesReplyContext
    input_items: tuple[Item, ...]
    """This turn's input in its kept form; history is not part of it."""
    is_streamed: bool = False
    is_stored: bool = False
    is_background: bool = False
    previous_response_id: str | None = None
    conversation_id: str | None = None
    may_truncate: bool = False
    """`truncation: auto`: rather drop the oldest turns than refuse a prompt that does not fit."""
    warnings: tuple[str, ...] = field(default=())
    """What was left out, for the log."""
    unknown_fields: tuple[str, ...] = ()


def parse(
    body: bytes,
    context: ResponsesParseContext,
    *,
    history: Sequence[Item] = (),
    referenced: Mapping[str, Item] | None = None,
    is_strict: bool = False,
) -> ResponsesCall:
    """Read a body whose history is known, or raise the InvalidRequest that names the first thing wrong."""
    return build_call(parse_body(body, is_strict=is_strict), context, history=history, referenced=referenced)


def parse_body(body: bytes, *, is_strict: bool = False) -> ParsedResponsesBody:
    """Read what a body says, or raise the InvalidRequest that names the first thing wrong with it."""
    unknown = _POLICY.check(body, is_strict=is_strict)
    fields = decode(_body, body)
    _check_state(fields)
    _check_cache(fields.prompt_cache_options)
    return ParsedResponsesBody(fields, read_items(fields.input), unknown)


def compact_body(body: bytes, ask: str, max_tokens: int) -> bytes:
    """The call that a compaction makes: everything it was sent, and then what it asks of the model."""
    fields = decode(_compact, body)
    sent = fields.input
    begun: list[msgspec.Raw] = [_user_message(sent)] if isinstance(sent, str) else list(sent or ())
    call = ResponsesBody(
        model=fields.model,
        input=[*begun, _user_message(ask)],
        instructions=fields.instructions,
        previous_response_id=fields.previous_response_id,
        max_output_tokens=max_tokens,
        store=False,
    )
    return msgspec.json.encode(call)


def _user_message(text: str) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(MessageItem(role="user", content=text)))


def build_call(
    parsed: ParsedResponsesBody,
    context: ResponsesParseContext,
    *,
    history: Sequence[Item] = (),
    referenced: Mapping[str, Item] | None = None,
) -> ResponsesCall:
    """Build the call that follows `history`: the items, input and output, of all turns before."""
    body = parsed.body
    items = kept_items(parsed.items, context.ids, referenced or {})
    check_outputs_have_calls(history, items)
    offer = _offer(body, history, items)
    turns = PromptBuilder(context.seal)
    turns.add(history, "history")
    turns.add(items, "input")
    messages = turns.end()
    if not messages:
        raise MissingParameter("The parameter 'input' is required.", param="input")
    if body.instructions is not None:
        messages = (Message("system", body.instructions), *messages)
    top_logprobs = _top_logprobs(body)
    request = Request(
        id=context.id,
        model=body.model,
        prompt=_prompt(body, messages, offer),
        sampling=sampling_of(body),
        stop=stop_of(body),
        max_tokens=body.max_output_tokens,
        min_tokens=body.min_tokens or 0,
        constraint=_constraint(body.text.format if body.text else None),
        top_logprobs=top_logprobs,
        priority=body.priority or 0,
        tenant=context.tenant,
        keep_markers=context.keep_markers,
        affinity=body.prompt_cache_key or "",
    )
    reply = ResponsesReplyContext(
        response=_response(parsed, context),
        called=offer.called,
        has_logprobs=top_logprobs is not None,
        is_reasoning_sealed="reasoning.encrypted_content" in (body.include or ()),
    )
    return ResponsesCall(
        request=request,
        reply=reply,
        input_items=items,
        is_streamed=bool(body.stream),
        is_stored=reply.response.store,
        is_background=bool(body.background),
        previous_response_id=parsed.previous_response_id,
        conversation_id=parsed.conversation_id,
        may_truncate=body.truncation == "auto",
        warnings=(*offer.warnings, *turns.warnings),
        unknown_fields=parsed.unknown_fields,
    )


def _check_state(fields: ResponsesBody) -> None:
    if fields.stream_options is not None and not fields.stream:
        raise InvalidValue("'stream_options' is only allowed when 'stream' is true.", param="stream_options")
    if fields.previous_response_id is not None and fields.conversation is not None:
        raise InvalidValue(
            "'previous_response_id' and 'conversation' both say what came before; give one.",
            param="previous_response_id",
        )
    if fields.background and fields.store is False:
        raise InvalidValue("'background' needs 'store' to be true.", param="background")
    if fields.conversation is not None and fields.store is False:
        raise InvalidValue("'conversation' stores the response, and 'store' is false.", param="store")
    if fields.context_management:
        raise UnsupportedParameter(
            "The parameter 'context_management' is not supported.",
            param="context_management",
            hint="Compact with POST /v1/responses/compact.",
        )


def _check_cache(options: PromptCacheOptions | None) -> None:
    for name in ("prewarm", "comparison_response_id"):
        if options is not None and getattr(options, name):
            param = f"prompt_cache_options.{name}"
            raise UnsupportedParameter(f"The parameter '{param}' is not supported.", param=param)


def _offer(body: ResponsesBody, history: Sequence[Item], items: Sequence[Item]) -> ToolOffer:
    offer = ToolOffer()
    offer.add(body.tools or (), "tools")
    for path, part in (("history", history), ("input", items)):
        for place, item in enumerate(part):
            if isinstance(item, AdditionalToolsItem):
                offer.add(item.tools, f"{path}[{place}].tools", is_repeatable=True)
    return offer


def _prompt(body: ResponsesBody, messages: tuple[Message, ...], offer: ToolOffer) -> ChatPrompt:
    arguments: dict[str, JsonValue] = dict(body.chat_template_kwargs or {})
    if body.text and body.text.verbosity:
        arguments.setdefault("verbosity", body.text.verbosity)
    return ChatPrompt(
        messages,
        arguments,
        tool_use(body.tool_choice, offer, is_parallel=body.parallel_tool_calls is not False),
        Thinking(effort=body.reasoning.effort if body.reasoning else None),
    )


def _constraint(text_format: ResponsesFormat | None) -> Constraint | None:
    match text_format:
        case None | ResponsesTextFormat():
            return None
        case ResponsesJsonObjectFormat():
            return JsonSchema({"type": "object"})
        case ResponsesJsonSchemaFormat(schema=schema):
            return JsonSchema(schema)
        case _:
            assert_never(text_format)


def _top_logprobs(body: ResponsesBody) -> int | None:
    if body.top_logprobs or "message.output_text.logprobs" in (body.include or ()):
        return body.top_logprobs or 0
    return None


def _response(parsed: ParsedResponsesBody, context: ResponsesParseContext) -> ResponseObject:
    body = parsed.body
    reasoning = body.reasoning
    conversation = parsed.conversation_id
    used = resolve(sampling_of(body), context.defaults)
    return ResponseObject(
        id=context.id,
        created_at=context.created_s,
        status="queued" if body.background else "in_progress",
        background=bool(body.background),
        conversation=None if conversation is None else ConversationReference(conversation),
        frequency_penalty=used.frequency_penalty,
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        max_tool_calls=body.max_tool_calls,
        metadata=body.metadata or {},
        model=body.model,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        presence_penalty=used.presence_penalty,
        previous_response_id=body.previous_response_id,
        prompt_cache_key=body.prompt_cache_key,
        prompt_cache_retention=body.prompt_cache_retention,
        reasoning=ReasoningEcho(
            reasoning.effort if reasoning else None,
            (reasoning.summary or reasoning.generate_summary) if reasoning else None,
        ),
        safety_identifier=body.safety_identifier,
        store=body.store is not False and context.can_store,
        temperature=used.temperature,
        text=_text_echo(body.text),
        tool_choice=body.tool_choice or "auto",
        tools=echoed(body.tools),
        top_logprobs=body.top_logprobs or 0,
        top_p=used.top_p,
        truncation=body.truncation or "disabled",
        user=body.user,
    )


def _text_echo(options: ResponsesTextOptions | None) -> TextEcho:
    if options is None:
        return TextEcho(ResponsesTextFormat(), _DEFAULT_VERBOSITY)
    return TextEcho(_format_echo(options.format), options.verbosity or _DEFAULT_VERBOSITY)


def _format_echo(
    text_format: ResponsesFormat | None,
) -> ResponsesTextFormat | ResponsesJsonObjectFormat | FormatEcho:
    match text_format:
        case None:
            return ResponsesTextFormat()
        case ResponsesJsonSchemaFormat():
            return FormatEcho(
                name=text_format.name,
                description=text_format.description,
                schema=text_format.schema,
                strict=bool(text_format.strict),
            )
        case _:
            return text_format
