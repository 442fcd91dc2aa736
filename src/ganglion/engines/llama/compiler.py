"""Grammars for one model's vocabulary, compiled with llguidance once a child process has tried them.

llguidance holds the interpreter's lock while it takes the vocabulary in, once in a worker's life (about 0.1 s
for 49,000 tokens), and neither while it compiles nor while it computes masks.
"""

import json
import re
from typing import Any, Final, cast

import numpy as np
from llguidance import LLMatcher, LLTokenizer

from ganglion.core.errors import InvalidValue
from ganglion.engines.llama.guide import Compiled
from ganglion.engines.llama.native_model import NativeModel
from ganglion.engines.llama.trial import Trial
from ganglion.engines.llama.trial_limits import parser_limits

LONGEST_REASON: Final = 400
SPECIAL: Final = b"\xff"
"""What llguidance wants before the name of a token that no text matches."""
_EXCERPT: Final = re.compile(r"\n\s+\d+ \|.*", re.DOTALL)
"""The lines of a grammar around an error: here they are of a grammar that the client did not write."""


class Compiler:
    """Compiles grammars; for one thread."""

    def __init__(self, model: NativeModel) -> None:
        self._model = model
        self._trial = Trial(model.vocabulary_size, [_text(model.piece(token)) for token in model.end_tokens])
        self._tokenizer: LLTokenizer | None = None
        self._controls: dict[int, str] = {}

    def compile(self, grammar: str) -> Compiled:
        """A grammar that sequences can be held to; raises InvalidValue with the reason why not."""
        if (reason := self._trial.verdict(grammar)) is not None:
            raise _refusal(reason)
        tokenizer = self._tokenizer or self._read_vocabulary()
        matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=parser_limits())
        if matcher.is_error():
            raise _refusal(matcher.get_error())
        unnamed = [token for token, name in self._controls.items() if not _names(grammar, name)]
        return Compiled(matcher, np.array(unnamed, np.int64), self._model.vocabulary_size)

    def _read_vocabulary(self) -> LLTokenizer:
        """To llguidance all tokens are text but the ends.

        A marker is a control token in one model and text in the next; as text, one grammar fits both. That no
        other control token slips into a string is seen to afterwards: what a grammar does not name is masked.
        """
        model = self._model
        pieces = [model.piece(token) for token in range(model.vocabulary_size)]
        self._controls = {
            token: _text(piece)
            for token, piece in enumerate(pieces)
            if model.is_control(token) and token not in model.end_tokens
        }
        for token in model.end_tokens:
            pieces[token] = SPECIAL + pieces[token]
        vocabulary_pointer, tokenize_pointer = model.tokenizer_pointers
        # The library's own function, which needs no interpreter: forced text is tokenized inside a mask.
        tokenizer: LLTokenizer = cast(Any, LLTokenizer).from_llamacpp(
            tokens=pieces,
            vocab_ptr=vocabulary_pointer,
            tokenize_fptr=tokenize_pointer,
            eos_token=list(model.end_tokens),
            slices=None,
        )
        self._tokenizer = tokenizer
        return tokenizer


def _names(grammar: str, token: str) -> bool:
    return token in grammar or json.dumps(token)[1:-1] in grammar


def _text(piece: bytes) -> str:
    return piece.decode("utf-8", "replace")


def _refusal(reason: str) -> InvalidValue:
    short = _EXCERPT.sub("", reason).strip()[:LONGEST_REASON]
    return InvalidValue(f"The output format cannot be compiled: {short}")
