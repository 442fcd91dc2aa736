"""Spans: none unless asked for, under the client's own, and told to the node."""

import logging
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest
from gateways import fleet

from ganglion.gateway.proxy import tracing
from ganglion.gateway.proxy.client_request import ClientRequest, build_head
from ganglion.gateway.proxy.routes import parse_target
from ganglion.gateway.proxy.tracing import Tracing, begin_span, open_tracing
from ganglion.server.gateway import gateway_process

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = (b"traceparent", f"00-{TRACE_ID}-00f067aa0ba902b7-01".encode())


def test_nothing_is_imported_for_who_asks_for_no_spans() -> None:
    assert open_tracing(is_asked=False) is None
    program = (
        "import sys, ganglion.gateway.proxy.tracing as t; t.open_tracing(is_asked=False); print(*sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not [name for name in loaded.stdout.split() if name.startswith("opentelemetry")]


def test_a_missing_package_is_said_once_and_stops_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tracing, "PACKAGE", "opentelemetry_that_is_not_here")
    with caplog.at_level(logging.WARNING):
        assert open_tracing(is_asked=True) is None
    assert "opentelemetry-api is missing" in caplog.text


class PlayedSpan:
    """What was said of a span."""

    def __init__(self, name: str, parent: Any, attributes: Mapping[str, object]) -> None:
        self.name, self.parent, self.attributes = name, parent, dict(attributes)
        self.status: Any = None
        self.ends = 0


class PlayedTracer:
    """A tracer that records, as the SDK's would: every span gets a number of its own."""

    def __init__(self) -> None:
        self.spans: list[PlayedSpan] = []

    def start_span(self, name: str, context: Any, kind: Any, attributes: Mapping[str, object]) -> Any:
        from opentelemetry import trace

        parent = trace.get_current_span(context).get_span_context()
        played = PlayedSpan(name, parent, attributes)
        self.spans.append(played)
        own = trace.SpanContext(
            parent.trace_id or 7, len(self.spans), is_remote=False, trace_flags=trace.TraceFlags(1)
        )

        class Recording(trace.NonRecordingSpan):
            def set_attribute(self, key: str, value: Any) -> None:
                played.attributes[key] = value

            def set_status(self, status: Any, description: str | None = None) -> None:
                played.status = status

            def end(self, end_time: int | None = None) -> None:
                played.ends += 1

        assert kind is trace.SpanKind.SERVER
        return Recording(own)


def test_a_span_stands_under_the_clients_and_the_node_hears_of_it() -> None:
    trace = pytest.importorskip("opentelemetry.trace")
    tracer = PlayedTracer()
    spans = Tracing(tracer)
    span = spans.span_of("POST", "/v1/chat/completions", [PARENT, (b"authorization", b"Bearer secret")])
    assert dict(span.headers) == {b"traceparent": f"00-{TRACE_ID}-{1:016x}-01".encode()}
    span.end(200, {"ganglion.node": "a", "gen_ai.usage.output_tokens": 7})

    failed = spans.span_of("GET", "/fleet", [])
    assert dict(failed.headers)[b"traceparent"].startswith(b"00-" + f"{7:032x}".encode())
    failed.end(503, {})

    [first, second] = tracer.spans
    assert (first.name, f"{first.parent.trace_id:032x}") == ("POST /v1/chat/completions", TRACE_ID)
    assert first.attributes["ganglion.node"] == "a"
    assert first.attributes["http.response.status_code"] == 200
    assert (first.status, first.ends) == (None, 1)
    assert (second.status, second.ends) == (trace.StatusCode.ERROR, 1)
    assert "secret" not in str(first.attributes)


@pytest.mark.parametrize(
    "headers",
    [[PARENT, (b"tracestate", b"vendor=1")], [(b"traceparent", b"\xff nonsense")], []],
    ids=["a trace", "nonsense", "none"],
)
def test_where_nobody_records_the_clients_headers_pass_as_they_came(
    headers: list[tuple[bytes, bytes]],
) -> None:
    pytest.importorskip("opentelemetry.trace")
    spans = open_tracing(is_asked=True)
    assert spans is not None
    span = spans.span_of("POST", "/v1/messages", headers)
    assert sorted(span.headers) == sorted(headers)
    span.end(500, {})


def test_a_node_hears_of_the_span_in_place_of_the_clients() -> None:
    pytest.importorskip("opentelemetry.trace")
    tracer = PlayedTracer()
    call = ClientRequest(build_head(b"POST", parse_target(b"/v1/messages"), [PARENT, (b"accept", b"*/*")]))
    begin_span(Tracing(tracer), call)
    assert call.head.headers[0] == (b"accept", b"*/*")
    assert call.head.headers[1:] == [(b"traceparent", f"00-{TRACE_ID}-{1:016x}-01".encode())]


async def test_each_request_of_a_gateway_is_a_span_that_ends_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opentelemetry.trace")
    tracer = PlayedTracer()
    monkeypatch.setattr(gateway_process, "open_tracing", lambda is_asked: Tracing(tracer))
    ask = {"model": "echo", "messages": [{"role": "user", "content": "hi"}]}
    async with fleet() as gateway:
        tracer.spans.clear()
        for body in (ask, ask | {"stream": True}, ask | {"model": "nobody"}):
            await gateway.http.post("/v1/chat/completions", json=body)
    told = [(span.ends, span.attributes["http.response.status_code"]) for span in tracer.spans]
    assert told == [(1, 200), (1, 200), (1, 404)]
    assert [span.attributes["ganglion.node"] for span in tracer.spans] == ["a", "a", ""]
