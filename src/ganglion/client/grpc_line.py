"""The blocking line to a node: gRPC's threads, no event loop."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from ganglion.client.address import Address
from ganglion.client.errors import Disconnected, error_of
from ganglion.client.lines import Terms
from ganglion.client.rpcs import Rpc
from ganglion.core.errors import DeadlineExceeded, GanglionError, InvalidValue

T = TypeVar("T")

MAX_MESSAGE_BYTES: Final = 64 << 20
OPTIONS: Final = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # A node that restarts is back within seconds; gRPC itself would look for it every two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    # Which calls may be made again is decided in `flow`, and nowhere else.
    ("grpc.enable_retries", 0),
)
MAX_CERTIFICATE_BYTES: Final = 4 << 20


class GrpcLine:
    """A Line over one channel."""

    def __init__(self, address: Address, ca_file: str | Path | None = None) -> None:
        if address.is_tls:
            self._channel = grpc.secure_channel(address.target, credentials(ca_file), options=OPTIONS)
        else:
            self._channel = grpc.insecure_channel(address.target, options=OPTIONS)
        self._watch = _Watch()

    def call(self, rpc: Rpc[Any, Any], request: Message, terms: Terms) -> Message:
        """One message there, one back."""
        method = self._channel.unary_unary(rpc.path, encode, rpc.reply.FromString)
        return _raised(lambda: _message(method(request, timeout=terms.timeout_s, metadata=terms.metadata)))

    def upload(self, rpc: Rpc[Any, Any], requests: tuple[Message, ...], terms: Terms) -> Message:
        """Several messages there, one back."""
        method = self._channel.stream_unary(rpc.path, encode, rpc.reply.FromString)
        return _raised(
            lambda: _message(method(iter(requests), timeout=terms.idle_timeout_s, metadata=terms.metadata))
        )

    def stream(self, rpc: Rpc[Any, Any], request: Message, terms: Terms) -> "_Stream":
        """One message there, several back."""
        method = self._channel.unary_stream(rpc.path, encode, rpc.reply.FromString)
        call = _raised(lambda: method(request, metadata=terms.metadata))
        return _Stream(call, self._watch, terms.idle_timeout_s)

    def close(self) -> None:
        """Hang up; streams end."""
        self._channel.close()


class _Stream:
    """A stream that is left when nothing comes for too long."""

    def __init__(self, call: Any, watch: "_Watch", idle_timeout_s: float) -> None:
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
            return _raised(lambda: next(self._messages, None))
        except GanglionError:
            if self.is_late:
                raise DeadlineExceeded("idle", self._idle_timeout_s) from None
            raise
        finally:
            # Whoever reads slowly is not timed: only the node is.
            self.due_s = float("inf")

    def cancel(self) -> None:
        self._watch.remove(self)
        self._call.cancel()

    def expire(self) -> None:
        self.is_late = True
        self._call.cancel()


class _Watch:
    """Ends the streams on which nothing comes for too long, in one thread that lives while there are any."""

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


def encode(message: Message) -> bytes:
    """A message's bytes; raises what gRPC turns into an error."""
    return message.SerializeToString()


def credentials(ca_file: str | Path | None) -> grpc.ChannelCredentials:
    """TLS with the system's authorities, or with those of a file."""
    if ca_file is None:
        return grpc.ssl_channel_credentials()
    path = Path(ca_file)
    try:
        with path.open("rb") as file:
            return grpc.ssl_channel_credentials(file.read(MAX_CERTIFICATE_BYTES))
    except OSError as error:
        raise InvalidValue(
            f"Expected certificates in {str(path)!r}: {error.strerror}.", param="ca_file"
        ) from error


def rebuilt(error: grpc.RpcError) -> GanglionError:
    """What a call ended with, as the error that it was on the server."""
    if not isinstance(error, grpc.Call | grpc.aio.AioRpcError):
        return Disconnected(f"The call could not be made: {error}")
    trailing = error.trailing_metadata() or ()
    metadata = {str(key): value for key, value in trailing if isinstance(value, str)}
    return error_of(error.code().name, error.details() or "", metadata)


def _message(reply: Any) -> Message:
    assert isinstance(reply, Message)
    return reply


def _raised(attempt: Callable[[], T]) -> T:
    try:
        return attempt()
    except grpc.RpcError as error:
        raise rebuilt(error) from None
    except ValueError as error:
        # A channel that was closed under the call says so in no other way.
        raise Disconnected(f"The call could not be made: {error}", hint="Is the client closed?") from None
