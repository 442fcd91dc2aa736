"""Tokens on a terminal: coloured by how likely each was, with bars for what was read out of it."""

from collections.abc import Iterable, Sequence
from typing import Final

from rich.console import Console
from rich.text import Text

from ganglion.cli.terminal.console import colour_of, legend, visible
from ganglion.client import Alternative, Readout, TokenEvent

_BAR_WIDTH: Final = 12
"""Columns of a bar, half of them on either side of zero."""
_BLOCKS: Final = " ▏▎▍▌▋▊▉█"
_LONGEST_PIECE: Final = 20


class SessionView:
    """Writes tokens to stdout; without colours their numbers say the same."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False, soft_wrap=True)

    def token(self, event: TokenEvent) -> None:
        """One token as it comes."""
        self._console.print(Text(visible(event.text), colour_of(event.logprob)), end="")

    def end(self) -> None:
        """Finish the line of tokens."""
        self._console.print()

    def text(self, text: str) -> None:
        """A text that is there at once."""
        self._console.print(Text(visible(text)))

    def tokens(self, events: Sequence[TokenEvent]) -> None:
        """Some tokens: as a coloured text, or one a line where there are no colours."""
        if self._console.color_system is None:
            for event in events:
                self._console.print(_row(event))
            return
        line = Text()
        for event in events:
            line.append(visible(event.text), colour_of(event.logprob))
        self._console.print(line)
        meanings = Text("logprob: ")
        for meaning, style in legend():
            meanings.append(f"{meaning}  ", style)
        self._console.print(meanings)

    def readouts(self, events: Sequence[TokenEvent]) -> None:
        """A line for each token, with a bar for each concept: the mean over the layers."""
        read = [(event, event.readout) for event in events if event.readout is not None]
        if not read:
            return
        concepts = read[0][1].manifest.concepts
        means = [[_mean(readout, concept) for concept in concepts] for _, readout in read]
        reach = [max(abs(row[column]) for row in means) or 1.0 for column in range(len(concepts))]
        heading = Text(" " * (_LONGEST_PIECE + 8))
        for concept in concepts:
            heading.append(f" {concept[:_BAR_WIDTH]:^{_BAR_WIDTH}}        ", "bold")
        self._console.print(heading)
        for (event, _), row in zip(read, means, strict=True):
            line = _row(event, with_logprob=False)
            for value, most in zip(row, reach, strict=True):
                line.append(f" {bar(value / most)} {value:+6.2f}")
            self._console.print(line)

    def alternatives(self, top: Iterable[Alternative]) -> None:
        """The likeliest tokens, one a line."""
        for each in top:
            piece = repr(each.piece.decode("utf-8", "replace"))
            line = Text(f"{each.id:>8}  {piece:{_LONGEST_PIECE}}  ")
            line.append(f"{each.logprob:8.3f}", colour_of(each.logprob))
            self._console.print(line)


def bar(share: float) -> str:
    """A value between -1 and 1 as a bar to the left or to the right of the middle."""
    half = _BAR_WIDTH // 2
    eighths = round(min(abs(share), 1.0) * half * 8)
    full, part = divmod(eighths, 8)
    if share >= 0:
        filled = "█" * full + (_BLOCKS[part] if part else "")
        return f"{'':{half}}{filled:<{half}}"
    # There are no blocks that fill from the right; whole ones are exact enough for a glance.
    filled = "█" * (full + (part >= 4))
    return f"{filled:>{half}}{'':{half}}"


def _row(event: TokenEvent, *, with_logprob: bool = True) -> Text:
    piece = repr(event.piece.decode("utf-8", "replace"))[:_LONGEST_PIECE]
    line = Text(f"{event.position:>6}  ")
    line.append(f"{piece:{_LONGEST_PIECE}}", colour_of(event.logprob))
    if with_logprob:
        line.append("        -" if event.logprob is None else f" {event.logprob:8.3f}")
    return line


def _mean(readout: Readout, concept: str) -> float:
    values = readout.concept(concept).values()
    return sum(values) / len(values)
