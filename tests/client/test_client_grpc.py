"""The real lines, over loopback: what gRPC makes of calls, cancellation, silence and nodes that are gone."""

import asyncio
import gc
import subprocess
from pathlib import Path

import grpc
import pytest
from both import KINDS, AnyClient, Kind, done, every, some
from grpc_server import serving

from ganglion.client import (
    AsyncClient,
    Client,
    Disconnected,
    Done,
    GanglionError,
    Image,
    ImageAppended,
    SessionDrift,
    TokenEvent,
)
from ganglion.client.fake import FakeNode
from ganglion.core.errors import DeadlineExceeded, InvalidValue
from support.waiting import until

pytestmark = pytest.mark.parametrize("kind", KINDS)


def real_client(kind: Kind, port: int, **options: float | str | Path | None) -> AnyClient:
    kinds: dict[Kind, type[AnyClient]] = {"blocking": Client, "awaiting": AsyncClient}
    return kinds[kind](f"http://127.0.0.1:{port - 1}", **options)  # type: ignore[arg-type]


async def test_a_conversation_over_a_socket(kind: Kind) -> None:
    node = FakeNode(replies=[" A cat.", " Yes."])
    with serving(node) as (_, port):
        client = real_client(kind, port, api_key="secret")
        session = client.session("fake")
        events = await every(session.run(["What is this? ", Image(b"cat")], max_tokens=8, logprobs="all"))
        assert [event for event in events if isinstance(event, ImageAppended)] == [ImageAppended(4, 9)]
        told = [event for event in events if isinstance(event, TokenEvent)]
        assert "".join(event.text for event in told if not event.is_prefill) == " A cat.</s>"
        assert all(event.logprob is not None for event in told[1:])
        assert isinstance(events[-1], Done)
        assert node.tokens(session.id) == session.tokens
        fork = await done(session.fork())
        assert await done(fork.generate().text()) == " Yes."
        saved = await done(session.save())
        restored = await done(client.restore(saved))
        assert restored.length == session.length
        assert len(await done(client.sessions())) == 3
        anonymous = real_client(kind, port)
        assert await done(anonymous.sessions()) == ()
        await done(anonymous.close())
        await done(session.close())
        await done(client.close())
        with pytest.raises(InvalidValue, match="closed"):
            await done(client.sessions())


async def test_errors_arrive_with_code_hint_and_length(kind: Kind) -> None:
    with serving(FakeNode()) as (_, port):
        client = real_client(kind, port)
        session = client.session("fake")
        await done(session.append("one two"))
        other = await done(client.attach(session.id or ""))
        await done(other.append(" three"))
        with pytest.raises(SessionDrift) as caught:
            await done(session.append(" four"))
        assert caught.value.extras == {"session_length": 4}
        assert caught.value.hint == SessionDrift(0, 0).hint
        with pytest.raises(GanglionError) as unknown:
            await done(client.session("nothing").append("one"))
        assert unknown.value.code == "model_not_found"
        await done(client.close())


async def test_leaving_an_iteration_cancels_the_call_on_the_node(kind: Kind) -> None:
    node = FakeNode(runs_ahead=2)
    with serving(node) as (server, port):
        client = real_client(kind, port)
        session = client.session("fake")
        await done(session.append("one"))
        server.cancelled.clear()
        server.silence.set()
        generation = session.generate()
        await some(generation, 1)
        await done(generation.close())  # type: ignore[func-returns-value]
        await until(server.cancelled.is_set)
        await until(lambda: not next(iter(node.sessions.sessions.values())).is_busy)
        server.silence.clear()
        assert session.length == 2
        await done(session.append(" two"))
        assert node.tokens(session.id) == session.tokens
        await done(client.close())


async def test_dropping_an_iteration_cancels_the_call_on_the_node(kind: Kind) -> None:
    with serving(FakeNode()) as (server, port):
        client = real_client(kind, port)
        session = client.session("fake")
        await done(session.append("one"))
        server.cancelled.clear()
        server.silence.set()
        generation = session.generate()
        await some(generation, 1)
        del generation
        gc.collect()
        await until(server.cancelled.is_set)
        server.silence.clear()
        await done(client.close())


async def test_a_node_that_falls_silent_is_given_up(kind: Kind) -> None:
    with serving(FakeNode()) as (server, port):
        client = real_client(kind, port, idle_timeout_s=0.2)
        session = client.session("fake")
        await done(session.append("one"))
        server.silence.set()
        with pytest.raises(DeadlineExceeded, match="idle"):
            await every(session.generate())
        assert session.length == 2
        server.silence.clear()
        assert isinstance((await every(session.generate()))[-1], Done)
        generation = session.generate()
        await some(generation, 1)
        await asyncio.sleep(0.4)
        assert isinstance((await every(generation))[-1], Done), "a slow reader is not a silent node"
        await done(client.close())


async def test_no_node_is_said_with_what_to_do(kind: Kind) -> None:
    with serving(FakeNode()) as (_, port):
        pass
    client = real_client(kind, port, timeout_s=1)
    with pytest.raises(Disconnected) as caught:
        await done(client.sessions())
    assert "ganglion serve" in (caught.value.hint or "")
    await done(client.close())


async def test_a_node_that_dies_under_an_answer_and_comes_back_gets_everything_again(kind: Kind) -> None:
    with serving(FakeNode()) as (server, port):
        client = real_client(kind, port)
        session = client.session("fake")
        server.silence.set()
        generation = session.run(["one two"], max_tokens=8)
        await some(generation, 1)
    with pytest.raises(Disconnected):
        await every(generation)
    assert session.length == 0
    again = FakeNode()
    with serving(again, port):
        await every(session.run(["one two"], max_tokens=2))
        assert again.tokens(session.id) == session.tokens and session.length == 5
        again.restart()
        await every(session.run([session.tokens], max_tokens=2))
        again.restart()
        await every(session.generate(max_tokens=2))
        assert again.tokens(session.id) == session.tokens and session.length == 9
    await done(client.close())


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """Of 127.0.0.1, signed by itself, with its key beside it."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = ["openssl", "req", "-x509", "-nodes", "-days", "2", "-keyout", key, "-out", certificate]
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*made, *curve, *names], check=True, capture_output=True)
    return certificate


def server_credentials(certificate: Path) -> grpc.ServerCredentials:
    return grpc.ssl_server_credentials(
        [(certificate.with_name("key.pem").read_bytes(), certificate.read_bytes())]
    )


async def test_https_is_tls_and_a_stranger_is_not_trusted(kind: Kind, certificate: Path) -> None:
    kinds: dict[Kind, type[AnyClient]] = {"blocking": Client, "awaiting": AsyncClient}
    with serving(FakeNode(), credentials=server_credentials(certificate)) as (_, port):
        trusting = kinds[kind](f"https://127.0.0.1:{port - 1}", ca_file=certificate)
        assert await done(trusting.tokenize("fake", "one")) != ()
        await done(trusting.close())
        for scheme in ("https", "http"):
            stranger = kinds[kind](f"{scheme}://127.0.0.1:{port - 1}", timeout_s=0.3)
            with pytest.raises((Disconnected, DeadlineExceeded)):
                await done(stranger.tokenize("fake", "one"))
            await done(stranger.close())
    nowhere = kinds[kind]("https://127.0.0.1:1", ca_file=certificate.with_name("nothing.pem"))
    with pytest.raises(InvalidValue, match="certificates"):
        await done(nowhere.sessions())
