"""An echo's vocabulary: a token for each word, and the words that ids were."""

import math
import re
import zlib
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, assert_never

from ganglion.core.engine import ReadoutManifest
from ganglion.core.errors import ReadoutUnavailable
from ganglion.core.events import Alternative, Token
from ganglion.core.request import (
    PLACEHOLDER,
    Attachment,
    ChatPrompt,
    Message,
    Prompt,
    Ranges,
    Score,
    Steering,
    TextPrompt,
    TokenPrompt,
    TokenRequest,
)
from ganglion.engines.steering_check import check_steering

_VECTOR_SIZE: Final = 64


def bag_of_words(tokens: tuple[int, ...]) -> bytes:
    """A unit vector of an input's words, float32, the same for the same words."""
    counts = array("f", bytes(4 * _VECTOR_SIZE))
    for token in tokens:
        counts[token % _VECTOR_SIZE] += 1.0
    length = math.sqrt(sum(value * value for value in counts)) or 1.0
    return array("f", [value / length for value in counts]).tobytes()


def overlap_scores(query: str, documents: Sequence[str]) -> tuple[tuple[float, ...], int]:
    """The share of the query's words that each document holds, and how many words were read."""
    query_words = set(query.split())
    texts = [set(document.split()) for document in documents]
    return tuple(len(query_words & words) / max(len(query_words), 1) for words in texts), len(
        query_words
    ) + sum(map(len, texts))


_STEPS: Final = 64
"""Values are whole multiples of 1/64 from -1 to 1: float32 holds each exactly."""


class EchoReadout:
    """Reads the tokens of one request that lie in its ranges; raises where it cannot read or steer."""

    def __init__(self, manifest: ReadoutManifest | None, ranges: Ranges, steering: Steering) -> None:
        if ranges and manifest is None:
            raise ReadoutUnavailable(
                "This model has no concepts loaded, so there is nothing to read out of it.", param="readout"
            )
        self._ranges = ranges
        self._concepts = manifest.concepts if manifest is not None else ()
        self._layers = manifest.layers if manifest is not None else ()
        check_steering(steering, manifest)
        self._moved = self._steered(steering)

    def wants(self, position: int) -> bool:
        """Whether a position lies in a range."""
        return any(start <= position and (end is None or position < end) for start, end in self._ranges)

    def read(self, token: Token) -> Token:
        """The token, with its readout where that was asked for."""
        return replace(token, readout=self._values(token.id)) if self.wants(token.position) else token

    def _values(self, token_id: int) -> tuple[float, ...]:
        return tuple(
            fake_readout(token_id, layer, concept) + self._moved.get((layer, concept), 0.0)
            for layer in self._layers
            for concept in range(len(self._concepts))
        )

    def _steered(self, steering: Steering) -> dict[tuple[int, int], float]:
        moved: dict[tuple[int, int], float] = {}
        for steer in steering:
            for layer in self._layers if steer.layers is None else steer.layers:
                key = (layer, self._concepts.index(steer.concept))
                moved[key] = moved.get(key, 0.0) + steer.strength
        return moved


def fake_readout(token_id: int, layer: int, concept: int) -> float:
    """What an unsteered echo reads of a token."""
    return ((token_id + 31 * layer + 17 * concept) % (2 * _STEPS + 1) - _STEPS) / _STEPS


REMEMBERED_BYTES: Final = 1 << 20
"""Of the words that ids can be turned back into: a small vocabulary's worth. Clients invent words, as long
as a body."""
_WORD_COSTS: Final = 64
"""What remembering one takes besides its text."""
_WORD: Final = re.compile(r"\s*\S+|\s+")


def split_words(text: str) -> list[str]:
    """The words of a text, each with the whitespace before it."""
    return _WORD.findall(text)


