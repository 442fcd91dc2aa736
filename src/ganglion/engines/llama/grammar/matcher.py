"""Follows a grammar: which tokens may come next in one sequence.

Law: nothing here runs on the step thread but following a token that was sampled. Grammars are compiled on one
thread, and the tokens that may come next are found on another, while the library computes the next step.
"""

from collections import OrderedDict
from collections.abc import Callable, Container
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from time import thread_time
from typing import TYPE_CHECKING, Final

import numpy as np

from ganglion.core.errors import EngineFailed, GanglionError, InvalidValue
from ganglion.engines.fair_thread import FairThread
from ganglion.engines.llama.native.arrays import Booleans, Ids
from ganglion.engines.llama.native.model import NativeModel

if TYPE_CHECKING:
    from llguidance import LLMatcher

    from ganglion.engines.llama.grammar.compiler import GrammarCompiler

_KEPT: Final = 64
"""Compiled grammars, and refusals, that are remembered; the one unused the longest goes first."""
_TOKENS_OF_ONE: Final = 16_384
"""Tokens that one compiled grammar follows, over all its sequences. They share the states of its lexer, which
only grow, and are refused together when these are too many; so it is compiled anew long before."""
_WAITING: Final = 1024
WAITING_EACH: Final = 256
"""Grammars that wait to be compiled, and of one tenant."""
_SLOWEST_S: Final = 0.1
"""Processor time of one look ahead, for which neighbours wait; nearly always llguidance stops long before."""


class OffGrammar(InvalidValue):
    """A grammar that could be compiled and cannot be followed any further."""


class CompiledGrammar:
    """A grammar made ready: its matcher, and which tokens must not come first."""

    def __init__(self, matcher: "LLMatcher", unnamed: Ids, vocabulary_size: int) -> None:
        """`unnamed` are the control tokens that the grammar does not name; raises OffGrammar."""
        self._matcher = matcher
        self._unnamed = unnamed
        self._vocabulary_size = vocabulary_size
        self.tokens = 0
        """How many were followed so far, over all sequences."""
        self.first = self.forbidden(matcher)

    def matcher(self) -> "LLMatcher":
        """A matcher for one sequence."""
        return self._matcher.deep_copy()

    def forbidden(self, matcher: "LLMatcher") -> Booleans:
        """Which tokens must not come next; raises OffGrammar."""
        bits = np.zeros((self._vocabulary_size + 31) // 32, np.uint32)
        began_s = thread_time()
        matcher.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
        if matcher.is_error():
            raise self.off(matcher.get_error().partition("\n")[0])
        if thread_time() - began_s > _SLOWEST_S:
            raise self.off("it takes too long to find what may come next")
        flat = np.unpackbits(~bits.view(np.uint8), bitorder="little", count=self._vocabulary_size)
        forbidden = flat.view(np.bool_)
        forbidden[self._unnamed] = True
        return forbidden

    def off(self, reason: str) -> OffGrammar:
        """Why a sequence cannot go on; perhaps what all share is full, so nobody else joins."""
        self.tokens = _TOKENS_OF_ONE
        return OffGrammar(f"The answer's format cannot be followed any further: {reason}")


class GrammarMatcher:
    """One sequence's way through its grammar."""

    def __init__(self, compiled: CompiledGrammar, ahead: ThreadPoolExecutor) -> None:
        self._compiled = compiled
        self._matcher = compiled.matcher()
        self._ahead = ahead
        self._next: Future[Booleans] | None = None

    @property
    def is_complete(self) -> bool:
        """Whether nothing can follow."""
        return self._matcher.is_stopped()

    @property
    def is_accepting(self) -> bool:
        """Whether the answer may end here."""
        return self._matcher.is_accepting()

    def look_ahead(self) -> None:
        """Begin to find out what may come next."""
        self._next = self._ahead.submit(self._compiled.forbidden, self._matcher)

    def forbidden(self) -> Booleans:
        """Which tokens must not come next; raises OffGrammar."""
        return self._next.result() if self._next is not None else self._compiled.first

    def follow(self, token: int) -> None:
        """Take the token that was sampled; raises OffGrammar."""
        self._compiled.tokens += 1
        if not self._matcher.consume_token(token):
            raise self._compiled.off(self._matcher.get_error().partition("\n")[0])


@dataclass(frozen=True, slots=True)
class GrammarOutcome:
    """What became of a request's grammar: a matcher, or why there is none."""

    id: int
    matcher: GrammarMatcher | None
    error: GanglionError | None = None


class GrammarService:
    """Makes matchers for requests, the tenants taking turns; `report` is called on another thread."""

    def __init__(
        self, model: NativeModel, report: Callable[[GrammarOutcome], None], waiting: Container[int]
    ) -> None:
        """`waiting` holds the requests that still wait for their matcher when it is their turn."""
        self._model = model
        self._report = report
        self._waiting = waiting
        self._thread: FairThread[tuple[int, str]] = FairThread(
            self._work, most=_WAITING, most_each=WAITING_EACH, of="output formats"
        )
        self._known: OrderedDict[str, CompiledGrammar | str] = OrderedDict()
        self._ahead = ThreadPoolExecutor(1, thread_name_prefix="masks")

    def ask(self, number: int, grammar: str, tenant: str = "") -> None:
        """Ask for a request's matcher; it is reported, unless the request is given up before.

        Raises Overloaded where too many wait.
        """
        self._thread.put(tenant, (number, grammar))

    def _work(self) -> None:
        # 60 ms and some memory, which a worker whose requests ask for no format does not pay.
        from ganglion.engines.llama.grammar.compiler import GrammarCompiler  # noqa: PLC0415

        compiler = GrammarCompiler(self._model)
        while True:
            number, grammar = self._thread.get()
            if number not in self._waiting:
                continue
            try:
                self._report(
                    GrammarOutcome(number, GrammarMatcher(self._find(compiler, grammar), self._ahead))
                )
            except GanglionError as error:
                self._report(GrammarOutcome(number, None, error))
            except BaseException as error:  # noqa: BLE001 - a panic in native code is not even an Exception
                self._report(
                    GrammarOutcome(number, None, EngineFailed(f"The grammar compiler failed: {error}"))
                )

    def _find(self, compiler: "GrammarCompiler", grammar: str) -> CompiledGrammar:
        known = self._known.get(grammar)
        if known is None or (isinstance(known, CompiledGrammar) and known.tokens >= _TOKENS_OF_ONE):
            try:
                known = compiler.compile(grammar)
            except InvalidValue as error:
                known = error.message
            self._known[grammar] = known
        self._known.move_to_end(grammar)
        while len(self._known) > _KEPT:
            self._known.popitem(last=False)
        if isinstance(known, str):
            raise InvalidValue(known)
        return known
