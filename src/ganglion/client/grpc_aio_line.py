"""The line to a node in an event loop: gRPC's own asyncio."""

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from ganglion.client.address import Address
from ganglion.client.errors import Disconnected
from ganglion.client.grpc_line import OPTIONS, credentials, encode, rebuilt
from ganglion.client.lines import Terms
from ganglion.client.rpcs import Rpc
from ganglion.core.errors import DeadlineExceeded

T = TypeVar("T")


class AsyncGrpcLine:
    """An AsyncLine over one channel, which belongs to the loop it was opened in."""

    def __init__(self, address: Address, ca_file: str | Path | None = None) -> None:
        if address.is_tls:
            self._channel = grpc.aio.secure_channel(address.target, credentials(ca_file), options=OPTIONS)
        else:
            self._channel = grpc.aio.insecure_channel(address.target, options=OPTIONS)

    async def call(self, rpc: Rpc[Any, Any], request: Message, terms: Terms) -> Message:
        """One message there, one back."""
        method = self._channel.unary_unary(rpc.path, encode, rpc.reply.FromString)
        call: Awaitable[Message] = method(request, timeout=terms.timeout_s, metadata=terms.metadata)
        return await _raised(call)

    async def upload(self, rpc: Rpc[Any, Any], requests: tuple[Message, ...], terms: Terms) -> Message:
        """Several messages there, one back."""
        method = self._channel.stream_unary(rpc.path, encode, rpc.reply.FromString)
        call: Awaitable[Message] = method(
            iter(requests), timeout=terms.idle_timeout_s, metadata=terms.metadata
        )
        return await _raised(call)

    def stream(self, rpc: Rpc[Any, Any], request: Message, terms: Terms) -> "_Stream":
        """One message there, several back."""
        method = self._channel.unary_stream(rpc.path, encode, rpc.reply.FromString)
        return _Stream(method(request, metadata=terms.metadata), terms.idle_timeout_s)

    async def close(self) -> None:
        """Hang up; streams end."""
        await self._channel.close()


class _Stream:
    """A stream that is left when nothing comes for too long."""

    def __init__(self, call: Any, idle_timeout_s: float) -> None:
        self._call = call
        self._idle_timeout_s = idle_timeout_s

    async def read(self) -> Message | None:
        try:
            async with asyncio.timeout(self._idle_timeout_s):
                message = await _raised(self._call.read())
        except TimeoutError:
            raise DeadlineExceeded("idle", self._idle_timeout_s) from None
        return None if message is grpc.aio.EOF else message

    def cancel(self) -> None:
        self._call.cancel()


async def _raised(reply: Awaitable[T]) -> T:
    try:
        return await reply
    except grpc.RpcError as error:
        raise rebuilt(error) from None
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        # Not we were cancelled: the call was, by the node or by a channel that closed.
        raise Disconnected("The node cancelled the call.") from None
    except grpc.aio.UsageError as error:
        raise Disconnected(f"The call could not be made: {error}", hint="Is the client closed?") from None
