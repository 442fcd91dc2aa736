"""A head that a client says again: recognised by its bytes, and not read again.

Law: only a head that the parser has read is recognised, and only with everything but its length unchanged, so
that whatever the parser refuses is refused here too.
"""

import re

from msgspec import Struct

from ganglion.gateway.call import Head

MAX_BYTES = 4096
"""Of a head that is worth remembering: each connection holds one."""
_MAX_DIGITS = 7
_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]{1,7})\r\n", re.IGNORECASE)
_END = b"\r\n\r\n"
_NEVER = (b"transfer-encoding", b"expect", b"upgrade")


class Repeated(Struct, frozen=True):
    """A head as bytes, around the digits of its length."""

    before: bytes
    after: bytes
    head: Head

    def body_in(self, data: bytes, max_bytes: int) -> bytes | None:
        """The body of a request that is this head and nothing behind its body; None for any other."""
        if not data.startswith(self.before):
            return None
        start = len(self.before)
        end = data.find(b"\r", start, start + _MAX_DIGITS + 1)
        if not data.startswith(self.after, end) or not (digits := data[start:end]).isdigit():
            return None
        length, start = int(digits), end + len(self.after)
        return data[start:] if length == len(data) - start and length <= max_bytes else None


def learn(data: bytes, head: Head) -> Repeated | None:
    """What to know of a request that the parser took from exactly these bytes; None where it may differ."""
    end = data.find(_END) + len(_END)
    if not len(_END) <= end <= MAX_BYTES or not head.is_kept:
        return None
    # Neither folded lines, nor such as end otherwise, nor blank ones before the first.
    if data.count(b"\n", 0, end) != len(head.headers) + 2 or not data.startswith(head.method):
        return None
    length = _LENGTH.search(data, 0, end)
    if length is None or any(name in head.named for name in _NEVER):
        return None
    if len(head.named) != len(head.headers) or int(length[1]) != len(data) - end:
        return None
    return Repeated(data[: length.start(1)], data[length.end(1) : end], head)
