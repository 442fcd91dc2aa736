"""The reapers, which close sessions on the node whose objects were dropped without being closed.

Law: a finalizer runs wherever garbage is collected, in any thread and under any lock, so it makes no
call: it queues the session's id for a thread or task that may wait. Only sessions that were opened here are
closed; one that was attached to belongs to its opener, and one from before an `os.fork()` to the
parent. What is not closed in time is dropped by the node itself, `ttl_s` after its last call.
"""

import asyncio
import os
import threading
import time
from contextlib import suppress
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Any, Final
from weakref import finalize

from ganglion.client._async.protocols import AsyncTransport
from ganglion.client._sync.protocols import Transport
from ganglion.client.committer import NodeSession
from ganglion.client.rpcs import CLOSE
from ganglion.client.session_flows import SessionFlows
from ganglion.client.transport import CallOptions, SharedTransport
from ganglion.core.errors import GanglionError
from ganglion.wire.salience import salience_pb2 as pb

_MAX_WAITING: Final = 4096
"""As many sessions as a key may have on a node; the node drops the others by itself."""
_CLOSE_S: Final = 5.0
_EXIT_S: Final = 1.0
"""For all that are still open when the interpreter exits."""


class SessionReaper:
    """Closes the dropped sessions of blocking clients, in a thread that lives while there are any."""

    def __init__(self, shared: SharedTransport[Transport]) -> None:
        self._shared = shared
        self._waiting: SimpleQueue[tuple[str, CallOptions]] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._left_s = _EXIT_S

    def watch(self, flows: SessionFlows, options: CallOptions) -> None:
        """Close the session on the node once nothing refers to its flows any more."""
        finalize(flows, self._queue_close, flows.node_session, options)

    def begin_call(self) -> None:
        """A call begins; only in an event loop there is something to remember of it."""

    def settle(self) -> None:
        """Wait for those that are being closed, up to `_CLOSE_S`."""
        thread = self._thread
        if thread is not None:
            thread.join(_CLOSE_S)

    def _queue_close(self, node_session: NodeSession, options: CallOptions) -> None:
        if node_session.id is None or not node_session.is_ours_to_close or os.getpid() != self._pid:
            return
        if self._waiting.qsize() >= _MAX_WAITING:
            return
        if not threading.main_thread().is_alive():
            self._close_at_exit(node_session.id, options)
            return
        self._waiting.put((node_session.id, replace(options, timeout_s=_CLOSE_S)))
        if self._thread is None:
            self._thread = threading.Thread(target=self._close_all, name="ganglion-dropped", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:  # no thread can be started; they wait for the next session that is dropped
                self._thread = None

    def _close_all(self) -> None:
        while True:
            try:
                session_id, options = self._waiting.get_nowait()
            except Empty:
                self._thread = None
                # A session that was queued just before found a thread that was about to end.
                if self._waiting.empty():
                    return
                self._thread = threading.current_thread()
                continue
            self._close(session_id, options)

    def _close_at_exit(self, session_id: str, options: CallOptions) -> None:
        """While the interpreter exits there is no other thread; a node that does not answer is given up."""
        if self._left_s <= 0:
            return
        began_s = time.monotonic()
        is_closed = self._close(session_id, replace(options, timeout_s=self._left_s))
        self._left_s = self._left_s - (time.monotonic() - began_s) if is_closed else 0.0

    def _close(self, session_id: str, options: CallOptions) -> bool:
        try:
            self._shared.transport().call(CLOSE, pb.CloseSessionRequest(session_id=session_id), options)
        except GanglionError:
            return False
        return True


class AsyncSessionReaper:
    """Closes the dropped sessions of clients in an event loop, in tasks of that loop."""

    def __init__(self, shared: SharedTransport[AsyncTransport]) -> None:
        self._shared = shared
        self._tasks: set[asyncio.Task[Any]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = os.getpid()

    def watch(self, flows: SessionFlows, options: CallOptions) -> None:
        """Close the session on the node once nothing refers to its flows any more."""
        # Once the interpreter exits, the loop is over.
        finalize(flows, self._queue_close, flows.node_session, options).atexit = False

    def begin_call(self) -> None:
        """Remember the loop of a call: it is the client's."""
        with suppress(RuntimeError):
            self._loop = asyncio.get_running_loop()

    async def settle(self) -> None:
        """Wait for those that are being closed, up to `_CLOSE_S`."""
        if self._tasks:
            await asyncio.wait(tuple(self._tasks), timeout=_CLOSE_S)

    def _queue_close(self, node_session: NodeSession, options: CallOptions) -> None:
        session_id = node_session.id
        if session_id is None or not node_session.is_ours_to_close or os.getpid() != self._pid:
            return
        if self._loop is None or len(self._tasks) >= _MAX_WAITING:
            return
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._begin, session_id, replace(options, timeout_s=_CLOSE_S))

    def _begin(self, session_id: str, options: CallOptions) -> None:
        task = asyncio.get_running_loop().create_task(self._close(session_id, options))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _close(self, session_id: str, options: CallOptions) -> None:
        with suppress(GanglionError):
            await self._shared.transport().call(CLOSE, pb.CloseSessionRequest(session_id=session_id), options)
