"""The stream of chunks that chat and completions have in common, over the chunks that each of them writes.

Frames, in order: the chunks of every choice, the usage of all of them where it was asked for, `[DONE]`. An
error takes the place of all that would have followed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, assert_never

from ganglion.core.events import (
    Closed,
    Delta,
    Event,
    Failed,
    Finished,
    Opened,
    Progress,
    Scored,
    Started,
    Token,
    Usage,
)
from ganglion.wire.fields import UsageReporting
from ganglion.wire.frame import Comment, Frame
from ganglion.wire.openai_errors import encode_error

_DONE = Frame(b"[DONE]")


@dataclass(frozen=True, slots=True)
class ChunkContext:
    """The fields that all chunks of one answer share, and the options that both wires know."""

    id: str
    created_s: int
    model: str
    fingerprint: str | None = None
    usage_reporting: UsageReporting = "never"
    prompt_logprobs: int | None = None
    """How many alternatives to show beside each token of the prompt; None shows none of them."""
    has_readout: bool = False
    has_token_ids: bool = False


class ChoiceChunks(Protocol):
    """One choice of a stream: its events in, its chunks out."""

    so_far: Usage
    """What it has cost up to here; all of it once it is finished."""

    def start(self, started: Started) -> None:
        """Keep what is known of the prompt."""

    def score(self, tokens: tuple[Token, ...]) -> None:
        """Keep scored tokens of the prompt."""

    def open(self, opened: Opened) -> list[Frame]:
        """The chunks that begin a block."""

    def more(self, text: str, tokens: tuple[Token, ...]) -> list[Frame]:
        """The chunks of the next part of a block."""

    def finish(self, finished: Finished) -> list[Frame]:
        """The last chunks of the choice."""

    def tick(self) -> list[Frame]:
        """The chunks that may go out before there is anything to say."""


class ChunkProjection:
    """Feed it every event of every choice; `is_done` says that `[DONE]` or an error is out."""

    def __init__(
        self, choices: Sequence[ChoiceChunks], usage_frame: Callable[[list[Usage]], Frame] | None
    ) -> None:
        """`usage_frame` makes the frame with the usage of all choices; None sends none."""
        self.is_done = False
        self._choices = choices
        self._usage_frame = usage_frame
        self._unfinished = len(choices)

    def feed(self, event: Event, choice: int = 0) -> list[Frame]:
        """The frames that this event of this choice adds; none once the stream is done."""
        if self.is_done:
            return []
        chunks = self._choices[choice]
        match event:
            case Delta(text=text, tokens=tokens):
                return chunks.more(text, tokens)
            case Opened():
                return chunks.open(event)
            case Scored(tokens=tokens):
                chunks.score(tokens)
            case Started():
                chunks.start(event)
            case Progress() | Closed():
                pass
            case Finished():
                return self._finish(chunks, event)
            case Failed(error=error):
                self.is_done = True
                return [Frame(encode_error(error))]
            case _:
                assert_never(event)
        return []

    def tick(self) -> list[Frame | Comment]:
        """The chunks that may go out already, or else a comment."""
        frames: list[Frame | Comment] = [frame for chunks in self._choices for frame in chunks.tick()]
        return frames or [Comment()]

    def _finish(self, chunks: ChoiceChunks, finished: Finished) -> list[Frame]:
        frames = chunks.finish(finished)
        self._unfinished -= 1
        if self._unfinished:
            return frames
        if self._usage_frame is not None:
            frames.append(self._usage_frame([each.so_far for each in self._choices]))
        frames.append(_DONE)
        self.is_done = True
        return frames
