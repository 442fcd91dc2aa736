"""A bound on the bytes of images and sounds that running requests hold, over all tenants and for each.

Reason: a text that is too long for a model is refused and gone, and an image of megabytes fits a few hundred
tokens: it stays until its answer ends, and answers take minutes.
"""

from dataclasses import dataclass
from typing import Final

from ganglion.core.attachments import attachments_of
from ganglion.core.errors import Overloaded
from ganglion.core.request import Request

ROOM_BYTES: Final = 256 * 2**20
ROOM_BYTES_EACH: Final = ROOM_BYTES // 2
"""Of all tenants and of one; a request that finds nothing held may be as large as any."""


@dataclass(slots=True)
class _HeldPrompt:
    """What a prompt holds, and how many requests run over it: the choices of a call share one."""

    tenant: str
    size_bytes: int
    sharers: int = 0


class ImageMemory:
    """Who holds how much."""

    def __init__(self, room: int = ROOM_BYTES, each: int = ROOM_BYTES_EACH) -> None:
        self._room = room
        self._each = each
        self._used = 0
        self._held: dict[str, int] = {}
        self._prompts: dict[int, _HeldPrompt] = {}

    @property
    def used(self) -> int:
        """How much is held."""
        return self._used

    def hold(self, sent: Request, fetched: Request) -> None:
        """Hold the files of a request from now on; raises Overloaded where there is no room.

        `fetched` is the request with its files, and `sent` what it is known by.
        """
        held = self._prompts.get(id(sent.prompt))
        if held is None:
            held = _HeldPrompt(sent.tenant, sum(len(each.data) for each in attachments_of(fetched.prompt)))
            self._take(held)
            self._prompts[id(sent.prompt)] = held
        held.sharers += 1

    def release(self, sent: Request) -> None:
        """Hold them no longer, once the last who shares them has ended."""
        held = self._prompts[id(sent.prompt)]
        held.sharers -= 1
        if not held.sharers:
            del self._prompts[id(sent.prompt)]
            self._give_back(held)

    def _take(self, wanted: _HeldPrompt) -> None:
        size, held = wanted.size_bytes, self._held.get(wanted.tenant, 0)
        if (self._used and self._used + size > self._room) or (held and held + size > self._each):
            raise Overloaded(
                "The requests that run hold as many bytes of images as they may.", hint="Retry in a moment."
            )
        self._used += size
        self._held[wanted.tenant] = held + size

    def _give_back(self, held: _HeldPrompt) -> None:
        self._used -= held.size_bytes
        self._held[held.tenant] -= held.size_bytes
        if not self._held[held.tenant]:
            del self._held[held.tenant]
