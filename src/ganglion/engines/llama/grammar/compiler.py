"""Compiles grammars for one model's vocabulary with llguidance, once a child process has tried them.

llguidance holds the interpreter's lock while it takes the vocabulary in, once in a worker's life (about 0.1 s
for 49,000 tokens), and neither while it compiles nor while it computes masks.
"""

from typing import Any, Final, cast

import numpy as np
from llguidance import LLMatcher, LLTokenizer

from ganglion.engines.grammar_dry_run import GrammarDryRun, grammar_refusal, names_token
from ganglion.engines.grammar_dry_run_child import parser_limits
from ganglion.engines.llama.grammar.matcher import CompiledGrammar
from ganglion.engines.llama.native.model import NativeModel

_SPECIAL: Final = b"\xff"
"""What llguidance wants before the name of a token that no text matches."""


class GrammarCompiler:
    """Compiles grammars; for one thread."""

    def __init__(self, model: NativeModel) -> None:
        self._model = model
        self._dry_run = GrammarDryRun(
            model.vocabulary_size, [_text(model.piece(token)) for token in model.end_tokens]
        )
        self._tokenizer: LLTokenizer | None = None
        self._controls: dict[int, str] = {}

    def compile(self, grammar: str) -> CompiledGrammar:
        """A grammar that sequences can be held to; raises InvalidValue with the reason why not."""
        if (reason := self._dry_run.error_in(grammar)) is not None:
            raise grammar_refusal(reason)
        tokenizer = self._tokenizer or self._read_vocabulary()
        matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=parser_limits())
        if matcher.is_error():
            raise grammar_refusal(matcher.get_error())
        unnamed = [token for token, name in self._controls.items() if not names_token(grammar, name)]
        return CompiledGrammar(matcher, np.array(unnamed, np.int64), self._model.vocabulary_size)

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
            pieces[token] = _SPECIAL + pieces[token]
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


def _text(piece: bytes) -> str:
    return piece.decode("utf-8", "replace")
