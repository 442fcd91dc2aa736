"""A request as a span of OpenTelemetry, where the operator asked for it and its package is installed.

Law: without both there is nothing here to pay for, and a client's own trace headers pass as they came.
"""

import logging
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

if TYPE_CHECKING:
    from ganglion.gateway.proxy.client_request import ClientRequest

_logger = logging.getLogger("ganglion.gateway")

PACKAGE: Final = "opentelemetry"
_SCOPE: Final = "ganglion.gateway"
_HEADERS: Final = frozenset((b"traceparent", b"tracestate", b"baggage"))
"""What carries a trace; all of it is passed on."""
_SERVER_ERROR: Final = 500
_MAX_PATH_CHARS: Final = 200

_Headers = tuple[tuple[bytes, bytes], ...]
_Attribute = str | int


class Span:
    """One request that is being traced."""

    def __init__(self, span: Any, headers: _Headers, failed: Any) -> None:
        self._span = span
        self._failed = failed
        self.headers = headers
        """Trace headers for the node, in place of the client's."""

    def end(self, status: int, attributes: Mapping[str, _Attribute]) -> None:
        """Say once how it ended: its HTTP status, and what is known of it by then."""
        self._span.set_attribute("http.response.status_code", status)
        for name, value in attributes.items():
            self._span.set_attribute(name, value)
        if status >= _SERVER_ERROR:
            self._span.set_status(self._failed)
        self._span.end()


class Tracing:
    """Makes spans; the tracer is OpenTelemetry's own, or one that a test plays."""

    def __init__(self, tracer: Any = None) -> None:
        self._trace = import_module(f"{PACKAGE}.trace")
        self._propagate = import_module(f"{PACKAGE}.propagate")
        self._tracer = tracer or self._trace.get_tracer(_SCOPE)

    def span_of(self, method: str, path: str, headers: Iterable[tuple[bytes, bytes]]) -> Span:
        """A span that begins now, under the one that the client's headers name."""
        came = tuple((name, value) for name, value in headers if name in _HEADERS)
        parent = self._propagate.extract({name.decode(): value.decode("latin-1") for name, value in came})
        span = self._tracer.start_span(
            f"{method} {path}",
            context=parent,
            kind=self._trace.SpanKind.SERVER,
            attributes={"http.request.method": method, "url.path": path},
        )
        injected: dict[str, str] = {}
        self._propagate.inject(injected, context=self._trace.set_span_in_context(span, parent))
        # Where nobody records spans and no client sent one, there is no trace to name.
        passed = tuple((name.encode(), value.encode("latin-1")) for name, value in injected.items()) or came
        return Span(span, passed, self._trace.StatusCode.ERROR)


def begin_span(tracing: Tracing, call: "ClientRequest") -> Span:
    """A span of this request; whoever it is put to hears of the span instead of the client's."""
    head = call.head
    path = head.target.path.decode("latin-1")[:_MAX_PATH_CHARS]
    span = tracing.span_of(head.method.decode(), path, head.headers)
    headers = [*(header for header in head.headers if header[0] not in _HEADERS), *span.headers]
    call.head = replace(head, headers=headers, to_ours=None, to_foreign=None)
    return span


def open_tracing(*, is_asked: bool) -> Tracing | None:
    """Spans where `gateway.tracing` asks for them; None where it does not, or the package is missing."""
    if not is_asked:
        return None
    try:
        return Tracing()
    except ImportError:
        _logger.warning("gateway.tracing is on and the package opentelemetry-api is missing: no spans")
        return None
