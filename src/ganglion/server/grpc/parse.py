"""The parsing of `salience.v1` messages: each field is within its bounds or refused by name.

Token ids are checked by the vocabulary, and positions by the session.
"""

import math
from collections.abc import Sequence
from typing import Final

from ganglion.core.errors import InvalidValue, MissingParameter
from ganglion.core.request import (
    LEAST_URGENT,
    MOST_URGENT,
    Choice,
    Constraint,
    Gbnf,
    JsonSchema,
    Lark,
    Ranges,
    Regex,
    Steer,
    Steering,
)
from ganglion.core.sampling import PARAMS, Sampling, sampling_from
from ganglion.server.grpc.chat_rendering import NewMessages
from ganglion.sessions.values import GenerationRequest
from ganglion.wire.constraint import CONSTRAINT_BYTES, schema_of
from ganglion.wire.fields import MAX_TOKEN_ID, MAX_TOKENS
from ganglion.wire.logprobs import MAX_ALTERNATIVES
from ganglion.wire.salience import salience_pb2 as pb
from ganglion.wire.steering import MAX_LAYERS, MAX_STEERS, MAX_STRENGTH

MAX_APPENDED: Final = 2**20
_MAX_RANGES: Final = 64
_MAX_STOP_TOKENS: Final = 1024
_MAX_STOPS: Final = 16
_MAX_STOP: Final = 512
_MAX_PATTERN: Final = 2**16
_MAX_OPTIONS: Final = 4096
_MAX_PREFIX: Final = 1024
_MAX_PRECEDING: Final = 256
_MAX_RETURNED_TOKENS: Final = 2**16
"""Of one GetTokens: 320 KiB at most."""
_MAX_MODEL: Final = 1024
_MAX_NAME: Final = 256
_OPEN_END: Final = 2**32 - 1


def model_of(model: str) -> str:
    """The name of a model, which must be there."""
    return _name("model", model, _MAX_MODEL)


def session_of(session_id: str) -> str:
    """A session's id, which must be there."""
    return _name("session_id", session_id, _MAX_NAME)


def mime_of(mime: str) -> str:
    """A media type, which must be there."""
    return _name("mime", mime, _MAX_NAME)


def ttl_of(message: pb.OpenSessionRequest | pb.ForkSessionRequest) -> float | None:
    """How long a session may be idle; None where it is left to the server, which caps it."""
    if not message.HasField("ttl_s"):
        return None
    if not (math.isfinite(message.ttl_s) and message.ttl_s > 0):
        raise InvalidValue(
            f"Expected a number of seconds above 0 in 'ttl_s', found {message.ttl_s:g}.", param="ttl_s"
        )
    return message.ttl_s


def steering_of(steers: Sequence[pb.Steer]) -> Steering:
    """The concepts to steer by."""
    _count("steering", steers, MAX_STEERS)
    return tuple(_steer(f"steering[{index}]", steer) for index, steer in enumerate(steers))


def _steer(name: str, steer: pb.Steer) -> Steer:
    concept = _name(f"{name}.concept", steer.concept, _MAX_NAME)
    _between(f"{name}.strength", steer.strength, -MAX_STRENGTH, MAX_STRENGTH)
    _count(f"{name}.layers", steer.layers, MAX_LAYERS)
    if len(set(steer.layers)) < len(steer.layers):
        raise InvalidValue(f"'{name}.layers' names a layer twice.", param=f"{name}.layers")
    return Steer(concept, steer.strength, tuple(steer.layers) or None)


def generate_of(message: pb.GenerateRequest) -> GenerationRequest:
    """One call that appends and generates."""
    _between("max_tokens", message.max_tokens, 0, MAX_TOKENS)
    _between("logprob_top_k", message.logprob_top_k, 0, MAX_ALTERNATIVES)
    _between("priority", message.priority, MOST_URGENT, LEAST_URGENT)
    return GenerationRequest(
        append=tokens_of("append_tokens", message.append_tokens, MAX_APPENDED),
        offset=message.offset,
        is_truncating=message.truncating,
        max_tokens=message.max_tokens,
        logprobs=_ranges("logprobs_ranges", message.logprobs_ranges),
        top=message.logprob_top_k,
        readout=_ranges("readout_ranges", message.readout_ranges),
        sampling=_sampling(message),
        stop_token_ids=tokens_of("stop_token_ids", message.stop_token_ids, _MAX_STOP_TOKENS),
        ignore_eos=message.ignore_eos,
        priority=message.priority,
        stop_strings=_stops(message.stop),
        constraint=_constraint(message),
        prefix=_text("prefix", message.prefix, _MAX_PREFIX) if message.prefix else "",
    )


