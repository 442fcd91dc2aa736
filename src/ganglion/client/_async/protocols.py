"""The transport that a client in an event loop needs.

Law: a transport raises GanglionErrors and nothing else of its own.
"""

from typing import Any, Protocol

from google.protobuf.message import Message

from ganglion.client.rpcs import Rpc
from ganglion.client.transport import CallOptions


class AsyncReplyStream(Protocol):
    """A stream that was opened."""

    async def read(self) -> Message | None:
        """The next message; None at the end."""

    def cancel(self) -> None:
        """Cancel it; may be called after its end."""


class AsyncTransport(Protocol):
    """A transport to a node in an event loop."""

    async def call(self, rpc: Rpc[Any, Any], request: Message, options: CallOptions) -> Message:
        """One message there, one back."""

    async def upload(
        self, rpc: Rpc[Any, Any], requests: tuple[Message, ...], options: CallOptions
    ) -> Message:
        """Several messages there, one back."""

    def stream(self, rpc: Rpc[Any, Any], request: Message, options: CallOptions) -> AsyncReplyStream:
        """One message there, several back."""

    async def close(self) -> None:
        """Close the channel; streams end."""
