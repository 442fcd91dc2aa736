"""An echo's vocabulary: a token for each word, and the words that ids were."""

import re
import zlib
from typing import Final, assert_never

from ganglion.core.events import Alternative, Token
from ganglion.core.request import PLACEHOLDER, ChatPrompt, Prompt, TextPrompt, TokenPrompt

REMEMBERED_BYTES: Final = 1 << 20
"""Of the words that ids can be turned back into: a small vocabulary's worth. Clients invent words, as long
as a body."""
_WORD_COSTS: Final = 64
"""What remembering one takes besides its text."""
_WORD: Final = re.compile(r"\s*\S+|\s+")


def split(text: str) -> list[str]:
    """The words of a text, each with the whitespace before it."""
    return _WORD.findall(text)


class Words:
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
                return tuple(map(self.id_of, split(text)))
            case ChatPrompt(messages=messages):
                return tuple(self.id_of(word) for message in messages for word in split(message.content))
            case _:
                assert_never(prompt)

    def text_of(self, tokens: tuple[int, ...]) -> str:
        """The words that ids were; an image is none."""
        return "".join(
            self._words_by_id.get(token, f" <{token}>") for token in tokens if token != PLACEHOLDER
        )

    def repeated(self, prompt: Prompt) -> str:
        """What an echo says to a prompt: all of it, or the last that a user said."""
        match prompt:
            case ChatPrompt(messages=messages):
                users = [message.content for message in messages if message.role == "user"]
                return users[-1] if users else ""
            case TextPrompt(text=text):
                return text
            case TokenPrompt(tokens=tokens):
                return self.text_of(tokens)
            case _:
                assert_never(prompt)

    def told(self, token_id: int, position: int, alternatives: int | None) -> Token:
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
