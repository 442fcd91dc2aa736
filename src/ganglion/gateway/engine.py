"""The fleet as one Engine: a request goes to a node that holds its model, and clients do not notice which.

Law: before the first event of an answer another node may be tried; after it a failure is the answer's end. An
answer that is given out whole is kept back until it is complete, so that it may begin again. No text is ever
sent twice.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing
from functools import partial
from typing import Final, TypeVar

from ganglion.core.attachments import attachments_of
from ganglion.core.engine import (
    Embedded,
    EmbedRequest,
    ModelState,
    Ranked,
    RankRequest,
    ReadPrompt,
    TokenizerInfo,
)
from ganglion.core.errors import GanglionError, RequestQuarantined, WireUnsupported
from ganglion.core.events import Delta, Event, Failed, Finished, Opened, Progress
from ganglion.core.request import ChatPrompt, Request, TextPrompt
from ganglion.gateway.access.admission import note_answering_model
from ganglion.gateway.failover import Failover, ProbeNow, RunningCall, fault_of
from ganglion.gateway.fleet.fleet import Fleet
from ganglion.gateway.fleet.quarantine import QUARANTINED_MESSAGE, Quarantine, Suspicion
from ganglion.gateway.node import NodeSpec, NodeView, Replica
from ganglion.gateway.placing.held_models import merge_models
from ganglion.gateway.remote import BrokenAnswer, NodeRefused, RemoteCalls, RemoteChat, RemoteDeadlines
from ganglion.gateway.routing.affinity import affinity_of
from ganglion.gateway.routing.decision import Chooser, ModelLoader, RoutingRequest
from ganglion.gateway.routing.retry import ErrorAnswer, NodeOutcome
from ganglion.gateway.upstream.node_client import NodeClient
from ganglion.wire.dialect import Wire
from ganglion.wire.dialects import EMBEDDINGS_WIRE, PROMPT_WIRE, RERANK_WIRE, TRANSLATION_WIRE
from ganglion.wire.upstream.chat_request import encode_request

_T = TypeVar("_T")
_NodeCall = Callable[[NodeSpec, str], Awaitable[_T]]
"""A call to a node, with the name by which it knows the model."""

_MAX_PREFIX_MESSAGES: Final = 4


class FleetEngine:
    """An Engine, PromptReader and Embedder over every node; it holds nothing between requests.

    `catalogue` lists what could be loaded, as one tuple until it changes, `listed_as` is what clients call a
    node's replica, and `probe_now` probes nodes that failed.
    """

    def __init__(
        self,
        fleet: Fleet,
        chooser: Chooser,
        node_client: NodeClient,
        loader: ModelLoader,
        *,
        catalogue: Callable[[], tuple[ModelState, ...]] = tuple,
        listed_as: Callable[[NodeView, Replica], str] = lambda view, replica: replica.id,
        probe_now: ProbeNow = lambda name: None,
        deadlines: RemoteDeadlines | None = None,
        quarantine: Quarantine | None = None,
    ) -> None:
        self._fleet = fleet
        self._chooser = chooser
        self._loader = loader
        self._catalogue = catalogue
        self._listed_as = listed_as
        self._probe_now = probe_now
        self._remote = RemoteChat(node_client, deadlines)
        self._calls = RemoteCalls(node_client)
        self._quarantine = Quarantine() if quarantine is None else quarantine
        self._seen: tuple[object, object, object] = (None, None, None)
        self._models: tuple[ModelState, ...] = ()

    async def open(self) -> None:
        """Nothing to start: the fleet runs by itself."""

    async def close(self) -> None:
        """Nothing to stop."""

    def models(self) -> tuple[ModelState, ...]:
        """Every model of every node, as they last reported."""
        nodes, catalogue = self._fleet.nodes, self._catalogue()
        seen = nodes, catalogue, self._fleet.learned
        if any(now is not before for now, before in zip(seen, self._seen, strict=True)):
            self._seen = seen
            self._models = merge_models(nodes.values(), catalogue, self._listed_as)
        return self._models

    async def generate(self, request: Request) -> AsyncGenerator[Event, None]:
        """The answer of a node that holds the model."""
        if self._suspicion(request) is Suspicion.REFUSED:
            yield Failed(RequestQuarantined(QUARANTINED_MESSAGE))
            return
        affinity = _affinity(request)
        failover = self._failover(
            request.model,
            TRANSLATION_WIRE,
            affinity,
            lambda: self._suspicion(request),
            tenant=request.tenant,
            has_images=_has_images(request),
        )
        while True:
            try:
                chosen = await failover.next()
            except GanglionError as error:
                yield Failed(error)
                return
            held, failed = _HeldEvents(is_folded=request.is_folded), None
            defaults = self._fleet.sampling_of(chosen.node, chosen.model)
            with failover.running(chosen.node) as call:
                answer = self._remote.generate(
                    call, chosen.model, request, affinity=affinity, defaults=defaults
                )
                async with aclosing(answer) as events:
                    async for event in events:
                        if isinstance(event, BrokenAnswer):
                            failed = self._failed(failover, call, request, event, held)
                            break
                        if isinstance(event, Finished):
                            self._went_well(failover, call, request)
                        for given in held.take(event):
                            note_answering_model(chosen.booked_as or request.model)
                            yield given
            if failed is not None:
                yield failed
            if failed is not None or held.has_begun:
                return

    def _failed(
        self,
        failover: Failover,
        call: RunningCall,
        request: Request,
        broken: BrokenAnswer,
        held: "_HeldEvents",
    ) -> Failed | None:
        """Note how a node failed; None where another one is tried."""
        decision, loss = failover.failed(call, broken.outcome, is_given_out=held.has_begun)
        if loss is not None:
            self._quarantine.blame(loss, *_suspect(request))
        error_for_client = failover.goes_on(call.spec, decision, broken.error)
        return None if error_for_client is None else Failed(error_for_client)

    def _went_well(self, failover: Failover, call: RunningCall, request: Request) -> None:
        failover.answered(call.spec)
        if not self._quarantine.is_empty:
            self._quarantine.acquit(*_suspect(request))

    def _suspicion(self, request: Request) -> Suspicion:
        if self._quarantine.is_empty:
            return Suspicion.NONE
        return self._quarantine.suspicion(*_suspect(request))

    async def read(self, request: Request) -> ReadPrompt:
        """The prompt as the model's own server reads it."""
        call = partial(self._calls.read, request=request)
        return await self._whole(request.model, PROMPT_WIRE, call, has_images=_has_images(request))

    async def detokenize(self, model: str, tokens: tuple[int, ...], *, tenant: str = "") -> str:
        """Ids to text."""
        call = partial(self._calls.detokenize, tokens=tokens, tenant=tenant)
        return await self._whole(model, PROMPT_WIRE, call)

    async def pieces(self, model: str, tokens: tuple[int, ...], *, tenant: str = "") -> tuple[bytes, ...]:
        """Not supported: no server reports the bytes of single tokens."""
        raise WireUnsupported("A gateway does not report the bytes of single tokens; ask the node.")

    async def tokenizer_info(self, model: str) -> TokenizerInfo:
        """The model's tokenizer and template."""
        return await self._whole(model, PROMPT_WIRE, self._calls.info)

    async def embed(self, request: EmbedRequest) -> Embedded:
        """The vectors of a node that embeds."""
        return await self._whole(request.model, EMBEDDINGS_WIRE, partial(self._calls.embed, request=request))

    async def rank(self, request: RankRequest) -> Ranked:
        """The ranking of a node that ranks."""
        return await self._whole(request.model, RERANK_WIRE, partial(self._calls.rank, request=request))

    async def _whole(self, model: str, wire: Wire, call: _NodeCall[_T], *, has_images: bool = False) -> _T:
        """One call under the same rules as an answer; raises the last node's error."""
        failover = self._failover(model, wire, has_images=has_images)
        outcome: NodeOutcome
        while True:
            chosen = await failover.next()
            spec = chosen.node
            with failover.running(spec) as running:
                try:
                    async with running.within(None, wire):
                        answer = await call(spec, chosen.model)
                except NodeRefused as refusal:
                    outcome, error = refusal.outcome, refusal.error
                except GanglionError as failed:
                    outcome, error = fault_of(failed) or ErrorAnswer(failed.status, failed.code), failed
                else:
                    failover.answered(spec)
                    note_answering_model(chosen.booked_as or model)
                    return answer
                decision, _ = failover.failed(running, outcome)
                error_for_client = failover.goes_on(spec, decision, error)
                if error_for_client is not None:
                    raise error_for_client

    def _failover(
        self,
        model: str,
        wire: Wire,
        affinity: str = "",
        suspicion: Callable[[], Suspicion] = lambda: Suspicion.NONE,
        *,
        tenant: str = "",
        has_images: bool = False,
    ) -> Failover:
        request = RoutingRequest(model, wire, affinity, tenant=tenant, has_images=has_images)
        return Failover(
            self._fleet, self._chooser, self._loader, request, probe_now=self._probe_now, suspicion=suspicion
        )


