"""A finished answer to one body: the response that its stream would have ended with."""

from collections.abc import Callable, Iterator

from ganglion.core.events import Closed, Delta, Event, Opened, Started
from ganglion.core.fold import Answer
from ganglion.wire.responses.reading import Ids
from ganglion.wire.responses.reply import Reply
from ganglion.wire.responses.stream import ResponsesProjection
from ganglion.wire.seal import Seal


def body(
    answer: Answer, reply: Reply, *, ids: Ids, clock_s: Callable[[], int], seal: Seal | None = None
) -> bytes:
    """The whole response, made by the projection that streams."""
    projection = ResponsesProjection(reply, ids=ids, clock_s=clock_s, seal=seal)
    for event in _events_of(answer):
        projection.feed(event)
    assert projection.final is not None
    return projection.final


def _events_of(answer: Answer) -> Iterator[Event]:
    yield Started(answer.finished.usage.prompt_tokens, sampling=answer.sampling)
    for index, block in enumerate(answer.blocks):
        yield Opened(index, block.kind, block.call_id, block.name)
        yield Delta(index, block.text, block.tokens)
        yield Closed(index)
    yield answer.finished