class WordVocabulary:
    """Ids of words, and the words of the ids that were given out last."""

    def __init__(self) -> None:
        self._words_by_id: dict[int, str] = {}
        self._size_bytes = 0

    def id_of(self, word: str) -> int:
        """The same id for the same word, always."""
        token_id = zlib.crc32(word.encode()) & 0x7FFFFFFF
        self._forget(token_id)
        self._words_by_id[token_id] = word
        self._size_bytes += len(word) + _WORD_COSTS
        while self._size_bytes > REMEMBERED_BYTES and len(self._words_by_id) > 1:
            self._forget(next(iter(self._words_by_id)))
        return token_id

    def _forget(self, token_id: int) -> None:
        word = self._words_by_id.pop(token_id, None)
        if word is not None:
            self._size_bytes -= len(word) + _WORD_COSTS

    def ids_of(self, prompt: Prompt) -> tuple[int, ...]:
        """A prompt as token ids."""
        match prompt:
            case TokenPrompt(tokens=tokens):
                return tokens
            case TextPrompt(text=text):
                return tuple(map(self.id_of, split_words(text)))
            case ChatPrompt(messages=messages):
                return tuple(token for message in messages for token in self._ids_in(message))
            case _:
                assert_never(prompt)

    def _ids_in(self, message: Message) -> Iterator[int]:
        for text, attachment in _pieces(message):
            yield from map(self.id_of, split_words(text))
            if attachment is not None:
                yield from (PLACEHOLDER,) * image_positions(attachment.data)

    def text_of(self, tokens: tuple[int, ...]) -> str:
        """The words that ids were; an image is none."""
        return "".join(
            self._words_by_id.get(token, f" <{token}>") for token in tokens if token != PLACEHOLDER
        )

    def repeated(self, prompt: Prompt) -> str:
        """What an echo says to a prompt: all of it, or the last that a user said."""
        match prompt:
            case ChatPrompt(messages=messages):
                users = [message for message in messages if message.role == "user"]
                return _seen(users[-1]) if users else ""
            case TextPrompt(text=text):
                return text
            case TokenPrompt(tokens=tokens):
                return self.text_of(tokens)
            case _:
                assert_never(prompt)

    def token_of(self, token_id: int, position: int, alternatives: int | None) -> Token:
        """A token, with a logprob and alternatives made up from its id where they are asked for."""
        piece = self._words_by_id.get(token_id, "").encode()
        if alternatives is None:
            return Token(token_id, piece, position)
        logprob = -(1 + token_id % 99) / 100
        top = [Alternative(token_id, piece, logprob)]
        top += [
            Alternative(rank, f" other{rank}".encode(), logprob - rank) for rank in range(1, alternatives)
        ]
        return Token(token_id, piece, position, logprob, tuple(top[:alternatives]), rank=1)


def image_positions(data: bytes) -> int:
    """How many positions a file takes: one for each hundred bytes."""
    return max(len(data) // 100, 1)


def _pieces(message: Message) -> Iterator[tuple[str, Attachment | None]]:
    """The text of a message up to each of its files, and what follows the last."""
    start = 0
    for attachment in message.attachments:
        yield message.content[start : attachment.at], attachment
        start = attachment.at
    yield message.content[start:], None


def _seen(message: Message) -> str:
    """What an echo says to a message: its text, with the name and the size of each file in its place."""
    if not message.attachments:
        return message.content
    said: list[str] = []
    for number, (text, attachment) in enumerate(_pieces(message), 1):
        said.append(text)
        if attachment is not None:
            positions = image_positions(attachment.data)
            said.append(f"[{attachment.kind} {number}: {positions} positions]")
    return "".join(said)


def scored_tokens(
    tokens: tuple[int, ...], score: Score | None, reader: EchoReadout, words: WordVocabulary
) -> tuple[Token, ...]:
    """The tokens of a prompt of which something was asked, each once; an image has none to tell of."""
    scored = _positions(score.ranges, len(tokens)) if score is not None else set[int]()
    read = {position for position in range(len(tokens)) if reader.wants(position)}
    top = score.top if score is not None else 0
    return tuple(
        reader.read(
            words.token_of(tokens[position], position, top if position and position in scored else None)
        )
        for position in sorted(scored | read)
        if tokens[position] != PLACEHOLDER
    )


def reusable_tokens(request: TokenRequest, known_tokens: int) -> int:
    """How many known tokens need not run again: the last one does, and so does what is asked about."""
    # The logprob of a token comes from the one before it, its readout from itself.
    firsts = [start - 1 for start, _ in request.score.ranges] if request.score is not None else []
    firsts += [start for start, _ in request.readout]
    return max(min(known_tokens, len(request.tokens) - 1, *firsts), 0)


def _positions(ranges: Ranges, length: int) -> set[int]:
    return {
        position
        for start, end in ranges
        for position in range(start, min(length if end is None else end, length))
    }
