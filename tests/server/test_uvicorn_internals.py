"""The internals of uvicorn that `server/life` relies on; pyproject.toml caps its version because of them."""

import inspect

import pytest
import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

METHODS = {
    HttpToolsProtocol: (
        "_should_upgrade",
        "connection_made",
        "connection_lost",
        "data_received",
        "on_headers_complete",
        "on_body",
        "on_message_complete",
        "send_400_response",
        "timeout_keep_alive_handler",
    ),
    WebSocketsSansIOProtocol: (
        "connection_lost",
        "data_received",
        "handle_connect",
        "send_receive_event_to_app",
    ),
    uvicorn.Server: ("capture_signals", "main_loop", "on_tick", "shutdown", "startup"),
}
ATTRIBUTES = {
    HttpToolsProtocol: (
        "connections",
        "cycle",
        "flow",
        "headers",
        "loop",
        "scope",
        "transport",
        "url",
    ),
    RequestResponseCycle: ("chunked_encoding", "disconnected", "message_event", "response_complete"),
    FlowControl: ("write_paused",),
    WebSocketsSansIOProtocol: (
        "client",
        "conn",
        "handshake_initiated",
        "loop",
        "read_paused",
        "response",
        "scope",
        "transport",
    ),
    uvicorn.Server: ("force_exit", "server_state", "servers", "should_exit"),
    ServerState: ("connections", "tasks"),
}
REASON = "server/life uses it; adapt it there before you raise the cap on uvicorn in pyproject.toml"


@pytest.mark.parametrize(("owner", "name"), [(owner, name) for owner in METHODS for name in METHODS[owner]])
def test_uvicorn_has_the_method_that_we_override_or_call(owner: type, name: str) -> None:
    assert callable(getattr(owner, name, None)), f"uvicorn has no {owner.__name__}.{name} any more: {REASON}"


@pytest.mark.parametrize(
    ("owner", "name"), [(owner, name) for owner in ATTRIBUTES for name in ATTRIBUTES[owner]]
)
def test_uvicorn_has_the_attribute_that_we_read_or_set(owner: type, name: str) -> None:
    source = "".join(inspect.getsource(each) for each in owner.__mro__[:-1] if each.__module__ != "asyncio")
    assert f"self.{name}" in source, f"uvicorn sets no {owner.__name__}.{name} any more: {REASON}"
