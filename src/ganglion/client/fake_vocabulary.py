"""The fake node's vocabulary: one token a word, with the white space before it."""

import re
import zlib
from typing import Final

from ganglion.core.engine import ReadoutManifest
from ganglion.wire.salience import salience_pb2 as pb

BOS: Final = 1
EOS: Final = 2
_SPECIAL: Final = {"<s>": BOS, "</s>": EOS}
VOCABULARY_SIZE: Final = 1 << 31
_WORD: Final = re.compile(r"\s*[^\s<]+|\s*<|\s+")
_WORD_OR_SPECIAL: Final = re.compile(rf"</?s>|{_WORD.pattern}")


class FakeVocabulary:
    """Words to tokens and back; the same word is the same token on every node."""

    def __init__(self) -> None:
        self._words = {token: word for word, token in _SPECIAL.items()}

    def tokens(self, text: str, *, add_special: bool = False, parse_special: bool = False) -> list[int]:
        """A text's tokens."""
        pattern = _WORD_OR_SPECIAL if parse_special else _WORD
        return [BOS] * add_special + [self._token(word, parse_special) for word in pattern.findall(text)]

    def piece(self, token: int) -> bytes:
        """A token's bytes."""
        return self._words.get(token, "\N{REPLACEMENT CHARACTER}").encode()

    def _token(self, word: str, parse_special: bool) -> int:
        if parse_special and word in _SPECIAL:
            return _SPECIAL[word]
        token = zlib.crc32(word.encode()) % (VOCABULARY_SIZE - 8) + 8
        self._words[token] = word
        return token


def render_messages(messages: list[dict[str, str]]) -> str:
    """Messages as the fake's template writes them, up to where an answer begins."""
    return "".join(f" {each['role']}: {each['content']}</s>" for each in messages) + " assistant:"


def logprob_of(token: int) -> float:
    """How likely a token is, wherever it stands: always the same, and exact in float32."""
    return -(token % 16 + 1) / 8


def readout_of(token: int, manifest: ReadoutManifest) -> list[float]:
    """What is read out of a token, by layer: always the same, and exact in float32."""
    return [
        layer + number / 4 + token % 8 / 64
        for layer in manifest.layers
        for number in range(len(manifest.concepts))
    ]


def alternatives(token: int, count: int, vocabulary: FakeVocabulary) -> list[pb.Alternative]:
    """The token itself, and such as are ever less likely."""
    return [
        pb.Alternative(id=other, logprob=logprob_of(token) - number, piece=vocabulary.piece(other))
        for number, other in enumerate(range(token, token + count))
    ]
