"""Calls to one node: a chat request whose answer is read as events, and calls about prompts.

Law: leaving the generator cuts the connection, which cancels the work there. A fault of the node is
`BrokenAnswer`, and the last that comes; `Failed` is a request that was not even sent.
"""

import asyncio
import re
import uuid
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import quote

from ganglion.core.engine import Embedded, EmbedRequest, Ranked, RankRequest, ReadPrompt, TokenizerInfo
from ganglion.core.errors import (
    DeadlineExceeded,
    GanglionError,
    InvalidValue,
    UpstreamUnavailable,
    WireUnsupported,
)
from ganglion.core.events import Closed, Delta, Event, Failed, Opened
from ganglion.core.request import ChatPrompt, Request, TokenPrompt
from ganglion.core.sampling import Sampling, resolve
from ganglion.gateway.failover import RunningCall, fault_of
from ganglion.gateway.node import NodeSpec
from ganglion.gateway.routing.retry import ErrorAnswer, NodeFault, NodeOutcome, error_code_of
from ganglion.gateway.upstream.node_client import NodeClient, NodeResponse, NodeResponseStream
from ganglion.gateway.upstream.node_headers import json_headers
from ganglion.gateway.upstream.upstream_connection import Headers
from ganglion.text.message_order import stricter_orders
from ganglion.text.tools.custom import CustomText
from ganglion.wire.headers import INCLUDE_THINKING
from ganglion.wire.upstream import auxiliary_calls
from ganglion.wire.upstream.chat_request import encode_request
from ganglion.wire.upstream.stream_decoder import ChatStreamDecoder
from ganglion.wire.upstream.upstream_errors import decode_error_response

_LACKS_ROUTE: Final = (404, 405, 501)
"""What servers say of a route that they do not have, or have switched off."""


class NodeRefused(Exception):
    """A node answered with an error: the outcome for `routing.retry`, and the error for the client."""

    def __init__(self, outcome: ErrorAnswer, error: GanglionError) -> None:
        super().__init__(error.message)
        self.outcome = outcome
        self.error = error


def _node_refusal(answer: NodeResponse, model: str) -> NodeRefused:
    """The error of an answer other than 200; a route that is missing is missing for good."""
    outcome = ErrorAnswer(answer.status, error_code_of(answer.body))
    is_about_model = b"model" in answer.body.lower()
    if answer.status in _LACKS_ROUTE and not is_about_model:
        return NodeRefused(outcome, _unsupported_call(model))
    return NodeRefused(
        outcome, decode_error_response(answer.status, answer.headers, answer.body, model=model)
    )


def _unsupported_call(model: str) -> WireUnsupported:
    """The error where the server that holds a model lacks the route."""
    return WireUnsupported(f"The server that holds {model!r} does not answer calls of this kind.")


class _CustomToolText:
    """Unwraps the calls of custom tools in a stream of events: their input is bare text."""

    def __init__(self, tools: frozenset[str]) -> None:
        self._tools = tools
        self._text: CustomText | None = None

    def feed(self, events: Sequence[Event]) -> Sequence[Event]:
        """The events, with bare text in these tools' calls."""
        if not self._tools:
            return events
        events_out: list[Event] = []
        for event in events:
            match event:
                case Opened(kind="tool_call", name=name) if name in self._tools:
                    self._text = CustomText()
                    events_out.append(event)
                case Delta(index=index, text=text, tokens=tokens) if self._text is not None:
                    bare = self._text.feed(text)
                    if bare or tokens:
                        events_out.append(Delta(index, bare, tokens))
                case Closed(index=index) if self._text is not None:
                    rest, self._text = self._text.finish(), None
                    events_out += [Delta(index, rest), event] if rest else [event]
                case _:
                    events_out.append(event)
        return events_out


_PATH: Final = "/v1/chat/completions"
_LAST_BYTES_S: Final = 0.05
"""How long the end of a response may take after its last event: then its connection can be kept."""
_STRICT_TEMPLATE: Final = re.compile(rb"jinja|template|role|system message", re.I)
"""What servers say when a model's template refuses the order of messages."""


