"""The transports over gRPC: a blocking one in gRPC's threads, and one in an event loop."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from ganglion.client.errors import Disconnected, error_from_status
from ganglion.client.rpcs import Rpc
from ganglion.client.settings import GrpcTarget
from ganglion.client.transport import CallOptions
from ganglion.core.errors import DeadlineExceeded, GanglionError, InvalidValue

_T = TypeVar("_T")

_MAX_MESSAGE_BYTES: Final = 64 << 20
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
    # A node that restarts is back within seconds; gRPC itself would look for it every two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    # Which calls may be made again is decided in `flow`, and nowhere else.
    ("grpc.enable_retries", 0),
)
_MAX_CERTIFICATE_BYTES: Final = 4 << 20


class GrpcTransport:
    """A Transport over one channel."""

    def __init__(self, address: GrpcTarget, ca_file: str | Path | None = None) -> None:
        if address.is_tls:
            self._channel = grpc.secure_channel(address.target, _credentials(ca_file), options=_OPTIONS)
        else:
            self._channel = grpc.insecure_channel(address.target, options=_OPTIONS)
        self._watch = _IdleWatch()

    def call(self, rpc: Rpc[Any, Any], request: Message, options: CallOptions) -> Message:
        method = self._channel.unary_unary(rpc.path, _encode, rpc.reply.FromString)
        return _translated(
            lambda: _message(method(request, timeout=options.timeout_s, metadata=options.metadata))
        )

    def upload(self, rpc: Rpc[Any, Any], requests: tuple[Message, ...], options: CallOptions) -> Message:
        method = self._channel.stream_unary(rpc.path, _encode, rpc.reply.FromString)
        return _translated(
            lambda: _message(
                method(iter(requests), timeout=options.idle_timeout_s, metadata=options.metadata)
            )
        )

    def stream(self, rpc: Rpc[Any, Any], request: Message, options: CallOptions) -> "_Stream":
        method = self._channel.unary_stream(rpc.path, _encode, rpc.reply.FromString)
        call = _translated(lambda: method(request, metadata=options.metadata))
        return _Stream(call, self._watch, options.idle_timeout_s)

    def close(self) -> None:
        self._channel.close()


class _Stream:
    """A stream that is cancelled when no message comes for too long."""

    def __init__(self, call: Any, watch: "_IdleWatch", idle_timeout_s: float) -> None:
        self._call = call
        self._messages: Iterator[Message] = iter(call)
        self._watch = watch
        self._idle_timeout_s = idle_timeout_s
        self.due_s = time.monotonic() + idle_timeout_s
        self.is_late = False
        watch.add(self, idle_timeout_s)

    def read(self) -> Message | None:
        self.due_s = time.monotonic() + self._idle_timeout_s
        try:
            return _translated(lambda: next(self._messages, None))
        except GanglionError:
            if self.is_late:
                raise DeadlineExceeded("idle", self._idle_timeout_s) from None
            raise
        finally:
            # A slow reader is not timed: only the node is.
            self.due_s = float("inf")

    def cancel(self) -> None:
        self._watch.remove(self)
        self._call.cancel()

    def expire(self) -> None:
        self.is_late = True
        self._call.cancel()


class _IdleWatch:
    """Cancels the streams that are silent for too long, in one thread that lives while there are any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._streams: set[_Stream] = set()
        self._tick_s = 1.0
        self._thread: threading.Thread | None = None

    def add(self, stream: _Stream, idle_timeout_s: float) -> None:
        with self._lock:
            self._streams.add(stream)
            self._tick_s = min(self._tick_s, max(0.02, idle_timeout_s / 8))
            if self._thread is None:
                self._thread = threading.Thread(target=self._look, name="ganglion-idle", daemon=True)
                self._thread.start()

    def remove(self, stream: _Stream) -> None:
        with self._lock:
            self._streams.discard(stream)

    def _look(self) -> None:
        while True:
            time.sleep(self._tick_s)
            now_s = time.monotonic()
            with self._lock:
                if not self._streams:
                    self._thread = None
                    return
                late = [stream for stream in self._streams if stream.due_s < now_s]
                self._streams.difference_update(late)
            for stream in late:
                stream.expire()


