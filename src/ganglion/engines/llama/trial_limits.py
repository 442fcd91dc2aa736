"""What a grammar may take: the same in the child that tries it and in the worker that follows it."""

from typing import Final

from llguidance import LLParserLimits

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
