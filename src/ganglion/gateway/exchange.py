"""One request from its first byte to its last: let in, put to a node, put to another, passed on, settled.

Law: whatever happens, the client hears one answer, the place that was reserved is settled once, and nothing
is tried again after the first byte has left. As long as nobody must be waited for, no task is made.
"""

import logging
from collections.abc import Coroutine
from time import perf_counter
from typing import TYPE_CHECKING

from ganglion.core.errors import (
    DeadlineExceeded,
    GanglionError,
    ModelLoading,
    ServerError,
    ShuttingDown,
    UpstreamRefused,
    UpstreamUnavailable,
)
from ganglion.core.events import Usage
from ganglion.gateway.admission import Admission, Wanted
from ganglion.gateway.asking import question
from ganglion.gateway.attempt import Attempt
from ganglion.gateway.call import Call
from ganglion.gateway.decision import Asked, Chosen, Cold, Refused, Translated
from ganglion.gateway.heads import is_sane_id
from ganglion.gateway.judging import Errand, identify, understand
from ganglion.gateway.lines import Line
from ganglion.gateway.node import NodeSpec
from ganglion.gateway.reply import Reply
from ganglion.gateway.routes import Words
from ganglion.gateway.spending import usage_of_body
from ganglion.gateway.tracing import traced
from ganglion.gateway.trusted import REQUEST_ID
from ganglion.gateway.upstream import Headers, UpstreamConnection
from ganglion.gateway.verdict import Verdict, verdict_of

if TYPE_CHECKING:
    from ganglion.gateway.client_connection import ClientConnection
    from ganglion.gateway.front import Front

logger = logging.getLogger("ganglion.gateway")

MAX_DEATHS = 2
"""Nodes that one request may have been running on when they failed."""
_MAX_TRIES = 64
_MAX_LOADS = 2
_HEAD_HELD_S = 1.0
"""How long a head waits for the first event, which leaves with it and until which all can be tried again."""
_DESK_GRACE_S = 5.0
_CLIENT_GONE = 499
_BYTES_A_TOKEN = 4
_SAFE = (b"GET", b"HEAD")