class _HeldEvents:
    """Events that are kept back, since another node may still give the answer."""

    def __init__(self, *, is_folded: bool) -> None:
        self._is_folded = is_folded
        self._events: list[Event] = []
        self.has_begun = False
        """Whether any of the answer was given out."""

    def take(self, event: Event) -> Iterable[Event]:
        """The events to give out now that this one has come."""
        if self.has_begun:
            return (event,)
        self._events.append(event)
        if self._is_folded and isinstance(event, Delta):
            count = len(self._events)
            return (Progress("generated", count, count),)
        begins = (Finished, Failed) if self._is_folded else (Opened, Delta, Finished, Failed)
        self.has_begun = isinstance(event, begins)
        return self._events if self.has_begun else ()


def _beginning(prompt: ChatPrompt) -> list[str | bytes]:
    """The messages up to the first of the user's: different in each conversation, the same at each turn."""
    begun: list[str | bytes] = []
    for message in prompt.messages[:_MAX_PREFIX_MESSAGES]:
        begun.append(f"{message.role} {message.content}")
        begun += [each.data or each.url for each in message.attachments]
        if message.role == "user":
            break
    return begun


def _has_images(request: Request) -> bool:
    return any(each.kind == "image" for each in attachments_of(request.prompt))


def _suspect(request: Request) -> tuple[str, bytes, bytes]:
    """What identifies a request in the quarantine."""
    try:
        body = encode_request(request, request.model, is_ours=True)
    except GanglionError:  # and so is it refused before any node hears of it
        body = b""
    return request.tenant, b"", body


def _affinity(request: Request) -> str:
    """The conversation that the client names, else the beginning of the prompt."""
    prompt = request.prompt
    if request.affinity:
        return affinity_of(request.tenant, request.model, request.affinity)
    if isinstance(prompt, ChatPrompt):
        has_images = bool(attachments_of(prompt))
        return affinity_of(request.tenant, request.model, *_beginning(prompt), has_images=has_images)
    return affinity_of(request.tenant, request.model, prompt.text if isinstance(prompt, TextPrompt) else "")
