"""Clients: one channel for all clones, retries only where safe, errors as the server meant them."""

import asyncio
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from both import KINDS, Kind, client_of, done, every

import ganglion
from ganglion.client import Disconnected, GanglionError, Image, SessionDrift, SessionNotFound, rpcs
from ganglion.client.errors import error_from_status
from ganglion.client.fake import FakeNode
from ganglion.client.flow import Sleep, UnaryCall, call_rpc
from ganglion.client.rpcs import OPEN, Rpc
from ganglion.client.settings import GrpcTarget, client_settings, grpc_target
from ganglion.core import errors
from ganglion.core.errors import (
    DeadlineExceeded,
    InvalidApiKey,
    InvalidRequest,
    InvalidValue,
    ModelLoading,
    ModelNotFound,
    Overloaded,
    RateLimited,
    ReadoutNotFound,
    ServerError,
)
from ganglion.wire.salience import salience_pb2 as pb

AWAY = Disconnected("The node went away.")


def test_the_table_of_rpcs_is_the_services() -> None:
    service = pb.DESCRIPTOR.services_by_name["Salience"]
    table = {rpc.name: rpc for rpc in vars(rpcs).values() if isinstance(rpc, Rpc)}
    assert {
        method.name: (method.input_type.full_name, method.output_type.full_name) for method in service.methods
    } == {
        name: (rpc.request.DESCRIPTOR.full_name, rpc.reply.DESCRIPTOR.full_name)
        for name, rpc in table.items()
    }
    assert {name for name, rpc in table.items() if rpc.is_safe} == {
        "OpenSession",
        "Tokenize",
        "Detokenize",
        "GetReadoutManifest",
        "GetTokens",
        "ListSessions",
        "RenderMessages",
    }


@pytest.mark.parametrize("kind", KINDS)
async def test_what_is_safe_is_called_again_and_nothing_else_is(kind: Kind) -> None:
    node = FakeNode()
    client = client_of(node, kind)
    session = client.session("fake")
    for rpc in ("OpenSession", "Tokenize"):
        node.fail_next(AWAY, rpc=rpc)
    await done(session.append("one"))
    assert (node.count("OpenSession"), node.count("Tokenize"), node.count("Generate")) == (2, 2, 1)
    for rpc in ("ListSessions", "Detokenize"):
        node.fail_next(AWAY, rpc=rpc)
    await done(client.sessions())
    assert await done(client.detokenize("fake", session.tokens)) == "<s>one"
    assert (node.count("ListSessions"), node.count("Detokenize")) == (2, 2)
    for rpc, call in (
        ("Generate", lambda: session.append("two")),
        ("AppendImage", lambda: session.append(Image(b"cat"))),
        ("ForkSession", session.fork),
        ("TruncateSession", lambda: session.truncate(1)),
        ("SaveSession", session.save),
        ("SuspendSession", session.suspend),
        ("RestoreSession", lambda: client.restore(b"")),
    ):
        before = node.count(rpc)
        node.fail_next(AWAY, rpc=rpc)
        with pytest.raises(Disconnected):
            await done(call())
        assert node.count(rpc) == before + 1


@pytest.mark.parametrize("kind", KINDS)
async def test_a_node_that_stays_away_is_given_up(kind: Kind) -> None:
    node = FakeNode()
    for _ in range(9):
        node.fail_next(AWAY, rpc="ListSessions")
    with pytest.raises(Disconnected):
        await done(client_of(node, kind, timeout_s=1).sessions())
    assert node.count("ListSessions") == 3


def test_pauses_grow_honour_what_the_node_says_and_end_with_the_patience() -> None:
    def pauses(error: GanglionError, patience_s: float) -> list[float]:
        flow = call_rpc(OPEN, pb.OpenSessionRequest(), patience_s=patience_s)
        said: list[float] = []
        effect = next(flow)
        with pytest.raises(GanglionError):
            while True:
                effect = flow.throw(error) if isinstance(effect, UnaryCall) else flow.send(None)
                if isinstance(effect, Sleep):
                    said.append(effect.seconds)
        return said

    assert pauses(AWAY, 60) == [0.1, 0.4, 1.6]
    assert pauses(AWAY, 0.3) == [0.1]
    assert pauses(Overloaded("full"), 60) == [1, 1, 1.6]
    assert pauses(ModelLoading("loading"), 25) == [10, 10]
    assert pauses(ModelNotFound("x"), 60) == []


