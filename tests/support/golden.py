"""Files of bytes that answers must be exactly: written anew with GANGLION_UPDATE_GOLDEN=1."""

import os
from collections.abc import Iterable
from pathlib import Path

from ganglion.core.events import Event
from ganglion.core.grammar import Grammar

GOLDEN = Path(__file__).parents[1] / "golden"


def check_golden(name: str, found: bytes) -> None:
    """Compare with the file of that name, as in `chat/plain.sse`."""
    path = GOLDEN / name
    if os.environ.get("GANGLION_UPDATE_GOLDEN"):
        path.write_bytes(found)
    assert found == path.read_bytes()


def check_grammar(events: Iterable[Event]) -> None:
    """Raise unless an engine may send these: a transcript of what cannot happen shows nothing."""
    grammar = Grammar()
    for event in events:
        grammar.feed(event)
