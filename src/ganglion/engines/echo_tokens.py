"""What an echo tells of tokens that it was given: their logprobs and readouts, and how much was cached."""

from ganglion.core.events import Token
from ganglion.core.request import PLACEHOLDER, Ranges, Score, TokenRequest
from ganglion.engines.echo_concepts import Reader
from ganglion.engines.echo_words import Words


def scored_of(
    tokens: tuple[int, ...], score: Score | None, reader: Reader, words: Words
) -> tuple[Token, ...]:
    """The tokens of a prompt of which something was asked, each once; an image has none to tell of."""
    scored = _positions(score.ranges, len(tokens)) if score is not None else set[int]()
    read = {place for place in range(len(tokens)) if reader.wants(place)}
    top = score.top if score is not None else 0
    return tuple(
        reader.read(words.told(tokens[place], place, top if place and place in scored else None))
        for place in sorted(scored | read)
        if tokens[place] != PLACEHOLDER
    )


def cached_of(request: TokenRequest, known_tokens: int) -> int:
    """How many known tokens need not run again: the last one does, and so does what is asked about."""
    # The logprob of a token comes from the one before it, its readout from itself.
    firsts = [start - 1 for start, _ in request.score.ranges] if request.score is not None else []
    firsts += [start for start, _ in request.readout]
    return max(min(known_tokens, len(request.tokens) - 1, *firsts), 0)


def _positions(ranges: Ranges, length: int) -> set[int]:
    return {
        place for start, end in ranges for place in range(start, min(length if end is None else end, length))
    }
