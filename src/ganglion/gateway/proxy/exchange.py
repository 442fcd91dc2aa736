"""One request from its first byte to its last: let in, put to a node, put to another, passed on, settled.

Law: whatever happens, the client gets one answer, what was reserved is settled once, and nothing is tried
again after the first of an answer has left. As long as nobody must be waited for, no task is made.

Reason for its length: each request is one object on one synchronous path, which is measured, and callbacks of
two connections change its state in any order: here all of them are seen together. What could be taken out is:
who may come in (`authorize`), what follows a failure (`routing.retry`), what it came to (`accounting`), and
the bytes to either side (`upstream_request`, `attempt`, `reply`).
"""

import logging
from collections.abc import Coroutine
from typing import TYPE_CHECKING

from ganglion.core.errors import (
    DeadlineExceeded,
    GanglionError,
    ModelLoading,
    ModelNotLoaded,
    Overloaded,
    ServerError,
    ShuttingDown,
    UpstreamRefused,
    UpstreamUnavailable,
)
from ganglion.core.events import Usage
from ganglion.gateway.access.admission import Admission, AdmissionRequest
from ganglion.gateway.failover import RUNS_ALONE, choose_node, mark_node, may_run_alone
from ganglion.gateway.fleet.node_queue import QueuedRequest
from ganglion.gateway.node import NodeSpec
from ganglion.gateway.proxy.accounting import record, settle, usage_of_attempt, usage_of_whole
from ganglion.gateway.proxy.attempt import NodeAttempt
from ganglion.gateway.proxy.authorize import RequestContext, admission_request, authenticate, inspect_request
from ganglion.gateway.proxy.client_request import ClientRequest
from ganglion.gateway.proxy.heads import is_sane_id
from ganglion.gateway.proxy.reply import ClientReply
from ganglion.gateway.proxy.streams import ForeignEventStream
from ganglion.gateway.proxy.tracing import begin_span
from ganglion.gateway.proxy.upstream_request import UpstreamHead, encode_upstream_request
from ganglion.gateway.routing.decision import (
    ChosenNode,
    ColdModel,
    NoRoute,
    RoutingDecision,
    RoutingRequest,
    TranslatedNode,
)
from ganglion.gateway.routing.retry import (
    UNTRIED,
    ErrorAnswer,
    HealthMark,
    NodeFault,
    NodeOutcome,
    RetryDecision,
    RetryStep,
    decide_retry,
    error_code_of,
)
from ganglion.gateway.upstream.upstream_connection import Headers, UpstreamConnection
from ganglion.wire.headers import REQUEST_ID
from ganglion.wire.upstream.upstream_errors import decode_error_response

if TYPE_CHECKING:
    from ganglion.gateway.proxy.client_connection import ClientConnection
    from ganglion.gateway.proxy.listener import ProxyListener

_logger = logging.getLogger("ganglion.gateway")

_HEAD_HELD_S = 1.0
"""How long a head waits for the first event, which leaves with it and until which all can be tried again."""
_CONTROL_APP_GRACE_S = 5.0
_CLIENT_GONE = 499
_SAFE = (b"GET", b"HEAD")
_NO_STREAM = "The server answered as a whole where a stream was asked for."


