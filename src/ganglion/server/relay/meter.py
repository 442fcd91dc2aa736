"""How much a relayed stream of Generate came to, read off its messages as they pass."""

from typing import Final

from google.protobuf.message import DecodeError

from ganglion.core.events import Usage
from ganglion.gateway.admission import Wanted
from ganglion.wire.fields import MAX_TOKENS
from ganglion.wire.salience import salience_pb2 as pb

# The first byte of a message is the tag of the one field that it has.
_TOKEN: Final = b"\x0a"
_DONE: Final = b"\x1a"


def wanted_of(message: pb.GenerateRequest, model: str) -> Wanted:
    """What a call may take; its prompt is all that the session then holds."""
    return Wanted(model, _prompt_tokens(message) + min(message.max_tokens, MAX_TOKENS))


class Meter:
    """Counts one call: by its last message, or by what came where that did not."""

    def __init__(self, message: pb.GenerateRequest) -> None:
        self._prompt_tokens = _prompt_tokens(message)
        self._max_tokens = message.max_tokens
        self._messages = 0
        self._tokens = 0
        self._done: Usage | None = None

    def feed(self, data: bytes) -> None:
        """One message that passed."""
        self._messages += 1
        if data[:1] == _DONE:
            self._done = _done_of(data)
        elif data[:1] == _TOKEN:
            self._tokens += 1

    @property
    def usage(self) -> Usage | None:
        """What it came to until now; None where nothing ran."""
        if self._done is not None or not self._messages:
            return self._done
        # Positions that were asked about again are told as tokens too.
        return Usage(self._prompt_tokens, min(self._tokens, self._max_tokens))


def _prompt_tokens(message: pb.GenerateRequest) -> int:
    return message.offset + len(message.append_tokens)


def _done_of(data: bytes) -> Usage | None:
    try:
        done = pb.GenerateEvent.FromString(data).done
    except DecodeError:
        return None
    return Usage(done.prompt_tokens, done.completion_tokens, done.cached_tokens)
