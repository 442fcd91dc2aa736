from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Steer(_message.Message):
    __slots__ = ("concept", "strength", "layers")
    CONCEPT_FIELD_NUMBER: _ClassVar[int]
    STRENGTH_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    concept: str
    strength: float
    layers: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, concept: _Optional[str] = ..., strength: _Optional[float] = ..., layers: _Optional[_Iterable[int]] = ...) -> None: ...

class OpenSessionRequest(_message.Message):
    __slots__ = ("model", "ttl_s", "steering")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TTL_S_FIELD_NUMBER: _ClassVar[int]
    STEERING_FIELD_NUMBER: _ClassVar[int]
    model: str
    ttl_s: float
    steering: _containers.RepeatedCompositeFieldContainer[Steer]
    def __init__(self, model: _Optional[str] = ..., ttl_s: _Optional[float] = ..., steering: _Optional[_Iterable[_Union[Steer, _Mapping]]] = ...) -> None: ...

class OpenSessionResponse(_message.Message):
    __slots__ = ("session_id", "model", "context_length", "vocab_size", "readout", "ttl_s", "end_token_ids")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    READOUT_FIELD_NUMBER: _ClassVar[int]
    TTL_S_FIELD_NUMBER: _ClassVar[int]
    END_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    model: str
    context_length: int
    vocab_size: int
    readout: ReadoutManifest
    ttl_s: float
    end_token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, session_id: _Optional[str] = ..., model: _Optional[str] = ..., context_length: _Optional[int] = ..., vocab_size: _Optional[int] = ..., readout: _Optional[_Union[ReadoutManifest, _Mapping]] = ..., ttl_s: _Optional[float] = ..., end_token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Range(_message.Message):
    __slots__ = ("start", "end")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("session_id", "append_tokens", "offset", "truncating", "max_tokens", "logprobs_ranges", "logprob_top_k", "readout_ranges", "temperature", "top_p", "top_k", "min_p", "seed", "stop_token_ids", "priority", "ignore_eos", "json_schema", "pattern", "choice", "lark", "gbnf", "stop", "presence_penalty", "frequency_penalty", "repetition_penalty", "prefix")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    APPEND_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TRUNCATING_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_RANGES_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_TOP_K_FIELD_NUMBER: _ClassVar[int]
    READOUT_RANGES_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    JSON_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    LARK_FIELD_NUMBER: _ClassVar[int]
    GBNF_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    append_tokens: _containers.RepeatedScalarFieldContainer[int]
    offset: int
    truncating: bool
    max_tokens: int
    logprobs_ranges: _containers.RepeatedCompositeFieldContainer[Range]
    logprob_top_k: int
    readout_ranges: _containers.RepeatedCompositeFieldContainer[Range]
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    priority: int
    ignore_eos: bool
    json_schema: str
    pattern: str
    choice: Choice
    lark: str
    gbnf: str
    stop: _containers.RepeatedScalarFieldContainer[str]
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    prefix: str
    def __init__(self, session_id: _Optional[str] = ..., append_tokens: _Optional[_Iterable[int]] = ..., offset: _Optional[int] = ..., truncating: _Optional[bool] = ..., max_tokens: _Optional[int] = ..., logprobs_ranges: _Optional[_Iterable[_Union[Range, _Mapping]]] = ..., logprob_top_k: _Optional[int] = ..., readout_ranges: _Optional[_Iterable[_Union[Range, _Mapping]]] = ..., temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., min_p: _Optional[float] = ..., seed: _Optional[int] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., priority: _Optional[int] = ..., ignore_eos: _Optional[bool] = ..., json_schema: _Optional[str] = ..., pattern: _Optional[str] = ..., choice: _Optional[_Union[Choice, _Mapping]] = ..., lark: _Optional[str] = ..., gbnf: _Optional[str] = ..., stop: _Optional[_Iterable[str]] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., prefix: _Optional[str] = ...) -> None: ...

class Choice(_message.Message):
    __slots__ = ("options",)
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    options: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, options: _Optional[_Iterable[str]] = ...) -> None: ...

