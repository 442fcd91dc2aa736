"""A whole call that a node refused: what it answered, and what a client is told of that."""

from typing import Final

from ganglion.core.errors import GanglionError, WireUnsupported
from ganglion.gateway.outbound import Answer
from ganglion.gateway.retry import Answered, code_of
from ganglion.wire.chat.refusal import refusal_of

LACKS_ROUTE: Final = (404, 405, 501)
"""What servers say of a route that they do not have, or have switched off."""


class NodeRefused(Exception):
    """A node answered with an error; `outcome` decides what follows, `error` is what a client would hear."""

    def __init__(self, outcome: Answered, error: GanglionError) -> None:
        super().__init__(error.message)
        self.outcome = outcome
        self.error = error


def refused(answer: Answer, model: str) -> NodeRefused:
    """What an answer other than 200 is; a route that is not there is not there for good."""
    outcome = Answered(answer.status, code_of(answer.body))
    is_about_model = b"model" in answer.body.lower()
    if answer.status in LACKS_ROUTE and not is_about_model:
        return NodeRefused(outcome, unsupported(model))
    return NodeRefused(outcome, refusal_of(answer.status, answer.headers, answer.body, model=model))


def unsupported(model: str) -> WireUnsupported:
    """The server that holds a model has no route for what is asked."""
    return WireUnsupported(f"The server that holds {model!r} does not answer calls of this kind.")
