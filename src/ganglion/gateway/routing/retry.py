"""The retry law: what follows when a node fails, for the request and for the node. Pure.

The proxy, the fleet's engine and the relay of sessions all decide here and nowhere else:

* A node that certainly did nothing costs nothing: every other one may be tried.
* A node that may have begun costs one of two chances: a request runs twice at most, and takes two nodes down.
* What is the client's own doing, and what one of our nodes says in full knowledge, is the answer.
* Once anything of an answer was given out, the client is told, whatever happened.
* What a foreign server answers is never a crash: whoever answers is alive.
"""

import enum
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from ganglion.gateway.node import NodeKind

RETRY_BUDGET: Final = 2
"""Nodes that one request may have been running on when they failed."""
MAX_TRIED: Final = 64
"""Nodes that one request is put to at most, whatever they say."""
_MAX_LOADS: Final = 2
"""Loads that one request waits for: a model that was loaded may be gone again before it is asked."""


class NodeFault(enum.Enum):
    """A node that did not answer at all, or not to the end."""

    UNREACHED = "unreached"
    """Nothing was sent."""
    LOST = "lost"
    """The connection ended, or its bytes made no sense, after the request was sent."""
    STALE = "stale"
    """As LOST, on a connection that had been kept open and brought nothing: perhaps it was closed before."""
    SILENT = "silent"
    """Nothing came for longer than is waited."""
    WITHDRAWN = "withdrawn"
    """Its lease ended, or it no longer answers anybody: it is not waited for."""


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """A node that answered with an error."""

    status: int
    code: str | None = None
    has_codes: bool = True
    """Whether errors of this wire name codes; those of Messages and Ollama do not."""


NodeOutcome = NodeFault | ErrorAnswer


class RetryStep(enum.Enum):
    """What happens to the request."""

    ELSEWHERE = "elsewhere"
    """Any other node may be asked."""
    ONCE_MORE = "once more"
    """Another node may be asked, for one of the chances."""
    TELL = "tell"
    """The client is told."""


class HealthMark(enum.Enum):
    """What it says about the node."""

    SUCCESS = "success"
    NOTHING = "nothing"
    FAILURE = "failure"
    """Some of these in a row, and the node is left alone for a while."""


@dataclass(frozen=True, slots=True)
class RetryDecision:
    """One row of the table."""

    step: RetryStep
    mark: HealthMark
    is_crash: bool = False
    """Whether the request may be what broke the node, or the engine in it."""
    may_be_same: bool = False
    """Whether the same node may be asked again, where there is no other."""
    is_answered: bool = True
    """Whether the node said anything; one that did not is not asked again after a load either."""
    is_key: bool = False
    """Whether the node does not let the gateway in, which is not the client's to hear."""


_FREE = RetryDecision(RetryStep.ELSEWHERE, HealthMark.NOTHING)
_FREE_FAILURE = RetryDecision(RetryStep.ELSEWHERE, HealthMark.FAILURE)
_KEY = RetryDecision(RetryStep.ELSEWHERE, HealthMark.FAILURE, is_key=True)
_ONCE = RetryDecision(RetryStep.ONCE_MORE, HealthMark.FAILURE)
_ENGINE_CRASHED = RetryDecision(RetryStep.ONCE_MORE, HealthMark.NOTHING, is_crash=True)
_CLIENTS_OWN = RetryDecision(RetryStep.TELL, HealthMark.SUCCESS)
_OURS_KNOWS = RetryDecision(RetryStep.TELL, HealthMark.NOTHING)
_STRANGE = RetryDecision(RetryStep.TELL, HealthMark.FAILURE)

_FAULTS: Final = {
    NodeFault.UNREACHED: replace(_FREE_FAILURE, is_answered=False),
    NodeFault.LOST: replace(_ONCE, is_crash=True, is_answered=False),
    # Where the node is gone, the next connection says so.
    NodeFault.STALE: RetryDecision(RetryStep.ONCE_MORE, HealthMark.NOTHING, is_crash=True, may_be_same=True),
    NodeFault.SILENT: replace(_ONCE, is_answered=False),
    # It may only be cut off, so neither it nor the request is blamed.
    NodeFault.WITHDRAWN: RetryDecision(RetryStep.ONCE_MORE, HealthMark.NOTHING, is_answered=False),
}

