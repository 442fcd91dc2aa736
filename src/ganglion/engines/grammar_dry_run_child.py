"""The child process that compiles grammars first, so that one which cannot be compiled costs nobody else.

Started by `child.py` with the vocabulary's size and the names of its end tokens. It answers each grammar with
what is wrong with it, both UTF-8; an empty answer finds nothing wrong.

It imports little, because every grammar that must be killed costs a new start. Its vocabulary is single
bytes: whether a grammar can be compiled, and what that costs, hardly depends on how text is cut into tokens.
"""

import time
from collections.abc import Iterator

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from ganglion.engines.child_main import Answer, serve


def parser_limits() -> LLParserLimits:
    """Bounds on compiling and, tighter, on each token: that time is taken from every neighbour's step."""
    return LLParserLimits(
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=100_000,  # about 7 ms
        step_max_items=20_000,  # about 1 ms
        max_items_in_row=2_000,
        max_lexer_states=100_000,  # up to 2 kB each
        max_grammar_size=300_000,
        verbose_errors=False,
    )


_BYTES = 256
_STEPS = 4
_STEP_S = 0.03
"""Processor time to find what may come next, of single bytes; of a whole vocabulary it takes longer."""


class _Bytes:
    """Single bytes and the end tokens, padded so that the ids a grammar names exist."""

    bos_token_id = None
    eos_token_id = _BYTES
    special_token_ids: tuple[int, ...] = ()

    def __init__(self, size: int, end_names: list[str]) -> None:
        ends = [b"\xff" + name.encode() for name in end_names or ["<end>"]]
        self.ends = list(range(_BYTES, _BYTES + len(ends)))
        tokens = [*(bytes((value,)) for value in range(_BYTES)), *ends]
        self.tokens = tokens + [b""] * (size - len(tokens))

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


def _prepare(arguments: list[str]) -> Answer:
    vocabulary = _Bytes(int(arguments[0]), arguments[1:])
    tokenizer = LLTokenizer(
        TokenizerWrapper(vocabulary), n_vocab=len(vocabulary.tokens), eos_token=vocabulary.ends, slices=[]
    )

    def answer(body: bytes) -> Iterator[bytes]:
        yield _error_in(tokenizer, body.decode()).encode()

    return answer


def _error_in(tokenizer: LLTokenizer, grammar: str) -> str:
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=parser_limits())
    for _ in range(_STEPS):
        if matcher.is_error():
            return matcher.get_error()
        if matcher.is_stopped():
            break
        began_s = time.thread_time()
        mask = matcher.compute_bitmask()  # a grammar that nothing satisfies is found out only here
        if time.thread_time() - began_s > _STEP_S:
            return "it takes too long to find what may come next"
        byte = next((byte for byte in range(_BYTES) if mask[byte >> 3] >> (byte & 7) & 1), None)
        if matcher.is_error() or byte is None:
            continue
        matcher.consume_token(byte)
    return ""


if __name__ == "__main__":
    serve(_prepare)
