"""The one error tree: every way a request can fail, with the status each wire gives it.

GanglionError
├── InvalidRequest            400 invalid_request_error
│   ├── InvalidJson               invalid_json
│   ├── MissingParameter          missing_required_parameter
│   ├── InvalidValue              invalid_value
│   ├── UnknownParameter          unknown_parameter
│   ├── UnsupportedParameter      unsupported_parameter
│   ├── ContextLengthExceeded     context_length_exceeded
│   ├── VisionUnsupported         vision_unsupported
│   ├── UnsupportedMediaType  415 unsupported_media_type
│   ├── BodyTooLarge          413 body_too_large
│   ├── RouteNotFound         404 not_found
│   ├── MethodNotAllowed      405 method_not_allowed
│   ├── ModelNotFound         404 model_not_found
│   │   └── ModelNotLoaded
│   ├── ResponseNotFound      404 response_not_found
│   │   └── PreviousResponseNotFound  previous_response_not_found
│   ├── ConversationNotFound  404 conversation_not_found
│   ├── ItemNotFound          404 item_not_found
│   ├── SessionNotFound       404 session_not_found
│   ├── SessionDrift          409 session_drift
│   ├── SessionBusy           409 session_busy
│   ├── ImageBlockCut         409 image_block_cut
│   ├── ModelMismatch         409 model_mismatch
│   ├── ReadoutNotFound       404 readout_not_found
│   ├── ReadoutUnavailable    400 readout_unavailable
│   ├── RequestQuarantined    422 request_quarantined
│   └── ExceedsLimit              request_exceeds_limit
├── InvalidApiKey             401 authentication_error / invalid_api_key
├── NotAllowed                403 permission_error
├── RateLimited               429 rate_limit_error / rate_limit_exceeded
│   ├── TooManySessions           session_limit_exceeded
│   └── QuotaExceeded             insufficient_quota
└── ServerError               500 server_error
    ├── EngineFailed              engine_failed
    │   └── Interrupted               interrupted
    ├── LoadFailed            422 load_failed
    ├── HubUnreachable        502 hub_unreachable
    ├── Overloaded            503 overloaded
    ├── ModelLoading          503 model_loading
    ├── ModelRecovering       503 model_recovering
    ├── ModelUnavailable      503 model_unavailable
    ├── InsufficientMemory    503 insufficient_memory
    │   └── InsufficientVideoMemory   insufficient_vram
    ├── EngineUnavailable     503 engine_unavailable
    ├── WireUnsupported       501 wire_unsupported
    ├── ShuttingDown          503 shutting_down
    ├── LeaseLost             503 lease_lost
    ├── UpstreamUnavailable   502 upstream_unavailable
    │   └── UpstreamRefused           upstream_refused
    ├── DeadlineExceeded      504 deadline_exceeded
    ├── StoreUnavailable      503 store_unavailable
    ├── StoreUnusable             store_unusable
    └── StorageFull           507 storage_full
"""

from typing import ClassVar

Extra = str | int | float | bool | None


class GanglionError(Exception):
    """Something a client is told about; `code` is stable, `message` is for people.

    `detail` says the same to whoever runs the server, with names and places that are no client's to know; it
    is what the error is as text, in the log and on a command line, and no wire tells it.
    """

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    code: str = "internal_error"
    grpc: ClassVar[str] = "INTERNAL"
    retry_after_s: int | None = None

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        hint: str | None = None,
        extras: dict[str, Extra] | None = None,
        detail: str | None = None,
    ) -> None:
        super().__init__(message if detail is None else detail)
        self.message = message
        self.param = param
        self.hint = hint
        self.extras: dict[str, Extra] = extras or {}


class InvalidRequest(GanglionError):
    status = 400
    type = "invalid_request_error"
    code = "invalid_value"
    grpc = "INVALID_ARGUMENT"


class InvalidJson(InvalidRequest):
    code = "invalid_json"


class MissingParameter(InvalidRequest):
    code = "missing_required_parameter"


class InvalidValue(InvalidRequest):
    code = "invalid_value"


class UnknownParameter(InvalidRequest):
    code = "unknown_parameter"


class UnsupportedParameter(InvalidRequest):
    code = "unsupported_parameter"