@pytest.mark.parametrize("kind", KINDS)
async def test_clones_share_one_line_and_the_last_one_closes_it(kind: Kind) -> None:
    node = FakeNode()
    client = client_of(node, kind)
    clone = client.clone(api_key="another", timeout_s=5)
    grandchild = clone.clone()
    assert node.transports_opened == 0
    for each in (client, clone, grandchild):
        await done(each.tokenize("fake", "one"))
        assert await done(each.readout_manifest("fake")) is not None
    assert node.transports_opened == 1 and node.count("GetReadoutManifest") == 1
    held = clone.session("fake")
    await done(held.append("one"))
    assert len(await done(grandchild.sessions())) == 1 and await done(client.sessions()) == ()
    await done(client.close())
    await done(client.close())
    with pytest.raises(InvalidValue, match="closed"):
        await done(client.sessions())
    await done(clone.close())
    session = grandchild.session("fake")
    await done(session.append("still"))
    await done(grandchild.close())
    await done(session.close())
    with pytest.raises(InvalidValue, match="closed"):
        grandchild.clone()
    assert node.transports_opened == 1


def test_threads_share_a_client_with_sessions_of_their_own() -> None:
    node = FakeNode()
    client = node.client()
    barrier = threading.Barrier(8)

    def work(number: int) -> bool:
        barrier.wait(5)
        with client.session("fake") as session:
            for turn in range(20):
                session.append(f" word{number} word{turn}")
                session.generate(max_tokens=2).result()
            return session.tokens == node.tokens(session.id) and session.length == 81

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))
    assert node.transports_opened == 1 and not node.sessions.sessions


@pytest.mark.parametrize("kind", KINDS)
async def test_a_manifest_comes_with_the_session_and_is_not_asked_for(kind: Kind) -> None:
    node = FakeNode()
    client = client_of(node, kind)
    session = client.session("fake")
    await every(session.generate(readout="generated"))
    assert (await done(client.readout_manifest("fake"))).layers == (1, 2, 3)
    assert node.count("GetReadoutManifest") == 0


@pytest.mark.parametrize("kind", KINDS)
async def test_that_a_model_has_no_readouts_is_asked_for_once_too(kind: Kind) -> None:
    node = FakeNode(manifest=None)
    client = client_of(node, kind)
    for each in (client, client, client.clone()):
        with pytest.raises(ReadoutNotFound):
            await done(each.readout_manifest("fake"))
    assert node.count("GetReadoutManifest") == 1
    session = client.session("fake")
    for _ in range(2):
        with pytest.raises(ReadoutNotFound):
            await every(session.generate(readout="all"))
    assert node.count("GetReadoutManifest") == 1
    with pytest.raises(ModelNotFound):
        await done(client.readout_manifest("nobody"))


async def test_cancelling_a_task_cancels_the_call_and_changes_nothing() -> None:
    node = FakeNode()
    session = node.async_client().session("fake")
    await session.append("one")
    task = asyncio.create_task(session.append(" two three"))
    for _ in range(3):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert session.length == 2
    assert await session.append(" two") == 3
    assert node.tokens(session.id) == session.tokens


