"""Injects faults into a worker, for tests.

Law: faults come from whoever constructs the engine, in code. No file, variable, flag or request can name one,
so a node that serves others has none.
"""

import math
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """Strikes a sequence that holds these tokens in a row, when it has generated so many."""

    kind: Literal["crash", "hang", "nan"]
    tokens: tuple[int, ...]
    at_token: int = 0

    def meets(self, tokens: list[int], generated_tokens: int) -> bool:
        """Whether it strikes now."""
        size = len(self.tokens)
        windows = (tuple(tokens[at : at + size]) for at in range(len(tokens) - size + 1))
        return generated_tokens == self.at_token and self.tokens in windows


def inject_faults(
    faults: tuple[InjectedFault, ...], tokens: list[int], generated_tokens: int, fill: Callable[[float], None]
) -> None:
    """Do to a sequence what was asked for, before its next token is sampled; `fill` overwrites its logits."""
    for fault in faults:
        if not fault.meets(tokens, generated_tokens):
            continue
        if fault.kind == "nan":
            fill(math.nan)
        elif fault.kind == "hang":
            time.sleep(3600.0)
        else:
            os.kill(os.getpid(), signal.SIGSEGV)