class GenerateEvent(_message.Message):
    __slots__ = ("token", "progress", "done")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    token: Token
    progress: Progress
    done: Done
    def __init__(self, token: _Optional[_Union[Token, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., done: _Optional[_Union[Done, _Mapping]] = ...) -> None: ...

class Token(_message.Message):
    __slots__ = ("id", "is_prefill", "position", "sampled_logprob", "top", "readout", "piece")
    ID_FIELD_NUMBER: _ClassVar[int]
    IS_PREFILL_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    SAMPLED_LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    READOUT_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    id: int
    is_prefill: bool
    position: int
    sampled_logprob: float
    top: _containers.RepeatedCompositeFieldContainer[Alternative]
    readout: _containers.RepeatedScalarFieldContainer[float]
    piece: bytes
    def __init__(self, id: _Optional[int] = ..., is_prefill: _Optional[bool] = ..., position: _Optional[int] = ..., sampled_logprob: _Optional[float] = ..., top: _Optional[_Iterable[_Union[Alternative, _Mapping]]] = ..., readout: _Optional[_Iterable[float]] = ..., piece: _Optional[bytes] = ...) -> None: ...

class Alternative(_message.Message):
    __slots__ = ("id", "logprob", "piece")
    ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    id: int
    logprob: float
    piece: bytes
    def __init__(self, id: _Optional[int] = ..., logprob: _Optional[float] = ..., piece: _Optional[bytes] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("prefilled", "total")
    PREFILLED_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    prefilled: int
    total: int
    def __init__(self, prefilled: _Optional[int] = ..., total: _Optional[int] = ...) -> None: ...

class Done(_message.Message):
    __slots__ = ("prompt_tokens", "completion_tokens", "cached_tokens", "total_tokens", "finish_reason", "stop_token", "stop_text", "stop_start")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_FIELD_NUMBER: _ClassVar[int]
    STOP_TEXT_FIELD_NUMBER: _ClassVar[int]
    STOP_START_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    total_tokens: int
    finish_reason: str
    stop_token: int
    stop_text: str
    stop_start: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., total_tokens: _Optional[int] = ..., finish_reason: _Optional[str] = ..., stop_token: _Optional[int] = ..., stop_text: _Optional[str] = ..., stop_start: _Optional[int] = ...) -> None: ...

class AppendImageRequest(_message.Message):
    __slots__ = ("session_id", "data", "mime", "offset", "truncating")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    MIME_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TRUNCATING_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    data: bytes
    mime: str
    offset: int
    truncating: bool
    def __init__(self, session_id: _Optional[str] = ..., data: _Optional[bytes] = ..., mime: _Optional[str] = ..., offset: _Optional[int] = ..., truncating: _Optional[bool] = ...) -> None: ...

class AppendImageResponse(_message.Message):
    __slots__ = ("placeholder_count", "total_length")
    PLACEHOLDER_COUNT_FIELD_NUMBER: _ClassVar[int]
    TOTAL_LENGTH_FIELD_NUMBER: _ClassVar[int]
    placeholder_count: int
    total_length: int
    def __init__(self, placeholder_count: _Optional[int] = ..., total_length: _Optional[int] = ...) -> None: ...

class ForkSessionRequest(_message.Message):
    __slots__ = ("session_id", "at", "ttl_s")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    TTL_S_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    at: int
    ttl_s: float
    def __init__(self, session_id: _Optional[str] = ..., at: _Optional[int] = ..., ttl_s: _Optional[float] = ...) -> None: ...

class ForkSessionResponse(_message.Message):
    __slots__ = ("session_id", "total_tokens")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    TOTAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    total_tokens: int
    def __init__(self, session_id: _Optional[str] = ..., total_tokens: _Optional[int] = ...) -> None: ...

class TruncateSessionRequest(_message.Message):
    __slots__ = ("session_id", "length")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    length: int
    def __init__(self, session_id: _Optional[str] = ..., length: _Optional[int] = ...) -> None: ...

class TruncateSessionResponse(_message.Message):
    __slots__ = ("total_tokens",)
    TOTAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    total_tokens: int
    def __init__(self, total_tokens: _Optional[int] = ...) -> None: ...

class ListSessionsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListSessionsResponse(_message.Message):
    __slots__ = ("sessions",)
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    sessions: _containers.RepeatedCompositeFieldContainer[SessionInfo]
    def __init__(self, sessions: _Optional[_Iterable[_Union[SessionInfo, _Mapping]]] = ...) -> None: ...

class SessionInfo(_message.Message):
    __slots__ = ("session_id", "model", "total_tokens", "image_count", "idle_s", "ttl_s", "is_busy", "is_suspended", "steering")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TOTAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    IMAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    IDLE_S_FIELD_NUMBER: _ClassVar[int]
    TTL_S_FIELD_NUMBER: _ClassVar[int]
    IS_BUSY_FIELD_NUMBER: _ClassVar[int]
    IS_SUSPENDED_FIELD_NUMBER: _ClassVar[int]
    STEERING_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    model: str
    total_tokens: int
    image_count: int
    idle_s: float
    ttl_s: float
    is_busy: bool
    is_suspended: bool
    steering: _containers.RepeatedCompositeFieldContainer[Steer]
    def __init__(self, session_id: _Optional[str] = ..., model: _Optional[str] = ..., total_tokens: _Optional[int] = ..., image_count: _Optional[int] = ..., idle_s: _Optional[float] = ..., ttl_s: _Optional[float] = ..., is_busy: _Optional[bool] = ..., is_suspended: _Optional[bool] = ..., steering: _Optional[_Iterable[_Union[Steer, _Mapping]]] = ...) -> None: ...

class CloseSessionRequest(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    def __init__(self, session_id: _Optional[str] = ...) -> None: ...

class CloseSessionResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SaveSessionRequest(_message.Message):
    __slots__ = ("session_id", "without_kv")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_KV_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    without_kv: bool
    def __init__(self, session_id: _Optional[str] = ..., without_kv: _Optional[bool] = ...) -> None: ...

class SessionBytes(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class RestoreSessionResponse(_message.Message):
    __slots__ = ("session_id", "model", "total_tokens", "cached_tokens")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TOTAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    model: str
    total_tokens: int
    cached_tokens: int
    def __init__(self, session_id: _Optional[str] = ..., model: _Optional[str] = ..., total_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ...) -> None: ...

class SuspendSessionRequest(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    def __init__(self, session_id: _Optional[str] = ...) -> None: ...

class SuspendSessionResponse(_message.Message):
    __slots__ = ("total_tokens", "size_bytes")
    TOTAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    total_tokens: int
    size_bytes: int
    def __init__(self, total_tokens: _Optional[int] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class GetReadoutManifestRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class ReadoutManifest(_message.Message):
    __slots__ = ("model", "concepts", "layers")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CONCEPTS_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    model: str
    concepts: _containers.RepeatedScalarFieldContainer[str]
    layers: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, model: _Optional[str] = ..., concepts: _Optional[_Iterable[str]] = ..., layers: _Optional[_Iterable[int]] = ...) -> None: ...

class GetTokensRequest(_message.Message):
    __slots__ = ("session_id", "offset", "limit")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    offset: int
    limit: int
    def __init__(self, session_id: _Optional[str] = ..., offset: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class GetTokensResponse(_message.Message):
    __slots__ = ("tokens", "total_tokens")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    total_tokens: int
    def __init__(self, tokens: _Optional[_Iterable[int]] = ..., total_tokens: _Optional[int] = ...) -> None: ...

class RenderMessagesRequest(_message.Message):
    __slots__ = ("model", "chat", "is_continued", "preceding_tokens")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    IS_CONTINUED_FIELD_NUMBER: _ClassVar[int]
    PRECEDING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    model: str
    chat: str
    is_continued: bool
    preceding_tokens: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, model: _Optional[str] = ..., chat: _Optional[str] = ..., is_continued: _Optional[bool] = ..., preceding_tokens: _Optional[_Iterable[int]] = ...) -> None: ...

class RenderMessagesResponse(_message.Message):
    __slots__ = ("tokens", "text")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    text: str
    def __init__(self, tokens: _Optional[_Iterable[int]] = ..., text: _Optional[str] = ...) -> None: ...

class TokenizeRequest(_message.Message):
    __slots__ = ("model", "text", "add_special", "parse_special")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    ADD_SPECIAL_FIELD_NUMBER: _ClassVar[int]
    PARSE_SPECIAL_FIELD_NUMBER: _ClassVar[int]
    model: str
    text: str
    add_special: bool
    parse_special: bool
    def __init__(self, model: _Optional[str] = ..., text: _Optional[str] = ..., add_special: _Optional[bool] = ..., parse_special: _Optional[bool] = ...) -> None: ...

class TokenizeResponse(_message.Message):
    __slots__ = ("tokens",)
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, tokens: _Optional[_Iterable[int]] = ...) -> None: ...

class DetokenizeRequest(_message.Message):
    __slots__ = ("model", "tokens")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    model: str
    tokens: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, model: _Optional[str] = ..., tokens: _Optional[_Iterable[int]] = ...) -> None: ...

class DetokenizeResponse(_message.Message):
    __slots__ = ("text", "pieces")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    PIECES_FIELD_NUMBER: _ClassVar[int]
    text: str
    pieces: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, text: _Optional[str] = ..., pieces: _Optional[_Iterable[bytes]] = ...) -> None: ...