@dataclass(frozen=True, slots=True)
class BrokenAnswer:
    """An answer that broke off: the outcome for `routing.retry`, and the error for the client."""

    outcome: NodeOutcome
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

    def __init__(self, node_client: NodeClient, deadlines: RemoteDeadlines | None = None) -> None:
        self._node_client = node_client
        self._deadlines = deadlines or RemoteDeadlines()

    async def generate(
        self,
        call: RunningCall,
        model: str,
        request: Request,
        *,
        affinity: str = "",
        defaults: Sampling = Sampling(),  # noqa: B008 - a frozen value
    ) -> AsyncGenerator[Event | BrokenAnswer, None]:
        """The answer of one node, which knows the model by this name and has these defaults for it."""
        spec = call.spec
        is_ours = spec.is_ours
        try:
            headers = _headers(spec, request, affinity)
            for attempt, is_last in _attempts(request, is_ours=is_ours):
                body = encode_request(attempt, model, is_ours=is_ours)
                async with self._begun(call, headers, body) as response:
                    if response.status != 200:
                        async with call.within(self._deadlines.idle_s, "idle"):
                            error_body = await response.whole()
                        error = decode_error_response(
                            response.status, response.headers, error_body, model=request.model
                        )
                        if not is_last and _is_about_order(response.status, error, error_body):
                            continue
                        yield BrokenAnswer(ErrorAnswer(response.status, error_code_of(error_body)), error)
                        return
                    unwrap = _CustomToolText(frozenset() if is_ours else _custom_tools(request))
                    decoder = ChatStreamDecoder(
                        new_call_id=_new_call_id,
                        model=request.model,
                        has_readout=request.wants_readout,
                        sampling=resolve(request.sampling, defaults),
                    )
                    while not decoder.is_done:
                        events, fault = await self._next(call, response, decoder)
                        for event in unwrap.feed(events):
                            yield _event_or_broken(event, fault)
                    return
        except GanglionError as error:
            fault = fault_of(error)
            yield Failed(error) if fault is None else BrokenAnswer(fault, error)

    @asynccontextmanager
    async def _begun(
        self, call: RunningCall, headers: Headers, body: bytes
    ) -> AsyncGenerator[NodeResponseStream, None]:
        """A response whose head has come."""
        async with AsyncExitStack() as stack:
            async with call.within(self._deadlines.head_s, "first_token"):
                stream = self._node_client.stream(call.spec, "POST", _PATH, headers=headers, body=body)
                response = await stack.enter_async_context(stream)
            yield response

    async def _next(
        self, call: RunningCall, response: NodeResponseStream, decoder: ChatStreamDecoder
    ) -> tuple[list[Event], NodeFault | None]:
        """The events of what came next, also of its end, and the fault where it ended too early."""
        try:
            async with call.within(self._deadlines.idle_s, "idle"):
                if _is_whole(response):
                    return decoder.whole(await response.whole()), None
                data = await response.read()
        except (DeadlineExceeded, UpstreamUnavailable) as error:
            return decoder.end(error), fault_of(error)
        if not data:
            return decoder.end(), NodeFault.LOST
        events = decoder.feed(data)
        if decoder.is_done and not response.is_over:
            with suppress(TimeoutError, UpstreamUnavailable):
                async with asyncio.timeout(_LAST_BYTES_S):
                    while await response.read():
                        pass
        return events, None


def _event_or_broken(event: Event, fault: NodeFault | None) -> Event | BrokenAnswer:
    """A failure inside a stream as a broken answer: of the connection, or reported by the node."""
    if not isinstance(event, Failed):
        return event
    error = event.error
    return BrokenAnswer(fault or ErrorAnswer(error.status, error.code), error)


def _headers(spec: NodeSpec, request: Request, affinity: str) -> Headers:
    headers = json_headers(
        spec, tenant=request.tenant, request_id=request.id, priority=request.priority, affinity=affinity
    )
    headers.append((b"accept", b"text/event-stream"))
    if request.keep_markers and spec.is_ours:
        headers.append((INCLUDE_THINKING, b"1"))
    return headers


def _attempts(request: Request, *, is_ours: bool) -> Iterator[tuple[Request, bool]]:
    """The request as it is; then, for a foreign server, in orders of messages that strict templates accept.

    Each with whether it is the last.
    """
    prompt = request.prompt
    attempts = [request]
    if not is_ours and isinstance(prompt, ChatPrompt):
        attempts += [
            replace(request, prompt=replace(prompt, messages=moved))
            for moved in stricter_orders(prompt.messages)
        ]
    for place, attempt in enumerate(attempts, start=1):
        yield attempt, place == len(attempts)


def _is_about_order(status: int, error: GanglionError, error_body: bytes) -> bool:
    is_candidate = status in (400, 500) and isinstance(error, InvalidValue | UpstreamUnavailable)
    return is_candidate and _STRICT_TEMPLATE.search(error_body) is not None


def _custom_tools(request: Request) -> frozenset[str]:
    prompt = request.prompt
    if not isinstance(prompt, ChatPrompt):
        return frozenset()
    return frozenset(tool.name for tool in prompt.tool_use.tools if tool.is_custom)