class ContextLengthExceeded(InvalidRequest):
    """The prompt does not fit the longest sequence this model may hold."""

    code = "context_length_exceeded"
    grpc = "RESOURCE_EXHAUSTED"

    def __init__(
        self,
        prompt_tokens: int,
        max_tokens: int,
        *,
        param: str = "messages",
        advice: str = "Shorten the messages.",
        is_least: bool = False,
    ) -> None:
        """With `is_least` nobody counted all of them."""
        held = f"at least {prompt_tokens}" if is_least else f"{prompt_tokens}"
        super().__init__(
            f"This model's maximum context length is {max_tokens} tokens, but the prompt is too long: "
            f"it holds {held} tokens and leaves no room for an answer. {advice}",
            param=param,
            extras={"reason": "prompt_too_long", "prompt_len": prompt_tokens, "max": max_tokens},
        )


class VisionUnsupported(InvalidRequest):
    code = "vision_unsupported"
    grpc = "FAILED_PRECONDITION"


class UnsupportedMediaType(InvalidRequest):
    status = 415
    code = "unsupported_media_type"


class BodyTooLarge(InvalidRequest):
    status = 413
    code = "body_too_large"

    def __init__(self, max_bytes: int) -> None:
        super().__init__(
            f"The request body is larger than {max_bytes} bytes.", extras={"max_bytes": max_bytes}
        )


class RouteNotFound(InvalidRequest):
    status = 404
    code = "not_found"
    grpc = "UNIMPLEMENTED"


class MethodNotAllowed(InvalidRequest):
    status = 405
    code = "method_not_allowed"
    grpc = "UNIMPLEMENTED"


class ModelNotFound(InvalidRequest):
    status = 404
    code = "model_not_found"
    grpc = "NOT_FOUND"

    def __init__(self, model: str, *, hint: str | None = None) -> None:
        super().__init__(f"The model {model!r} does not exist here.", param="model", hint=hint)
        self.model = model


class ModelNotLoaded(ModelNotFound):
    """It is known here, and nobody loads it for a request."""

    def __init__(self, model: str, *, hint: str | None = None) -> None:
        InvalidRequest.__init__(self, f"The model {model!r} is not loaded.", param="model", hint=hint)
        self.model = model


class ResponseNotFound(InvalidRequest):
    """No such response, or another tenant's: nobody can tell which."""

    status = 404
    code = "response_not_found"
    grpc = "NOT_FOUND"


class PreviousResponseNotFound(ResponseNotFound):
    code = "previous_response_not_found"


class ConversationNotFound(InvalidRequest):
    """No such conversation, or another tenant's."""

    status = 404
    code = "conversation_not_found"
    grpc = "NOT_FOUND"


class ItemNotFound(InvalidRequest):
    """No such item, or another tenant's."""

    status = 404
    code = "item_not_found"
    grpc = "NOT_FOUND"


class SessionNotFound(InvalidRequest):
    """No such session, or another tenant's, or one that was idle for longer than it may be."""

    status = 404
    code = "session_not_found"
    grpc = "NOT_FOUND"

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"There is no session {session_id[:64]!r} here.",
            param="session_id",
            hint="Open another one and send everything.",
        )


class SessionDrift(InvalidRequest):
    """Client and server disagree on what the session holds; `length` is the server's word."""

    status = 409
    code = "session_drift"
    grpc = "FAILED_PRECONDITION"

    def __init__(self, expected: int, length: int, *, param: str = "offset") -> None:
        is_change = param == "offset"
        super().__init__(
            f"The session holds {length} tokens, and the call expected {expected}.",
            param=param,
            hint="Send what is missing from there, or rewrite history with 'truncating'."
            if is_change
            else f"Name a position up to {length}.",
            extras={"session_length": length},
        )


class SessionBusy(InvalidRequest):
    """Another call changes the session just now."""

    status = 409
    code = "session_busy"
    grpc = "ABORTED"


class ImageBlockCut(InvalidRequest):
    """An image is in the session as a whole or not at all."""

    status = 409
    code = "image_block_cut"
    grpc = "FAILED_PRECONDITION"


class ModelMismatch(InvalidRequest):
    """What was saved belongs to another model."""

    status = 409
    code = "model_mismatch"
    grpc = "FAILED_PRECONDITION"


class ReadoutNotFound(InvalidRequest):
    """The model has no readouts to speak of."""

    status = 404
    code = "readout_not_found"
    grpc = "NOT_FOUND"


class ReadoutUnavailable(InvalidRequest):
    """Readouts were asked of a model for which no concepts are loaded."""

    code = "readout_unavailable"
    grpc = "FAILED_PRECONDITION"


