"""A node for your own tests: real clients, no sockets, and answers that you wrote.

    node = FakeNode(replies=[" Paris."])
    with node.client() as client, client.session("fake") as session:
        session.append("The capital of France is")
        assert session.generate().text() == " Paris."

Words are tokens. Sessions drift, are busy, unknown or another key's exactly as on the wire; `fail_next` and
`restart` cause the failures that you want to test.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from google.protobuf.message import Message

from ganglion.client._async.client import AsyncClient
from ganglion.client._async.protocols import AsyncTransport
from ganglion.client._sync.client import Client
from ganglion.client._sync.protocols import Transport
from ganglion.client.errors import Disconnected, error_from_status
from ganglion.client.fake_sessions import FakeSessions
from ganglion.client.rpcs import Rpc
from ganglion.client.transport import CallOptions, SharedTransport
from ganglion.core.engine import ReadoutManifest
from ganglion.core.errors import GanglionError
from ganglion.wire.salience.error_metadata import encode_details, encode_metadata

_Messages = Generator[Message, None, None]
MANIFEST: Final = ReadoutManifest(("calm", "formal"), (1, 2, 3))


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One call that reached the fake: its rpc, its message, the message's size."""

    rpc: str
    request: Message
    size_bytes: int


@dataclass(frozen=True, slots=True)
class _PlannedFailure:
    error: GanglionError
    rpc: str | None
    after: int


class FakeNode:
    """A node in this process; `client()` and `async_client()` are real clients of it.

    Each answer is the next of `replies`, or " All is well.", and ends with "</s>". With `runs_ahead`, a call
    that is cancelled has committed so many tokens more than it sent, as may happen on a real node.
    """

    def __init__(
        self,
        *,
        models: Sequence[str] = ("fake",),
        replies: Sequence[str] = (),
        manifest: ReadoutManifest | None = MANIFEST,
        context_length: int = 8192,
        sees_images: bool = True,
        runs_ahead: int = 0,
    ) -> None:
        self.calls: list[RecordedCall] = []
        """Every call, in order, those that failed included."""
        self.transports_opened = 0
        self._failures: deque[_PlannedFailure] = deque()
        self._generation = 0
        self._new: Callable[[], FakeSessions] = partial(
            FakeSessions,
            models,
            manifest,
            context_length=context_length,
            sees_images=sees_images,
            runs_ahead=runs_ahead,
        )
        self.sessions = self._new()
        self.sessions.replies.extend(replies)

    def client(self, *, api_key: str | None = None, timeout_s: float = 60.0) -> Client:
        """A blocking client of this node."""
        shared: SharedTransport[Transport] = SharedTransport(lambda: _FakeTransport(self))
        return Client.over_transport(shared, CallOptions(timeout_s, timeout_s, api_key), {})

    def async_client(self, *, api_key: str | None = None, timeout_s: float = 60.0) -> AsyncClient:
        """A client of this node for an event loop."""
        shared: SharedTransport[AsyncTransport] = SharedTransport(lambda: _AsyncFakeTransport(self))
        return AsyncClient.over_transport(shared, CallOptions(timeout_s, timeout_s, api_key), {})

    def reply(self, *replies: str) -> None:
        """Add replies to give next."""
        self.sessions.replies.extend(replies)

    def fail_next(self, error: GanglionError, *, rpc: str | None = None, after: int = 0) -> None:
        """Make the next call (of an rpc) fail, after so many of its messages were sent."""
        self._failures.append(_PlannedFailure(error, rpc, after))

    def restart(self) -> None:
        """Drop every session and break running calls, as a node does that was killed and restarted."""
        before, self.sessions = self.sessions, self._new()
        # The next calls are answered as if nothing had happened, under ids that were never used.
        self.sessions.replies, self.sessions.numbers = before.replies, before.numbers
        self._generation += 1

    def tokens(self, session_id: str | None) -> tuple[int, ...] | None:
        """The tokens of a session on the node; None where there is no such session."""
        session = self.sessions.sessions.get(session_id or "")
        return None if session is None else tuple(session.tokens)

    def count(self, rpc: str) -> int:
        """The number of calls of an rpc."""
        return sum(call.rpc == rpc for call in self.calls)

    def answer(self, rpc: Rpc[Any, Any], request: Message, api_key: str | None) -> _Messages:
        """The messages of one call; raises its errors as a client decodes them from the wire."""
        sent = request.SerializeToString()
        self.calls.append(RecordedCall(rpc.name, rpc.request.FromString(sent), len(sent)))
        failure = self._failure(rpc.name)
        generation = self._generation
        try:
            if failure is not None and failure.after == 0:
                raise failure.error
            with closing(self.sessions.answer(rpc.request.FromString(sent), api_key)) as messages:
                for sent_count, message in enumerate(messages, 1):
                    yield rpc.reply.FromString(message.SerializeToString())
                    if generation != self._generation:
                        raise Disconnected("The node went away.")
                    if failure is not None and failure.after == sent_count:
                        raise failure.error
        except GanglionError as error:
            raise _through_metadata(error) from None

    def _failure(self, rpc: str) -> _PlannedFailure | None:
        for failure in self._failures:
            if failure.rpc in (None, rpc):
                self._failures.remove(failure)
                return failure
        return None


