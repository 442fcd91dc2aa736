"""One line for each request, written many at a time; never a prompt, never a key."""

import json
import time
from collections.abc import Callable
from urllib.parse import quote_from_bytes

from ganglion.core.events import Usage
from ganglion.gateway.proxy.authorize import RequestContext

_MAX_WAITING = 512
"""Lines that wait for the next write."""
_PATH_SHOWN = 200
_RENEWED = b"/fleet/join"
"""What every node that joined asks all the time; that it came and went is said once, elsewhere."""
_REFUSED = 400

_WriteLines = Callable[[str], object]


class AccessLog:
    """Lines as `ganglion serve` logs them, with who asked, which node answered and what it came to."""

    def __init__(self, write: _WriteLines | None = None, *, is_json: bool = False) -> None:
        self._write = write
        self._is_json = is_json
        self._lines: list[str] = []
        self._stamp = ""
        self.tick()

    def tick(self) -> None:
        """Write what waits; called now and then, so that a line is at most that late."""
        self.flush()
        now_s = time.time()
        moment = time.localtime(now_s)
        self._stamp = time.strftime("%Y-%m-%dT%H:%M:%S%z" if self._is_json else "%H:%M:%S", moment)

    def add(
        self, context: RequestContext, status: int, duration_s: float, node: str, usage: Usage | None
    ) -> None:
        """A request that ended."""
        head = context.call.head
        if self._write is None or (head.target.path == _RENEWED and status < _REFUSED):
            return
        spent = "" if usage is None else f" tokens={usage.prompt_tokens}+{usage.completion_tokens}"
        message = (
            f"method={head.method.decode()} path={head.target.encoded[:_PATH_SHOWN].decode('latin-1')} "
            f"status={status} duration_ms={duration_s * 1000:.1f} request_id={context.request_id} "
            f"tenant={_word(context.identity.tenant)} model={_word(context.model)} node={node or '-'}{spent}"
        )
        if self._is_json:
            entry = {"time": self._stamp, "level": "info", "logger": "ganglion.request", "message": message}
            self._lines.append(json.dumps(entry, ensure_ascii=False) + "\n")
        else:
            self._lines.append(f"{self._stamp} info ganglion.request: {message}\n")
        if len(self._lines) >= _MAX_WAITING:
            self.flush()

    def flush(self) -> None:
        """Write what waits now."""
        if self._lines and self._write is not None:
            lines, self._lines = self._lines, []
            self._write("".join(lines))


def _word(text: str) -> str:
    """A client's word as one word of a line."""
    if not text:
        return "-"
    if text.isascii() and text.isprintable() and " " not in text:
        return text[:_PATH_SHOWN]
    return quote_from_bytes(text[:_PATH_SHOWN].encode(errors="replace"))
