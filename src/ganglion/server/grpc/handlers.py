"""The gRPC handlers of a service, from its descriptor, and the gate before the methods of `salience.v1`."""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractContextManager, aclosing, nullcontext
from typing import Any, Final

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

from ganglion.server.gate import Gate
from ganglion.wire.salience.service import SERVICE

MethodBehaviour = Callable[[Any, Any], Any]
"""Takes the message, or an iterator of them, and the context; returns a message, or an iterator of them."""

UNGATED_METHODS: Final = frozenset({"ListSessions", "CloseSession", "GetReadoutManifest"})
"""Methods that do no work: they answer also while the server drains."""


def gated_behaviours(
    methods: Mapping[str, Callable[[Any, Any], Any]],
    gate: Gate,
    call_of: Callable[[MethodDescriptor, Any], Any],
) -> dict[str, MethodBehaviour]:
    """The methods as gRPC calls them, counted by the gate where they are work.

    Each takes its message, and what `call_of` makes of itself and the context.
    """
    return {
        method.name: _gated_behaviour(method, methods[method.name], gate, call_of)
        for method in SERVICE.methods
    }


def _gated_behaviour(
    method: MethodDescriptor,
    answer: Callable[[Any, Any], Any],
    gate: Gate,
    call_of: Callable[[MethodDescriptor, Any], Any],
) -> MethodBehaviour:
    def admitted() -> AbstractContextManager[None]:
        return nullcontext() if method.name in UNGATED_METHODS else gate.admit()

    async def whole(message: Any, context: Any) -> Any:
        with admitted():
            return await answer(message, call_of(method, context))

    async def stream(message: Any, context: Any) -> AsyncGenerator[Any, None]:
        with admitted():
            async with aclosing(answer(message, call_of(method, context))) as answers:
                async for each in answers:
                    yield each

    return stream if method.server_streaming else whole


def generic_handler(
    service: ServiceDescriptor, behaviours: Mapping[str, MethodBehaviour], *, gives_bytes: bool = False
) -> grpc.GenericRpcHandler:
    """Handlers for every method that the descriptor names; raises KeyError for one without a behaviour.

    With `gives_bytes` behaviours answer with messages as they go over the wire.
    """
    methods = {
        method.name: _handler(method, behaviours[method.name], gives_bytes) for method in service.methods
    }
    return grpc.method_handlers_generic_handler(service.full_name, methods)


def _handler(
    method: MethodDescriptor, behaviour: MethodBehaviour, gives_bytes: bool
) -> "grpc.RpcMethodHandler[Any, Any]":
    make: Callable[..., grpc.RpcMethodHandler[Any, Any]] = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }[method.client_streaming, method.server_streaming]
    request, reply = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
    return make(behaviour, request.FromString, bytes if gives_bytes else reply.SerializeToString)