class _FakeTransport:
    """A transport into the same process."""

    def __init__(self, node: FakeNode) -> None:
        self._node = node
        self._is_closed = False
        node.transports_opened += 1

    def call(self, rpc: Rpc[Any, Any], request: Message, options: CallOptions) -> Message:
        return _only(self.stream(rpc, request, options))

    def upload(self, rpc: Rpc[Any, Any], requests: tuple[Message, ...], options: CallOptions) -> Message:
        return self.call(rpc, _joined(rpc, requests), options)

    def stream(self, rpc: Rpc[Any, Any], request: Message, options: CallOptions) -> "_FakeStream":
        if self._is_closed:
            raise Disconnected("The transport is closed.")
        return _FakeStream(self._node.answer(rpc, request, options.api_key))

    def close(self) -> None:
        self._is_closed = True


class _FakeStream:
    def __init__(self, messages: _Messages) -> None:
        self._messages = messages

    def read(self) -> Message | None:
        return next(self._messages, None)

    def cancel(self) -> None:
        self._messages.close()


class _AsyncFakeTransport:
    """The same in an event loop, which runs other tasks at every message."""

    def __init__(self, node: FakeNode) -> None:
        self._transport = _FakeTransport(node)

    async def call(self, rpc: Rpc[Any, Any], request: Message, options: CallOptions) -> Message:
        await asyncio.sleep(0)
        return self._transport.call(rpc, request, options)

    async def upload(
        self, rpc: Rpc[Any, Any], requests: tuple[Message, ...], options: CallOptions
    ) -> Message:
        await asyncio.sleep(0)
        return self._transport.upload(rpc, requests, options)

    def stream(self, rpc: Rpc[Any, Any], request: Message, options: CallOptions) -> "_AsyncFakeStream":
        return _AsyncFakeStream(self._transport.stream(rpc, request, options))

    async def close(self) -> None:
        self._transport.close()


class _AsyncFakeStream:
    def __init__(self, incoming: _FakeStream) -> None:
        self._incoming = incoming

    async def read(self) -> Message | None:
        await asyncio.sleep(0)
        return self._incoming.read()

    def cancel(self) -> None:
        self._incoming.cancel()


def _only(incoming: _FakeStream) -> Message:
    message = incoming.read()
    assert message is not None
    return message


def _joined(rpc: Rpc[Any, Any], requests: tuple[Message, ...]) -> Message:
    return rpc.request(data=b"".join(request.data for request in requests))  # type: ignore[attr-defined,no-any-return]


def _through_metadata(error: GanglionError) -> GanglionError:
    if isinstance(error, Disconnected):
        return error
    return error_from_status(error.grpc, encode_details(error), dict(encode_metadata(error)))
