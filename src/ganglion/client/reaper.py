"""Sessions whose objects were dropped without being closed: the node is told, by somebody who may wait.

Law: a finalizer runs wherever garbage is collected, in any thread and under anybody's locks, so it calls
nobody: it notes the session's id and has it seen to elsewhere. Only sessions that were made here are closed;
one that was attached to belongs to whoever made it, and one from before an `os.fork()` to the parent. What
cannot be told in time is forgotten by the node itself, `ttl_s` after its last call.
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

from ganglion.client.rpcs import CLOSE
from ganglion.client.session_flows import NodeSession, SessionFlows
from ganglion.client.transport import AsyncTransport, CallOptions, SharedTransport, Transport
from ganglion.core.errors import GanglionError
from ganglion.wire.salience import salience_pb2 as pb

MAX_WAITING: Final = 4096
"""As many sessions as a key may have on a node; of more, the node forgets the rest by itself."""
CLOSE_S: Final = 5.0
EXIT_S: Final = 1.0
"""For all that are still open when the interpreter leaves."""


class SessionReaper:
    """Closes the dropped sessions of blocking clients, in a thread that lives while there are any."""

    def __init__(self, shared: SharedTransport[Transport]) -> None:
        self._shared = shared
        self._waiting: SimpleQueue[tuple[str, CallOptions]] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._left_s = EXIT_S

    def watch(self, conversation: SessionFlows, terms: CallOptions) -> None:
        """Close the conversation's session once nobody holds it any more."""
        finalize(conversation, self._note, conversation.place, terms)

    def settle(self) -> None:
        """Wait for those that are being closed, a while."""
        thread = self._thread
        if thread is not None:
            thread.join(CLOSE_S)

    def _note(self, place: NodeSession, terms: CallOptions) -> None:
        if place.id is None or not place.is_left or os.getpid() != self._pid:
            return
        if self._waiting.qsize() >= MAX_WAITING:
            return
        if not threading.main_thread().is_alive():
            self._close_leaving(place.id, terms)
            return
        self._waiting.put((place.id, replace(terms, timeout_s=CLOSE_S)))
        if self._thread is None:
            self._thread = threading.Thread(target=self._close_all, name="ganglion-dropped", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:  # no thread is to be had; they wait for the next one that is dropped
                self._thread = None

    def _close_all(self) -> None:
        while True:
            try:
                session_id, terms = self._waiting.get_nowait()
            except Empty:
                self._thread = None
                # One that was noted just before found a thread that was about to end.
                if self._waiting.empty():
                    return
                self._thread = threading.current_thread()
                continue
            self._close(session_id, terms)

    def _close_leaving(self, session_id: str, terms: CallOptions) -> None:
        """While the interpreter leaves nobody else can do it; a node that does not answer is given up."""
        if self._left_s <= 0:
            return
        began_s = time.monotonic()
        is_closed = self._close(session_id, replace(terms, timeout_s=self._left_s))
        self._left_s = self._left_s - (time.monotonic() - began_s) if is_closed else 0.0

    def _close(self, session_id: str, terms: CallOptions) -> bool:
        try:
            self._shared.line().call(CLOSE, pb.CloseSessionRequest(session_id=session_id), terms)
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

    def watch(self, conversation: SessionFlows, terms: CallOptions) -> None:
        """Close the conversation's session once nobody holds it any more."""
        # Once the interpreter leaves, the loop is over.
        finalize(conversation, self._note, conversation.place, terms).atexit = False

    def enter(self) -> None:
        """A call is made: the loop that it is made in is the client's."""
        with suppress(RuntimeError):
            self._loop = asyncio.get_running_loop()

    async def settle(self) -> None:
        """Wait for those that are being closed, each of which has its time."""
        if self._tasks:
            await asyncio.wait(tuple(self._tasks), timeout=CLOSE_S)

    def _note(self, place: NodeSession, terms: CallOptions) -> None:
        if self._loop is None or place.id is None or not place.is_left or os.getpid() != self._pid:
            return
        if len(self._tasks) >= MAX_WAITING:
            return
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._begin, place.id, replace(terms, timeout_s=CLOSE_S))

    def _begin(self, session_id: str, terms: CallOptions) -> None:
        task = asyncio.get_running_loop().create_task(self._close(session_id, terms))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _close(self, session_id: str, terms: CallOptions) -> None:
        with suppress(GanglionError):
            await self._shared.line().call(CLOSE, pb.CloseSessionRequest(session_id=session_id), terms)
