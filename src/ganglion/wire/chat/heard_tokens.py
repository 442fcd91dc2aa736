"""The tokens of a chunk, as far as its server tells them: by logprobs, by readouts, or by both."""

from dataclasses import replace

from ganglion.core.events import Alternative, Token
from ganglion.wire.chat.heard import HeardChoice, HeardReadout, HeardToken, HeardTop

_UNTOLD = -1
"""The id of a token where only its text is told."""


def tokens_of(choice: HeardChoice, position: int) -> tuple[Token, ...]:
    """The tokens in order; those whose position is not told are counted from `position`."""
    logprobs = (choice.logprobs.content if choice.logprobs is not None else None) or []
    readouts = choice.readout or []
    return tuple(
        _token(
            logprobs[place] if place < len(logprobs) else None,
            readouts[place] if place < len(readouts) else None,
            position + place,
        )
        for place in range(max(len(logprobs), len(readouts)))
    )


def _token(told: HeardToken | None, read: HeardReadout | None, position: int) -> Token:
    token = Token(_UNTOLD, b"", position)
    if told is not None:
        top = tuple(Alternative(each.id, _piece(each), each.logprob) for each in told.top_logprobs or ())
        token = Token(told.id, _piece(told), position, told.logprob, top)
    if read is None:
        return token
    values = tuple(value for layer in read.values for value in layer)
    return replace(token, id=read.id, position=read.position, readout=values)


def _piece(told: HeardToken | HeardTop) -> bytes:
    if told.bytes is None:
        return told.token.encode(errors="replace")
    return bytes(byte & 255 for byte in told.bytes)
