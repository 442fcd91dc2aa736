"""The one error tree: every way a request can fail, with the status that each wire gives it.

Law: a class statement below is the only place that ties a code to a class; `class_of` reads it back, for an
error that another process raised. A class that states no code of its own has its parent's, and comes back as
its parent. docs/chat.md lists what stands here.
"""

from collections.abc import Iterator
from types import MappingProxyType
from typing import ClassVar, Final, TypeVar

Extra = str | int | float | bool | None


class GanglionError(Exception):
    """Something a client is told about; `code` is stable, `message` is for people.

    `detail` says the same to whoever runs the server, with names and paths that are not for clients; it is
    the error's text in the log and on a command line, and no wire sends it.
    """

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    code: str = "internal_error"
    grpc: ClassVar[str] = "INTERNAL"
    retry_after_s: int | None = None

    def __init_subclass__(
        cls,
        *,
        status: int | None = None,
        type: str | None = None,  # noqa: A002 - the field's name on every wire
        code: str | None = None,
        grpc: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        """Take what differs from the parent from the class statement."""
        stated = {"status": status, "type": type, "code": code, "grpc": grpc, "retry_after_s": retry_after_s}
        for name, value in stated.items():
            if value is not None:
                setattr(cls, name, value)

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

    @property
    def full_message(self) -> str:
        """The message, and the hint after it where there is one."""
        return f"{self.message} {self.hint}" if self.hint else self.message


class InvalidRequest(
    GanglionError, status=400, type="invalid_request_error", code="invalid_value", grpc="INVALID_ARGUMENT"
):
    """The request is wrong, and asking again changes nothing."""


class InvalidJson(InvalidRequest, code="invalid_json"):
    """The body is not JSON."""


class MissingParameter(InvalidRequest, code="missing_required_parameter"):
    """A required field is absent."""


class InvalidValue(InvalidRequest, code="invalid_value"):
    """A field has the wrong type or is out of bounds, or the model's template refuses the messages."""


class UnknownParameter(InvalidRequest, code="unknown_parameter"):
    """Nobody knows this field; raised under `--strict`."""


class UnsupportedParameter(InvalidRequest, code="unsupported_parameter"):
    """The field is known and not supported here."""


class ContextLengthExceeded(InvalidRequest, code="context_length_exceeded", grpc="RESOURCE_EXHAUSTED"):
    """The prompt does not fit the longest sequence this model may hold."""

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


class VisionUnsupported(InvalidRequest, code="vision_unsupported", grpc="FAILED_PRECONDITION"):
    """The request has an image, and the model reads text only."""


class UnsupportedMediaType(InvalidRequest, status=415, code="unsupported_media_type"):
    """The body is not JSON by its header, or it is compressed."""


class BodyTooLarge(InvalidRequest, status=413, code="body_too_large"):
    """The body is larger than the server takes."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(
            f"The request body is larger than {max_bytes} bytes.", extras={"max_bytes": max_bytes}
        )


class HeadersTooLarge(InvalidRequest, status=431, code="headers_too_large"):
    """The request line and headers are larger than any client of ours sends."""


class UnknownTransferCoding(InvalidRequest, status=501, code="unsupported_transfer_encoding"):
    """The body comes in a transfer coding other than `chunked`."""


class RequestTimeout(InvalidRequest, status=408, code="request_timeout"):
    """The request did not arrive in time."""


class OnlyHolder(InvalidRequest, status=409, code="only_holder"):
    """The node to drain holds a model that no other node can have."""


class RouteNotFound(InvalidRequest, status=404, code="not_found", grpc="UNIMPLEMENTED"):
    """There is no such route."""


class MethodNotAllowed(InvalidRequest, status=405, code="method_not_allowed", grpc="UNIMPLEMENTED"):
    """The route has other methods."""


class ModelNotFound(InvalidRequest, status=404, code="model_not_found", grpc="NOT_FOUND"):
    """There is no such model here."""

    model = ""

    def __init__(self, model: str, *, hint: str | None = None) -> None:
        super().__init__(f"The model {model!r} does not exist here.", param="model", hint=hint)
        self.model = model


class ModelNotLoaded(ModelNotFound):
    """The model is known here, and no request loads it."""

    def __init__(self, model: str, *, hint: str | None = None) -> None:
        InvalidRequest.__init__(self, f"The model {model!r} is not loaded.", param="model", hint=hint)
        self.model = model


class ResponseNotFound(InvalidRequest, status=404, code="response_not_found", grpc="NOT_FOUND"):
    """There is no such response, or it is another tenant's: nobody can tell which."""


class PreviousResponseNotFound(ResponseNotFound, code="previous_response_not_found"):
    """There is no such response to go on from."""


class ConversationNotFound(InvalidRequest, status=404, code="conversation_not_found", grpc="NOT_FOUND"):
    """There is no such conversation, or it is another tenant's."""


class ItemNotFound(InvalidRequest, status=404, code="item_not_found", grpc="NOT_FOUND"):
    """There is no such item, or it is another tenant's."""


class SessionNotFound(InvalidRequest, status=404, code="session_not_found", grpc="NOT_FOUND"):
    """There is no such session: another tenant's, or one that was idle for too long, counts as none."""

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"There is no session {session_id[:64]!r} here.",
            param="session_id",
            hint="Open another one and send everything.",
        )


