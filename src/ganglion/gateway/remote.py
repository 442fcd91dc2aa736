"""One answer of one node as events: a chat request out, its stream read as it comes.

Law: leaving the generator cuts the connection, which cancels the work there. What the node did wrong is
`Broken`, and the last that comes; `Failed` is what it was not even asked for.
"""

import asyncio
import re
import uuid
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Final

from ganglion.core.errors import DeadlineExceeded, GanglionError, InvalidValue, UpstreamUnavailable
from ganglion.core.events import Event, Failed
from ganglion.core.request import ChatPrompt, Request, Sampling, resolve
from ganglion.gateway.attempts import RunningCall, fault_of
from ganglion.gateway.free_text import FreeText
from ganglion.gateway.node import NodeSpec
from ganglion.gateway.outbound import Incoming, Outbound
from ganglion.gateway.retry import Answered, Fault, Outcome, code_of
from ganglion.gateway.signing import trusted_headers
from ganglion.gateway.upstream import Headers
from ganglion.text.accommodation import accommodations
from ganglion.wire.chat.asking import asking
from ganglion.wire.chat.hearing import Hearing
from ganglion.wire.chat.refusal import refusal_of

_PATH: Final = "/v1/chat/completions"
_LAST_BYTES_S: Final = 0.05
"""For the end of a response whose last event is there: then its connection can be kept."""
_STRICT_TEMPLATE: Final = re.compile(rb"jinja|template|role|system message", re.I)
"""What servers say when a model's template refuses the order of messages."""


@dataclass(frozen=True, slots=True)
class Broken:
    """An answer that ends without its end: what happened, and what a client would be told of it."""

    outcome: Outcome
    error: GanglionError


@dataclass(frozen=True, slots=True)
class RemoteDeadlines:
    """How long a node may be silent."""

    head_s: float = 600.0
    """Until it begins to answer: some servers send nothing while a request waits."""
    idle_s: float = 120.0
    """Between its bytes after that; a comment is a sign of life."""


class RemoteChat:
    """Speaks chat completions to nodes, ours and foreign ones."""

    def __init__(self, outbound: Outbound, deadlines: RemoteDeadlines | None = None) -> None:
        self._outbound = outbound
        self._deadlines = deadlines or RemoteDeadlines()

    async def generate(
        self,
        call: RunningCall,
        model: str,
        request: Request,
        *,
        affinity: str = "",
        defaults: Sampling = Sampling(),  # noqa: B008 - a frozen value
    ) -> AsyncGenerator[Event | Broken, None]:
        """The answer of one node, which knows the model by this name and has these defaults for it."""
        spec = call.spec
        is_ours = spec.kind == "ganglion"
        try:
            headers = _headers(spec, request, affinity)
            for asked, is_last in _attempts(request, is_ours=is_ours):
                body = asking(asked, model, is_ours=is_ours)
                async with self._begun(call, headers, body) as incoming:
                    if incoming.status != 200:
                        said = await self._whole(call, incoming)
                        error = refusal_of(incoming.status, incoming.headers, said, model=request.model)
                        if not is_last and _is_about_order(incoming.status, error, said):
                            continue
                        yield Broken(Answered(incoming.status, code_of(said)), error)
                        return
                    unwrap = FreeText(frozenset() if is_ours else _custom_tools(request))
                    hearing = _hearing(request, defaults)
                    while not hearing.is_done:
                        events, fault = await self._next(call, incoming, hearing)
                        for event in unwrap.feed(events):
                            yield _judged(event, fault)
                    return
        except GanglionError as error:
            fault = fault_of(error)
            yield Failed(error) if fault is None else Broken(fault, error)

    @asynccontextmanager
    async def _begun(
        self, call: RunningCall, headers: Headers, body: bytes
    ) -> AsyncGenerator[Incoming, None]:
        """A response whose head is there."""
        async with AsyncExitStack() as stack:
            async with call.within(self._deadlines.head_s, "first_token"):
                stream = self._outbound.stream(call.spec, "POST", _PATH, headers=headers, body=body)
                incoming = await stack.enter_async_context(stream)
            yield incoming

    async def _next(
        self, call: RunningCall, incoming: Incoming, hearing: Hearing
    ) -> tuple[list[Event], Fault | None]:
        """The events of whatever came next, also of an end, and what made it one where nobody said so."""
        try:
            async with call.within(self._deadlines.idle_s, "idle"):
                if _is_whole(incoming):
                    return hearing.whole(await incoming.whole()), None
                data = await incoming.read()
        except (DeadlineExceeded, UpstreamUnavailable) as error:
            return hearing.end(error), fault_of(error)
        if not data:
            return hearing.end(), Fault.LOST
        events = hearing.feed(data)
        if hearing.is_done and not incoming.is_over:
            with suppress(TimeoutError, UpstreamUnavailable):
                async with asyncio.timeout(_LAST_BYTES_S):
                    while await incoming.read():
                        pass
        return events, None

    async def _whole(self, call: RunningCall, incoming: Incoming) -> bytes:
        async with call.within(self._deadlines.idle_s, "idle"):
            return await incoming.whole()


def _judged(event: Event, fault: Fault | None) -> Event | Broken:
    """A failure inside a stream as what it is: of the connection, or told by the node."""
    if not isinstance(event, Failed):
        return event
    error = event.error
    return Broken(fault or Answered(error.status, error.code), error)


def _headers(spec: NodeSpec, request: Request, affinity: str) -> Headers:
    headers = trusted_headers(
        spec, tenant=request.tenant, request_id=request.id, priority=request.priority, affinity=affinity
    )
    headers.append((b"accept", b"text/event-stream"))
    if request.keep_markers and spec.kind == "ganglion":
        headers.append((b"x-include-thinking", b"1"))
    return headers


def _attempts(request: Request, *, is_ours: bool) -> Iterator[tuple[Request, bool]]:
    """The request as it is; then, for a foreign server, as templates take it that are strict about turns.

    Each with whether it is the last.
    """
    prompt = request.prompt
    attempts = [request]
    if not is_ours and isinstance(prompt, ChatPrompt):
        attempts += [
            replace(request, prompt=replace(prompt, messages=moved))
            for moved in accommodations(prompt.messages)
        ]
    for place, attempt in enumerate(attempts, start=1):
        yield attempt, place == len(attempts)


def _is_about_order(status: int, error: GanglionError, said: bytes) -> bool:
    is_candidate = status in (400, 500) and isinstance(error, InvalidValue | UpstreamUnavailable)
    return is_candidate and _STRICT_TEMPLATE.search(said) is not None


def _custom_tools(request: Request) -> frozenset[str]:
    prompt = request.prompt
    if not isinstance(prompt, ChatPrompt):
        return frozenset()
    return frozenset(tool.name for tool in prompt.tool_use.tools if tool.is_custom)


def _hearing(request: Request, defaults: Sampling) -> Hearing:
    return Hearing(
        new_call_id=_new_call_id,
        model=request.model,
        has_readout=request.wants_readout,
        sampling=resolve(request.sampling, defaults),
    )


def _new_call_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"


def _is_whole(incoming: Incoming) -> bool:
    """Whether a server answered with one document, though it was asked for a stream."""
    return any(
        name == b"content-type" and value.startswith(b"application/json") for name, value in incoming.headers
    )
