"""`ganglion.AsyncClient`: a node's sessions in an event loop."""

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from ganglion.client._async.generation import finish
from ganglion.client._async.protocols import AsyncTransport
from ganglion.client._async.session import AsyncSession
from ganglion.client.committed import CommittedTokens, checked_tokens
from ganglion.client.committer import Committer, NodeSession
from ganglion.client.concurrency import async_read_file
from ganglion.client.flow import Flow
from ganglion.client.grpc_transport import AsyncGrpcTransport
from ganglion.client.node_api import Manifests, NodeApi
from ganglion.client.reaper import AsyncSessionReaper
from ganglion.client.session_flows import SessionFlows
from ganglion.client.settings import IDLE_TIMEOUT_S, TIMEOUT_S, client_settings
from ganglion.client.transport import CallOptions, SharedTransport, client_closed
from ganglion.client.values import Score, SessionInfo
from ganglion.core.engine import ReadoutManifest
from ganglion.core.request import Steer

T = TypeVar("T")


class AsyncClient:
    """Sessions on a node, in an event loop.

    The gRPC port is the one after that of `base_url` unless `grpc_address` (host:port) says otherwise. Left
    out, they and the key come from GANGLION_URL, GANGLION_GRPC_ADDRESS and GANGLION_API_KEY. Every call must
    end within `timeout_s`; a stream may be silent for `idle_timeout_s`. Calls that change nothing are made
    again, up to three times, while the node is away or busy loading; no others ever are.

        async with AsyncClient() as client, client.session("llama") as session:
            await session.append("Once upon a time")
            print(await session.generate(max_tokens=40).text())

    The channel is opened by the first call and shared by all clones. Threads may share a blocking client,
    each with sessions of its own; one that is awaited belongs to the loop of its first call. gRPC does not
    survive `os.fork()`: make the client in the child, or start processes with `multiprocessing`'s "spawn".
    """

    _shared: SharedTransport[AsyncTransport]
    _call_options: CallOptions
    _node: NodeApi
    _reaper: AsyncSessionReaper
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
            SharedTransport(lambda: AsyncGrpcTransport(settings.address, settings.ca_file)),
            settings.call_options,
            {},
        )

    @classmethod
    def over_transport(
        cls, shared: SharedTransport[AsyncTransport], call_options: CallOptions, manifests: Manifests
    ) -> "AsyncClient":
        """A client over a transport that is already there, as the fake's and clones are."""
        client = cls.__new__(cls)
        client._begin(shared, call_options, manifests)
        return client

    def clone(
        self,
        *,
        api_key: str | None = None,
        timeout_s: float | None = None,
        idle_timeout_s: float | None = None,
    ) -> "AsyncClient":
        """Another client over the same channel, with other options; the last one to close closes it."""
        call_options = CallOptions(
            self._call_options.timeout_s if timeout_s is None else timeout_s,
            self._call_options.idle_timeout_s if idle_timeout_s is None else idle_timeout_s,
            self._call_options.api_key if api_key is None else api_key,
        )
        return AsyncClient.over_transport(self._shared.join(), call_options, self._node.manifests)

    def session(
        self, model: str, *, ttl_s: float | None = None, steering: Sequence[Steer] = ()
    ) -> AsyncSession:
        """A fresh session, opened with its first call.

        The node drops it when no call names it for `ttl_s`. `steering` adds concepts to all that is computed
        in it.
        """
        return self._session(Committer(self._node, model, ttl_s=ttl_s, steering=tuple(steering)))

    async def restore(self, saved: bytes | str | Path) -> AsyncSession:
        """A session from what `save()` returned: its bytes, or a file of them."""
        data = saved if isinstance(saved, bytes) else await async_read_file(saved)
        restored = await self._finish(self._node.restore(data))
        committer = Committer(
            self._node,
            restored.model,
            node_session=NodeSession(restored.session_id),
            committed=CommittedTokens.of_unknown(restored.total_tokens),
        )
        return self._session(committer, is_restored=True)

    async def attach(self, session_id: str) -> AsyncSession:
        """A session that is open or suspended on the node; raises SessionNotFound."""
        info = await self._finish(self._node.session(session_id))
        return self._session(
            Committer(
                self._node,
                info.model,
                ttl_s=info.ttl_s,
                steering=info.steering,
                node_session=NodeSession(session_id, is_ours=False),
                committed=CommittedTokens.of_unknown(info.total_tokens),
            )
        )

    async def score(
        self,
        model: str,
        prompt: str | Sequence[int],
        continuation: str | Sequence[int],
        *,
        top: int = 0,
        parse_special: bool = True,
    ) -> Score:
        """How likely a continuation is after a prompt, with `top` alternatives at each token."""
        flows = SessionFlows(Committer(self._node, model))
        try:
            return await self._finish(flows.score([prompt, continuation], top, parse_special))
        finally:
            await self._finish(flows.close())

    async def sessions(self) -> tuple[SessionInfo, ...]:
        """The caller's own sessions on the node."""
        return await self._finish(self._node.sessions())

    async def tokenize(
        self, model: str, text: str, *, add_special: bool = False, parse_special: bool = True
    ) -> tuple[int, ...]:
        """Text to token ids."""
        return await self._finish(
            self._node.tokenize(model, text, add_special=add_special, parse_special=parse_special)
        )

    async def detokenize(self, model: str, tokens: Sequence[int]) -> str:
        """Token ids to text, special tokens written out."""
        detokenized = await self._finish(self._node.detokenize(model, checked_tokens(tokens)))
        return detokenized.text

    async def pieces(self, model: str, tokens: Sequence[int]) -> tuple[bytes, ...]:
        """The bytes of each token."""
        detokenized = await self._finish(self._node.detokenize(model, checked_tokens(tokens)))
        return tuple(detokenized.pieces)

    async def readout_manifest(self, model: str) -> ReadoutManifest:
        """The readouts that a model has; fetched once."""
        return await self._finish(self._node.manifest(model))

    async def close(self) -> None:
        """Release the channel; may be called twice."""
        if not self._is_closed:
            self._is_closed = True
            await self._reaper.settle()
            transport = self._shared.leave()
            if transport is not None:
                await transport.close()

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _begin(
        self, shared: SharedTransport[AsyncTransport], call_options: CallOptions, manifests: Manifests
    ) -> None:
        self._shared = shared
        self._call_options = call_options
        self._node = NodeApi(call_options.timeout_s, manifests)
        self._reaper = AsyncSessionReaper(shared)
        self._is_closed = False

    def _session(self, committer: Committer, *, is_restored: bool = False) -> AsyncSession:
        flows = SessionFlows(committer, is_restored=is_restored)
        return AsyncSession(flows, self._shared, self._call_options, self._reaper)

    async def _finish(self, flow: Flow[T]) -> T:
        if self._is_closed:
            raise client_closed()
        return await finish(flow, self._shared.transport(), self._call_options)
