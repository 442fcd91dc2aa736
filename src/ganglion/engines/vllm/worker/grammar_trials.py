"""Tries the grammars of requests before vLLM compiles them, the tenants taking turns.

Law: a grammar that cannot be compiled, or takes too long, costs its own request an error and the process that
tries it, and never reaches vLLM, which compiles inside the process that all requests share.
"""

import asyncio
from functools import lru_cache
from typing import Final

from ganglion.core.errors import EngineFailed, GanglionError, InvalidValue
from ganglion.engines.fair_thread import FairThread
from ganglion.engines.grammar_dry_run import GrammarDryRun, grammar_refusal, names_token
from ganglion.engines.supervision.ipc import Submit
from ganglion.engines.vllm.worker.checkpoint_vocabulary import CheckpointVocabulary

_KEPT: Final = 64
"""Grammars that are remembered, and refusals; the one unused the longest goes first."""
_WAITING: Final = 1024
_WAITING_EACH: Final = 256
"""Grammars that wait to be tried, and of one tenant."""

_Unnamed = tuple[int, ...]


class GrammarTrials:
    """Tries grammars on a thread of its own."""

    def __init__(self, vocabulary: CheckpointVocabulary) -> None:
        self._loop = asyncio.get_running_loop()
        ends = [_name(vocabulary, end) for end in sorted(vocabulary.end_tokens)]
        self._dry_run = GrammarDryRun(vocabulary.vocabulary_size, ends)
        # The other ends are text to vLLM's grammars, as every token is but the first end.
        self._controls = {token: _name(vocabulary, token) for token in vocabulary.controls - {vocabulary.eos}}
        self._outcome_of = lru_cache(_KEPT)(self._try)
        self._thread: FairThread[tuple[asyncio.Future[_Unnamed], str]] = FairThread(
            self._work, most=_WAITING, most_each=_WAITING_EACH, of="output formats"
        )

    async def tried(self, submit: Submit) -> _Unnamed:
        """The control tokens that a request's grammar does not name, none without a grammar.

        Raises InvalidValue for a grammar that cannot be compiled, and Overloaded where too many wait.
        """
        if submit.grammar is None:
            return ()
        outcome: asyncio.Future[_Unnamed] = self._loop.create_future()
        self._thread.put(submit.tenant, (outcome, submit.grammar))
        return await outcome

    def _work(self) -> None:
        while True:
            outcome, grammar = self._thread.get()
            if outcome.cancelled():
                continue
            try:
                found = self._find(grammar)
            except GanglionError as error:
                self._loop.call_soon_threadsafe(_fail, outcome, error)
            except Exception as error:  # noqa: BLE001 - the thread must live, and the request hear of it
                failed = EngineFailed(f"The grammar could not be tried: {error}")
                self._loop.call_soon_threadsafe(_fail, outcome, failed)
            else:
                self._loop.call_soon_threadsafe(_succeed, outcome, found)

    def _find(self, grammar: str) -> _Unnamed:
        outcome = self._outcome_of(grammar)
        if isinstance(outcome, str):
            raise InvalidValue(outcome)
        return outcome

    def _try(self, grammar: str) -> _Unnamed | str:
        reason = self._dry_run.error_in(grammar)
        if reason is not None:
            return grammar_refusal(reason).message
        return tuple(token for token, name in self._controls.items() if not names_token(grammar, name))


def _name(vocabulary: CheckpointVocabulary, token: int) -> str:
    return vocabulary.piece(token).decode("utf-8", "replace")


def _succeed(outcome: asyncio.Future[_Unnamed], found: _Unnamed) -> None:
    if not outcome.done():
        outcome.set_result(found)


def _fail(outcome: asyncio.Future[_Unnamed], error: GanglionError) -> None:
    if not outcome.done():
        outcome.set_exception(error)
