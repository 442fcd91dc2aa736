"""Vectors beside the running batch: one thread makes them, a round at a time, fair between tenants.

Law: whoever comes anew waits for the round that is being read, and for at most one question of each other
tenant.
"""

import os
import threading
import traceback
from collections.abc import Callable
from typing import Final

from ganglion.core.errors import GanglionError
from ganglion.engines.ipc import Embed, FromWorker, Reading
from ganglion.engines.llama.fair_inbox import FairInbox
from ganglion.engines.llama.vectors import VectorMaker

MOST_TOKENS: Final = 2**22
MOST_TOKENS_EACH: Final = 2**21
"""What waits, and of one tenant."""
ROUND_TOKENS: Final = 1024
"""Questions are read together until they have so many tokens: few at a time, and no batch half empty."""


class VectorTurns:
    """Answers questions for vectors; `send` and `refuse` are called on its thread, too."""

    def __init__(
        self,
        maker: VectorMaker,
        send: Callable[[FromWorker], None],
        refuse: Callable[[int, GanglionError], None],
    ) -> None:
        self._maker = maker
        self._send = send
        self._refuse = refuse
        self._inbox: FairInbox[Embed] = FairInbox(most=MOST_TOKENS, most_each=MOST_TOKENS_EACH, of="inputs")
        threading.Thread(target=self._work, daemon=True).start()

    def ask(self, question: Embed) -> None:
        """Have a question answered; where too much waits, refused."""
        try:
            self._inbox.put(question.tenant, question, _tokens_in(question))
        except GanglionError as error:
            self._refuse(question.id, error)

    def _work(self) -> None:
        try:
            while True:
                self._answer(self._round())
        finally:
            traceback.print_exc()
            os._exit(1)

    def _round(self) -> list[Embed]:
        questions = [self._inbox.get()]
        room = ROUND_TOKENS - _tokens_in(questions[0])
        while room > 0 and (question := self._inbox.get_now()) is not None:
            questions.append(question)
            room -= _tokens_in(question)
        return questions

    def _answer(self, questions: list[Embed]) -> None:
        waiting = {question.id for question in questions}
        try:
            for vectors in self._maker.answer(questions, lambda: self._send(Reading())):
                waiting.remove(vectors.id)
                self._send(vectors)
        except GanglionError as error:
            for number in waiting:
                self._refuse(number, error)


def _tokens_in(question: Embed) -> int:
    return sum(map(len, question.inputs))
