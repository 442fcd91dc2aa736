"""A checkpoint's vocabulary: text to ids and back, and the bytes of each token.

Law: the pieces of a text's tokens, put together, are the bytes of the text wherever the vocabulary keeps all
of it. A token that is no text is written out by its name.
"""

import json
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from tokenizers import Tokenizer

from ganglion.core.errors import LoadFailed
from ganglion.engines.supervision.ipc import SpecialTokens

_SPACE: Final = "\u2581"
_BYTE_TOKEN_LENGTH: Final = len("<0x00>")
_CONTINUED: Final = "##"


def _byte_characters() -> dict[str, int]:
    """The character that a byte-level vocabulary writes for each byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    found = {chr(byte): byte for byte in printable}
    return found | {chr(256 + number): byte for number, byte in enumerate(others)}


def written_tokenizer(checkpoint: Path, tokenizer: Any) -> str:
    """A checkpoint's tokenizer.json, or what `tokenizer`, which was made of its other files, would be as one.

    Raises LoadFailed where it is of a kind that cannot be written so.
    """
    file = checkpoint / "tokenizer.json"
    if file.is_file():
        return file.read_text()
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        raise LoadFailed(
            "The checkpoint's tokenizer is of a kind that cannot be read here.",
            hint="Use a checkpoint with a tokenizer.json.",
        )
    written: str = backend.to_str()
    return written


class CheckpointVocabulary:
    """The vocabulary; safe to ask from several threads."""

    def __init__(
        self, written: str, *, bos: str, eos: int | None, ends: frozenset[int], vocabulary_size: int
    ) -> None:
        """`written` is the tokenizer as tokenizer.json has it.

        The model may have more ids than its tokenizer has tokens: those are empty.
        """
        self._parsing = Tokenizer.from_str(written)
        self._plain = Tokenizer.from_str(written)
        self._plain.encode_special_tokens = True
        for each in (self._parsing, self._plain):
            each.no_truncation()
            each.no_padding()
        self._shape = json.loads(written)
        self.eos = eos
        self._bos: int | None = self._parsing.token_to_id(bos) if bos else None
        self.end_tokens = ends
        self.vocabulary_size = vocabulary_size
        added = self._parsing.get_added_tokens_decoder()
        self.controls = frozenset(number for number, token in added.items() if token.special)
        self._strips = any(token.lstrip or token.rstrip for token in added.values())
        self._pieces = self._read_pieces({number: token.content for number, token in added.items()})

    @property
    def keeps_all_text(self) -> bool:
        """Whether no part of a text is rewritten before it is cut into tokens."""
        return self._shape["normalizer"] is None and self._is_byte_level

    @property
    def strips_whitespace(self) -> bool:
        """Whether some token swallows the white space beside it."""
        return self._strips

    def markers(self) -> list[bytes]:
        """The names of the control tokens, which are looked for in a text before it is tokenized."""
        return [self._pieces[number] for number in self.controls if self._pieces[number]]

    def is_control(self, token: int) -> bool:
        """Whether a token is the vocabulary's own sign and not text."""
        return token in self.controls

    def piece(self, token: int) -> bytes:
        """A token's bytes, control tokens by their names."""
        return self._pieces[token]

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Text to ids."""
        tokenizer = self._parsing if parse_special else self._plain
        ids: list[int] = tokenizer.encode(text, add_special_tokens=add_special).ids
        return ids

    @cached_property
    def special_tokens(self) -> SpecialTokens:
        """The vocabulary's own signs; a token that it does not have is None."""
        around = self.tokenize("a", add_special=True, parse_special=False)
        bare = self.tokenize("a", add_special=False, parse_special=False)
        return SpecialTokens(
            bos=self._bos,
            eos=self.eos,
            adds_bos=len(around) > len(bare) and around[0] == self._bos,
            adds_eos=len(around) > len(bare) and around[-1] == self.eos,
            ends=sorted(self.end_tokens),
        )

    @property
    def _is_byte_level(self) -> bool:
        kinds = _kinds(self._shape["decoder"])
        return "ByteLevel" in kinds

    def _read_pieces(self, added: dict[int, str]) -> list[bytes]:
        bytes_of = _byte_characters() if self._is_byte_level else None
        is_word_piece = "WordPiece" in _kinds(self._shape["decoder"])
        pieces = [b""] * max(self.vocabulary_size, self._parsing.get_vocab_size())
        for token, number in self._parsing.get_vocab().items():
            if number in added:
                pieces[number] = added[number].encode()
            elif bytes_of is not None and all(character in bytes_of for character in token):
                pieces[number] = bytes(bytes_of[character] for character in token)
            elif is_word_piece:
                pieces[number] = _word_piece(token)
            else:
                pieces[number] = _sentence_piece(token)
        return pieces


def _kinds(part: dict[str, Any] | None) -> set[str]:
    """The kinds of a decoder's parts."""
    if part is None:
        return set()
    return {part["type"]}.union(*(_kinds(each) for each in part.get("decoders", ())))


def _sentence_piece(token: str) -> bytes:
    if len(token) == _BYTE_TOKEN_LENGTH and token.startswith("<0x") and token.endswith(">"):
        return bytes.fromhex(token[3:5])
    return token.replace(_SPACE, " ").encode()


def _word_piece(token: str) -> bytes:
    return token.removeprefix(_CONTINUED).encode() if token.startswith(_CONTINUED) else f" {token}".encode()
