"""One child process that renders templates: started, asked, and ended when it is of no more use.

Law: a child that did not answer, for whatever reason, is ended: what it would still answer belongs to nobody.
"""

import asyncio
import os
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from ganglion.core.errors import EngineFailed, InvalidValue, Overloaded
from ganglion.engines.rendering.template_frames import LENGTH_BYTES, READY, RenderReply

STARTUP_S = 30.0  # an import on a machine whose cores are all busy decoding

DYING_S = 2.0
"""Between the end of what a child says and its own."""

# The operator's secrets travel in the environment, and this process runs strangers' code.
ENVIRONMENT = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH")

# Room for a frame's wrapping and for a refusal, which quotes at most a few hundred characters.
FRAME_SLACK_BYTES = 4096


@dataclass(frozen=True, slots=True)
class TemplateLimits:
    """What one template may take."""

    budget_s: float = 1.0
    """Of the child's processor time: what others do to this machine is not the template's fault."""
    wall_s: float = 30.0
    """Of waiting for that."""
    max_bytes: int = 16 * 2**20
    memory_bytes: int = 512 * 2**20


class ChildDied(Exception):
    """The child ended before it answered, and not for the time that it took."""

    def __init__(self, *, was_killed: bool) -> None:
        """`was_killed` tells a child that somebody killed from one that ended by itself."""
        super().__init__()
        self.was_killed = was_killed


class TemplateProcess:
    """A child that is ready; asked by one at a time."""

    def __init__(self, process: asyncio.subprocess.Process, limits: TemplateLimits) -> None:
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

    async def ask(self, frame: bytes) -> RenderReply:
        """The answer to a frame.

        Raises InvalidValue where the template took too much time, Overloaded where the machine had none for
        it, and ChildDied. Unless there is an answer, the child is ended, also when this is cancelled.
        """
        reply: RenderReply | None = None
        try:
            async with asyncio.timeout(self._limits.wall_s):
                self._stdin.write(frame)
                await self._stdin.drain()
                length = int.from_bytes(await self._stdout.readexactly(LENGTH_BYTES), "big")
                if length > self._limits.max_bytes + FRAME_SLACK_BYTES:
                    raise EngineFailed("the template renderer answered more than it may")
                reply = msgspec.msgpack.decode(await self._stdout.readexactly(length), type=RenderReply)
        except TimeoutError:
            raise Overloaded(
                f"The machine is too busy: in {self._limits.wall_s:g} s the prompt could not be rendered.",
                hint="Retry in a moment.",
            ) from None
        except (asyncio.IncompleteReadError, ConnectionError):
            raise await self._death() from None
        except msgspec.MsgspecError as error:
            raise EngineFailed("the template renderer answered nonsense") from error
        finally:
            if reply is None:
                await self.end()
        return reply

    def kill(self) -> None:
        """End it without waiting for it; whoever asked it hears of that."""
        with suppress(ProcessLookupError):
            self._process.kill()

    async def end(self) -> None:
        """End it, and wait until nothing of it is left."""
        if self.is_ended:
            return
        self.is_ended = True
        self.kill()
        self._stdin.close()
        await self._process.communicate()  # reads stdout to its end, so that no pipe outlives the process

    async def _death(self) -> InvalidValue | ChildDied:
        with suppress(TimeoutError):
            async with asyncio.timeout(DYING_S):
                await self._process.wait()  # before it is killed: how it ended by itself is told only once
        code = self._process.returncode
        if code == -signal.SIGPROF:
            return InvalidValue(
                "The model's chat template did not finish in time: it may take "
                f"{self._limits.budget_s:g} s of processor time.",
                param="messages",
            )
        return ChildDied(was_killed=code == -signal.SIGKILL)


async def start_template_process(limits: TemplateLimits) -> TemplateProcess:
    """A child that is ready; raises Overloaded where the machine has no room for one."""
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",  # the working directory is no place to import from
            "-m",
            "ganglion.engines.rendering.template_child",
            str(limits.memory_bytes),
            str(limits.max_bytes),
            str(limits.budget_s),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
            start_new_session=True,  # Ctrl-C in the terminal is not for it
        )
    except OSError as error:
        raise _not_started() from error
    child = TemplateProcess(process, limits)
    is_ready = False
    try:
        assert process.stdout is not None
        async with asyncio.timeout(STARTUP_S):
            is_ready = await process.stdout.readexactly(len(READY)) == READY
    except (TimeoutError, asyncio.IncompleteReadError) as error:
        raise _not_started() from error
    finally:
        if not is_ready:
            await child.end()
    return child


def _not_started() -> Overloaded:
    return Overloaded("The process that renders templates did not start.", hint="Retry in a moment.")