@pytest.mark.parametrize(
    "kind",
    [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, GanglionError)],
)
def test_every_error_of_the_tree_comes_back_as_itself(kind: type[GanglionError]) -> None:
    metadata = {
        "ganglion-code": kind.code,
        "ganglion-session-length": "7",
        "ganglion-hint": "Do this.",
        "ganglion-param": "offset",
        "retry-after": "3",
    }
    error = error_from_status(kind.grpc, "What happened.", metadata)
    assert isinstance(error, errors.class_of(kind.code) or kind) and error.code == kind.code
    assert (str(error), error.message, error.hint, error.param) == (
        "What happened.",
        "What happened.",
        "Do this.",
        "offset",
    )
    assert error.extras == {"session_length": 7} and error.retry_after_s == 3


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        ("UNAVAILABLE", Disconnected),
        ("CANCELLED", Disconnected),
        ("DEADLINE_EXCEEDED", DeadlineExceeded),
        ("UNAUTHENTICATED", InvalidApiKey),
        ("INVALID_ARGUMENT", InvalidRequest),
        ("RESOURCE_EXHAUSTED", RateLimited),
        ("UNKNOWN", ServerError),
        ("SOMETHING_NEW", ServerError),
    ],
)
def test_a_status_without_a_code_is_an_error_as_well(status: str, kind: type[GanglionError]) -> None:
    assert type(error_from_status(status, "details", {})) is kind
    assert "details" in str(error_from_status(status, "details", {}))
    unknown = error_from_status(
        status, "details", {"ganglion-code": "of_the_future", "ganglion-session-length": "x"}
    )
    assert unknown.code == "of_the_future" and unknown.extras == {}


@pytest.mark.parametrize(
    ("url", "grpc_address", "target", "is_tls"),
    [
        ("http://127.0.0.1:8080", None, "127.0.0.1:8081", False),
        ("127.0.0.1:9000", None, "127.0.0.1:9001", False),
        ("https://node.example", None, "node.example:444", True),
        ("http://[::1]:8080/", None, "[::1]:8081", False),
        ("https://node.example:8443", "other:50051", "other:50051", True),
        ("http://node", "[::1]:50051", "[::1]:50051", False),
    ],
)
def test_the_grpc_port_is_the_next_one_unless_it_is_given(
    url: str, grpc_address: str | None, target: str, is_tls: bool
) -> None:
    assert grpc_target(url, grpc_address) == GrpcTarget(target, is_tls)


@pytest.mark.parametrize(
    ("url", "grpc_address"),
    [
        ("ftp://node", None),
        ("http://", None),
        ("http://node:65535", None),
        ("http://node:x", None),
        ("http://user:word@node", None),
        ("http://node", "nowhere"),
        ("http://node", "host:port"),
        ("http://node", "host:80/path"),
    ],
)
def test_addresses_that_are_none_are_refused(url: str, grpc_address: str | None) -> None:
    with pytest.raises(InvalidValue, match="Expected"):
        grpc_target(url, grpc_address)


def test_what_is_left_out_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    def settings(base_url: str | None = None) -> tuple[str, str | None]:
        made = client_settings(
            base_url=base_url, api_key=None, grpc_address=None, timeout_s=1, idle_timeout_s=1, ca_file=None
        )
        return made.address.target, made.call_options.api_key

    for name in ("GANGLION_URL", "GANGLION_GRPC_ADDRESS", "GANGLION_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    assert settings() == ("127.0.0.1:8081", None)
    monkeypatch.setenv("GANGLION_URL", "http://node:9000")
    monkeypatch.setenv("GANGLION_API_KEY", "secret")
    assert settings() == ("node:9001", "secret")
    monkeypatch.setenv("GANGLION_GRPC_ADDRESS", "node:7")
    assert settings() == ("node:7", "secret")
    assert settings("http://given:1") == ("given:2", "secret")
    for timeout_s in (0, -1, float("nan"), 1e9):
        with pytest.raises(InvalidValue):
            ganglion.Client(timeout_s=timeout_s)
    with pytest.raises(InvalidValue):
        ganglion.Client(api_key="two\nlines")


def test_the_package_offers_the_client_and_loads_it_when_asked() -> None:
    assert ganglion.Client and ganglion.AsyncClient and ganglion.SessionDivergence
    program = "import sys, ganglion; print(*(m for m in ('grpc', 'google.protobuf') if m in sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == ""
    for name in ganglion.__all__:
        assert getattr(ganglion, name) is not None


def test_drift_is_caught_as_what_it_is() -> None:
    error = error_from_status("FAILED_PRECONDITION", "It holds 3.", {"ganglion-code": "session_drift"})
    assert isinstance(error, SessionDrift) and not isinstance(error, SessionNotFound)
