"""A child process that the event loop asks. Apart from `child.py`, so that workers load no asyncio."""

import asyncio
import os
import signal
from contextlib import suppress
from typing import Final

from ganglion.engines.child import ChildDied, ChildLimits, ChildNotStarted, command, environment
from ganglion.engines.child_main import LENGTH_PREFIX, READY

_DYING_S: Final = 2.0
"""Between the end of what a child writes and its own."""


async def spawn_async(module: str, *arguments: str, limits: ChildLimits) -> "AsyncChild":
    """Start a child and wait until it is ready; raises ChildNotStarted."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command(module, *arguments, limits=limits),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=environment(limits),
            start_new_session=True,  # Ctrl-C in the terminal is not for it
        )
    except OSError as error:
        raise ChildNotStarted(None) from error
    child = AsyncChild(process, limits)
    is_ready = False
    try:
        assert process.stdout is not None
        async with asyncio.timeout(limits.start_s):
            is_ready = await process.stdout.readexactly(len(READY)) == READY
    except (TimeoutError, asyncio.IncompleteReadError) as error:
        raise ChildNotStarted(process.returncode) from error
    finally:
        if not is_ready:
            await child.end()
    return child


class AsyncChild:
    """A child that is ready; asked by one task at a time."""

    def __init__(self, process: asyncio.subprocess.Process, limits: ChildLimits) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._process = process
        self._stdin = process.stdin
        self._stdout = process.stdout
        self._limits = limits
        self.is_ended = False

    @property
    def process_id(self) -> int:
        """The system's number for it."""
        return self._process.pid

    async def ask(self, body: bytes) -> bytes:
        """The frame that answers a frame; raises ChildDied and TimeoutError.

        Unless there is an answer, the child is ended, also when this is cancelled.
        """
        reply: bytes | None = None
        try:
            async with asyncio.timeout(self._limits.wall_s):
                self._stdin.write(LENGTH_PREFIX.pack(len(body)) + body)
                await self._stdin.drain()
                length = LENGTH_PREFIX.unpack(await self._stdout.readexactly(LENGTH_PREFIX.size))[0]
                if length > self._limits.max_frame_bytes:
                    raise ChildDied(None)
                reply = await self._stdout.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError):
            with suppress(TimeoutError):
                async with asyncio.timeout(_DYING_S):
                    await self._process.wait()  # before it is killed: its own exit code is seen only once
            raise ChildDied(self._process.returncode) from None
        finally:
            if reply is None:
                await self.end()
        return reply

    def kill(self) -> None:
        """End it without waiting for it; whoever asked it is raised ChildDied."""
        # Not by asyncio's own kill(): where the child has just ended, that takes its exit status from the
        # thread that waits for it, which then warns of a process that it does not know.
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)

    async def end(self) -> None:
        """End it, and wait until nothing of it is left."""
        if self.is_ended:
            return
        self.is_ended = True
        self.kill()
        self._stdin.close()
        await self._process.communicate()  # reads stdout to its end, so that no pipe outlives the process