class SessionDrift(InvalidRequest, status=409, code="session_drift", grpc="FAILED_PRECONDITION"):
    """Client and server disagree on what the session holds; `session_length` is what it holds."""

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


class SessionBusy(InvalidRequest, status=409, code="session_busy", grpc="ABORTED"):
    """Another call is changing the session."""


class ImageBlockCut(InvalidRequest, status=409, code="image_block_cut", grpc="FAILED_PRECONDITION"):
    """The change would cut an image in two: a session holds an image whole or not at all."""


class ModelMismatch(InvalidRequest, status=409, code="model_mismatch", grpc="FAILED_PRECONDITION"):
    """The saved state belongs to another model."""


class ReadoutNotFound(InvalidRequest, status=404, code="readout_not_found", grpc="NOT_FOUND"):
    """The model has no readouts."""


class ReadoutUnavailable(InvalidRequest, code="readout_unavailable", grpc="FAILED_PRECONDITION"):
    """The request asks for readouts of a model for which no concepts are loaded."""


class RequestQuarantined(InvalidRequest, status=422, code="request_quarantined", grpc="FAILED_PRECONDITION"):
    """The request ended two workers, so it is not tried again."""


class ExceedsLimit(InvalidRequest, code="request_exceeds_limit"):
    """The request can use more than its key may ever have: waiting does not help."""


class InvalidApiKey(
    GanglionError, status=401, type="authentication_error", code="invalid_api_key", grpc="UNAUTHENTICATED"
):
    """There is no key, or a wrong one."""


class NotAllowed(
    GanglionError, status=403, type="permission_error", code="permission_denied", grpc="PERMISSION_DENIED"
):
    """The key may not do this, or the request comes from a foreign Host or Origin."""


class RateLimited(
    GanglionError,
    status=429,
    type="rate_limit_error",
    code="rate_limit_exceeded",
    grpc="RESOURCE_EXHAUSTED",
    retry_after_s=1,
):
    """The key's rate limit is reached."""


class TooManySessions(RateLimited, code="session_limit_exceeded"):
    """The key has as many sessions as it may have."""


class QuotaExceeded(RateLimited, code="insufficient_quota"):
    """The key's budget for this period is spent."""


class ServerError(GanglionError, code="internal_error"):
    """The fault is the server's, not the client's."""


class EngineFailed(ServerError, code="engine_failed"):
    """The engine died or failed while it ran this request."""


class Interrupted(EngineFailed, code="interrupted"):
    """The server stopped while the answer was running; a later read of the answer reports it."""


class LoadFailed(ServerError, status=422, code="load_failed", grpc="FAILED_PRECONDITION"):
    """The file exists and is not a model that this engine can run."""


class HubUnreachable(ServerError, status=502, code="hub_unreachable", grpc="UNAVAILABLE"):
    """The hub that models are downloaded from cannot be reached."""


class Overloaded(ServerError, status=503, code="overloaded", grpc="UNAVAILABLE", retry_after_s=1):
    """The queue is full."""


class ModelLoading(ServerError, status=503, code="model_loading", grpc="UNAVAILABLE", retry_after_s=10):
    """Too many requests already wait for the model to load."""


