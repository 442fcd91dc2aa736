"""The law of the event stream, and the checker that holds engines to it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganglion.core.errors import EngineFailed
from ganglion.core.events import Closed, Delta, Event, Failed, Finished, Opened, Progress, Started, Usage
from ganglion.core.grammar import Grammar, GrammarError

QUEUED = Progress("queued", 0, 1)
STARTED = Started(1)
FINISHED = Finished("stop", Usage(1, 1))
FAILED = Failed(EngineFailed("gone"))


def check(events: list[Event]) -> None:
    grammar = Grammar()
    for event in events:
        grammar.feed(event)
    grammar.check_ended()


LAWFUL: list[list[Event]] = [
    [FAILED],
    [QUEUED, FAILED],
    [STARTED, FINISHED],
    [QUEUED, QUEUED, STARTED, Progress("prefilled", 1, 2), FINISHED],
    [STARTED, Opened(0, "text"), Closed(0), FINISHED],
    [
        STARTED,
        Opened(0, "reasoning"),
        Delta(0, "a"),
        Closed(0),
        Opened(1, "text"),
        Delta(1, "b"),
        Closed(1),
        FINISHED,
    ],
    [STARTED, Opened(0, "text"), Delta(0, "a"), FAILED],
]
LAWLESS: list[list[Event]] = [
    [],
    [QUEUED],
    [STARTED],
    [FINISHED],
    [STARTED, STARTED, FINISHED],
    [Opened(0, "text")],
    [STARTED, Delta(0, "a")],
    [STARTED, Opened(1, "text")],
    [STARTED, Opened(0, "text"), FINISHED],
    [STARTED, Opened(0, "text"), Opened(1, "text")],
    [STARTED, Opened(0, "text"), Delta(1, "a")],
    [STARTED, Opened(0, "text"), Closed(1)],
    [STARTED, Opened(0, "text"), Closed(0), Opened(0, "text")],
    [STARTED, Opened(0, "text"), QUEUED],
    [STARTED, Opened(0, "text"), Closed(0), QUEUED],
    [FAILED, FAILED],
    [STARTED, FINISHED, FINISHED],
    [STARTED, FINISHED, FAILED],
]


@pytest.mark.parametrize("events", LAWFUL, ids=str)
def test_what_the_law_allows_passes(events: list[Event]) -> None:
    check(events)


@pytest.mark.parametrize("events", LAWLESS, ids=str)
def test_what_the_law_forbids_is_caught(events: list[Event]) -> None:
    with pytest.raises(GrammarError):
        check(events)


@given(
    queued=st.integers(0, 2),
    blocks=st.lists(
        st.tuples(st.sampled_from(["text", "reasoning", "tool_call"]), st.lists(st.text())), max_size=4
    ),
)
def test_any_number_of_blocks_and_deltas_is_lawful(queued: int, blocks: list[tuple[str, list[str]]]) -> None:
    events: list[Event] = [*[QUEUED] * queued, STARTED]
    for index, (kind, texts) in enumerate(blocks):
        events += [Opened(index, kind), *(Delta(index, text) for text in texts), Closed(index)]  # type: ignore[arg-type]
    check([*events, FINISHED])
    for length in range(len(events)):
        check([*events[:length], FAILED])