class RequestQuarantined(InvalidRequest):
    status = 422
    code = "request_quarantined"
    grpc = "FAILED_PRECONDITION"


class ExceedsLimit(InvalidRequest):
    """The request can take more than its key may have at all: waiting does not help."""

    code = "request_exceeds_limit"


class InvalidApiKey(GanglionError):
    status = 401
    type = "authentication_error"
    code = "invalid_api_key"
    grpc = "UNAUTHENTICATED"


class NotAllowed(GanglionError):
    status = 403
    type = "permission_error"
    code = "permission_denied"
    grpc = "PERMISSION_DENIED"


class RateLimited(GanglionError):
    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"
    grpc = "RESOURCE_EXHAUSTED"
    retry_after_s = 1


class TooManySessions(RateLimited):
    code = "session_limit_exceeded"


class QuotaExceeded(RateLimited):
    """The key's budget of this period is spent."""

    code = "insufficient_quota"


class ServerError(GanglionError):
    """Not the client's doing."""


class EngineFailed(ServerError):
    code = "engine_failed"


class Interrupted(EngineFailed):
    """The server stopped while the answer was running; somebody who asks later is told."""

    code = "interrupted"


class LoadFailed(ServerError):
    """The file is there and is not a model that this engine can run."""

    status = 422
    code = "load_failed"
    grpc = "FAILED_PRECONDITION"


class HubUnreachable(ServerError):
    status = 502
    code = "hub_unreachable"
    grpc = "UNAVAILABLE"


class Overloaded(ServerError):
    status = 503
    code = "overloaded"
    grpc = "UNAVAILABLE"
    retry_after_s = 1


class ModelLoading(ServerError):
    status = 503
    code = "model_loading"
    grpc = "UNAVAILABLE"
    retry_after_s = 10


class ModelRecovering(ServerError):
    status = 503
    code = "model_recovering"
    grpc = "UNAVAILABLE"
    retry_after_s = 2


class ModelUnavailable(ServerError):
    """The model is known, and nobody who is there now can answer for it."""

    status = 503
    code = "model_unavailable"
    grpc = "UNAVAILABLE"
    retry_after_s = 5


class InsufficientMemory(ServerError):
    status = 503
    code = "insufficient_memory"
    grpc = "RESOURCE_EXHAUSTED"
    retry_after_s = 5

    def __init__(self, message: str, *, free_mb: int, required_mb: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint, extras={"free_mb": free_mb, "required_mb": required_mb})
        self.free_mb = free_mb
        self.required_mb = required_mb


class InsufficientVideoMemory(InsufficientMemory):
    code = "insufficient_vram"


class EngineUnavailable(ServerError):
    status = 503
    code = "engine_unavailable"
    grpc = "UNIMPLEMENTED"
    retry_after_s = 10


class WireUnsupported(ServerError):
    """No server that holds the model answers calls of this kind, and asking again does not change that."""

    status = 501
    code = "wire_unsupported"
    grpc = "UNIMPLEMENTED"


class ShuttingDown(ServerError):
    status = 503
    code = "shutting_down"
    grpc = "UNAVAILABLE"
    retry_after_s = 15


class LeaseLost(ServerError):
    """A gateway sent work under a lease that this node does not hold any more."""

    status = 503
    code = "lease_lost"
    grpc = "UNAVAILABLE"
    retry_after_s = 1


class UpstreamUnavailable(ServerError):
    """The node that should answer is gone, and there is no other."""

    status = 502
    code = "upstream_unavailable"
    grpc = "UNAVAILABLE"
    retry_after_s = 2


class UpstreamRefused(UpstreamUnavailable):
    """A foreign server answered with an error of its own."""

    code = "upstream_refused"


class DeadlineExceeded(ServerError):
    status = 504
    code = "deadline_exceeded"
    grpc = "DEADLINE_EXCEEDED"

    def __init__(self, deadline: str, limit_s: float) -> None:
        super().__init__(f"The {deadline} deadline of {limit_s:g} s passed.", extras={"deadline": deadline})


class StoreUnavailable(ServerError):
    """Where responses are kept cannot be reached just now."""

    status = 503
    code = "store_unavailable"
    grpc = "UNAVAILABLE"
    retry_after_s = 2


class StoreUnusable(ServerError):
    """Where responses are kept needs a person: damaged, another program's, or of a newer version."""

    code = "store_unusable"


class StorageFull(ServerError):
    status = 507
    code = "storage_full"
    grpc = "RESOURCE_EXHAUSTED"
    retry_after_s = 30
