"""The transports that the client needs, blocking and in an event loop, and their sharing among clones.

Law: a transport raises GanglionErrors and nothing else of its own.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from google.protobuf.message import Message

from ganglion.client.rpcs import Rpc
from ganglion.core.errors import InvalidValue


@dataclass(frozen=True, slots=True)
class CallOptions:
    """The options of every call: its deadline, how long a stream may be silent, the caller's key."""

    timeout_s: float
    idle_timeout_s: float
    api_key: str | None = None

    def __post_init__(self) -> None:
        for name, value in (("timeout_s", self.timeout_s), ("idle_timeout_s", self.idle_timeout_s)):
            if not 0 < value <= 86_400:
                raise InvalidValue(f"Expected seconds up to a day, found {value!r}.", param=name)
        if self.api_key is not None and not (self.api_key.isascii() and self.api_key.isprintable()):
            raise InvalidValue("Expected a key in printable ASCII.", param="api_key")

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The metadata of a gRPC call."""
        return (("authorization", f"Bearer {self.api_key}"),) if self.api_key else ()


class ReplyStream(Protocol):
    """A stream that was opened."""

    def read(self) -> Message | None:
        """The next message; None at the end."""
        ...

    def cancel(self) -> None:
        """Cancel it; may be called after its end."""
        ...


class Transport(Protocol):
    """A blocking transport to a node; threads may share it."""

    def call(self, rpc: Rpc[Any, Any], request: Message, options: CallOptions) -> Message:
        """One message there, one back."""
        ...

    def upload(self, rpc: Rpc[Any, Any], requests: tuple[Message, ...], options: CallOptions) -> Message:
        """Several messages there, one back."""
        ...

    def stream(self, rpc: Rpc[Any, Any], request: Message, options: CallOptions) -> ReplyStream:
        """One message there, several back."""
        ...

    def close(self) -> None:
        """Close the channel; streams end."""
        ...


class AsyncReplyStream(Protocol):
    """A stream that was opened."""

    async def read(self) -> Message | None:
        """The next message; None at the end."""
        ...

    def cancel(self) -> None:
        """Cancel it; may be called after its end."""
        ...


class AsyncTransport(Protocol):
    """A transport to a node in an event loop."""

    async def call(self, rpc: Rpc[Any, Any], request: Message, options: CallOptions) -> Message:
        """One message there, one back."""
        ...

    async def upload(
        self, rpc: Rpc[Any, Any], requests: tuple[Message, ...], options: CallOptions
    ) -> Message:
        """Several messages there, one back."""
        ...

    def stream(self, rpc: Rpc[Any, Any], request: Message, options: CallOptions) -> AsyncReplyStream:
        """One message there, several back."""
        ...

    async def close(self) -> None:
        """Close the channel; streams end."""
        ...


def client_closed() -> InvalidValue:
    """The error of a call on a closed client."""
    return InvalidValue("The client is closed.", hint="Make another one.")


L = TypeVar("L")


class SharedTransport(Generic[L]):
    """One transport for a client and all its clones: opened when first needed, closed by the last of them."""

    def __init__(self, connect: Callable[[], L]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._transport: L | None = None
        self._users = 1

    def transport(self) -> L:
        """The transport, opened now if it was not."""
        with self._lock:
            if self._users == 0:
                raise client_closed()
            if self._transport is None:
                self._transport = self._connect()
            return self._transport

    def join(self) -> "SharedTransport[L]":
        """Add a user."""
        with self._lock:
            if self._users == 0:
                raise client_closed()
            self._users += 1
        return self

    def leave(self) -> L | None:
        """Remove a user; the transport, where the caller must close it now."""
        with self._lock:
            self._users -= 1
            if self._users:
                return None
            transport, self._transport = self._transport, None
            return transport
