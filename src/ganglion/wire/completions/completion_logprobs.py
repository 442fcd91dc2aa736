"""The logprob lists of completions: one entry for each token, in order.

Law: with `echo`, the lists hold an entry for each token that the usage counts, prompt and completion. The
token that ends an answer is not shown, so its entry is an empty text without a logprob: evaluation harnesses
cut the last entry off, whatever it was.
"""

from codecs import getincrementaldecoder
from collections.abc import Iterable, Sequence

from msgspec import Struct

from ganglion.core.events import Token
from ganglion.wire.logprobs import json_logprob, token_text

_decoder = getincrementaldecoder("utf-8")


class CompletionLogprobs(Struct, frozen=True):
    """Four lists of one length; a token without a logprob has nulls."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class TextOffsets:
    """The offsets of tokens in the text, in characters; a part of a character begins with it."""

    def __init__(self, start: int = 0) -> None:
        self.end = start
        self._decoder = _decoder("replace")

    def of(self, token: Token) -> int:
        """The offset of the next token."""
        before = self.end
        self.end += len(self._decoder.decode(token.piece))
        return before


def completion_logprobs(
    tokens: Iterable[Token], alternatives: int, offsets: TextOffsets
) -> CompletionLogprobs:
    """The entries of generated tokens."""
    placed = [(offsets.of(token), token) for token in tokens]
    return _entries(placed, alternatives)


def echoed_logprobs(tokens: Sequence[Token], alternatives: int, text: str) -> CompletionLogprobs:
    """The entries of the prompt's tokens, placed in its text."""
    offsets = TextOffsets()
    placed = [(offsets.of(token), token) for token in tokens]
    # What a tokenizer puts before the text (its opening token, a space) is no part of it.
    lead = max(offsets.end - len(text), 0)
    return _entries([(min(max(at - lead, 0), len(text)), token) for at, token in placed], alternatives)


def echoed_text(tokens: Iterable[Token]) -> str:
    """A prompt of token ids as text."""
    return b"".join(token.piece for token in tokens).decode("utf-8", "replace")


def hidden_logprobs(count: int, offset: int) -> CompletionLogprobs | None:
    """The entries of tokens that are counted and not shown."""
    if count <= 0:
        return None
    return CompletionLogprobs([offset] * count, [None] * count, [""] * count, [None] * count)


def joined(parts: Iterable[CompletionLogprobs | None]) -> CompletionLogprobs:
    """Entries one after another."""
    whole = CompletionLogprobs([], [], [], [])
    for part in parts:
        if part is not None:
            whole.text_offset.extend(part.text_offset)
            whole.token_logprobs.extend(part.token_logprobs)
            whole.tokens.extend(part.tokens)
            whole.top_logprobs.extend(part.top_logprobs)
    return whole


def _entries(placed: Sequence[tuple[int, Token]], alternatives: int) -> CompletionLogprobs:
    return CompletionLogprobs(
        [at for at, _ in placed],
        [None if token.logprob is None else json_logprob(token.logprob) for _, token in placed],
        [token_text(token.piece) for _, token in placed],
        [_top(token, alternatives) for _, token in placed],
    )


def _top(token: Token, alternatives: int) -> dict[str, float] | None:
    """The likeliest by their text, the token itself among them; of one text the likeliest counts."""
    if token.logprob is None:
        return None
    top: dict[str, float] = {}
    for each in token.top[:alternatives]:
        top.setdefault(token_text(each.piece), json_logprob(each.logprob))
    own = token_text(token.piece)
    top[own] = max(top.get(own, token.logprob), json_logprob(token.logprob))
    return top
