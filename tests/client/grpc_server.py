"""A fake node behind a real gRPC server on loopback."""

import threading
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc

from ganglion.client import rpcs
from ganglion.client.fake import FakeNode
from ganglion.client.rpcs import Rpc
from ganglion.core.errors import GanglionError
from ganglion.wire.salience import salience_pb2 as pb
from ganglion.wire.salience.error_metadata import encode_details, encode_metadata
from ganglion.wire.salience.service import SERVICE


class FakeServer:
    """Serves a fake node; `silence` holds every stream after its first message while it is set."""

    def __init__(self, node: FakeNode) -> None:
        self.node = node
        self.silence = threading.Event()
        self.cancelled = threading.Event()
        self.lock = threading.Lock()

    def handler(self, rpc: Rpc[Any, Any]) -> grpc.RpcMethodHandler:
        codec = (rpc.request.FromString, lambda message: message.SerializeToString())
        if rpc is rpcs.RESTORE:
            return grpc.stream_unary_rpc_method_handler(self._uploaded, *codec)
        if rpc in (rpcs.GENERATE, rpcs.SAVE):
            return grpc.unary_stream_rpc_method_handler(
                lambda request, context: self._stream(rpc, request, context), *codec
            )
        return grpc.unary_unary_rpc_method_handler(
            lambda request, context: next(self._stream(rpc, request, context)), *codec
        )

    def _uploaded(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Any:
        whole = pb.SessionBytes(data=b"".join(request.data for request in requests))
        return next(self._stream(rpcs.RESTORE, whole, context))

    def _stream(self, rpc: Rpc[Any, Any], request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        metadata = dict(context.invocation_metadata())
        key = metadata.get("authorization", "").removeprefix("Bearer ") or None
        answer = self.node.answer(rpc, request, key)
        context.add_callback(self.cancelled.set)
        try:
            while True:
                with self.lock:
                    message = next(answer, None)
                if message is None:
                    return
                yield message
                while self.silence.is_set() and context.is_active():
                    self.cancelled.wait(0.02)
        except GanglionError as error:
            context.set_trailing_metadata(encode_metadata(error))
            context.abort(grpc.StatusCode[error.grpc], encode_details(error))
        finally:
            answer.close()


@contextmanager
def serving(
    node: FakeNode, port: int = 0, credentials: grpc.ServerCredentials | None = None
) -> Generator[tuple[FakeServer, int], None, None]:
    """A running server, and its port."""
    fake = FakeServer(node)
    table = {rpc.name: fake.handler(rpc) for rpc in vars(rpcs).values() if isinstance(rpc, Rpc)}
    server = grpc.server(ThreadPoolExecutor(8), options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE.full_name, table)])
    address = f"127.0.0.1:{port}"
    if credentials is None:
        port = server.add_insecure_port(address)
    else:
        port = server.add_secure_port(address, credentials)
    server.start()
    try:
        yield fake, port
    finally:
        server.stop(0).wait(5)
