"""The interceptor of every call, whatever its service: it authenticates, runs, ends and logs it.

Law: every call ends with a typed status. A call without a valid key ends before its first message is read,
also when no such method exists. A client that leaves cancels its call's task, which closes what it reads
from.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, closing
from typing import Any
from urllib.parse import quote

import grpc
from google.protobuf.message import DecodeError

from ganglion.core.errors import (
    DeadlineExceeded,
    GanglionError,
    InvalidValue,
    MissingParameter,
    RouteNotFound,
    ServerError,
)
from ganglion.server.deadlines import Alarm
from ganglion.server.gate import shutting_down
from ganglion.server.grpc.caller import CURRENT_CALLER, REQUEST_ID, CallAuthenticator
from ganglion.server.grpc.message_limits import IncomingMessages, check_size
from ganglion.server.middleware.errors import drop_tracebacks
from ganglion.server.prometheus import Metrics
from ganglion.server.settings import ServerSettings
from ganglion.wire.salience.error_metadata import encode_details, encode_metadata

_logger = logging.getLogger("ganglion.server")
_request_logger = logging.getLogger("ganglion.request")

_MethodHandler = Any
"""A RpcMethodHandler, whose types do not cover asyncio."""
Context = grpc.aio.ServicerContext[Any, Any]
_CallBody = Callable[[Context], Awaitable[Any]]

_METHOD_SHOWN = 200
# A method's name is the client's to choose: unknown ones share one label.
_UNKNOWN_METHOD = "unknown"
_ABORT_S = 2.0
"""For the status of a client that has stopped reading."""


class CallInterceptor(grpc.aio.ServerInterceptor):
    """The one interceptor."""

    def __init__(self, authenticator: CallAuthenticator, settings: ServerSettings, metrics: Metrics) -> None:
        self._authenticator = authenticator
        self._settings = settings
        self._metrics = metrics
        self._room = IncomingMessages()
        self._running: set[asyncio.Task[Any]] = set()
        self._is_ending = False

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_MethodHandler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _MethodHandler:
        """The same method behind this interceptor, as one that takes and returns bytes.

        The wire does not say how many messages a call has, so each is read as a stream, and here.
        """
        handler = await continuation(handler_call_details)
        if handler is not None and handler.response_streaming:
            return self._stream(handler, handler_call_details)
        return self._whole(handler, handler_call_details)

    async def end(self, within_s: float) -> None:
        """End every call with UNAVAILABLE, and those that still come; waits at most `within_s` for them."""
        self._is_ending = True
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(set(self._running), timeout=within_s)

    def _whole(self, handler: _MethodHandler | None, details: grpc.HandlerCallDetails) -> _MethodHandler:
        async def work(context: Context) -> bytes:
            assert handler is not None
            if handler.request_streaming:
                message = await handler.stream_unary(self._messages(handler, details, context), context)
            else:
                message = await handler.unary_unary(await self._message(handler, details, context), context)
            return bytes(handler.response_serializer(message))

        async def run(_: object, context: Context) -> Any:
            return await self._run(handler, details, context, work)

        return grpc.stream_unary_rpc_method_handler(run)

    def _stream(self, handler: _MethodHandler, details: grpc.HandlerCallDetails) -> _MethodHandler:
        async def work(context: Context) -> None:
            if handler.request_streaming:
                replies = handler.stream_stream(self._messages(handler, details, context), context)
            else:
                replies = handler.unary_stream(await self._message(handler, details, context), context)
            with closing(Alarm()) as alarm:
                async with aclosing(replies):
                    async for message in replies:
                        await self._write(context, handler.response_serializer(message), alarm)

        async def run(_: object, context: Context) -> None:
            await self._run(handler, details, context, work)

        return grpc.stream_stream_rpc_method_handler(run)

    async def _run(
        self,
        handler: _MethodHandler | None,
        details: grpc.HandlerCallDetails,
        context: Context,
        work: _CallBody,
    ) -> Any:
        """Run one call to its end, and count it before the client sees its status."""
        began_s = time.monotonic()
        method, metadata = details.method, details.invocation_metadata or ()
        request_id = self._authenticator.request_id(metadata)
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        error: GanglionError | None = None
        outcome = "CANCELLED"
        try:
            # With the status, since whatever is sent before costs a call as much as a token does.
            context.set_trailing_metadata(((REQUEST_ID, request_id),))
            try:
                caller = self._authenticator.caller(method, metadata, request_id)
                if self._is_ending:
                    raise shutting_down()
                if handler is None:
                    raise RouteNotFound(f"There is no method {method[:_METHOD_SHOWN]}.")
                CURRENT_CALLER.set(caller)
                answer = await work(context)
                outcome = "OK"
                return answer
            except GanglionError as raised:
                error = raised
            except asyncio.CancelledError:
                if not self._is_ending or context.cancelled():
                    raise
                task.uncancel()
                error = shutting_down()
            except Exception:
                if context.cancelled() or context.done():
                    raise asyncio.CancelledError from None
                _logger.exception("a call failed, request_id=%s", request_id)
                error = ServerError("Something failed inside the server.")
            finally:
                outcome = outcome if error is None else error.grpc
                label = _UNKNOWN_METHOD if handler is None else method
                self._metrics.rpcs.labels(label, outcome).inc()
                _log(method, outcome, time.monotonic() - began_s, request_id)
            drop_tracebacks(error)
            status, told = grpc.StatusCode[error.grpc], encode_details(error)
            trailing, error = ((REQUEST_ID, request_id), *encode_metadata(error)), None
            # And so it is nowhere when gRPC holds on to the frames of an abort.
            async with asyncio.timeout(_ABORT_S):
                await context.abort(status, told, trailing)
        finally:
            self._running.discard(task)

    async def _message(
        self, handler: _MethodHandler, details: grpc.HandlerCallDetails, context: Context
    ) -> Any:
        """The one message of a call."""
        message = await self._next(handler, details, context)
        if message is None:
            raise MissingParameter("The call ended without a message.")
        return message

    async def _messages(
        self, handler: _MethodHandler, details: grpc.HandlerCallDetails, context: Context
    ) -> AsyncGenerator[Any, None]:
        """The messages of a call."""
        while (message := await self._next(handler, details, context)) is not None:
            yield message

    async def _next(self, handler: _MethodHandler, details: grpc.HandlerCallDetails, context: Context) -> Any:
        """The next message, None after the last; it has room, time and a size before it is decoded."""
        # Where there are no keys all are one tenant, and only connections tell them apart.
        tenant = CURRENT_CALLER.get().tenant or context.peer()
        async with self._room.reading(tenant, self._settings.body_s):
            data = await context.read()
            if data is grpc.aio.EOF:
                return None
            check_size(details.method, data)
            assert handler.request_deserializer is not None
            try:
                return handler.request_deserializer(data)
            except DecodeError:
                raise InvalidValue("The message is not of the type that this method takes.") from None

    async def _write(self, context: Context, message: bytes, alarm: Alarm) -> None:
        limit_s = self._settings.stalled_reader_s
        try:
            with alarm.after(limit_s):
                await context.write(message)
        except TimeoutError:
            raise DeadlineExceeded("reader", limit_s) from None


def _log(method: str, outcome: str, took_s: float, request_id: str) -> None:
    if _request_logger.isEnabledFor(logging.INFO):
        _request_logger.info(
            "method=%s status=%s duration_ms=%.1f request_id=%s",
            quote(method[:_METHOD_SHOWN]),
            outcome,
            took_s * 1000,
            request_id,
        )
