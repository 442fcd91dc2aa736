"""The gRPC handlers of a service, from its descriptor."""

from collections.abc import Callable, Mapping
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

MethodBehaviour = Callable[[Any, Any], Any]
"""Takes the message, or an iterator of them, and the context; returns a message, or an iterator of them."""


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
