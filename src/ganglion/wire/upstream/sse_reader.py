"""Reads server-sent events of another server: bytes in at any split, the data of each event out.

Lines end with LF, CRLF or CR; comments, names and ids are passed over; several data lines of an event are
joined.
"""

MAX_EVENT_BYTES = 16 * 2**20
"""Of one event; whoever sends more is not to be believed."""


class SseEventTooLarge(ValueError):
    """An event that never ends."""


class SseReader:
    """Feed it bytes as they come; whoever reads an event reads it whole."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._is_after_return = False

    def feed(self, data: bytes) -> list[bytes]:
        """The data of every event that is whole now; raises SseEventTooLarge."""
        if b"\r" in data or self._is_after_return:
            data = self._with_line_feeds(data)
        lines = (self._rest + data if self._rest else data).split(b"\n")
        self._rest = lines.pop()
        found: list[bytes] = []
        held = self._data
        for line in lines:
            if line.startswith(b"data:"):
                held.append(line[6:] if line.startswith(b"data: ") else line[5:])
            elif not line and held:
                found.append(held[0] if len(held) == 1 else b"\n".join(held))
                held.clear()
            elif line.startswith(b"error:"):  # how llama-server told errors for a long time
                held.append(b'{"error":%b}' % line[6:])
        if held or self._rest:
            self._check(held)
        return found

    def end(self) -> list[bytes]:
        """The data of an event without its last line break: servers that end abruptly leave one behind."""
        found = self.feed(b"\n\n")
        self._rest = b""
        return found

    def _with_line_feeds(self, data: bytes) -> bytes:
        """The same lines, each ended by LF alone; a CRLF may come in two parts."""
        if self._is_after_return and data:
            data = data.removeprefix(b"\n")
            self._is_after_return = False
        if data:
            self._is_after_return = data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _check(self, held: list[bytes]) -> None:
        if len(self._rest) + sum(map(len, held)) > MAX_EVENT_BYTES:
            raise SseEventTooLarge(f"An event is larger than {MAX_EVENT_BYTES} bytes.")
