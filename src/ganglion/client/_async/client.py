"""A node in an event loop: what people import as `ganglion.AsyncClient`."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from ganglion.client._async.generation import finish
from ganglion.client._async.session import AsyncSession
from ganglion.client.committed import CommittedTokens, checked_tokens
from ganglion.client.flow import Flow
from ganglion.client.grpc_transport import AsyncGrpcTransport
from ganglion.client.node_api import Manifests, NodeApi
from ganglion.client.reaper import AsyncSessionReaper
from ganglion.client.session_flows import NodeSession, SessionFlows
from ganglion.client.settings import IDLE_TIMEOUT_S, TIMEOUT_S, client_settings
from ganglion.client.transport import AsyncTransport, CallOptions, SharedTransport
from ganglion.client.values import ReadoutManifest, Score, SessionInfo
from ganglion.core.errors import InvalidValue
from ganglion.core.request import Steer

T = TypeVar("T")


class AsyncClient:
    """Sessions on a node, in an event loop: `Client` with every call awaited.

        async with AsyncClient() as client, client.session("llama") as session:
            await session.append("Once upon a time")
            print(await session.generate(max_tokens=40).text())

    The channel belongs to the loop of the first call.
    """

    _shared: SharedTransport[AsyncTransport]
    _terms: CallOptions
    _station: NodeApi
    _dropped: AsyncSessionReaper
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
            settings.terms,
            {},
        )

    @classmethod
    def over(
        cls, shared: SharedTransport[AsyncTransport], terms: CallOptions, manifests: Manifests
    ) -> "AsyncClient":
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
    ) -> "AsyncClient":
        """Another client over the same channel, with other terms; the last one to close closes it."""
        terms = CallOptions(
            self._terms.timeout_s if timeout_s is None else timeout_s,
            self._terms.idle_timeout_s if idle_timeout_s is None else idle_timeout_s,
            self._terms.api_key if api_key is None else api_key,
        )
        return AsyncClient.over(self._shared.join(), terms, self._station.manifests)

    def session(
        self, model: str, *, ttl_s: float | None = None, steering: Sequence[Steer] = ()
    ) -> AsyncSession:
        """A fresh session, opened with its first call.

        The node forgets it when nobody names it for `ttl_s`. `steering` adds concepts to all that is computed
        in it.
        """
        return self._session(SessionFlows(self._station, model, ttl_s=ttl_s, steering=tuple(steering)))

    async def restore(self, saved: bytes | str | Path) -> AsyncSession:
        """A session from what `Session.save()` gave: its bytes, or a file of them."""
        data = saved if isinstance(saved, bytes) else await asyncio.to_thread(Path(saved).read_bytes)
        restored = await self._finish(self._station.restore(data))
        place = NodeSession(restored.session_id)
        ledger = CommittedTokens.of_unknown(restored.total_tokens)
        conversation = SessionFlows(self._station, restored.model, place=place, ledger=ledger)
        conversation.is_restored = True
        return self._session(conversation)

    async def attach(self, session_id: str) -> AsyncSession:
        """A session that is open or suspended on the node; raises SessionNotFound."""
        info = await self._finish(self._station.session(session_id))
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
        conversation = SessionFlows(self._station, model)
        try:
            return await self._finish(conversation.score([prompt, continuation], top, parse_special))
        finally:
            await self._finish(conversation.close())

    async def sessions(self) -> tuple[SessionInfo, ...]:
        """One's own sessions on the node."""
        return await self._finish(self._station.sessions())

    async def tokenize(
        self, model: str, text: str, *, add_special: bool = False, parse_special: bool = True
    ) -> tuple[int, ...]:
        """Text to token ids."""
        return await self._finish(
            self._station.tokenize(model, text, add_special=add_special, parse_special=parse_special)
        )

    async def detokenize(self, model: str, tokens: Sequence[int]) -> str:
        """Token ids to text, special tokens written out."""
        return (await self._finish(self._station.detokenize(model, checked_tokens(tokens)))).text

    async def pieces(self, model: str, tokens: Sequence[int]) -> tuple[bytes, ...]:
        """The bytes of each token."""
        return tuple((await self._finish(self._station.detokenize(model, checked_tokens(tokens)))).pieces)

    async def readout_manifest(self, model: str) -> ReadoutManifest:
        """What is read out of a model; asked for once."""
        return await self._finish(self._station.manifest(model))

    async def close(self) -> None:
        """Let go of the channel; also twice."""
        if not self._is_closed:
            self._is_closed = True
            await self._dropped.settle()
            line = self._shared.leave()
            if line is not None:
                await line.close()

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _begin(
        self, shared: SharedTransport[AsyncTransport], terms: CallOptions, manifests: Manifests
    ) -> None:
        self._shared = shared
        self._terms = terms
        self._station = NodeApi(terms.timeout_s, manifests)
        self._dropped = AsyncSessionReaper(shared)
        self._is_closed = False

    def _session(self, conversation: SessionFlows) -> AsyncSession:
        return AsyncSession(conversation, self._shared, self._terms, self._dropped)

    async def _finish(self, flow: Flow[T]) -> T:
        if self._is_closed:
            raise InvalidValue("The client is closed.", hint="Make another one.")
        return await finish(flow, self._shared.line(), self._terms)