def _new_call_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"


def _is_whole(response: NodeResponseStream) -> bool:
    """Whether a server answered with one document, though it was asked for a stream."""
    return any(
        name == b"content-type" and value.startswith(b"application/json") for name, value in response.headers
    )


_CALL_S: Final = 60.0


class RemoteCalls:
    """Calls nodes about prompts, tokenizers, vectors and ranks; raises GanglionError and NodeRefused."""

    def __init__(self, node_client: NodeClient) -> None:
        self._node_client = node_client

    async def read(self, spec: NodeSpec, model: str, request: Request) -> ReadPrompt:
        """The prompt rendered and tokenized by the server that would answer it."""
        prompt, is_ours = request.prompt, spec.is_ours
        if isinstance(prompt, TokenPrompt):
            return ReadPrompt(prompt.tokens)
        if isinstance(prompt, ChatPrompt):
            chat = encode_request(request, model, is_ours=is_ours)
            return await (self._our_chat if is_ours else self._foreign_chat)(spec, model, request, chat)
        body = auxiliary_calls.encode_tokenize(
            model, prompt.text, adds_special=prompt.adds_special, is_ours=is_ours
        )
        answer = await self._post(spec, "/tokenize", body, request.tenant)
        return ReadPrompt(auxiliary_calls.decode_tokens(_body_of(answer, model)), prompt.text)

    async def embed(self, spec: NodeSpec, model: str, request: EmbedRequest) -> Embedded:
        """The vectors of its inputs."""
        body = auxiliary_calls.encode_embed(request, model, is_ours=spec.is_ours)
        answer = await self._post(spec, "/v1/embeddings", body, request.tenant, request.id)
        return auxiliary_calls.decode_embedded(_body_of(answer, request.model), request)

    async def rank(self, spec: NodeSpec, model: str, request: RankRequest) -> Ranked:
        """The ranks of its documents."""
        body = auxiliary_calls.encode_rank(request, model)
        answer = await self._post(spec, "/v1/rerank", body, request.tenant, request.id)
        return auxiliary_calls.decode_ranked(_body_of(answer, request.model), request)

    async def detokenize(self, spec: NodeSpec, model: str, tokens: tuple[int, ...], tenant: str) -> str:
        """The text of token ids."""
        answer = await self._post(
            spec, "/detokenize", auxiliary_calls.encode_detokenize(model, tokens), tenant
        )
        return auxiliary_calls.decode_text(_body_of(answer, model))

    async def info(self, spec: NodeSpec, model: str) -> TokenizerInfo:
        """The tokenizer of one of our nodes' models."""
        if not spec.is_ours:
            raise _unsupported_call(model)
        path = f"/tokenizer_info?model={quote(model, safe='')}"
        headers = json_headers(spec, tenant="")
        answer = await self._node_client.call(spec, "GET", path, headers=headers, timeout_s=_CALL_S)
        return auxiliary_calls.decode_tokenizer_info(_body_of(answer, model))

    async def _our_chat(self, spec: NodeSpec, model: str, request: Request, chat: bytes) -> ReadPrompt:
        counted = await self._post(spec, "/tokenize", chat, request.tenant)
        tokens = auxiliary_calls.decode_tokens(_body_of(counted, model))
        shown = await self._post(spec, "/apply_template", chat, request.tenant)
        return ReadPrompt(tokens, auxiliary_calls.decode_text(_body_of(shown, model)))

    async def _foreign_chat(self, spec: NodeSpec, model: str, request: Request, chat: bytes) -> ReadPrompt:
        """llama-server's way, then vLLM's; an estimate would be worse than no answer."""
        shown = await self._post(spec, "/apply-template", chat)
        if shown.status not in _LACKS_ROUTE:
            text = auxiliary_calls.decode_text(_body_of(shown, model))
            counted = await self._post(spec, "/tokenize", auxiliary_calls.encode_tokenize_content(text))
            return ReadPrompt(auxiliary_calls.decode_tokens(_body_of(counted, model)), text)
        counted = await self._post(spec, "/tokenize", chat)
        return ReadPrompt(auxiliary_calls.decode_tokens(_body_of(counted, model)))

    async def _post(
        self, spec: NodeSpec, path: str, body: bytes, tenant: str = "", request_id: str = ""
    ) -> NodeResponse:
        headers = json_headers(spec, tenant=tenant, request_id=request_id)
        return await self._node_client.call(spec, "POST", path, headers=headers, body=body, timeout_s=_CALL_S)


def _body_of(answer: NodeResponse, model: str) -> bytes:
    if answer.status != 200:
        raise _node_refusal(answer, model)
    return answer.body