def _stops(stop: Sequence[str]) -> tuple[str, ...]:
    _count("stop", stop, _MAX_STOPS)
    return tuple(_text(f"stop[{index}]", each, _MAX_STOP) for index, each in enumerate(stop))


def _constraint(message: pb.GenerateRequest) -> Constraint | None:
    """The requested format; its content is checked where it is compiled."""
    match message.WhichOneof("format"):
        case "json_schema":
            text = _text("json_schema", message.json_schema, CONSTRAINT_BYTES)
            return JsonSchema(schema_of(text, "json_schema"))
        case "pattern":
            return Regex(_text("pattern", message.pattern, _MAX_PATTERN))
        case "choice":
            return Choice(_options(message.choice.options))
        case "lark":
            return Lark(_text("lark", message.lark, CONSTRAINT_BYTES))
        case "gbnf":
            return Gbnf(_text("gbnf", message.gbnf, CONSTRAINT_BYTES))
        case _:
            return None


def _options(options: Sequence[str]) -> tuple[str, ...]:
    _count("choice.options", options, _MAX_OPTIONS)
    if not options:
        raise MissingParameter("The parameter 'choice.options' is required.", param="choice.options")
    if sum(map(len, options)) > CONSTRAINT_BYTES:
        raise InvalidValue(
            f"Expected at most {CONSTRAINT_BYTES} characters in 'choice.options'.", param="choice.options"
        )
    return tuple(
        _text(f"choice.options[{index}]", each, CONSTRAINT_BYTES) for index, each in enumerate(options)
    )


def limit_of(message: pb.GetTokensRequest) -> int:
    """How many tokens to return."""
    _between("limit", message.limit, 0, _MAX_RETURNED_TOKENS)
    return message.limit or _MAX_RETURNED_TOKENS


def new_messages_of(message: pb.RenderMessagesRequest, most: int) -> NewMessages:
    """Messages to render, and what stands before them; `most` characters of them."""
    preceding = tokens_of("preceding_tokens", message.preceding_tokens, _MAX_PRECEDING)
    chat = _text("chat", message.chat, most)
    return NewMessages(
        model_of(message.model), chat.encode(), message.is_continued or bool(preceding), preceding
    )


def tokens_of(name: str, tokens: Sequence[int], most: int) -> tuple[int, ...]:
    """Token ids, not too many."""
    _count(name, tokens, most)
    highest = max(tokens, default=0)
    if highest > MAX_TOKEN_ID:
        raise InvalidValue(f"{highest} in '{name}' is no token of any vocabulary.", param=name)
    return tuple(tokens)


_SAMPLING: Final = {
    name: param for name, param in PARAMS.items() if name in pb.GenerateRequest.DESCRIPTOR.fields_by_name
}


def _sampling(message: pb.GenerateRequest) -> Sampling:
    values = {name: getattr(message, name) for name in _SAMPLING if message.HasField(name)}
    for name, value in values.items():
        param = _SAMPLING[name]
        if not param.has(value):
            raise InvalidValue(f"Expected {param.bounds} for '{name}', found {value:g}.", param=name)
    return sampling_from(values)


def _ranges(name: str, ranges: Sequence[pb.Range]) -> Ranges:
    _count(name, ranges, _MAX_RANGES)
    for index, each in enumerate(ranges):
        if each.end < each.start:
            raise InvalidValue(
                f"The range [{each.start}, {each.end}) ends before it begins.", param=f"{name}[{index}]"
            )
    return tuple((each.start, None if each.end == _OPEN_END else each.end) for each in ranges)


def _between(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:  # a NaN is not
        raise InvalidValue(f"Expected '{name}' between {low:g} and {high:g}, found {value:g}.", param=name)


def _count(name: str, items: Sequence[object], most: int) -> None:
    if len(items) > most:
        raise InvalidValue(f"Expected at most {most} items in '{name}', found {len(items)}.", param=name)


def _name(name: str, value: str, most: int) -> str:
    """Of something that nobody calls by white space alone."""
    return _text(name, value if value.strip() else "", most)


def _text(name: str, value: str, most: int) -> str:
    if not value:
        raise MissingParameter(f"The parameter '{name}' is required.", param=name)
    if len(value) > most:
        raise InvalidValue(f"Expected at most {most} characters in '{name}', found {len(value)}.", param=name)
    return value
