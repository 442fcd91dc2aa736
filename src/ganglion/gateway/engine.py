"""A fleet as one Engine: whoever holds the model answers, and nobody notices who it was.

Law: before the first of an answer another node may be asked; after it a failure is the answer's end. No text
is ever told twice.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Final, TypeVar

from ganglion.core.engine import (
    Embedded,
    EmbedRequest,
    ModelState,
    Ranked,
    RankRequest,
    ReadPrompt,
    TokenizerInfo,
)
from ganglion.core.errors import EngineUnavailable, GanglionError, RequestQuarantined
from ganglion.core.events import Delta, Event, Failed, Finished, Opened
from ganglion.core.request import ChatPrompt, Request, TextPrompt
from ganglion.gateway.affinity import affinity_of
from ganglion.gateway.attempts import Attempts, Poke, is_deadly
from ganglion.gateway.decision import Asked, Chooser, Translated
from ganglion.gateway.fleet import Fleet
from ganglion.gateway.loading import Loader
from ganglion.gateway.node import NodeSpec, NodeView, Wire
from ganglion.gateway.outbound import Outbound
from ganglion.gateway.prompts import CALL_S, Prompts
from ganglion.gateway.quarantine import TOOK_DOWN, Quarantine
from ganglion.gateway.remote import RemoteChat, RemoteDeadlines
from ganglion.gateway.signing import trusted_headers
from ganglion.gateway.union import union
from ganglion.wire import measuring
from ganglion.wire.chat.asking import asking
from ganglion.wire.chat.refusal import refusal_of

T = TypeVar("T")
Call = Callable[[NodeSpec, str], Awaitable[T]]
"""Something asked of a node that knows the model by this name."""

_MAX_PREFIX_MESSAGES: Final = 4


class FleetEngine:
    """An Engine, PromptReader and Embedder over every node; it holds nothing between requests.

    `catalogue` tells what could be loaded, as one tuple until it changes; `poke` hears of nodes that failed.
    """

    def __init__(
        self,
        fleet: Fleet,
        chooser: Chooser,
        outbound: Outbound,
        loader: Loader,
        *,
        catalogue: Callable[[], tuple[ModelState, ...]] = tuple,
        poke: Poke | None = None,
        deadlines: RemoteDeadlines | None = None,
        quarantine: Quarantine | None = None,
    ) -> None:
        self._fleet = fleet
        self._chooser = chooser
        self._outbound = outbound
        self._loader = loader
        self._catalogue = catalogue
        self._poke = poke
        self._remote = RemoteChat(outbound, deadlines)
        self._prompts = Prompts(outbound)
        self._quarantine = Quarantine() if quarantine is None else quarantine
        self._seen: tuple[dict[str, NodeView] | None, tuple[ModelState, ...]] = (None, ())
        self._models: tuple[ModelState, ...] = ()

    async def open(self) -> None:
        """Nothing to start: the fleet is somebody else's."""

    async def close(self) -> None:
        """Nothing to stop."""

    def models(self) -> tuple[ModelState, ...]:
        """Every model of every node, as they were last heard of."""
        nodes, catalogue = self._fleet.nodes, self._catalogue()
        if nodes is not self._seen[0] or catalogue is not self._seen[1]:
            self._seen = nodes, catalogue
            self._models = union(nodes.values(), catalogue)
        return self._models

    async def generate(self, request: Request) -> AsyncGenerator[Event, None]:
        """The answer of whoever can give it."""
        if not self._quarantine.is_empty and self._quarantine.holds(*_suspect(request)):
            yield Failed(RequestQuarantined(TOOK_DOWN))
            return
        affinity = _affinity(request)
        attempts = self._attempts(request.model, "chat", affinity)
        while True:
            try:
                chosen = await attempts.next()
            except GanglionError as error:
                yield Failed(error)
                return
            spec, held, has_begun, told = chosen.node, list[Event](), False, None
            answer = self._remote.generate(spec, chosen.model, request, affinity=affinity)
            with attempts.running(spec):
                async with aclosing(answer) as events:
                    async for event in events:
                        self._judge(spec, request, event)
                        if has_begun:
                            if isinstance(event, Failed):
                                attempts.broke(spec, event.error)
                            yield event
                        elif isinstance(event, Failed):
                            told = attempts.failed(spec, event.error)
                            break
                        else:
                            held.append(event)
                            if isinstance(event, Opened | Delta | Finished):
                                has_begun = True
                                attempts.answered(spec)
                                for waiting in held:
                                    yield waiting
            if has_begun:
                return
            if told is not None:
                yield Failed(told)
                return

    def _judge(self, spec: NodeSpec, request: Request, event: Event) -> None:
        """Remember under which request a node was lost, until the same one is answered."""
        if isinstance(event, Failed) and is_deadly(event.error):
            self._quarantine.blame(spec.name, *_suspect(request))
        elif not self._quarantine.is_empty and isinstance(event, Finished):
            self._quarantine.acquit(*_suspect(request))

    async def read(self, request: Request) -> ReadPrompt:
        """The prompt as the model's own server reads it."""

        async def call(spec: NodeSpec, model: str) -> ReadPrompt:
            return await self._prompts.read(spec, model, request)

        return await self._whole(request.model, "prompt", call)

    async def detokenize(self, model: str, tokens: tuple[int, ...]) -> str:
        """Ids to text."""

        async def call(spec: NodeSpec, name: str) -> str:
            return await self._prompts.detokenize(spec, name, tokens)

        return await self._whole(model, "prompt", call)

    async def pieces(self, model: str, tokens: tuple[int, ...]) -> tuple[bytes, ...]:
        """No server tells the bytes of tokens that it did not just make of a text."""
        raise EngineUnavailable("A gateway does not tell the bytes of single tokens; ask the node.")

    async def tokenizer_info(self, model: str) -> TokenizerInfo:
        """The model's tokenizer and template."""

        async def call(spec: NodeSpec, name: str) -> TokenizerInfo:
            return await self._prompts.info(spec, name)

        return await self._whole(model, "prompt", call)

    async def embed(self, request: EmbedRequest) -> Embedded:
        """Vectors of whoever makes them."""

        async def call(spec: NodeSpec, model: str) -> Embedded:
            body = measuring.embed_body(request, model, is_ours=spec.kind == "ganglion")
            answer = await self._post(spec, "/v1/embeddings", body, request)
            return measuring.embedded_of(answer, request)

        return await self._whole(request.model, "embeddings", call)

    async def rank(self, request: RankRequest) -> Ranked:
        """The ranking of a node that ranks."""

        async def call(spec: NodeSpec, model: str) -> Ranked:
            answer = await self._post(spec, "/v1/rerank", measuring.rank_body(request, model), request)
            return measuring.ranked_of(answer, request)

        return await self._whole(request.model, "rerank", call)

    async def _post(
        self, spec: NodeSpec, path: str, body: bytes, request: EmbedRequest | RankRequest
    ) -> bytes:
        headers = trusted_headers(spec, tenant=request.tenant, request_id=request.id)
        answer = await self._outbound.call(spec, "POST", path, headers=headers, body=body, timeout_s=CALL_S)
        if answer.status != 200:
            raise refusal_of(answer.status, answer.headers, answer.body, model=request.model)
        return answer.body

    async def _whole(self, model: str, wire: Wire, call: Call[T]) -> T:
        """One call under the same rules as an answer; raises what the last node said."""
        attempts = self._attempts(model, wire)
        while True:
            chosen = await attempts.next()
            spec = chosen.node
            if isinstance(chosen, Translated) and wire != "prompt":
                raise EngineUnavailable(f"No server that holds {model!r} answers this ({wire}).")
            with attempts.running(spec):
                try:
                    answer = await call(spec, chosen.model)
                except EngineUnavailable:
                    raise
                except GanglionError as error:
                    told = attempts.failed(spec, error)
                    if told is not None:
                        raise told from None
                else:
                    attempts.answered(spec)
                    return answer

    def _attempts(self, model: str, wire: Wire, affinity: str = "") -> Attempts:
        asked = Asked(model, wire, affinity)
        return Attempts(self._fleet, self._chooser, self._loader, asked, self._poke)


def _beginning(prompt: ChatPrompt) -> list[str]:
    """Up to the first of the user's messages: what tells conversations apart and is the same at each turn."""
    begun: list[str] = []
    for message in prompt.messages[:_MAX_PREFIX_MESSAGES]:
        begun.append(f"{message.role} {message.content}")
        if message.role == "user":
            break
    return begun


def _suspect(request: Request) -> tuple[str, bytes, bytes]:
    """What a request is known by once a node was lost under it."""
    try:
        body = asking(request, request.model, is_ours=True)
    except GanglionError:  # and so is it refused before any node hears of it
        body = b""
    return request.tenant, b"", body


def _affinity(request: Request) -> str:
    """What its client says it belongs with, else how its prompt begins."""
    prompt = request.prompt
    if request.affinity:
        return affinity_of(request.tenant, request.model, request.affinity)
    if isinstance(prompt, ChatPrompt):
        return affinity_of(request.tenant, request.model, *_beginning(prompt))
    return affinity_of(request.tenant, request.model, prompt.text if isinstance(prompt, TextPrompt) else "")
