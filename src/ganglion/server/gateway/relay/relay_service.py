"""The service `salience.v1.Salience` of a gateway: a method finds its node, and the rest is relayed.

Law: what a node says of a session leaves with the gateway's handle in location of the node's id, and as the
bytes that the node sent wherever there is no id in it.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.message import DecodeError

from ganglion.core.errors import MissingParameter, SessionNotFound
from ganglion.core.events import Usage
from ganglion.gateway.access.admission import AdmissionRequest, Gatekeeper
from ganglion.gateway.fleet.fleet import Fleet
from ganglion.gateway.node import NodeView
from ganglion.server.gateway.relay.channels import ChannelUnreached
from ganglion.server.gateway.relay.relay_calls import HoldingNode, RelayCall, RelayNodes
from ganglion.server.gateway.relay.session_directory import SessionListing, SessionOwner, SessionOwners
from ganglion.server.gateway.relay.session_handles import SessionHandles, SessionLocation
from ganglion.server.grpc.parse import model_of, session_of
from ganglion.sessions.saved import not_a_saved_session, peek_model_name
from ganglion.wire.fields import MAX_TOKENS
from ganglion.wire.salience import salience_pb2 as pb


@dataclass(frozen=True, slots=True)
class _SessionUpload:
    """A saved session whose first bytes have come."""

    model: str
    beginning: bytes
    rest: AsyncIterator[pb.SessionBytes]

    async def messages(self) -> AsyncGenerator[bytes, None]:
        """All of its bytes as messages; to be read once."""
        yield pb.SessionBytes(data=self.beginning).SerializeToString()
        async for message in self.rest:
            yield message.SerializeToString()


async def _begin_upload(messages: AsyncIterator[pb.SessionBytes]) -> _SessionUpload:
    """Read until the model is known; raises InvalidValue for what is no saved session."""
    beginning = b""
    async for message in messages:
        beginning += message.data
        model = peek_model_name(beginning)
        if model is not None:
            return _SessionUpload(model, beginning, messages)
    if not beginning:
        raise MissingParameter("The parameter 'data' is required.", param="data")
    raise not_a_saved_session("it is too short")


# The first byte of a message is the tag of the one field that it has.
_TOKEN: Final = b"\x0a"
_DONE: Final = b"\x1a"


class _GenerateMeter:
    """Counts the tokens of one call: by its last message, or by what came where that did not."""

    def __init__(self, message: pb.GenerateRequest) -> None:
        self._prompt_tokens = _prompt_tokens(message)
        self._max_tokens = message.max_tokens
        self._messages = 0
        self._tokens = 0
        self._done: Usage | None = None

    def feed(self, data: bytes) -> None:
        """Count one message that passed."""
        self._messages += 1
        if data[:1] == _DONE:
            self._done = _done_of(data)
        elif data[:1] == _TOKEN:
            self._tokens += 1

    @property
    def usage(self) -> Usage | None:
        """The tokens until now; None where nothing ran."""
        if self._done is not None or not self._messages:
            return self._done
        # Positions that were read out again are sent as tokens too.
        return Usage(self._prompt_tokens, min(self._tokens, self._max_tokens))


def _prompt_tokens(message: pb.GenerateRequest) -> int:
    return message.offset + len(message.append_tokens)


def _done_of(data: bytes) -> Usage | None:
    try:
        done = pb.GenerateEvent.FromString(data).done
    except DecodeError:
        return None
    return Usage(done.prompt_tokens, done.completion_tokens, done.cached_tokens)


RelayMethod = Callable[[Any, RelayCall], Any]


class RelayService:
    """Every method by its name in the descriptor; each answers in bytes."""

    def __init__(
        self, fleet: Fleet, nodes: RelayNodes, gatekeeper: Gatekeeper, handles: SessionHandles
    ) -> None:
        self._fleet = fleet
        self._nodes = nodes
        self._gatekeeper = gatekeeper
        self._handles = handles
        self._owners = SessionOwners()
        self._sessions = SessionListing(fleet, nodes, self._owners)
        self.methods: dict[str, RelayMethod] = {
            "OpenSession": self._open,
            "Generate": self._generate,
            "AppendImage": self._on_session,
            "ForkSession": self._fork,
            "TruncateSession": self._on_session,
            "ListSessions": self._list,
            "CloseSession": self._close,
            "SaveSession": self._streamed,
            "RestoreSession": self._restore,
            "SuspendSession": self._on_session,
            "GetReadoutManifest": self._on_model,
            "GetTokens": self._on_session,
            "RenderMessages": self._on_model,
            "Tokenize": self._on_model,
            "Detokenize": self._on_model,
        }

    async def _open(self, message: pb.OpenSessionRequest, call: RelayCall) -> bytes:
        model = message.model = self._model_named(message, call)
        view, reply = await self._by_model(message, call)
        opened = pb.OpenSessionResponse.FromString(reply)
        opened.session_id = self._handle_of(SessionLocation(view.name, opened.session_id), call, model)
        return opened.SerializeToString()

    async def _generate(self, message: pb.GenerateRequest, call: RelayCall) -> AsyncGenerator[bytes, None]:
        handle = message.session_id
        view, location = self._located(handle, call)
        identity = call.caller.identity
        message.priority = max(message.priority, identity.priority)
        model = await self._model_of(view, location, handle, call)
        # At most: the prompt is all that the session then holds.
        most = _prompt_tokens(message) + min(message.max_tokens, MAX_TOKENS)
        admission = await self._gatekeeper.admit(identity, AdmissionRequest(model, most))
        meter = _GenerateMeter(message)
        try:
            await self._fleet.wait_for_room(view, identity.tenant)
            async with aclosing(self._streamed(message, call)) as answers:
                async for data in answers:
                    meter.feed(data)
                    yield data
        finally:
            admission.settle(meter.usage)

    async def _on_session(self, message: Any, call: RelayCall) -> bytes:
        with self._addressed(message, call) as view:
            return await self._nodes.ask(view, call, message.SerializeToString())

    async def _streamed(self, message: Any, call: RelayCall) -> AsyncGenerator[bytes, None]:
        with self._addressed(message, call) as view:
            async with aclosing(self._nodes.stream(view, call, message.SerializeToString())) as answers:
                async for data in answers:
                    yield data

    @contextmanager
    def _addressed(self, message: Any, call: RelayCall) -> Iterator[NodeView]:
        """The node of the session that a message names, which is told its own id of it."""
        handle = message.session_id
        view, location = self._located(handle, call)
        message.session_id = location.id
        with _as_session(handle):
            yield view

    async def _fork(self, message: pb.ForkSessionRequest, call: RelayCall) -> bytes:
        handle = message.session_id
        view, location = self._located(handle, call)
        forked = pb.ForkSessionResponse.FromString(await self._on_session(message, call))
        owner = self._owners.of(location)
        fork = SessionLocation(view.name, forked.session_id)
        forked.session_id = self._handles.write(call.caller.tenant, fork)
        if owner is not None:
            self._owners.note(fork, owner)
        return forked.SerializeToString()

    async def _close(self, message: pb.CloseSessionRequest, call: RelayCall) -> bytes:
        _, location = self._located(message.session_id, call)
        self._owners.forget(location)
        return await self._on_session(message, call)

    async def _restore(self, messages: AsyncIterator[pb.SessionBytes], call: RelayCall) -> bytes:
        upload = await _begin_upload(messages)
        model = model_of(upload.model)
        await self._check(model, call)
        view, reply = await self._nodes.on_any_node(
            model,
            call.caller.tenant,
            lambda holding: self._nodes.upload(holding.view, call, upload.messages()),
            is_repeatable=False,
        )
        restored = pb.RestoreSessionResponse.FromString(reply)
        restored.session_id = self._handle_of(SessionLocation(view.name, restored.session_id), call, model)
        return restored.SerializeToString()

    async def _list(self, _: pb.ListSessionsRequest, call: RelayCall) -> bytes:
        listed = await self._sessions.all(
            call, lambda location: self._handles.write(call.caller.tenant, location)
        )
        return listed.SerializeToString()

    async def _on_model(self, message: Any, call: RelayCall) -> bytes:
        _, reply = await self._by_model(message, call)
        return reply

    async def _by_model(self, message: Any, call: RelayCall) -> tuple[NodeView, bytes]:
        model = self._model_named(message, call)
        await self._check(model, call)

        async def attempt(holding: HoldingNode) -> bytes:
            message.model = holding.model
            return await self._nodes.ask(holding.view, call, message.SerializeToString())

        return await self._nodes.on_any_node(model, call.caller.tenant, attempt)

    def _model_named(self, message: Any, call: RelayCall) -> str:
        """The model that a message names; left out, it is the only one that is loaded."""
        model: str = message.model
        return model_of(model) if model else self._nodes.only_model(call.caller.identity)

    async def _check(self, model: str, call: RelayCall) -> None:
        """Raise where the caller may not use the model now; nothing is counted."""
        admission = await self._gatekeeper.admit(call.caller.identity, AdmissionRequest(model, 0))
        admission.settle(None)

    def _located(self, handle: str, call: RelayCall) -> tuple[NodeView, SessionLocation]:
        """The node of a session, and its location; raises SessionNotFound where either is gone."""
        location = self._handles.read(call.caller.tenant, session_of(handle))
        view = self._fleet.nodes.get(location.node)
        # One that was never heard from may well be there: a gateway that starts knows none.
        if view is None or not (view.is_healthy or view.last_heard_s is None):
            raise SessionNotFound(handle)
        return view, location

    async def _model_of(self, view: NodeView, location: SessionLocation, handle: str, call: RelayCall) -> str:
        """The name under which a session's model is counted."""
        owner = self._owners.of(location)
        if owner is not None:
            return owner.model
        with _as_session(handle):
            infos = await self._sessions.on_node(view, call)
        for info in infos:
            if info.session_id == location.id:
                self._owners.note(location, SessionOwner(call.caller.tenant, info.model))
                return info.model
        raise SessionNotFound(handle)

    def _handle_of(self, location: SessionLocation, call: RelayCall, model: str) -> str:
        """The handle of a session that was just made."""
        self._owners.note(location, SessionOwner(call.caller.tenant, model))
        return self._handles.write(call.caller.tenant, location)


@contextmanager
def _as_session(handle: str) -> Iterator[None]:
    """A node that cannot be reached has lost its sessions; its own id of this one is not given away."""
    try:
        yield
    except (ChannelUnreached, SessionNotFound):
        raise SessionNotFound(handle) from None