def _encode(message: Message) -> bytes:
    """A message's bytes; gRPC turns what it raises into an error."""
    return message.SerializeToString()


def _credentials(ca_file: str | Path | None) -> grpc.ChannelCredentials:
    """TLS with the system's authorities, or with those of a file."""
    if ca_file is None:
        return grpc.ssl_channel_credentials()
    path = Path(ca_file)
    try:
        with path.open("rb") as file:
            return grpc.ssl_channel_credentials(file.read(_MAX_CERTIFICATE_BYTES))
    except OSError as error:
        raise InvalidValue(
            f"Expected certificates in {str(path)!r}: {error.strerror}.", param="ca_file"
        ) from error


def error_from_rpc(error: grpc.RpcError) -> GanglionError:
    """The error of a call, as it was raised on the server."""
    if not isinstance(error, grpc.Call | grpc.aio.AioRpcError):
        return Disconnected(f"The call could not be made: {error}")
    trailing = error.trailing_metadata() or ()
    metadata = {str(key): value for key, value in trailing if isinstance(value, str)}
    return error_from_status(error.code().name, error.details() or "", metadata)


def _message(reply: Any) -> Message:
    assert isinstance(reply, Message)
    return reply


def _translated(attempt: Callable[[], _T]) -> _T:
    try:
        return attempt()
    except grpc.RpcError as error:
        raise error_from_rpc(error) from None
    except ValueError as error:
        # The only sign of a channel that was closed under the call.
        raise Disconnected(f"The call could not be made: {error}", hint="Is the client closed?") from None


class AsyncGrpcTransport:
    """An AsyncTransport over one channel, which belongs to the loop it was opened in."""

    def __init__(self, address: GrpcTarget, ca_file: str | Path | None = None) -> None:
        if address.is_tls:
            self._channel = grpc.aio.secure_channel(address.target, _credentials(ca_file), options=_OPTIONS)
        else:
            self._channel = grpc.aio.insecure_channel(address.target, options=_OPTIONS)

    async def call(self, rpc: Rpc[Any, Any], request: Message, options: CallOptions) -> Message:
        method = self._channel.unary_unary(rpc.path, _encode, rpc.reply.FromString)
        call: Awaitable[Message] = method(request, timeout=options.timeout_s, metadata=options.metadata)
        return await _awaited(call)

    async def upload(
        self, rpc: Rpc[Any, Any], requests: tuple[Message, ...], options: CallOptions
    ) -> Message:
        method = self._channel.stream_unary(rpc.path, _encode, rpc.reply.FromString)
        call: Awaitable[Message] = method(
            iter(requests), timeout=options.idle_timeout_s, metadata=options.metadata
        )
        return await _awaited(call)

    def stream(self, rpc: Rpc[Any, Any], request: Message, options: CallOptions) -> "_AsyncStream":
        method = self._channel.unary_stream(rpc.path, _encode, rpc.reply.FromString)
        return _AsyncStream(method(request, metadata=options.metadata), options.idle_timeout_s)

    async def close(self) -> None:
        await self._channel.close()


class _AsyncStream:
    """A stream that is cancelled when no message comes for too long."""

    def __init__(self, call: Any, idle_timeout_s: float) -> None:
        self._call = call
        self._idle_timeout_s = idle_timeout_s

    async def read(self) -> Message | None:
        try:
            async with asyncio.timeout(self._idle_timeout_s):
                message = await _awaited(self._call.read())
        except TimeoutError:
            raise DeadlineExceeded("idle", self._idle_timeout_s) from None
        return None if message is grpc.aio.EOF else message

    def cancel(self) -> None:
        self._call.cancel()


async def _awaited(reply: Awaitable[_T]) -> _T:
    try:
        return await reply
    except grpc.RpcError as error:
        raise error_from_rpc(error) from None
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        # Not this task was cancelled: the call was, by the node or by a channel that closed.
        raise Disconnected("The node cancelled the call.") from None
    except grpc.aio.UsageError as error:
        raise Disconnected(f"The call could not be made: {error}", hint="Is the client closed?") from None