class ProxyExchange:
    """One request on its way; observes the attempts that it makes."""

    __slots__ = (
        "_admission",
        "_answer",
        "_attempt",
        "_chosen",
        "_connection",
        "_context",
        "_error",
        "_is_over",
        "_kept_alive_s",
        "_listener",
        "_reply",
        "_state",
        "_unloaded",
        "_usage",
        "_waiter",
        "dialect",
        "takes_usage",
    )

    def __init__(
        self, listener: "ProxyListener", connection: "ClientConnection", call: ClientRequest
    ) -> None:
        given = call.head.named.get(REQUEST_ID)
        name = listener.new_id() if given is None or not is_sane_id(given) else given.decode()
        self._listener = listener
        self._connection = connection
        self._context = context = RequestContext(call, call.head.route, name)
        if listener.settings.tracing is not None:
            context.span = begin_span(listener.settings.tracing, call)
        self._reply = ClientReply(listener, connection, context)
        self.dialect = call.head.route.dialect
        self.takes_usage = False
        """Whether only we want the usage chunk of a foreign server's stream."""
        self._admission: Admission | None = None
        self._attempt: NodeAttempt | None = None
        self._chosen: ChosenNode | None = None
        self._answer: tuple[int, Headers, bytes] | None = None
        """The last refusal that sent the request on."""
        self._error: GanglionError | None = None
        """Or what else did."""
        self._state = UNTRIED
        self._kept_alive_s = 0.0
        self._unloaded: GanglionError | None = None
        """Why a model that was needed could not be loaded."""
        self._usage: Usage | None = None
        self._waiter: QueuedRequest | None = None
        self._is_over = False

    def begin(self) -> None:
        """Go as far as it goes without waiting."""
        self._listener.in_flight += 1
        try:
            self._enter()
        except GanglionError as error:
            self._refuse(error)
        except Exception as error:  # noqa: BLE001  the outermost door of this request
            self._fail(error)

    def _enter(self) -> None:
        listener, context = self._listener, self._context
        route, head = context.route, context.call.head
        if context.call.refusal is not None:
            raise context.call.refusal
        if listener.settings.guard is not None and not head.is_from_here:
            named, is_public = head.named, route.access == "public" and not head.is_socket
            refusal = listener.settings.guard(
                named.get(b"host"), named.get(b"origin"), named.get(b"sec-fetch-site"), is_public
            )
            if refusal is not None:
                raise refusal
            head.is_from_here = True
        if listener.settings.cors_origins and self._reply.is_preflight:
            self._reply.allow()
            self._finish()
            return
        authenticate(context, listener.gatekeeper)
        if listener.is_draining and (head.method not in _SAFE or route.wire is not None or head.is_socket):
            raise ShuttingDown("The gateway is shutting down.")
        if route.wire is None:
            self._try(listener.control_app, None)
            return
        peeked = inspect_request(context, listener.quarantine, listener.fleet)
        if peeked.is_background and route.may_outlast:
            self._route()
        else:
            self._admit(admission_request(context))

    def _admit(self, request: AdmissionRequest) -> None:
        self._admission = self._listener.gatekeeper.admit_now(self._context.identity, request)
        if self._admission is None:
            self._later(self._wait_admitted(request))
        else:
            self._route()

    async def _wait_admitted(self, request: AdmissionRequest) -> None:
        admission = await self._listener.gatekeeper.admit(self._context.identity, request)
        if self._is_over:
            admission.settle(None)
            return
        self._admission = admission
        self._route()

    def _route(self) -> None:
        if self._admission is not None:
            self._context.answer_tokens = self._admission.answer_tokens
        if self._context.route.is_control_app:
            self._try(self._listener.control_app, None)
        else:
            self._choose()

    def _choose(self) -> None:
        context, listener = self._context, self._listener
        assert context.route.wire is not None
        request = RoutingRequest(
            context.model,
            context.route.wire,
            context.affinity,
            self._state.tried,
            tenant=context.identity.tenant,
            has_images=context.has_images,
        )
        if listener.quarantine.is_empty:
            decision, is_alone = listener.chooser.choose(request), False
        else:
            decision, is_alone = self._choose_for_suspect(request)
        # First, and not as a pattern: nearly every request comes by here.
        if isinstance(decision, ChosenNode):
            self._chosen = decision
            self._try(decision.node, decision.model, is_alone=is_alone)
            return
        match decision:
            case TranslatedNode():
                self._try(listener.control_app, None)
            case ColdModel(model):
                self._load_or_give_up(model)
            case NoRoute() if self._state.stale:
                self._state = self._state.readmitting_stale()
                self._choose()
            case NoRoute(error, waits_for):
                if waits_for:
                    self._later(self._wait_for_room(waits_for))
                else:
                    self._give_up(self._unloaded or error)

    def _load_or_give_up(self, model: str) -> None:
        """Wait for a load of the model, unless whoever asks only looks, or it was tried too often."""
        if self._context.call.head.method in _SAFE:
            self._give_up(ModelNotLoaded(model, hint="A GET loads none: ask it something."))
            return
        if self._listener.loader is None or not self._state.may_load:
            self._give_up(self._unloaded or ModelLoading(f"The model {model!r} is not loaded."))
        else:
            self._later(self._load(model))

    async def _wait_for_room(self, nodes: frozenset[str]) -> None:
        queue = self._listener.fleet.queue
        if self._waiter is None:
            self._waiter = queue.waiter(self._context.identity.tenant)
        try:
            await queue.room(self._waiter, nodes)
        except Overloaded as error:
            self._give_up(error)
            return
        if not self._is_over:
            self._choose()

    def _choose_for_suspect(self, request: RoutingRequest) -> tuple[RoutingDecision, bool]:
        """Where a request goes that may have taken a node down, and whether it has that one for itself."""
        listener, context = self._listener, self._context
        path, body = context.call.head.target.path, context.call.body
        suspicion = listener.quarantine.suspicion(context.identity.tenant, path, body)
        decision = choose_node(listener.chooser, request, suspicion)
        if suspicion not in RUNS_ALONE or not isinstance(decision, ChosenNode):
            return decision, False
        return decision, may_run_alone(listener.fleet, listener.chooser, request, decision.node)

    async def _load(self, model: str) -> None:
        assert self._listener.loader is not None
        try:
            await self._listener.loader.load(model)
        except GanglionError as error:
            self._unloaded = error  # the client gets it unless a fallback answers
        if not self._is_over:
            self._state = self._state.after_load()
            self._choose()

    def _try(self, spec: NodeSpec, model: str | None, *, is_alone: bool = False) -> None:
        listener = self._listener
        upstream = listener.upstream_heads.to(spec)
        is_control_app = spec is listener.control_app
        attempt = self._attempt = NodeAttempt(
            self, spec, listener.fleet, is_control_app=is_control_app, is_alone=is_alone
        )
        if is_control_app:
            self._chosen = None
            if self._admission is not None and not self._context.admission_id:
                self._context.admission_id = listener.open_admissions.open(self._admission)
        connection = upstream.pool.take()
        if connection is None:
            self._later(self._connect(attempt, upstream, model))
        else:
            self._ask(attempt, connection, upstream, model)

    async def _connect(self, attempt: NodeAttempt, upstream: UpstreamHead, model: str | None) -> None:
        try:
            connection = await upstream.pool.connect()
        except UpstreamUnavailable as error:
            if self._attempt is attempt:
                self._node_failed(attempt, NodeFault.UNREACHED, error)
            return
        if self._attempt is not attempt:  # it is over, or elsewhere by now
            connection.close()
        else:
            self._ask(attempt, connection, upstream, model)

    def _ask(
        self, attempt: NodeAttempt, connection: UpstreamConnection, upstream: UpstreamHead, model: str | None
    ) -> None:
        context_length = 0 if self._chosen is None else self._chosen.context_length
        encoded = encode_upstream_request(self._context, upstream, model, context_length)
        self.takes_usage = encoded.takes_usage
        attempt.send(connection, encoded.data, self._listener.now_s)

    # What nodes say.

    def whole(self, attempt: NodeAttempt, body: bytes) -> None:
        """A node has answered, and nothing of it has left yet."""
        status = attempt.status
        if 300 <= status < 400 and not attempt.is_control_app:
            self._redirected(attempt)
            return
        if status < 400 or attempt.is_control_app:
            self._succeeded(attempt)
            self._deliver(status, attempt.headers, body)
            return
        has_codes = self._context.route.errors.has_codes
        outcome = ErrorAnswer(status, error_code_of(body) if has_codes else None, has_codes)
        decision = decide_retry(outcome, kind=attempt.spec.kind)
        self._mark(attempt, outcome, decision)
        if decision.step is RetryStep.TELL:
            self._deliver(status, attempt.headers, body)
            return
        self._answer, self._error = (status, attempt.headers, body), None
        if decision.is_key:
            refused = UpstreamRefused(f"The node {attempt.spec.name!r} does not take the gateway's key.")
            refused.extras["node"] = attempt.spec.name
            self._answer = self._reply.error_answer(refused)
        self._retry(attempt, decision)

    def _redirected(self, attempt: NodeAttempt) -> None:
        """A node that sends clients elsewhere is declared wrongly: they cannot go where it can be reached."""
        name, outcome = attempt.spec.name, ErrorAnswer(502, None, False)
        decision = decide_retry(outcome, kind=attempt.spec.kind)
        self._mark(attempt, outcome, decision)
        refused = UpstreamRefused(f"The node {name!r} answered with a redirect.", extras={"node": name})
        self._answer, self._error = self._reply.error_answer(refused), None
        self._retry(attempt, decision)

    def received(self, attempt: NodeAttempt) -> None:
        """A node said something."""
        attempt.received_s = self._listener.now_s

    def streams(self, attempt: NodeAttempt, data: bytes) -> None:
        """More of an answer came that is passed on."""
        if attempt.is_tunnel:
            self._reply.pass_on(data)
            return
        if self._reply.has_streamed or self._begin_stream(attempt):
            self._reply.write(attempt, data)

    def _begin_stream(self, attempt: NodeAttempt) -> bool:
        """Note that a node answers; false where a stream was promised, and this is none."""
        if not attempt.is_control_app:
            self._listener.fleet.succeeded(attempt.spec.name)
        is_stream = attempt.stream is not None and attempt.stream.has_events
        if is_stream or not self._reply.is_stream:
            return True
        self._break_off(attempt, UpstreamUnavailable(_NO_STREAM))
        return False

    def streamed(self, attempt: NodeAttempt, data: bytes) -> None:
        """The last of it came."""
        stream = attempt.stream
        assert stream is not None
        rest = stream.end()
        if not stream.is_finished:
            error = UpstreamUnavailable(f"The node {attempt.spec.name!r} ended without a last event.")
            error.extras["node"] = attempt.spec.name
            self._node_failed(attempt, NodeFault.LOST, error, data)  # the rest of it is no whole event
            return
        data += rest
        if not self._reply.has_streamed and not self._begin_stream(attempt):
            return
        if not attempt.is_control_app:
            self._succeeded(attempt)
        self._reply.close(attempt, data)
        self._usage = usage_of_attempt(self._context, attempt)
        self._finish()

    def switched(self, attempt: NodeAttempt) -> None:
        """The node agrees to a WebSocket."""
        assert attempt.connection is not None
        self._connection.tunnel(attempt.connection)
        self._reply.switch(attempt)

    def lost(self, attempt: NodeAttempt, error: UpstreamUnavailable, *, is_stale: bool = False) -> None:
        """The connection to the node ended, or was stale from the start."""
        if attempt.is_tunnel:
            self._finish()
        else:
            self._node_failed(attempt, NodeFault.STALE if is_stale else NodeFault.LOST, error)

    def withdrawn(self, attempt: NodeAttempt) -> None:
        """The fleet no longer waits for the node."""
        name = attempt.spec.name
        self._node_failed(
            attempt,
            NodeFault.WITHDRAWN,
            UpstreamUnavailable(f"The node {name!r} no longer answers.", extras={"node": name}),
        )

    def _node_failed(
        self, attempt: NodeAttempt, fault: NodeFault, error: GanglionError, data: bytes = b""
    ) -> None:
        """A node was not there, or left without the end of its answer; `data` is the last of it."""
        if attempt.is_control_app:
            self._control_app_failed(attempt, error, data)
            return
        is_given_out = self._reply.is_given_out or bool(data)
        decision = decide_retry(fault, kind=attempt.spec.kind, is_given_out=is_given_out)
        self._mark(attempt, fault, decision)
        if decision.step is RetryStep.TELL:
            self._break_off(attempt, error, data)
            return
        self._answer, self._error = None, error
        self._retry(attempt, decision)

    def _control_app_failed(self, attempt: NodeAttempt, error: GanglionError, data: bytes) -> None:
        self._listener.metrics.failed(attempt.spec.name)
        if self._reply.has_begun or data:
            self._break_off(attempt, error, data)
        else:
            attempt.release()
            self._refuse(error)

    def _mark(self, attempt: NodeAttempt, outcome: NodeOutcome, decision: RetryDecision) -> None:
        """Count what happened against the node, and against the request where it may be at fault."""
        listener, name, call = self._listener, attempt.spec.name, self._context.call
        mark_node(listener.fleet, name, outcome, decision, listener.probe_now)
        if decision.mark is HealthMark.SUCCESS:
            self._acquit()
        elif decision.mark is HealthMark.FAILURE:
            listener.metrics.failed(name)
        if decision.is_crash:
            loss = listener.fleet.record_loss(name, attempt.began_after)
            listener.quarantine.blame(loss, self._context.identity.tenant, call.head.target.path, call.body)

    def _succeeded(self, attempt: NodeAttempt) -> None:
        self._listener.fleet.succeeded(attempt.spec.name)
        self._acquit()

    def _acquit(self) -> None:
        if not self._listener.quarantine.is_empty:
            call = self._context.call
            self._listener.quarantine.acquit(self._context.identity.tenant, call.head.target.path, call.body)

    def _retry(self, attempt: NodeAttempt, decision: RetryDecision) -> None:
        """Put the request to another node, unless it did enough harm."""
        attempt.release()
        self._state = self._state.after(attempt.spec.name, decision)
        try:
            if not self._state.may_retry(decision):
                self._give_up(None)
            else:
                self._listener.metrics.retried(attempt.spec.name)
                self._choose()
        except GanglionError as error:
            self._refuse(error)
        except Exception as error:  # noqa: BLE001  the outermost door of this request
            self._fail(error)

    def _give_up(self, error: GanglionError | None) -> None:
        """Nobody is left: tell what the last node said, or that it said nothing."""
        if self._answer is not None:
            self._deliver(*self._answer)
        elif isinstance(self._error, DeadlineExceeded):
            self._refuse(self._error)
        elif error is not None and not self._state.unanswered:
            self._refuse(error)
        else:
            name = self._node
            gone = UpstreamUnavailable(f"The node {name!r} is gone, and no other can answer.")
            gone.extras["node"] = name
            self._refuse(gone)

    # How it ends.

    def _deliver(self, status: int, headers: Headers, body: bytes) -> None:
        if self._reply.has_begun:  # the client was promised a stream
            is_error = status >= 400
            error = (
                decode_error_response(status, headers, body, model=self._context.model) if is_error else None
            )
            self._refuse(error or UpstreamUnavailable(_NO_STREAM))
            return
        if status < 400 and self._admission is not None:
            self._usage = usage_of_whole(self._context, self._attempt, body)
        self._reply.deliver(status, headers, body)
        self._finish()

    def _refuse(self, error: GanglionError) -> None:
        if not self._is_over:
            self._listener.metrics.refused(error.code)
            if self._reply.has_begun:
                self._reply.break_off(None, error)
            else:
                self._reply.refuse(error)
            self._finish()

    def _break_off(self, attempt: NodeAttempt, error: GanglionError, data: bytes = b"") -> None:
        self._listener.metrics.broke(self._context.route.label)
        if self._reply.has_streamed or data:
            self._usage = usage_of_attempt(self._context, attempt)
        self._reply.break_off(attempt, error, data)
        self._finish()

    def _fail(self, error: Exception) -> None:
        _logger.error("an exchange failed, request_id=%s", self._context.request_id, exc_info=error)
        if self._reply.has_begun:
            self._connection.abort()
        else:
            self._refuse(ServerError("Something failed inside the gateway."))

    def leave(self) -> None:
        """The client is gone, and the work with it."""
        if self._is_over:
            return
        attempt = self._attempt
        if attempt is not None and attempt.is_sent and attempt.status < 400:
            self._usage = usage_of_attempt(self._context, attempt)
        if attempt is None or not attempt.is_tunnel:
            self._reply.status = _CLIENT_GONE
        self._finish()

    def pause(self) -> None:
        """The client does not keep up."""
        if self._attempt is not None and self._attempt.connection is not None:
            self._attempt.connection.pause()

    def resume(self) -> None:
        """It does again."""
        if self._attempt is not None and self._attempt.connection is not None:
            self._attempt.received_s = self._listener.now_s
            self._attempt.connection.resume()

    def check(self, now_s: float) -> None:
        """Give up on a node that has been silent for too long; called now and then."""
        attempt, settings = self._attempt, self._listener.settings
        if attempt is None or attempt.connection is None or attempt.is_tunnel:
            return
        silent_s = now_s - attempt.received_s
        stage = "idle" if attempt.status else "first_byte"
        limit_s = settings.idle_s if attempt.status else settings.first_byte_s
        # It keeps the same time over its nodes, and ends an answer in better words.
        if attempt.is_control_app:
            limit_s += _CONTROL_APP_GRACE_S
        # When something came is as coarse as the ticks are: a deadline may pass late, never early.
        if silent_s - self._listener.tick_s > limit_s:
            self._node_failed(attempt, NodeFault.SILENT, DeadlineExceeded(stage, limit_s))
        elif attempt.stream is not None and not self._reply.has_begun and silent_s > _HEAD_HELD_S:
            self._reply.open(attempt)
        elif attempt.spec.kind == "openai" and not attempt.is_control_app:
            self._keep_alive(attempt, now_s)

    def _keep_alive(self, attempt: NodeAttempt, now_s: float) -> None:
        """Send a keep-alive event where a foreign server is silent; our own nodes send theirs."""
        silent_s = now_s - max(attempt.received_s, self._kept_alive_s)
        peeked = self._context.peeked
        if silent_s < self._listener.settings.keep_alive_event_s or peeked is None or not peeked.is_stream:
            return
        is_heard = isinstance(attempt.stream, ForeignEventStream)
        if is_heard or not attempt.status:
            self._kept_alive_s = now_s
            self._reply.send_keep_alive()

    @property
    def _node(self) -> str:
        return "" if self._attempt is None else self._attempt.spec.name

    def _finish(self) -> None:
        if self._is_over:
            return
        self._is_over = True
        listener, context, reply = self._listener, self._context, self._reply
        if self._waiter is not None:
            listener.fleet.queue.leave(self._waiter)
        # Let go of, since each holds the other: nothing of a request should wait for the garbage collector.
        attempt, self._attempt = self._attempt, None
        node = ""
        if attempt is not None:
            node = attempt.spec.name
            if attempt.stream is not None:
                listener.metrics.events += attempt.stream.events
            attempt.release()
        usage = None
        if self._admission is not None:
            usage = self._usage
            settle(listener, context, self._admission, self._chosen, usage)
        record(listener, context, reply, node, usage)
        listener.ended()
        self._connection.finished(is_kept=reply.is_kept)

    def _later(self, work: Coroutine[None, None, None]) -> None:
        self._listener.spawn(self._guarded(work))

    async def _guarded(self, work: Coroutine[None, None, None]) -> None:
        try:
            await work
        except GanglionError as error:
            self._refuse(error)
        except Exception as error:  # noqa: BLE001  the outermost door of this request
            self._fail(error)
