"""The child process that compiles grammars first, so that one which cannot be compiled costs nobody else.

`python -m ganglion.engines.llama.grammar.dry_run_child MEMORY_BYTES CPU_S VOCABULARY_SIZE END_NAME…` says
`READY`, then answers each grammar on stdin with what is wrong with it on stdout, until stdin ends. Both are a
length of four bytes and so much UTF-8; an empty answer finds nothing wrong.

It imports little, because every grammar that must be killed costs a new start. Its vocabulary is single
bytes: whether a grammar can be compiled, and what that costs, hardly depends on how text is cut into tokens.
"""

import os
import signal
import sys
import time
from typing import BinaryIO, Final

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from ganglion.engines.child import confine

READY: Final = b"\x06"
LENGTH_BYTES: Final = 4


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


NICENESS = 10
"""Whoever compiles waits anyway; the sequences that run beside it should not."""
BYTES = 256
STEPS = 4
STEP_S = 0.03
"""Processor time to find what may come next, of single bytes; of a whole vocabulary it takes longer."""


class _Bytes:
    """Single bytes and the end tokens, padded so that the ids a grammar names exist."""

    bos_token_id = None
    eos_token_id = BYTES
    special_token_ids: tuple[int, ...] = ()

    def __init__(self, size: int, end_names: list[str]) -> None:
        ends = [b"\xff" + name.encode() for name in end_names or ["<end>"]]
        self.ends = list(range(BYTES, BYTES + len(ends)))
        tokens = [*(bytes((value,)) for value in range(BYTES)), *ends]
        self.tokens = tokens + [b""] * (size - len(tokens))

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


def main() -> None:
    """Serve one worker until it closes our stdin."""
    memory_bytes, cpu_s, size = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICENESS)
    vocabulary = _Bytes(size, sys.argv[4:])
    tokenizer = LLTokenizer(
        TokenizerWrapper(vocabulary), n_vocab=len(vocabulary.tokens), eos_token=vocabulary.ends, slices=[]
    )
    confine(memory_bytes)
    try:
        _serve(sys.stdin.buffer, sys.stdout.buffer, tokenizer, cpu_s)
    except BrokenPipeError:
        os._exit(0)


def _serve(source: BinaryIO, sink: BinaryIO, tokenizer: LLTokenizer, cpu_s: float) -> None:
    sink.write(READY)
    sink.flush()
    while length := source.read(LENGTH_BYTES):
        grammar = source.read(int.from_bytes(length, "big")).decode()
        # Nobody handles it, so it ends the process even inside one endless native call.
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        error = _try(tokenizer, grammar).encode()
        signal.setitimer(signal.ITIMER_PROF, 0)
        sink.write(len(error).to_bytes(LENGTH_BYTES, "big") + error)
        sink.flush()


def _try(tokenizer: LLTokenizer, grammar: str) -> str:
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=parser_limits())
    for _ in range(STEPS):
        if matcher.is_error():
            return matcher.get_error()
        if matcher.is_stopped():
            break
        began_s = time.thread_time()
        mask = matcher.compute_bitmask()  # a grammar that nothing satisfies is found out only here
        if time.thread_time() - began_s > STEP_S:
            return "it takes too long to find what may come next"
        byte = next((byte for byte in range(BYTES) if mask[byte >> 3] >> (byte & 7) & 1), None)
        if matcher.is_error() or byte is None:
            continue
        matcher.consume_token(byte)
    return ""


if __name__ == "__main__":
    main()
