"""Turns text to tokens and back beside a worker's running batch: one thread a size of text, tenants in turn.

Law: a text waits for texts of its own size only, and of these for at most one of each other tenant. The
library cannot be interrupted while it tokenizes, and takes about a second for a megabyte; so what it would
take far longer for is refused before.
"""

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from time import clock_gettime, pthread_getcpuclockid
from typing import Final, Protocol

from ganglion.core.errors import GanglionError, InvalidValue
from ganglion.engines.fair_thread import FairThread
from ganglion.engines.supervision.ipc import (
    Detokenize,
    Detokenized,
    FromWorker,
    MeasurePieces,
    PiecesMeasured,
    Tokenize,
    Tokenized,
)
from ganglion.engines.token_floor import longest_pieces

SIZE_LIMITS: Final = (64 * 2**10, 2**20, 2**62)
"""The bytes up to which a text goes into each: a prompt, a long prompt, and what is hardly one."""
_MOST_BYTES: Final = 128 * 2**20
MOST_BYTES_EACH: Final = 32 * 2**20
"""What waits for one of the threads, and of one tenant for it."""
_NICENESS: Final = 5
"""Of the threads for long texts: the batch that runs beside them should not feel them."""
MARKERS: Final = 32_768
"""Control tokens in one text: the library's time grows with their square; this many take two seconds."""
_MARKER_BYTES: Final = 3
"""By so much of its beginning a control token is counted: thousands of them begin alike."""
_LONGEST_S: Final = 120.0
"""Of processor time for one text that still counts as progress."""


class TextVocabulary(Protocol):
    """What a worker's tokenizer can be asked, from several threads at once."""

    vocabulary_size: int

    @property
    def keeps_all_text(self) -> bool:
        """Whether no part of a text is dropped or rewritten before it is cut into tokens."""

    @property
    def strips_whitespace(self) -> bool:
        """Whether white space may be dropped."""

    def markers(self) -> list[bytes]:
        """The control tokens that a text may write out."""

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Text to ids."""

    def piece(self, token: int) -> bytes:
        """A token's bytes, a special one's name."""


_TextQuestion = Tokenize | Detokenize | MeasurePieces
_Send = Callable[[FromWorker], None]


class TokenizerThreads:
    """Answers questions about texts; `send` and `refuse` are called on its threads."""

    def __init__(
        self, model: TextVocabulary, send: _Send, refuse: Callable[[int, GanglionError], None]
    ) -> None:
        self._model = model
        self._refuse = refuse
        self._markers: list[bytes] | None = None
        self._threads = [
            _TokenizerThread(size, self._answer, send, refuse, niceness=_NICENESS if number else 0)
            for number, size in enumerate(SIZE_LIMITS)
        ]

    def ask(self, question: _TextQuestion) -> None:
        """Have a question answered; where too much waits, refused."""
        cost = 1 + _size_of(question)
        thread = next(thread for thread in self._threads if cost <= thread.most_bytes)
        try:
            thread.put(question, cost)
        except GanglionError as error:
            self._refuse(question.id, error)

    @property
    def is_getting_on(self) -> bool:
        """Whether a long text took processor time since this was last asked."""
        looks = [thread.is_getting_on() for thread in self._threads]
        return any(looks)

    def _answer(self, question: _TextQuestion) -> FromWorker:
        match question:
            case Tokenize(text=text, add_special=add_special, parse_special=parse_special):
                if len(text) > MARKERS:
                    self._check(text)
                tokens = self._model.tokenize(text, add_special=add_special, parse_special=parse_special)
                return Tokenized(question.id, tokens)
            case Detokenize(tokens=ids, in_pieces=in_pieces):
                pieces = [self._model.piece(token) for token in ids]
                text = b"".join(pieces).decode("utf-8", "replace")
                return Detokenized(question.id, text, pieces if in_pieces else [])
            case MeasurePieces():
                return PiecesMeasured(question.id, longest_pieces_of(self._model))

    def _check(self, text: str) -> None:
        """Raise InvalidValue for a text with more control tokens than the library can cope with."""
        if self._markers is None:
            self._markers = sorted({marker[:_MARKER_BYTES] for marker in self._model.markers()})
        data = text.encode("utf-8", "surrogatepass")
        if sum(data.count(marker) for marker in self._markers) > MARKERS:
            raise InvalidValue(
                f"The text holds more than {MARKERS} control tokens, or what begins like one.",
                hint="Send it in parts.",
            )


class _TokenizerThread:
    """Texts up to one size, and the thread that reads them, once there is one."""

    def __init__(
        self,
        most_bytes: int,
        answer: Callable[[_TextQuestion], FromWorker],
        send: _Send,
        refuse: Callable[[int, GanglionError], None],
        *,
        niceness: int,
    ) -> None:
        self.most_bytes = most_bytes
        self._answer = answer
        self._send = send
        self._refuse = refuse
        self._niceness = niceness
        self._thread: FairThread[_TextQuestion] = FairThread(
            self._work, most=_MOST_BYTES, most_each=MOST_BYTES_EACH, of="texts"
        )
        self._began_s: float | None = None
        """What the thread had taken when it began with the text that it is at."""
        self._looked_s = 0.0

    def put(self, question: _TextQuestion, cost: int) -> None:
        """Let a question wait; raises Overloaded."""
        self._thread.put(question.tenant, question, cost)

    def is_getting_on(self) -> bool:
        """Whether it is at a text, took time since this was last asked, and not too much of it."""
        thread, began_s = self._thread.thread, self._began_s
        if thread is None or thread.ident is None or began_s is None:
            return False
        looked_s, self._looked_s = self._looked_s, clock_gettime(pthread_getcpuclockid(thread.ident))
        return looked_s < self._looked_s < began_s + _LONGEST_S

    def _work(self) -> None:
        if self._niceness:
            with suppress(OSError, AttributeError):  # a thread has a niceness of its own on Linux only
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), self._niceness)
        clock = pthread_getcpuclockid(threading.get_ident())
        while True:
            question = self._thread.get()
            self._began_s = clock_gettime(clock)
            try:
                self._send(self._answer(question))
            except GanglionError as error:
                self._refuse(question.id, error)
            self._began_s = None


def longest_pieces_of(model: TextVocabulary) -> list[int]:
    """How long the pieces of a model's vocabulary are, where that bounds how few tokens a text can have."""
    if not model.keeps_all_text:
        return []
    pieces = (model.piece(token) for token in range(model.vocabulary_size))
    return longest_pieces(pieces, drops_whitespace=model.strips_whitespace)


def _size_of(question: _TextQuestion) -> int:
    match question:
        case MeasurePieces():
            return SIZE_LIMITS[0]  # takes as long as a long prompt
        case Tokenize(text=text):
            return len(text)
        case Detokenize(tokens=tokens):
            return 4 * len(tokens)
