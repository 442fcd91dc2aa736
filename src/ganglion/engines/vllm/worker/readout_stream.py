"""Puts the readouts of a request beside its tokens.

Law: a token whose readout is wanted is told once it has run, one step after it was sampled, and what follows
it waits for it. The last token of an answer never runs in vLLM: where its readout is wanted, a second request
runs it.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from msgspec.structs import replace

from ganglion.core.request import PLACEHOLDER
from ganglion.engines.supervision.ipc import PieceRecord, SequenceUpdate, Submit, TokenRecord
from ganglion.engines.vllm.worker.readout_exchange import ReadoutFollower
from ganglion.scheduler.spans import clipped

_MOST_RECORDS: Final = 1024
"""Records of a prompt in one update: a frame is bounded, and readouts may be long."""

RunLast = Callable[[list[int]], Awaitable[bytes]]
"""Runs the last of some tokens, and returns its readout."""


class ReadoutStream:
    """Completes the updates of one request, in order."""

    def __init__(
        self, submit: Submit, follower: ReadoutFollower, piece: Callable[[int], bytes], run_last: RunLast
    ) -> None:
        """`piece` gives the bytes of a token."""
        self._submit = submit
        self._follower = follower
        self._piece = piece
        self._run_last = run_last
        self._waiting: list[PieceRecord] = []
        self._readouts: dict[int, bytes] = {}

    async def complete(self, update: SequenceUpdate, generated: list[int]) -> list[SequenceUpdate]:
        """What can be told now; `generated` are all tokens so far, the last of which has not run yet."""
        prompt = self._submit.tokens
        done = len(prompt) + max(len(generated) - 1, 0)
        updates: list[SequenceUpdate] = []
        readouts = await self._follower.until(done)
        if update.started is not None:
            updates += self._of_prompt(update, readouts)
            update = replace(update, started=None, scored=[])
        border = len(prompt)
        self._readouts.update({at: value for at, value in readouts.items() if at >= border})
        self._waiting += update.pieces
        last = len(prompt) + len(generated) - 1
        if update.end is not None and any(self._is_missing(token) for token in self._waiting_tokens()):
            self._readouts[last] = await self._run_last([*prompt, *generated])
        updates.append(replace(update, pieces=self._ready()))
        return [each for each in updates if _says_something(each)]

    def _of_prompt(self, update: SequenceUpdate, readouts: dict[int, bytes]) -> list[SequenceUpdate]:
        """The records of the prompt: what was scored, what was read, and what was both."""
        tokens = self._submit.tokens
        records = {record.position: record for record in update.scored}
        for at in sorted(readouts):
            if at < len(tokens):
                record = records.get(at) or self._record(tokens[at], at)
                records[at] = replace(record, readout=readouts[at])
        ordered = [records[at] for at in sorted(records)]
        parts = [ordered[at : at + _MOST_RECORDS] for at in range(0, len(ordered), _MOST_RECORDS)] or [[]]
        first, *others = parts
        return [
            SequenceUpdate(update.id, started=update.started, prefilled=update.prefilled, scored=first),
            *(SequenceUpdate(update.id, scored=part) for part in others),
        ]

    def _record(self, token: int, at: int) -> TokenRecord:
        if token < 0:
            return TokenRecord(PLACEHOLDER, b"", at)
        return TokenRecord(token, self._piece(token), at)

    def _waiting_tokens(self) -> list[TokenRecord]:
        return [token for piece in self._waiting for token in piece.tokens]

    def _ready(self) -> list[PieceRecord]:
        """The pieces that wait for no readout, and for no piece before them."""
        ready: list[PieceRecord] = []
        while self._waiting and not any(map(self._is_missing, self._waiting[0].tokens)):
            piece = self._waiting.pop(0)
            ready.append(replace(piece, tokens=[self._read(token) for token in piece.tokens]))
        return ready

    def _is_missing(self, token: TokenRecord) -> bool:
        is_wanted = bool(clipped(self._follower.spans, token.position, token.position + 1))
        return is_wanted and token.position not in self._readouts

    def _read(self, token: TokenRecord) -> TokenRecord:
        return replace(token, readout=self._readouts.pop(token.position, b""))


def _says_something(update: SequenceUpdate) -> bool:
    return bool(
        update.started is not None
        or update.prefilled is not None
        or update.scored
        or update.pieces
        or update.end is not None
    )
