"""A timeout for waits that come by the thousand: moving it costs a clock reading, not a timer.

`asyncio.timeout` makes and cancels a timer on every entry, about 6 µs, three times for each token. Here one
timer is left running: when it fires before the wait is due, it sleeps on until then.
"""

import asyncio
from types import TracebackType
from typing import Self


class Alarm:
    """`with alarm.at(due_s): await …` raises TimeoutError when the wait is not over by then.

    One alarm serves one wait at a time; `close` it when the last is over.
    """

    __slots__ = ("_cancelling", "_due_s", "_fires_s", "_has_rung", "_is_set", "_loop", "_task", "_timer")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._fires_s = 0.0
        self._due_s = 0.0
        self._is_set = False
        self._has_rung = False
        self._task: asyncio.Task[object] | None = None
        self._cancelling = 0

    def after(self, seconds: float) -> Self:
        """The alarm, due in so many seconds."""
        return self.at(self._loop.time() + seconds)

    def at(self, due_s: float) -> Self:
        """The alarm, due at a time of the event loop's clock."""
        self._due_s = due_s
        if self._timer is None or due_s < self._fires_s:
            self.close()
            self._arm()
        return self

    def close(self) -> None:
        """Let go of the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task, self._cancelling = task, task.cancelling()
        self._is_set = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A task that is cancelled here holds its frames, and one of them this: a circle nobody needs.
        task, self._task = self._task, None
        self._is_set = False
        if not self._has_rung:
            return
        self._has_rung = False
        assert task is not None
        is_ours = task.uncancel() <= self._cancelling
        if is_ours and kind in (None, asyncio.CancelledError):
            raise TimeoutError from error

    def _arm(self) -> None:
        self._fires_s = self._due_s
        self._timer = self._loop.call_at(self._due_s, self._ring)

    def _ring(self) -> None:
        self._timer = None
        if not self._is_set:
            return
        if self._loop.time() < self._due_s:
            self._arm()
            return
        self._has_rung = True
        assert self._task is not None
        self._task.cancel()