class ModelRecovering(ServerError, status=503, code="model_recovering", grpc="UNAVAILABLE", retry_after_s=2):
    """The model crashed and is being restarted."""


class ModelUnavailable(
    ServerError, status=503, code="model_unavailable", grpc="UNAVAILABLE", retry_after_s=5
):
    """The model is known, and no node that is up can answer for it."""


class InsufficientMemory(
    ServerError, status=503, code="insufficient_memory", grpc="RESOURCE_EXHAUSTED", retry_after_s=5
):
    """The model does not fit into the memory that is free."""

    def __init__(self, message: str, *, free_mb: int, required_mb: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint, extras={"free_mb": free_mb, "required_mb": required_mb})

    @property
    def free_mb(self) -> int:
        """The memory that is free, 0 where nobody said."""
        return int(self.extras.get("free_mb") or 0)

    @property
    def required_mb(self) -> int:
        """The memory that the model needs, 0 where nobody said."""
        return int(self.extras.get("required_mb") or 0)


class InsufficientVideoMemory(InsufficientMemory, code="insufficient_vram"):
    """The model does not fit into the accelerator's memory."""


class EngineUnavailable(
    ServerError, status=503, code="engine_unavailable", grpc="UNIMPLEMENTED", retry_after_s=10
):
    """The engine's native library cannot be used."""


class WireUnsupported(ServerError, status=501, code="wire_unsupported", grpc="UNIMPLEMENTED"):
    """No server that holds the model answers calls of this kind; asking again does not change that."""


class ShuttingDown(ServerError, status=503, code="shutting_down", grpc="UNAVAILABLE", retry_after_s=15):
    """The server is draining."""


class LeaseLost(ServerError, status=503, code="lease_lost", grpc="UNAVAILABLE", retry_after_s=1):
    """A gateway sent work under a lease that this node no longer holds."""


class UpstreamUnavailable(
    ServerError, status=502, code="upstream_unavailable", grpc="UNAVAILABLE", retry_after_s=2
):
    """The node that should answer is gone, and there is no other."""


class UpstreamRefused(UpstreamUnavailable, code="upstream_refused"):
    """A foreign server answered with an error of its own."""


class DeadlineExceeded(ServerError, status=504, code="deadline_exceeded", grpc="DEADLINE_EXCEEDED"):
    """A deadline passed, or the body did not arrive in time."""

    def __init__(self, deadline: str, limit_s: float) -> None:
        super().__init__(f"The {deadline} deadline of {limit_s:g} s passed.", extras={"deadline": deadline})


class StoreUnavailable(
    ServerError, status=503, code="store_unavailable", grpc="UNAVAILABLE", retry_after_s=2
):
    """The store of responses cannot be reached just now."""


class StoreUnusable(ServerError, code="store_unusable"):
    """The store of responses is damaged, another program's or of a newer version: a person must look."""


class StorageFull(ServerError, status=507, code="storage_full", grpc="RESOURCE_EXHAUSTED", retry_after_s=30):
    """The disk that keeps responses or sessions is full."""


_AnyError = TypeVar("_AnyError", bound=GanglionError)


def class_of(code: str) -> type[GanglionError] | None:
    """The class that states this code."""
    return _BY_CODE.get(code)


def rebuild(
    kind: type[_AnyError],
    message: str,
    *,
    param: str | None = None,
    hint: str | None = None,
    extras: dict[str, Extra] | None = None,
    retry_after_s: int | None = None,
) -> _AnyError:
    """Make an error that another process raised, in its own words: the class's `__init__` is left out."""
    error = kind.__new__(kind)
    GanglionError.__init__(error, message, param=param, hint=hint, extras=extras)
    if retry_after_s is not None:
        error.retry_after_s = retry_after_s
    return error


def error_classes(kind: type[GanglionError] = GanglionError) -> Iterator[type[GanglionError]]:
    """A class and all below it, parents before their children."""
    yield kind
    for child in kind.__subclasses__():
        yield from error_classes(child)


# Made here, while there are no classes but those of this file. Where two state one code, the child is exact.
_BY_CODE: Final = MappingProxyType({kind.code: kind for kind in error_classes() if "code" in vars(kind)})