_FOREIGN: Final = {
    **dict.fromkeys((401, 402, 403, 407), _KEY),
    **dict.fromkeys((404, 405, 501), _FREE),  # it lacks the model, or the route for good
    **dict.fromkeys((429, 503, 529), _FREE_FAILURE),
    **dict.fromkeys((408, 500, 502, 504, *range(520, 529)), _ONCE),
}

_ANY: Final = None
_OURS: Final[dict[int, dict[str | None, RetryDecision]]] = {
    401: {_ANY: _KEY},
    403: {_ANY: _KEY},
    404: {"model_not_found": _FREE},
    500: {"engine_failed": _ENGINE_CRASHED, "interrupted": _ENGINE_CRASHED},
    502: {"hub_unreachable": _FREE, _ANY: _ONCE},
    503: {_ANY: _FREE},
    529: {_ANY: _FREE},
}
_OURS_WITHOUT_CODES: Final = {
    401: _KEY,
    403: _KEY,
    404: _FREE,
    500: _ENGINE_CRASHED,
    502: _ONCE,
    503: _FREE,
    529: _FREE,
}


def decide_retry(outcome: NodeOutcome, *, kind: NodeKind, is_given_out: bool = False) -> RetryDecision:
    """What follows; `is_given_out` says whether anything of an answer was sent to the client."""
    decision = _decided(outcome, kind)
    return replace(decision, step=RetryStep.TELL) if is_given_out else decision


def _decided(outcome: NodeOutcome, kind: NodeKind) -> RetryDecision:
    if isinstance(outcome, NodeFault):
        return _FAULTS[outcome]
    status = outcome.status
    if kind == "openai":
        return _FOREIGN.get(status) or (_CLIENTS_OWN if status < 500 else _STRANGE)
    otherwise = _CLIENTS_OWN if status < 500 else _OURS_KNOWS
    if not outcome.has_codes:
        return _OURS_WITHOUT_CODES.get(status, otherwise)
    codes = _OURS.get(status, {})
    return codes.get(outcome.code) or codes.get(_ANY, otherwise)


def needs_probe(outcome: NodeOutcome, decision: RetryDecision) -> bool:
    """Whether the node should be asked at once how it is."""
    return decision.is_crash or outcome in (NodeFault.UNREACHED, NodeFault.SILENT)


class _RetryState(msgspec.Struct, frozen=True, gc=False):
    """How far one request has come through the fleet; what happens to it makes another state of this one."""

    tried: frozenset[str] = frozenset()
    """Nodes that are not asked now."""
    unanswered: frozenset[str] = frozenset()
    """Those of them that did not answer."""
    stale: frozenset[str] = frozenset()
    """Those whose kept connection had ended: asked again where there is no other."""
    spent: int = 0
    """Chances that are used up."""
    loads: int = 0

    def after(self, node: str, decision: RetryDecision) -> "_RetryState":
        """The state once a node has failed."""
        is_unanswered = not decision.is_answered
        return _RetryState(
            self.tried | {node},
            self.unanswered | {node} if is_unanswered else self.unanswered,
            self.stale | {node} if decision.may_be_same else self.stale,
            self.spent + (decision.step is RetryStep.ONCE_MORE),
            self.loads,
        )

    def may_retry(self, decision: RetryDecision) -> bool:
        """Whether another node is tried after this, the state being the one that follows from it."""
        is_left = self.spent < RETRY_BUDGET and len(self.tried) < MAX_TRIED
        return decision.step is not RetryStep.TELL and is_left

    def readmitting_stale(self) -> "_RetryState":
        """The state once there is no other node to try."""
        return msgspec.structs.replace(self, tried=self.tried - self.stale, stale=frozenset())

    @property
    def may_load(self) -> bool:
        """Whether the model may be loaded for it, or loaded again."""
        return self.loads < _MAX_LOADS

    def after_load(self) -> "_RetryState":
        """The state once the model was loaded somewhere: nodes that did not hold it may do so now."""
        return msgspec.structs.replace(self, tried=self.unanswered, loads=self.loads + 1)


UNTRIED: Final = _RetryState()
"""Where every request begins."""


class _Detail(msgspec.Struct):
    code: str | int | None = None


class _Envelope(msgspec.Struct):
    error: _Detail | str | None = None


_envelope = msgspec.json.Decoder(_Envelope)


def error_code_of(body: bytes) -> str | None:
    """The stable code in an error's envelope, where it has one."""
    try:
        error = _envelope.decode(body).error
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return error.code if isinstance(error, _Detail) and isinstance(error.code, str) else None