class Exchange:
    """What becomes of one request; hears the tries that it makes."""

    __slots__ = (
        "_admission",
        "_answer",
        "_attempt",
        "_connection",
        "_deaths",
        "_errand",
        "_front",
        "_is_over",
        "_loads",
        "_reply",
        "_tried",
        "_tries",
        "_unreached",
        "_usage",
        "takes_usage",
        "words",
    )

    def __init__(self, front: "Front", connection: "ClientConnection", call: Call) -> None:
        given = call.head.named.get(REQUEST_ID)
        name = front.new_id() if given is None or not is_sane_id(given) else given.decode()
        self._front = front
        self._connection = connection
        self._errand = errand = Errand(call, call.head.route, name)
        if front.settings.tracing is not None:
            errand.span = traced(front.settings.tracing, call)
        self._reply = Reply(front, connection, errand)
        self.words: Words = call.head.route.words
        self.takes_usage = False
        self._admission: Admission | None = None
        self._attempt: Attempt | None = None
        self._answer: tuple[int, Headers, bytes] | None = None
        """The last refusal that sent the request on."""
        self._tried: frozenset[str] = frozenset()
        self._unreached: frozenset[str] = frozenset()
        self._tries = self._loads = self._deaths = 0
        self._usage: Usage | None = None
        self._is_over = False

    def begin(self) -> None:
        """Go as far as it goes without waiting."""
        self._front.in_flight += 1
        try:
            self._come_in()
        except GanglionError as error:
            self._refuse(error)
        except Exception as error:  # noqa: BLE001  the outermost door of this request
            self._fail(error)

    def _come_in(self) -> None:
        front, errand = self._front, self._errand
        route, head = errand.route, errand.call.head
        if errand.call.refusal is not None:
            raise errand.call.refusal
        if front.settings.guard is not None and not head.is_from_here:
            is_safe = head.method in _SAFE and not head.is_socket
            refusal = front.settings.guard(head.named.get(b"host"), head.named.get(b"origin"), is_safe)
            if refusal is not None:
                raise refusal
            head.is_from_here = True
        if front.settings.cors_origins and self._reply.is_preflight:
            self._reply.allow()
            self._finish()
            return
        identify(errand, front.gatekeeper)
        if front.is_draining and (head.method not in _SAFE or route.wire is not None or head.is_socket):
            raise ShuttingDown("The gateway is shutting down.")
        if route.wire is None:
            self._try(front.admin if route.access in ("admin", "node") else front.desk, None)
            return
        peeked = understand(errand, front.quarantine)
        if peeked.is_background and route.may_outlast:
            self._place()
        else:
            self._admit(Wanted(peeked.model, peeked.tokens))

    def _admit(self, wanted: Wanted) -> None:
        self._admission = self._front.gatekeeper.admit_now(self._errand.identity, wanted)
        if self._admission is None:
            self._later(self._wait_admitted(wanted))
        else:
            self._place()

    async def _wait_admitted(self, wanted: Wanted) -> None:
        admission = await self._front.gatekeeper.admit(self._errand.identity, wanted)
        if self._is_over:
            admission.settle(None)
            return
        self._admission = admission
        self._place()

    def _place(self) -> None:
        if self._errand.route.is_desk:
            self._try(self._front.desk, None)
        else:
            self._choose()

    def _choose(self) -> None:
        errand, front = self._errand, self._front
        assert errand.route.wire is not None
        self._tries += 1
        if self._tries > _MAX_TRIES:
            self._give_up(UpstreamUnavailable("More nodes were tried than there should be."))
            return
        asked = Asked(errand.model, errand.route.wire, errand.affinity, self._tried)
        decision = front.chooser.choose(asked)
        if isinstance(decision, Chosen):  # first, and not as a pattern: nearly every request comes by here
            self._try(decision.node, decision.model)
            return
        match decision:
            case Translated():
                self._try(front.desk, None)
            case Cold(model):
                self._loads += 1
                if front.loader is None or self._loads > _MAX_LOADS:
                    self._give_up(ModelLoading(f"The model {model!r} is not loaded."))
                else:
                    self._later(self._load(model))
            case Refused(error):
                self._give_up(error)

    async def _load(self, model: str) -> None:
        assert self._front.loader is not None
        await self._front.loader.load(model)
        if not self._is_over:
            # Whoever did not hold the model before may hold it now.
            self._tried = self._unreached
            self._choose()

    def _try(self, spec: NodeSpec, model: str | None) -> None:
        front = self._front
        line = front.lines.to(spec)
        is_desk = spec is front.desk or spec is front.admin
        attempt = self._attempt = Attempt(self, spec, front.fleet, is_desk=is_desk)
        connection = line.pool.take()
        if connection is None:
            self._later(self._connect(attempt, line, model))
        else:
            self._ask(attempt, connection, line, model)

    async def _connect(self, attempt: Attempt, line: Line, model: str | None) -> None:
        try:
            connection = await line.pool.connect()
        except UpstreamUnavailable as error:
            if not self._is_over:
                self._missed(attempt, error)
            return
        if self._is_over:
            connection.close()
        else:
            self._ask(attempt, connection, line, model)

    def _ask(self, attempt: Attempt, connection: UpstreamConnection, line: Line, model: str | None) -> None:
        asked = question(self._errand, line, model)
        self.takes_usage = asked.takes_usage
        attempt.send(connection, asked.data, self._front.now_s)

    # What nodes say.

    def whole(self, attempt: Attempt, body: bytes) -> None:
        """For the attempt."""
        spec, status = attempt.spec, attempt.status
        verdict = Verdict.TOLD
        if status >= 400 and not attempt.is_desk:
            verdict = verdict_of(status, body, kind=spec.kind, words=self.words)
        if verdict is Verdict.TOLD:
            self._went_well(attempt)
            self._deliver(status, attempt.headers, body)
            return
        self._answer = (status, attempt.headers, body)
        if verdict is Verdict.KEY or spec.kind == "openai":
            self._front.fleet.failed(spec.name)
        if verdict is Verdict.KEY:
            refused = UpstreamRefused(f"The node {spec.name!r} does not take the gateway's key.")
            refused.extras["node"] = spec.name
            self._answer = self._reply.told(refused)
        if verdict in (Verdict.ONCE, Verdict.CRASHED):
            self._deaths += 1
            if verdict is Verdict.CRASHED:
                self._blame(attempt)
        self._again(attempt)

    def heard(self, attempt: Attempt) -> None:
        """For the attempt."""
        attempt.heard_s = self._front.now_s

    def streams(self, attempt: Attempt, data: bytes) -> None:
        """For the attempt."""
        if attempt.is_tunnel:
            self._reply.pass_on(data)
            return
        if not self._reply.has_begun and not attempt.is_desk:
            self._front.fleet.succeeded(attempt.spec.name)
        self._reply.go_on(attempt, data)

    def streamed(self, attempt: Attempt, data: bytes) -> None:
        """For the attempt."""
        stream = attempt.stream
        assert stream is not None
        rest = stream.end()
        if not stream.is_finished:
            error = UpstreamUnavailable(f"The node {attempt.spec.name!r} ended without a last event.")
            error.extras["node"] = attempt.spec.name
            if data or self._reply.has_begun:  # the rest of it is no whole event
                self._note_failure(attempt)
                self._break_off(attempt, error, data)
            else:
                self.lost(attempt, error)
            return
        data += rest
        if not attempt.is_desk:
            self._went_well(attempt)
        self._reply.close(attempt, data)
        self._count(attempt)
        self._finish()

    def switched(self, attempt: Attempt) -> None:
        """For the attempt."""
        assert attempt.connection is not None
        self._connection.tunnel(attempt.connection)
        self._reply.switch(attempt)

    def lost(self, attempt: Attempt, error: UpstreamUnavailable) -> None:
        """For the attempt."""
        if attempt.is_tunnel:
            self._finish()
        elif self._reply.has_begun:
            self._note_failure(attempt)
            self._blame(attempt)
            self._break_off(attempt, error)
        else:
            self._deaths += 1
            self._blame(attempt)
            self._answer = None
            self._missed(attempt, error)

    def _missed(self, attempt: Attempt, error: UpstreamUnavailable) -> None:
        """A node was not there, or left without an answer."""
        self._note_failure(attempt)
        self._unreached |= {attempt.spec.name}
        if attempt.spec is not self._front.desk and attempt.is_desk:
            leaderless = "The worker that leads this gateway is being replaced."
            self._refuse(UpstreamUnavailable(leaderless, hint="Ask again in a moment."))
        elif attempt.is_desk:
            self._refuse(error)
        else:
            self._again(attempt)

    def _note_failure(self, attempt: Attempt) -> None:
        name = attempt.spec.name
        self._front.metrics.failed(name)
        if not attempt.is_desk:
            self._front.fleet.failed(name)
            self._front.poke(name)

    def _blame(self, attempt: Attempt) -> None:
        """Remember under which request a node was lost; the desk remembers its own."""
        if not attempt.is_desk:
            call = self._errand.call
            self._front.quarantine.blame(
                attempt.spec.name, self._errand.identity.tenant, call.head.target.path, call.body
            )

    def _went_well(self, attempt: Attempt) -> None:
        self._front.fleet.succeeded(attempt.spec.name)
        if not self._front.quarantine.is_empty:
            call = self._errand.call
            self._front.quarantine.acquit(self._errand.identity.tenant, call.head.target.path, call.body)

    def _again(self, attempt: Attempt) -> None:
        """Put the request to another node, unless it did enough harm."""
        attempt.release()
        self._tried |= {attempt.spec.name}
        try:
            if self._deaths >= MAX_DEATHS:
                self._give_up(None)
            else:
                self._front.metrics.retried(attempt.spec.name)
                self._choose()
        except GanglionError as error:
            self._refuse(error)
        except Exception as error:  # noqa: BLE001  the outermost door of this request
            self._fail(error)

    def _give_up(self, error: GanglionError | None) -> None:
        """Nobody is left: tell what the last node said, or that it said nothing."""
        if self._answer is not None:
            self._deliver(*self._answer)
        elif error is not None and not self._unreached:
            self._refuse(error)
        else:
            name = self._node
            gone = UpstreamUnavailable(f"The node {name!r} is gone, and no other can answer.")
            gone.extras["node"] = name
            self._refuse(gone)

    # How it ends.

    def _deliver(self, status: int, headers: Headers, body: bytes) -> None:
        if status < 400 and self._admission is not None:
            self._usage = usage_of_body(body) or Usage(0, 0)
        self._reply.deliver(status, headers, body)
        self._finish()

    def _refuse(self, error: GanglionError) -> None:
        if not self._is_over:
            self._front.metrics.refused(error.code)
            self._reply.refuse(error)
            self._finish()

    def _break_off(self, attempt: Attempt, error: GanglionError, data: bytes = b"") -> None:
        self._front.metrics.broke(self._errand.route.label)
        self._count(attempt)
        self._reply.break_off(attempt, error, data)
        self._finish()

    def _fail(self, error: Exception) -> None:
        logger.error("an exchange failed, request_id=%s", self._errand.request_id, exc_info=error)
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
            self._count(attempt)
        if not self._reply.has_begun:
            self._reply.status = _CLIENT_GONE
        self._finish()

    def pause(self) -> None:
        """The client does not keep up."""
        if self._attempt is not None and self._attempt.connection is not None:
            self._attempt.connection.pause()

    def resume(self) -> None:
        """It does again."""
        if self._attempt is not None and self._attempt.connection is not None:
            self._attempt.heard_s = self._front.now_s
            self._attempt.connection.resume()

    def check(self, now_s: float) -> None:
        """Give up on a node that has been silent for too long; called now and then."""
        attempt, settings = self._attempt, self._front.settings
        if attempt is None or attempt.connection is None or attempt.is_tunnel:
            return
        silent_s = now_s - attempt.heard_s
        stage = "idle" if attempt.status else "first_byte"
        limit_s = settings.idle_s if attempt.status else settings.first_byte_s
        if attempt.is_desk:  # it keeps the same time over its nodes, and ends an answer in better words
            limit_s += _DESK_GRACE_S
        # When it was heard is as coarse as the ticks are: a deadline may pass late, never early.
        if silent_s - self._front.tick_s > limit_s:
            self._note_failure(attempt)
            attempt.release()
            error = DeadlineExceeded(stage, limit_s)
            if self._reply.has_begun:
                self._break_off(attempt, error)
            else:
                self._refuse(error)
        elif attempt.stream is not None and not self._reply.has_begun and silent_s > _HEAD_HELD_S:
            self._reply.open(attempt)

    @property
    def _node(self) -> str:
        return "" if self._attempt is None else self._attempt.spec.name

    def _count(self, attempt: Attempt) -> None:
        """Note what an answer came to; where nobody says, what it looks like, since it was not free."""
        stream = attempt.stream
        self._usage = None if stream is None else stream.usage
        if self._usage is None:
            events = 0 if stream is None else stream.events
            self._usage = Usage(len(self._errand.call.body) // _BYTES_A_TOKEN, events)

    def _finish(self) -> None:
        if self._is_over:
            return
        self._is_over = True
        front, errand, reply = self._front, self._errand, self._reply
        # Let go of, since each holds the other: nothing of a request should wait for the garbage collector.
        attempt, self._attempt = self._attempt, None
        node = ""
        if attempt is not None:
            node = attempt.spec.name
            if attempt.stream is not None:
                front.metrics.events += attempt.stream.events
            attempt.release()
        duration_s = perf_counter() - reply.began_s
        usage = self._usage
        if self._admission is None:
            usage = None
        else:
            self._admission.settle(usage)
            if usage is not None:
                front.metrics.spent(errand.identity.tenant, errand.model, usage)
        front.metrics.ended(errand.route.label, reply.status, node, duration_s)
        front.log.add(errand, reply.status, duration_s, node, usage)
        if errand.span is not None:
            errand.span.end(reply.status, {"ganglion.node": node, "gen_ai.request.model": errand.model})
        front.ended()
        self._connection.finished(is_kept=reply.is_kept)

    def _later(self, work: Coroutine[None, None, None]) -> None:
        self._front.spawn(self._guarded(work))

    async def _guarded(self, work: Coroutine[None, None, None]) -> None:
        try:
            await work
        except GanglionError as error:
            self._refuse(error)
        except Exception as error:  # noqa: BLE001  the outermost door of this request
            self._fail(error)
