"""The options of every call, and the sharing of one transport among a client and its clones."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

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


def client_closed() -> InvalidValue:
    """The error of a call on a closed client."""
    return InvalidValue("The client is closed.", hint="Make another one.")


_L = TypeVar("_L")


class SharedTransport(Generic[_L]):
    """One transport for a client and all its clones: opened when first needed, closed by the last of them."""

    def __init__(self, connect: Callable[[], _L]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._transport: _L | None = None
        self._users = 1

    def transport(self) -> _L:
        """The transport, opened now if it was not."""
        with self._lock:
            if self._users == 0:
                raise client_closed()
            if self._transport is None:
                self._transport = self._connect()
            return self._transport

    def join(self) -> "SharedTransport[_L]":
        """Add a user."""
        with self._lock:
            if self._users == 0:
                raise client_closed()
            self._users += 1
        return self

    def leave(self) -> _L | None:
        """Remove a user; the transport, where the caller must close it now."""
        with self._lock:
            self._users -= 1
            if self._users:
                return None
            transport, self._transport = self._transport, None
            return transport
