"""Compiles grammars for one model's vocabulary with llguidance, once a child process has tried them.

llguidance holds the interpreter's lock while it takes the vocabulary in, once in a worker's life (about 0.1 s
for 49,000 tokens), and neither while it compiles nor while it computes masks.
"""

import json
import re
import signal
from contextlib import suppress
from typing import Any, Final, cast

import numpy as np
from llguidance import LLMatcher, LLTokenizer

from ganglion.core.errors import EngineFailed, InvalidValue
from ganglion.engines.child import Child, ChildDied, ChildLimits, ChildNotStarted, spawn
from ganglion.engines.llama.grammar.dry_run_child import parser_limits
from ganglion.engines.llama.grammar.matcher import CompiledGrammar
from ganglion.engines.llama.native.model import NativeModel

# Law: a grammar may take the processor time, the waiting and the memory of `_LIMITS`, and one that takes more
# costs its own request an error and the sequences that run nothing. llguidance bounds most of what it does
# and not all: some schemas of a few kilobytes compile for minutes, and a native call cannot be interrupted.

_CHILD: Final = "ganglion.engines.llama.grammar.dry_run_child"
_LIMITS: Final = ChildLimits(
    wall_s=1.4,  # more than the processor time, since the child gives way to sequences that run
    cpu_s=0.7,
    memory_bytes=512 * 2**20,
    max_frame_bytes=2**20,
    niceness=10,  # whoever compiles waits anyway; the sequences that run beside it should not
)

TOO_LONG: Final = "it takes too long to compile"
_TOO_LARGE: Final = "it takes too much memory to compile"


class _GrammarDryRun:
    """One child, started when it is first needed and after each that had to be killed. For one thread."""

    def __init__(self, vocabulary_size: int, end_names: list[str]) -> None:
        self._arguments = (str(vocabulary_size), *end_names)
        self._child: Child | None = None

    def error_in(self, grammar: str) -> str | None:
        """What is wrong with a grammar, in words for its author, or None."""
        try:
            child = self._child = self._child or spawn(_CHILD, *self._arguments, limits=_LIMITS)
            error = child.ask(grammar.encode())
        except ChildNotStarted:
            self.close()
            raise EngineFailed("The process that tries grammars did not start.") from None
        except TimeoutError:
            self._start_anew()
            return TOO_LONG
        except ChildDied as death:
            self._start_anew()
            return TOO_LONG if death.code == -signal.SIGPROF else _TOO_LARGE
        return error.decode("utf-8", "replace") or None

    def close(self) -> None:
        """End the child."""
        child, self._child = self._child, None
        if child is not None:
            child.close()

    def _start_anew(self) -> None:
        """Begin the next child now, so that the next grammar finds it ready."""
        self.close()
        with suppress(ChildNotStarted):  # whoever comes next tries again
            self._child = spawn(_CHILD, *self._arguments, limits=_LIMITS)


_LONGEST_REASON: Final = 400
_SPECIAL: Final = b"\xff"
"""What llguidance wants before the name of a token that no text matches."""
_EXCERPT: Final = re.compile(r"\n\s+\d+ \|.*", re.DOTALL)
"""The lines of a grammar around an error: here they are of a grammar that the client did not write."""


class GrammarCompiler:
    """Compiles grammars; for one thread."""

    def __init__(self, model: NativeModel) -> None:
        self._model = model
        self._dry_run = _GrammarDryRun(
            model.vocabulary_size, [_text(model.piece(token)) for token in model.end_tokens]
        )
        self._tokenizer: LLTokenizer | None = None
        self._controls: dict[int, str] = {}

    def compile(self, grammar: str) -> CompiledGrammar:
        """A grammar that sequences can be held to; raises InvalidValue with the reason why not."""
        if (reason := self._dry_run.error_in(grammar)) is not None:
            raise _refusal(reason)
        tokenizer = self._tokenizer or self._read_vocabulary()
        matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=parser_limits())
        if matcher.is_error():
            raise _refusal(matcher.get_error())
        unnamed = [token for token, name in self._controls.items() if not _names(grammar, name)]
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


def _names(grammar: str, token: str) -> bool:
    return token in grammar or json.dumps(token)[1:-1] in grammar


def _text(piece: bytes) -> str:
    return piece.decode("utf-8", "replace")


def _refusal(reason: str) -> InvalidValue:
    short = _EXCERPT.sub("", reason).strip()[:_LONGEST_REASON]
    return InvalidValue(f"The output format cannot be compiled: {short}")
