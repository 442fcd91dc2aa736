"""What a worker and the process that started it say to each other, over a pair of sockets.

The worker says once that it is `Ready`, or why it is `Unable`, one JSON line. The other says `RELOAD`,
`DRAIN` and `STOP`, a byte each, and nothing more once it is gone: then the worker leaves, too, whatever ended
it.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Generator
from typing import Final, Literal

import msgspec
from msgspec import Struct

from ganglion.core.errors import GanglionError, InvalidValue
from ganglion.server.life.bind import InsecureBind, StartRefused
from ganglion.server.life.signals import Shutdown

RELOAD: Final = b"r"
DRAIN: Final = b"d"
STOP: Final = b"s"
MAX_WORD_BYTES: Final = 64 * 2**10


class Ready(Struct, frozen=True, tag="ready"):
    """It listens."""

    url: str
    rpc: str | None


class Unable(Struct, frozen=True, tag="unable"):
    """It does not start."""

    kind: Literal["insecure", "usage", "other"]
    message: str
    hint: str

    def error(self) -> Exception:
        """As it was raised there."""
        if self.kind == "usage":
            return InvalidValue(self.message, hint=self.hint or None)
        kind = InsecureBind if self.kind == "insecure" else StartRefused
        return kind(self.message, hint=self.hint)


_word = msgspec.json.Decoder(Ready | Unable)


def unable(error: StartRefused | GanglionError) -> Unable:
    """What is told of an error."""
    if isinstance(error, InsecureBind):
        kind: Literal["insecure", "usage", "other"] = "insecure"
    else:
        kind = "usage" if isinstance(error, InvalidValue) else "other"
    return Unable(kind, str(error), error.hint or "")


def say(channel: socket.socket, word: Ready | Unable) -> None:
    """From the worker; where nobody listens any more, nothing happens."""
    with contextlib.suppress(OSError):
        channel.sendall(msgspec.json.encode(word)[: MAX_WORD_BYTES - 1] + b"\n")


def hear(channel: socket.socket) -> Ready | Unable | None:
    """What the worker says, once its socket is readable; None where it said nothing and is gone."""
    data = b""
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        while not data.endswith(b"\n") and len(data) < MAX_WORD_BYTES:
            more = channel.recv(MAX_WORD_BYTES)
            if not more:
                return None
            data += more
        word: Ready | Unable = _word.decode(data)
        return word
    return None


@contextlib.contextmanager
def obeying(
    channel: socket.socket, shutdown: Shutdown, reload: Callable[[], None]
) -> Generator[None, None, None]:
    """While inside, what is said through the channel is done."""
    loop = asyncio.get_running_loop()
    channel.setblocking(False)

    def obey() -> None:
        try:
            said = channel.recv(64)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        if RELOAD in said:
            reload()
        if said.strip(RELOAD) or not said:
            shutdown.drain.set()
        if not said or STOP in said:
            shutdown.stop.set()
            loop.remove_reader(channel)

    loop.add_reader(channel, obey)
    try:
        yield
    finally:
        loop.remove_reader(channel)
