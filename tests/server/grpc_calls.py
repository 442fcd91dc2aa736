"""Calls over gRPC as a client without our library makes them, built from the descriptors."""

from collections.abc import AsyncIterable, AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

from ganglion.wire.salience import salience_pb2 as pb

SALIENCE: ServiceDescriptor = pb.DESCRIPTOR.services_by_name["Salience"]


class Rpc:
    """One channel; a method is called by its name, and waits for its answers."""

    def __init__(self, channel: grpc.aio.Channel, key: str | None = None) -> None:
        self.channel = channel
        self.metadata = () if key is None else (("authorization", f"Bearer {key}"),)

    def begin(self, method: str, request: Any, metadata: tuple[tuple[str, str], ...] = ()) -> Any:
        found = SALIENCE.methods_by_name[method]
        return caller_of(self.channel, found)(request, metadata=(*self.metadata, *metadata), timeout=20)

    async def call(self, method: str, request: Any) -> Any:
        return await self.begin(method, request)

    async def opened(self, **fields: Any) -> str:
        return (await self.call("OpenSession", pb.OpenSessionRequest(model="echo", **fields))).session_id

    async def generate(self, session_id: str, **fields: Any) -> list[pb.GenerateEvent]:
        call = self.begin("Generate", pb.GenerateRequest(session_id=session_id, **fields))
        return [event async for event in call]

    async def refusal(self, method: str, request: Any) -> grpc.aio.AioRpcError:
        """The error that a call ends with."""
        call = self.begin(method, request)
        try:
            if SALIENCE.methods_by_name[method].server_streaming:
                async for _ in call:
                    pass
            else:
                await call
        except grpc.aio.AioRpcError as error:
            return error
        raise AssertionError(f"{method} was not refused")


def caller_of(channel: grpc.aio.Channel, method: MethodDescriptor) -> Any:
    """What calls a method, with the kinds of streams that it has."""
    make = {
        (False, False): channel.unary_unary,
        (False, True): channel.unary_stream,
        (True, False): channel.stream_unary,
        (True, True): channel.stream_stream,
    }[method.client_streaming, method.server_streaming]
    assert method.containing_service is not None
    return make(
        f"/{method.containing_service.full_name}/{method.name}",
        request_serializer=GetMessageClass(method.input_type).SerializeToString,
        response_deserializer=GetMessageClass(method.output_type).FromString,
    )


@asynccontextmanager
async def connected(
    address: str, key: str | None = None, credentials: grpc.ChannelCredentials | None = None
) -> AsyncIterator[Rpc]:
    # A subchannel that an earlier test left in back-off would be found again under the same address.
    options = (("grpc.use_local_subchannel_pool", 1),)
    channel = (
        grpc.aio.insecure_channel(address, options)
        if credentials is None
        else grpc.aio.secure_channel(address, credentials, options)
    )
    async with channel:
        yield Rpc(channel, key)


def trailers(error: grpc.aio.AioRpcError) -> dict[str, str]:
    return {key: value for key, value in error.trailing_metadata() or () if isinstance(value, str)}


async def stream_of(messages: Iterable[Any]) -> AsyncIterable[Any]:
    for message in messages:
        yield message


async def rest(call: Any) -> list[Any]:
    """Every message that still comes; a call that was read from cannot be iterated."""
    messages = []
    while (message := await call.read()) is not grpc.aio.EOF:
        messages.append(message)
    return messages
