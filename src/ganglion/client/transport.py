"""How messages get to a node and back, blocking or not: what the shells need of a transport.

Every line raises GanglionErrors and nothing else of its own.
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
    """What goes with every call: the deadline, how long a stream may be silent, who asks."""

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
        """As gRPC takes it."""
        return (("authorization", f"Bearer {self.api_key}"),) if self.api_key else ()


class ReplyStream(Protocol):
    """A stream that was opened."""

    def read(self) -> Message | None:
        """The next message; None at the end."""
        ...

    def cancel(self) -> None:
        """Leave it; also after its end."""
        ...


class Transport(Protocol):
    """A blocking way to a node; usable from several threads."""

    def call(self, rpc: Rpc[Any, Any], request: Message, terms: CallOptions) -> Message:
        """One message there, one back."""
        ...

    def upload(self, rpc: Rpc[Any, Any], requests: tuple[Message, ...], terms: CallOptions) -> Message:
        """Several messages there, one back."""
        ...

    def stream(self, rpc: Rpc[Any, Any], request: Message, terms: CallOptions) -> ReplyStream:
        """One message there, several back."""
        ...

    def close(self) -> None:
        """Hang up; streams end."""
        ...


class AsyncReplyStream(Protocol):
    """A stream that was opened."""

    async def read(self) -> Message | None:
        """The next message; None at the end."""
        ...

    def cancel(self) -> None:
        """Leave it; also after its end."""
        ...


class AsyncTransport(Protocol):
    """A way to a node in an event loop."""

    async def call(self, rpc: Rpc[Any, Any], request: Message, terms: CallOptions) -> Message:
        """One message there, one back."""
        ...

    async def upload(self, rpc: Rpc[Any, Any], requests: tuple[Message, ...], terms: CallOptions) -> Message:
        """Several messages there, one back."""
        ...

    def stream(self, rpc: Rpc[Any, Any], request: Message, terms: CallOptions) -> AsyncReplyStream:
        """One message there, several back."""
        ...

    async def close(self) -> None:
        """Hang up; streams end."""
        ...


L = TypeVar("L")


class SharedTransport(Generic[L]):
    """One line for a client and all its clones: opened when first needed, closed by the last of them."""

    def __init__(self, connect: Callable[[], L]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._line: L | None = None
        self._users = 1

    def line(self) -> L:
        """The line, opened now if it was not."""
        with self._lock:
            if self._users == 0:
                raise InvalidValue("The client is closed.", hint="Make another one.")
            if self._line is None:
                self._line = self._connect()
            return self._line

    def join(self) -> "SharedTransport[L]":
        """For one more user."""
        with self._lock:
            if self._users == 0:
                raise InvalidValue("The client is closed.", hint="Make another one.")
            self._users += 1
        return self

    def leave(self) -> L | None:
        """For one user less; the line, where it is now the caller's to close."""
        with self._lock:
            self._users -= 1
            if self._users:
                return None
            line, self._line = self._line, None
            return line
