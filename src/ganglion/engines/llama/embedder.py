"""Vectors and rankings on the server's side of a worker: inputs cut into questions, answers put together.

Law: a question holds so little that whoever cancels soon stops the work, and the others get their turn.
"""

import asyncio
import math
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from operator import mul
from typing import Final

from ganglion.core.engine import Embedded, Ranked
from ganglion.core.errors import ContextLengthExceeded, InvalidValue
from ganglion.core.request import TextPrompt, TokenPrompt
from ganglion.engines.prompt_checks import check_tokens
from ganglion.engines.supervision.ipc import SpecialTokens, WorkerReady
from ganglion.engines.worker_tokens import WorkerTokens

_QUESTION_TOKENS: Final = 1024
_QUESTION_INPUTS: Final = 64
_AT_ONCE: Final = 2
"""Questions of one request in the worker: it reads one while the other travels."""

_Tokens = tuple[int, ...]


class WorkerEmbedder:
    """Embeds and ranks with one worker."""

    def __init__(self, tokens: WorkerTokens, *, longest: int, vocabulary_size: int) -> None:
        self._tokens = tokens
        self._longest = longest
        self._vocabulary_size = vocabulary_size

    async def embed(
        self, inputs: Sequence[TextPrompt | TokenPrompt], *, is_normalized: bool, tenant: str = ""
    ) -> Embedded:
        """A vector of each input."""
        read = [await self._read(each, f"input[{number}]", tenant) for number, each in enumerate(inputs)]
        vectors = await self._vectors(read, tenant, is_normalized=is_normalized)
        return Embedded(vectors, sum(map(len, read)))

    async def rank(self, query: str, documents: Sequence[str], tenant: str = "") -> Ranked:
        """How well each document answers the query."""
        ready = self._tokens.ready
        if ready.ranks:
            return await self._classify(query, documents, ready, tenant)
        inputs = [TextPrompt(query), *map(TextPrompt, documents)]
        read = [
            await self._read(each, f"documents[{number - 1}]" if number else "query", tenant)
            for number, each in enumerate(inputs)
        ]
        first, *others = await self._vectors(read, tenant, is_normalized=True)
        return Ranked(tuple(_dot(first, other) for other in others), sum(map(len, read)))

    async def _classify(
        self, query: str, documents: Sequence[str], ready: WorkerReady, tenant: str
    ) -> Ranked:
        pairs = []
        for number, document in enumerate(documents):
            param = f"documents[{number}]"
            with self._named(param):
                pairs.append(await self._pair(query, document, ready, tenant))
            self._check(pairs[-1], param)
        answers = await self._vectors(pairs, tenant, is_normalized=False)
        return Ranked(tuple(map(_relevance, answers)), sum(map(len, pairs)))

    async def _pair(self, query: str, document: str, ready: WorkerReady, tenant: str) -> _Tokens:
        """A query and a document as the classifier was trained to see them."""
        if ready.rank_template is not None:
            text = ready.rank_template.replace("{query}", query).replace("{document}", document)
            return await self._tokens.tokenize(
                text, add_special=False, parse_special=True, tenant=tenant, most=self._longest
            )
        special = ready.special_tokens
        texts = [
            await self._tokens.tokenize(
                text, add_special=False, parse_special=False, tenant=tenant, most=self._longest
            )
            for text in (query, document)
        ]
        return joined(texts[0], texts[1], special)

    async def _read(self, given: TextPrompt | TokenPrompt, param: str, tenant: str) -> _Tokens:
        if isinstance(given, TextPrompt):
            with self._named(param):
                tokens = await self._tokens.tokenize(
                    given.text,
                    add_special=given.adds_special,
                    parse_special=True,
                    tenant=tenant,
                    most=self._longest,
                )
        else:
            tokens = given.tokens
            check_tokens(tokens, self._vocabulary_size, param)
        self._check(tokens, param)
        return tokens

    @contextmanager
    def _named(self, param: str) -> Iterator[None]:
        """Say which input it is that was found too long before it was tokenized."""
        try:
            yield
        except ContextLengthExceeded as error:
            raise _too_long(f"at least {error.extras['prompt_len']}", self._longest, param, error) from None

    def _check(self, tokens: _Tokens, param: str) -> None:
        if not tokens:
            raise InvalidValue(f"'{param}' is empty; give it at least one token.", param=param)
        if len(tokens) > self._longest:
            count = len(tokens)
            raise _too_long(f"{count}", self._longest, param, ContextLengthExceeded(count, self._longest))

    async def _vectors(self, inputs: list[_Tokens], tenant: str, *, is_normalized: bool) -> tuple[bytes, ...]:
        turn = asyncio.Semaphore(_AT_ONCE)

        async def ask(part: list[_Tokens]) -> tuple[bytes, ...]:
            async with turn:
                return await self._tokens.embed(part, is_normalized=is_normalized, tenant=tenant)

        asking = [asyncio.ensure_future(ask(part)) for part in parts_of(inputs)]
        try:
            return tuple(chain.from_iterable([await answer for answer in asking]))
        finally:
            for each in asking:
                each.cancel()
            await asyncio.gather(*asking, return_exceptions=True)


def parts_of(inputs: Sequence[_Tokens]) -> list[list[_Tokens]]:
    """The inputs in order, as many together as one question may hold, and one at least."""
    parts: list[list[_Tokens]] = []
    room = 0
    for each in inputs:
        if not parts or len(each) > room or len(parts[-1]) == _QUESTION_INPUTS:
            parts.append([])
            room = _QUESTION_TOKENS
        parts[-1].append(each)
        room -= len(each)
    return parts


def joined(query: _Tokens, document: _Tokens, special: SpecialTokens) -> _Tokens:
    """Two texts with the vocabulary's special tokens around and between them."""
    end = special.eos if special.eos is not None else special.separator
    eos = (end,) if special.adds_eos and end is not None else ()
    separator = (special.separator,) if special.adds_separator and special.separator is not None else ()
    return (*special.opening, *query, *eos, *separator, *document, *eos)


def _relevance(answer: bytes) -> float:
    """From 0 to 1: one output is a logit, and of several the first is the probability that it fits."""
    values = array("f", answer)
    return 0.5 * (1.0 + math.tanh(values[0] / 2)) if len(values) == 1 else values[0]


def _dot(left: bytes, right: bytes) -> float:
    return float(sum(map(mul, array("f", left), array("f", right))))


def _too_long(tokens: str, longest: int, param: str, error: ContextLengthExceeded) -> ContextLengthExceeded:
    error.param = param
    error.message = f"'{param}' holds {tokens} tokens; {longest} is the most that this model embeds."
    return error
