"""Calls to nodes: each goes out on the node's channel and comes back as bytes, or as the error it ended with.

A call on a session goes to the session's node or nowhere. One that names a model goes to any node that holds
it, and to another one where the first is away: none of these changes anything that a second one would spoil.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import grpc

from ganglion.client.grpc_transport import error_from_rpc
from ganglion.core.errors import GanglionError, ModelNotFound, UpstreamUnavailable
from ganglion.gateway.access.admission import Identity
from ganglion.gateway.fleet.fleet import Fleet
from ganglion.gateway.node import NodeView
from ganglion.gateway.routing.decision import (
    Chooser,
    ChosenNode,
    ColdModel,
    ModelLoader,
    NoRoute,
    RoutingRequest,
    TranslatedNode,
    only_loaded_model,
)
from ganglion.server.gateway.relay.channels import ChannelUnreached, NodeChannels
from ganglion.server.gateway.relay.relay_caller import RelayCaller
from ganglion.wire.dialects import SESSIONS_WIRE
from ganglion.wire.salience.error_metadata import CODE
from ganglion.wire.salience.service import method_path

MAX_TRIES: Final = 3
"""Nodes that one call is put to, at most."""

# What gRPC itself says of a call, and not of the node: it was too late, or too large.
_OF_THE_CALL: Final = (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED)


@dataclass(frozen=True, slots=True)
class RelayCall:
    """What every call to a node takes: which method, for whom, and how long it may take."""

    method: str
    asker: RelayCaller
    timeout_s: float | None = None

    @property
    def path(self) -> str:
        """The method's path."""
        return method_path(self.method)


@dataclass(frozen=True, slots=True)
class HoldingNode:
    """A node that holds a model, and the model as that node names it."""

    view: NodeView
    model: str


class RelayNodes:
    """The nodes of the fleet as something to call."""

    def __init__(self, fleet: Fleet, chooser: Chooser, loader: ModelLoader, lines: NodeChannels) -> None:
        self._fleet = fleet
        self._chooser = chooser
        self._loader = loader
        self._lines = lines

    async def ask(self, view: NodeView, call: RelayCall, message: bytes) -> bytes:
        """One message there, one back."""
        async with self._answering(view) as channel:
            method: Any = channel.unary_unary(call.path)
            reply: bytes = await method(
                message, timeout=call.timeout_s, metadata=call.asker.metadata_for(view.spec)
            )
            return reply

    async def stream(self, view: NodeView, call: RelayCall, message: bytes) -> AsyncGenerator[bytes, None]:
        """One message there, several back, each taken from the node when it is asked for here."""
        async with self._answering(view) as channel:
            method: Any = channel.unary_stream(call.path)
            answers = method(message, timeout=call.timeout_s, metadata=call.asker.metadata_for(view.spec))
            try:
                while (data := await answers.read()) is not grpc.aio.EOF:
                    yield data
            finally:
                answers.cancel()

    async def upload(self, view: NodeView, call: RelayCall, messages: AsyncIterator[bytes]) -> bytes:
        """Several messages there, as fast as the node takes them, and one back."""
        async with self._answering(view) as channel:
            method: Any = channel.stream_unary(call.path)
            answer = method(timeout=call.timeout_s, metadata=call.asker.metadata_for(view.spec))
            try:
                try:
                    async for message in messages:
                        await answer.write(message)
                    await answer.done_writing()
                except asyncio.InvalidStateError:
                    pass  # the node has answered already, and its answer says why
                reply: bytes = await answer
                return reply
            finally:
                answer.cancel()

    async def holding(self, model: str, tried: frozenset[str] = frozenset()) -> HoldingNode:
        """A node that holds a model, once one does; raises why there is none."""
        for _ in range(2):
            decision = self._chooser.choose(RoutingRequest(model, SESSIONS_WIRE, tried=tried))
            match decision:
                case ChosenNode(node=spec, model=name):
                    return HoldingNode(self._fleet.nodes.get(spec.name) or NodeView(spec), name)
                case ColdModel(model=cold):
                    await self._loader.load(cold)
                case TranslatedNode():
                    raise ModelNotFound(model[:200], hint="A foreign server holds it, and has no sessions.")
                case NoRoute(error=error):
                    raise error
        raise UpstreamUnavailable("The model was loaded, and is gone again.", hint="Retry in a moment.")

    async def anywhere(
        self, model: str, attempt: Callable[[HoldingNode], Awaitable[bytes]], *, is_safe: bool = True
    ) -> tuple[NodeView, bytes]:
        """Have a node that holds the model answer; where it is away, another one.

        A call that is not safe is put to another one only where nothing of it was sent.
        """
        tried: frozenset[str] = frozenset()
        away: GanglionError | None = None
        for _ in range(MAX_TRIES):
            try:
                held = await self.holding(model, tried)
            except GanglionError as error:
                raise away or error from None
            try:
                return held.view, await attempt(held)
            except GanglionError as error:
                if error.grpc != "UNAVAILABLE" or not (is_safe or isinstance(error, ChannelUnreached)):
                    raise
                away = error
                tried |= {held.view.name}
        assert away is not None
        raise away

    def only_model(self, identity: Identity) -> str:
        """The id of the only model that some node has loaded for this key; raises MissingParameter."""
        return only_loaded_model(identity.of_these(self._fleet.servable_models()))

    @asynccontextmanager
    async def _answering(self, view: NodeView) -> AsyncIterator[grpc.aio.Channel]:
        """The channel to a node; what is raised inside leaves as the error that the client is to be told."""
        async with self._lines.held(view) as channel:
            try:
                yield channel
                self._fleet.succeeded(view.name)
            except grpc.aio.AioRpcError as error:
                raise self._told(view, error) from None
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                # Not we were cancelled: the call was, with its channel.
                raise self._lost(view) from None

    def _told(self, view: NodeView, error: grpc.aio.AioRpcError) -> GanglionError:
        has_code = any(name == CODE for name, _ in error.trailing_metadata() or ())
        if not has_code and error.code() not in _OF_THE_CALL:
            return self._lost(view)
        if has_code:
            self._fleet.succeeded(view.name)
        return error_from_rpc(error)

    def _lost(self, view: NodeView) -> UpstreamUnavailable:
        self._fleet.failed(view.name)
        return UpstreamUnavailable(
            f"The node {view.name!r} went away during the call.", hint="Open another session elsewhere."
        )
