"""A node, blocking: what people import as `ganglion.Client`."""

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from ganglion.client._sync.generation import finish
from ganglion.client._sync.session import Session
from ganglion.client.committed import CommittedTokens, checked_tokens
from ganglion.client.flow import Flow
from ganglion.client.grpc_transport import GrpcTransport
from ganglion.client.node_api import Manifests, NodeApi
from ganglion.client.reaper import SessionReaper
from ganglion.client.session_flows import NodeSession, SessionFlows
from ganglion.client.settings import IDLE_TIMEOUT_S, TIMEOUT_S, client_settings
from ganglion.client.transport import CallOptions, SharedTransport, Transport
from ganglion.client.values import ReadoutManifest, Score, SessionInfo
from ganglion.core.errors import InvalidValue
from ganglion.core.request import Steer

T = TypeVar("T")


class Client:
    """Sessions on a node, with blocking calls.

    The gRPC door is the port after that of `base_url` unless `grpc_address` (host:port) says otherwise. Left
    out, they and the key come from GANGLION_URL, GANGLION_GRPC_ADDRESS and GANGLION_API_KEY. Every call must
    end within `timeout_s`; a stream may be silent for `idle_timeout_s`. Calls that change nothing are made
    again, up to three times, when the node is away or busy loading; no others ever are.

        with Client() as client, client.session("llama") as session:
            session.append("Once upon a time")
            print(session.generate(max_tokens=40).text())

    The channel is opened by the first call and shared by all clones; threads may share a client, each with
    sessions of its own. gRPC does not survive `os.fork()`: make the client in the child, or start processes
    with `multiprocessing`'s "spawn".
    """

    _shared: SharedTransport[Transport]
    _terms: CallOptions
    _station: NodeApi
    _dropped: SessionReaper
    _is_closed: bool

    def __init__(
        self,
        base_url: str | None = None,
        *,
        api_key: str | None = None,
        grpc_address: str | None = None,
        timeout_s: float = TIMEOUT_S,
        idle_timeout_s: float = IDLE_TIMEOUT_S,
        ca_file: str | Path | None = None,
    ) -> None:
        settings = client_settings(
            base_url=base_url,
            api_key=api_key,
            grpc_address=grpc_address,
            timeout_s=timeout_s,
            idle_timeout_s=idle_timeout_s,
            ca_file=ca_file,
        )
        self._begin(
            SharedTransport(lambda: GrpcTransport(settings.address, settings.ca_file)), settings.terms, {}
        )

    @classmethod
    def over(cls, shared: SharedTransport[Transport], terms: CallOptions, manifests: Manifests) -> "Client":
        """A client over a line of one's own, as the fake and clones are."""
        client = cls.__new__(cls)
        client._begin(shared, terms, manifests)
        return client

    def clone(
        self,
        *,
        api_key: str | None = None,
        timeout_s: float | None = None,
        idle_timeout_s: float | None = None,
    ) -> "Client":
        """Another client over the same channel, with other terms; the last one to close closes it."""
        terms = CallOptions(
            self._terms.timeout_s if timeout_s is None else timeout_s,
            self._terms.idle_timeout_s if idle_timeout_s is None else idle_timeout_s,
            self._terms.api_key if api_key is None else api_key,
        )
        return Client.over(self._shared.join(), terms, self._station.manifests)

    def session(self, model: str, *, ttl_s: float | None = None, steering: Sequence[Steer] = ()) -> Session:
        """A fresh session, opened with its first call.

        The node forgets it when nobody names it for `ttl_s`. `steering` adds concepts to all that is computed
        in it.
        """
        return self._session(SessionFlows(self._station, model, ttl_s=ttl_s, steering=tuple(steering)))

    def restore(self, saved: bytes | str | Path) -> Session:
        """A session from what `Session.save()` gave: its bytes, or a file of them."""
        data = saved if isinstance(saved, bytes) else Path(saved).read_bytes()
        restored = self._finish(self._station.restore(data))
        place = NodeSession(restored.session_id)
        ledger = CommittedTokens.of_unknown(restored.total_tokens)
        conversation = SessionFlows(self._station, restored.model, place=place, ledger=ledger)
        conversation.is_restored = True
        return self._session(conversation)

    def attach(self, session_id: str) -> Session:
        """A session that is open or suspended on the node; raises SessionNotFound."""
        info = self._finish(self._station.session(session_id))
        return self._session(
            SessionFlows(
                self._station,
                info.model,
                ttl_s=info.ttl_s,
                steering=info.steering,
                place=NodeSession(session_id, is_ours=False),
                ledger=CommittedTokens.of_unknown(info.total_tokens),
            )
        )

    def score(
        self,
        model: str,
        prompt: str | Sequence[int],
        continuation: str | Sequence[int],
        *,
        top: int = 0,
        parse_special: bool = True,
    ) -> Score:
        """How likely a continuation is after a prompt, with `top` alternatives at each token."""
        conversation = SessionFlows(self._station, model)
        try:
            return self._finish(conversation.score([prompt, continuation], top, parse_special))
        finally:
            self._finish(conversation.close())

    def sessions(self) -> tuple[SessionInfo, ...]:
        """One's own sessions on the node."""
        return self._finish(self._station.sessions())

    def tokenize(
        self, model: str, text: str, *, add_special: bool = False, parse_special: bool = True
    ) -> tuple[int, ...]:
        """Text to token ids."""
        return self._finish(
            self._station.tokenize(model, text, add_special=add_special, parse_special=parse_special)
        )

    def detokenize(self, model: str, tokens: Sequence[int]) -> str:
        """Token ids to text, special tokens written out."""
        return self._finish(self._station.detokenize(model, checked_tokens(tokens))).text

    def pieces(self, model: str, tokens: Sequence[int]) -> tuple[bytes, ...]:
        """The bytes of each token."""
        return tuple(self._finish(self._station.detokenize(model, checked_tokens(tokens))).pieces)

    def readout_manifest(self, model: str) -> ReadoutManifest:
        """What is read out of a model; asked for once."""
        return self._finish(self._station.manifest(model))

    def close(self) -> None:
        """Let go of the channel; also twice."""
        if not self._is_closed:
            self._is_closed = True
            self._dropped.settle()
            line = self._shared.leave()
            if line is not None:
                line.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _begin(self, shared: SharedTransport[Transport], terms: CallOptions, manifests: Manifests) -> None:
        self._shared = shared
        self._terms = terms
        self._station = NodeApi(terms.timeout_s, manifests)
        self._dropped = SessionReaper(shared)
        self._is_closed = False

    def _session(self, conversation: SessionFlows) -> Session:
        return Session(conversation, self._shared, self._terms, self._dropped)

    def _finish(self, flow: Flow[T]) -> T:
        if self._is_closed:
            raise InvalidValue("The client is closed.", hint="Make another one.")
        return finish(flow, self._shared.line(), self._terms)
