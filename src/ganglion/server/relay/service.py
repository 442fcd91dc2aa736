"""The service `salience.v1.Salience` as a gateway gives it: a method finds its node, and the rest is relayed.

Law: what a node says of a session leaves with the gateway's handle in place of the node's id, and as the
bytes that the node sent wherever there is no id in it.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import Any

from ganglion.core.errors import SessionNotFound
from ganglion.gateway.admission import Gatekeeper, Wanted
from ganglion.gateway.fleet import Fleet
from ganglion.gateway.node import NodeView
from ganglion.server.relay.asker import admitted
from ganglion.server.relay.handles import Handles, Place
from ganglion.server.relay.lines import NotReached
from ganglion.server.relay.listing import Listing
from ganglion.server.relay.meter import Meter, wanted_of
from ganglion.server.relay.nodes import Call, Held, Nodes
from ganglion.server.relay.register import Heard, Register
from ganglion.server.relay.restoring import begun
from ganglion.server.rpc.asked import model_of, session_of
from ganglion.wire.salience import salience_pb2 as pb

Method = Callable[[Any, Call], Any]


class RelayService:
    """Every method, by the name that the descriptor gives it; each answers in bytes."""

    def __init__(self, fleet: Fleet, nodes: Nodes, gatekeeper: Gatekeeper, handles: Handles) -> None:
        self._fleet = fleet
        self._nodes = nodes
        self._gatekeeper = gatekeeper
        self._handles = handles
        self._register = Register()
        self._listing = Listing(fleet, nodes, self._register)
        self.methods: dict[str, Method] = {
            "OpenSession": self._open,
            "Generate": self._generate,
            "AppendImage": self._on_session,
            "ForkSession": self._fork,
            "TruncateSession": self._on_session,
            "ListSessions": self._list,
            "CloseSession": self._close,
            "SaveSession": self._save,
            "RestoreSession": self._restore,
            "SuspendSession": self._on_session,
            "GetReadoutManifest": self._manifest,
            "GetTokens": self._on_session,
            "RenderMessages": self._on_model,
            "Tokenize": self._on_model,
            "Detokenize": self._on_model,
        }

    async def _open(self, message: pb.OpenSessionRequest, call: Call) -> bytes:
        asked = message.model = self._meant(message, call)
        view, reply = await self._by_model(message, call)
        opened = pb.OpenSessionResponse.FromString(reply)
        opened.session_id = self._named(Place(view.name, opened.session_id), call, asked)
        return opened.SerializeToString()

    async def _generate(self, message: pb.GenerateRequest, call: Call) -> AsyncGenerator[bytes, None]:
        handle = message.session_id
        view, place = self._place(handle, call)
        identity = call.asker.identity
        message.priority = max(message.priority, identity.priority)
        model = await self._model_of(view, place, handle, call)
        admission = await admitted(self._gatekeeper, identity, wanted_of(message, model))
        meter = Meter(message)
        try:
            await self._fleet.wait_for_room(view, identity.tenant)
            message.session_id = place.id
            with _as_session(handle):
                async with aclosing(self._nodes.stream(view, call, message.SerializeToString())) as answers:
                    async for data in answers:
                        meter.feed(data)
                        yield data
        finally:
            admission.settle(meter.usage)

    async def _on_session(self, message: Any, call: Call) -> bytes:
        handle = message.session_id
        view, place = self._place(handle, call)
        message.session_id = place.id
        with _as_session(handle):
            return await self._nodes.ask(view, call, message.SerializeToString())

    async def _fork(self, message: pb.ForkSessionRequest, call: Call) -> bytes:
        handle = message.session_id
        view, place = self._place(handle, call)
        forked = pb.ForkSessionResponse.FromString(await self._on_session(message, call))
        heard = self._register.of(place)
        fork = Place(view.name, forked.session_id)
        forked.session_id = self._handles.write(call.asker.tenant, fork)
        if heard is not None:
            self._register.note(fork, heard)
        return forked.SerializeToString()

    async def _close(self, message: pb.CloseSessionRequest, call: Call) -> bytes:
        _, place = self._place(message.session_id, call)
        self._register.forget(place)
        return await self._on_session(message, call)

    async def _save(self, message: pb.SaveSessionRequest, call: Call) -> AsyncGenerator[bytes, None]:
        handle = message.session_id
        view, place = self._place(handle, call)
        message.session_id = place.id
        with _as_session(handle):
            async with aclosing(self._nodes.stream(view, call, message.SerializeToString())) as answers:
                async for data in answers:
                    yield data

    async def _restore(self, messages: AsyncIterator[pb.SessionBytes], call: Call) -> bytes:
        upload = await begun(messages)
        model = model_of(upload.model)
        await self._check(model, call)
        view, reply = await self._nodes.anywhere(
            model, lambda held: self._nodes.upload(held.view, call, upload.messages()), is_safe=False
        )
        restored = pb.RestoreSessionResponse.FromString(reply)
        restored.session_id = self._named(Place(view.name, restored.session_id), call, model)
        return restored.SerializeToString()

    async def _list(self, _: pb.ListSessionsRequest, call: Call) -> bytes:
        listed = await self._listing.all(call, lambda place: self._handles.write(call.asker.tenant, place))
        return listed.SerializeToString()

    async def _manifest(self, message: pb.GetReadoutManifestRequest, call: Call) -> bytes:
        return await self._on_model(message, call)

    async def _on_model(self, message: Any, call: Call) -> bytes:
        _, reply = await self._by_model(message, call)
        return reply

    async def _by_model(self, message: Any, call: Call) -> tuple[NodeView, bytes]:
        model = self._meant(message, call)
        await self._check(model, call)

        async def attempt(held: Held) -> bytes:
            message.model = held.model
            return await self._nodes.ask(held.view, call, message.SerializeToString())

        return await self._nodes.anywhere(model, attempt)

    def _meant(self, message: Any, call: Call) -> str:
        """The model that a message names; left out, it is the only one that is loaded."""
        model: str = message.model
        return model_of(model) if model else self._nodes.only_model(call.asker.identity)

    async def _check(self, model: str, call: Call) -> None:
        """Raise where the asker may not have the model now; nothing is counted."""
        (await admitted(self._gatekeeper, call.asker.identity, Wanted(model, 0))).settle(None)

    def _place(self, handle: str, call: Call) -> tuple[NodeView, Place]:
        """The node of a session, and where it lies; raises SessionNotFound where either is gone."""
        place = self._handles.read(call.asker.tenant, session_of(handle))
        view = self._fleet.nodes.get(place.node)
        # One that nobody heard of yet may well be there: a gateway that starts knows none.
        if view is None or not (view.is_healthy or view.heard_s is None):
            raise SessionNotFound(handle)
        return view, place

    async def _model_of(self, view: NodeView, place: Place, handle: str, call: Call) -> str:
        """By which name a session's model is counted."""
        heard = self._register.of(place)
        if heard is not None:
            return heard.model
        with _as_session(handle):
            infos = await self._listing.held(view, call)
        for info in infos:
            if info.session_id == place.id:
                self._register.note(place, Heard(call.asker.tenant, info.model))
                return info.model
        raise SessionNotFound(handle)

    def _named(self, place: Place, call: Call, model: str) -> str:
        """The handle of a session that was just made."""
        self._register.note(place, Heard(call.asker.tenant, model))
        return self._handles.write(call.asker.tenant, place)


@contextmanager
def _as_session(handle: str) -> Iterator[None]:
    """A node that cannot be reached has lost its sessions; what it calls this one is not told."""
    try:
        yield
    except (NotReached, SessionNotFound):
        raise SessionNotFound(handle) from None
