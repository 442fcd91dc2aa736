"""gRPC calls to nodes: each goes out on the node's channel and returns bytes, or raises what it ended with.

A call on a session goes to the session's node or nowhere. One that names a model goes to any node that holds
it, and where that one fails to another, as `routing.retry` decides: none of these calls changes anything that
a second one would spoil.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import grpc

from ganglion.client.grpc_transport import error_from_rpc
from ganglion.core.errors import GanglionError, ModelNotFound
from ganglion.gateway.access.admission import Identity
from ganglion.gateway.failover import Failover, ProbeNow, mark_node
from ganglion.gateway.fleet.fleet import Fleet
from ganglion.gateway.node import NodeView
from ganglion.gateway.routing.decision import (
    Chooser,
    ModelLoader,
    RoutingRequest,
    TranslatedNode,
    only_loaded_model,
)
from ganglion.gateway.routing.retry import ErrorAnswer, NodeFault, NodeOutcome, decide_retry
from ganglion.server.gateway.relay.channels import ChannelLost, ChannelUnreached, NodeChannels
from ganglion.server.gateway.relay.relay_caller import RelayCaller
from ganglion.wire.dialects import SESSIONS_WIRE
from ganglion.wire.salience.error_metadata import CODE
from ganglion.wire.salience.service import method_path

# What gRPC itself says of a call, and not of the node: it was too late, or too large.
_OF_THE_CALL: Final = (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED)


@dataclass(frozen=True, slots=True)
class RelayCall:
    """One call: which method, for whom, and how long it may take."""

    method: str
    caller: RelayCaller
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
    """Calls the nodes of the fleet; `probe_now` asks a node at once how it is."""

    def __init__(
        self,
        fleet: Fleet,
        chooser: Chooser,
        loader: ModelLoader,
        channels: NodeChannels,
        probe_now: ProbeNow = lambda name: None,
    ) -> None:
        self._fleet = fleet
        self._chooser = chooser
        self._loader = loader
        self._channels = channels
        self._probe_now = probe_now

    async def ask(self, view: NodeView, call: RelayCall, message: bytes) -> bytes:
        """Send one message, and return the one that comes back."""
        async with self._channel(view) as channel:
            method: Any = channel.unary_unary(call.path)
            reply: bytes = await method(
                message, timeout=call.timeout_s, metadata=call.caller.metadata_for(view.spec)
            )
            return reply

    async def stream(self, view: NodeView, call: RelayCall, message: bytes) -> AsyncGenerator[bytes, None]:
        """Send one message, and yield those that come back, each read when it is asked for here."""
        async with self._channel(view) as channel:
            method: Any = channel.unary_stream(call.path)
            answers = method(message, timeout=call.timeout_s, metadata=call.caller.metadata_for(view.spec))
            try:
                while (data := await answers.read()) is not grpc.aio.EOF:
                    yield data
            finally:
                answers.cancel()

    async def upload(self, view: NodeView, call: RelayCall, messages: AsyncIterator[bytes]) -> bytes:
        """Send several messages, as fast as the node takes them, and return the one that comes back."""
        async with self._channel(view) as channel:
            method: Any = channel.stream_unary(call.path)
            answer = method(timeout=call.timeout_s, metadata=call.caller.metadata_for(view.spec))
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

    async def on_any_node(
        self,
        model: str,
        tenant: str,
        attempt: Callable[[HoldingNode], Awaitable[bytes]],
        *,
        is_repeatable: bool = True,
    ) -> tuple[NodeView, bytes]:
        """Have a node that holds the model answer; where it fails, another one, as `routing.retry` decides.

        A call that is not repeatable goes to another one only where nothing of it was sent.
        """
        request = RoutingRequest(model, SESSIONS_WIRE, tenant=tenant)
        failover = Failover(self._fleet, self._chooser, self._loader, request, probe_now=self._probe_now)
        while True:
            chosen = await failover.next()
            if isinstance(chosen, TranslatedNode):
                raise ModelNotFound(model[:200], hint="A foreign server holds it, and has no sessions.")
            spec = chosen.node
            view = self._fleet.nodes.get(spec.name) or NodeView(spec)
            try:
                return view, await attempt(HoldingNode(view, chosen.model))
            except GanglionError as error:
                outcome = _outcome_of(error)
                if not is_repeatable and outcome is not NodeFault.UNREACHED:
                    raise
                client_error = failover.goes_on(spec, decide_retry(outcome, kind=spec.kind), error)
                if client_error is not None:
                    raise client_error from None

    def only_model(self, identity: Identity) -> str:
        """The id of the only model that some node has loaded for this key; raises MissingParameter."""
        return only_loaded_model(identity.of_these(self._fleet.servable_models()))

    @asynccontextmanager
    async def _channel(self, view: NodeView) -> AsyncIterator[grpc.aio.Channel]:
        """The channel to a node; what is raised inside leaves as the error that the client gets."""
        try:
            async with self._channels.connected(view) as channel:
                yield channel
            self._fleet.succeeded(view.name)
        except ChannelUnreached as error:
            raise self._marked(view, error) from None
        except grpc.aio.AioRpcError as error:
            raise self._client_error(view, error) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # Not we were cancelled: the call was, with its channel.
            raise self._marked(view, _lost(view)) from None

    def _client_error(self, view: NodeView, error: grpc.aio.AioRpcError) -> GanglionError:
        has_code = any(name == CODE for name, _ in error.trailing_metadata() or ())
        if has_code:
            return self._marked(view, error_from_rpc(error))
        return error_from_rpc(error) if error.code() in _OF_THE_CALL else self._marked(view, _lost(view))

    def _marked(self, view: NodeView, error: GanglionError) -> GanglionError:
        """The error, once what it says about the node is noted."""
        outcome = _outcome_of(error)
        decision = decide_retry(outcome, kind=view.spec.kind)
        mark_node(self._fleet, view.name, outcome, decision, self._probe_now)
        return error


def _outcome_of(error: GanglionError) -> NodeOutcome:
    """What happened to a call that ended with this error."""
    if isinstance(error, ChannelUnreached):
        return NodeFault.UNREACHED
    return NodeFault.LOST if isinstance(error, ChannelLost) else ErrorAnswer(error.status, error.code)


def _lost(view: NodeView) -> ChannelLost:
    return ChannelLost(
        f"The node {view.name!r} went away during the call.", hint="Open another session elsewhere."
    )
