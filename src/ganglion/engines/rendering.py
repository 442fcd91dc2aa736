"""Renders chat templates in a child process that can be killed.

Law: a template may take `budget_s` of time, `memory_bytes` of memory and `max_bytes` of output, and one that
takes more costs its own request an error and every other request nothing but the wait for a new child.

Templates come with model files, so they are somebody else's programs. Jinja's sandbox keeps them from Python;
only a process boundary keeps `{{ 'a' * 10**9 }}` from the server.
"""

import asyncio
import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import cast

import msgspec

from ganglion.core.errors import EngineFailed, InvalidValue, ShuttingDown
from ganglion.core.request import ChatPrompt, Tool
from ganglion.engines.rendering_frames import (
    LENGTH_BYTES,
    READY,
    Ask,
    AskedTool,
    Refused,
    Rendered,
    Reply,
    framed,
)

MEBIBYTE = 1024 * 1024
STARTUP_S = 30.0  # an import on a machine whose cores are all busy decoding

# A child that dies without being told to was perhaps killed from outside; rendering is pure, so once more.
ATTEMPTS = 2

# The operator's secrets travel in the environment, and this process runs strangers' code.
ENVIRONMENT = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH")

# Room for a frame's wrapping and for a refusal, which quotes at most a few hundred characters.
FRAME_SLACK_BYTES = 4096


@dataclass(frozen=True, slots=True)
class _Child:
    process: asyncio.subprocess.Process
    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader


class _ChildDied(Exception):
    """The child ended before it answered."""


class Renderer:
    """Renders one template at a time; others wait for their turn, and for a new child where one is needed."""

    def __init__(
        self, budget_s: float = 1.0, max_bytes: int = 16 * MEBIBYTE, memory_bytes: int = 512 * MEBIBYTE
    ) -> None:
        self._budget_s = budget_s
        self._max_bytes = max_bytes
        self._memory_bytes = memory_bytes
        self._turn = asyncio.Lock()
        self._child: _Child | None = None
        self._is_closed = False

    async def open(self) -> None:
        """Start the child now, so that the first render does not wait for it."""
        async with self._turn:
            self._is_closed = False
            if self._child is None:
                await self._spawn()

    async def close(self) -> None:
        """End the child; renders that run or wait end with ShuttingDown."""
        self._is_closed = True
        if self._child is not None:
            _kill(self._child)
        async with self._turn:
            await self._discard()

    async def render(self, source: str, prompt: ChatPrompt, *, bos_token: str, eos_token: str) -> str:
        """Render a prompt; raises InvalidValue where the template refuses, fails or takes too much.

        Cancelling a render that has begun kills the child it runs in.
        """
        frame = self._ask(source, prompt, bos_token, eos_token)
        async with self._turn:
            for _ in range(ATTEMPTS):
                if self._is_closed:
                    raise ShuttingDown("The template renderer is shutting down.")
                child = self._child or await self._spawn()
                try:
                    reply = await self._exchange(child, frame)
                except _ChildDied:
                    continue
                match reply:
                    case Rendered(text=text):
                        return text
                    case Refused(message=message):
                        raise InvalidValue(message, param="messages")
        if self._is_closed:
            raise ShuttingDown("The template renderer is shutting down.")
        raise InvalidValue(
            "The model's chat template ended the process that it was rendered in.", param="messages"
        )

    def _ask(self, source: str, prompt: ChatPrompt, bos_token: str, eos_token: str) -> bytes:
        use = prompt.tool_use
        ask = Ask(
            source,
            prompt.messages,
            cast("dict[str, object]", prompt.template_arguments),
            bos_token,
            eos_token,
            datetime.now(),  # templates write the date as the people around this machine know it
            tools=tuple(_asked(tool) for tool in use.tools) if use.choice != "none" else (),
            thinking=prompt.thinking,
            is_continued=prompt.is_continued,
        )
        try:
            return framed(msgspec.msgpack.encode(ask))
        except (UnicodeEncodeError, OverflowError, RecursionError) as error:
            raise InvalidValue(f"The messages cannot be rendered: {error}.", param="messages") from error

    async def _exchange(self, child: _Child, frame: bytes) -> Reply:
        reply: Reply | None = None
        try:
            async with asyncio.timeout(self._budget_s):
                child.stdin.write(frame)
                await child.stdin.drain()
                length = int.from_bytes(await child.stdout.readexactly(LENGTH_BYTES), "big")
                if length > self._max_bytes + FRAME_SLACK_BYTES:
                    raise EngineFailed("the template renderer answered more than it may")
                reply = msgspec.msgpack.decode(await child.stdout.readexactly(length), type=Reply)
        except TimeoutError:
            raise InvalidValue(
                f"The model's chat template did not finish in time: it may take {self._budget_s:g} s.",
                param="messages",
            ) from None
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise _ChildDied from error
        except msgspec.MsgspecError as error:
            raise EngineFailed("the template renderer answered nonsense") from error
        finally:
            if reply is None:  # also when cancelled: what it would still answer belongs to nobody
                await self._discard()
        return reply

    async def _spawn(self) -> _Child:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",  # the working directory is no place to import from
            "-m",
            "ganglion.engines.rendering_child",
            str(self._memory_bytes),
            str(self._max_bytes),
            str(self._budget_s + 1),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
            start_new_session=True,  # Ctrl-C in the terminal is not for it
        )
        assert process.stdin is not None and process.stdout is not None
        child = self._child = _Child(process, process.stdin, process.stdout)
        is_ready = False
        try:
            async with asyncio.timeout(STARTUP_S):
                is_ready = await child.stdout.readexactly(len(READY)) == READY
        except (TimeoutError, asyncio.IncompleteReadError) as error:
            raise EngineFailed("the template renderer did not start") from error
        finally:
            if not is_ready:
                await self._discard()
        return child

    async def _discard(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        _kill(child)
        child.stdin.close()
        await child.process.communicate()  # reads stdout to its end, so that no pipe outlives the process


def _asked(tool: Tool) -> AskedTool:
    parameters = cast("dict[str, object] | None", tool.parameters)
    return AskedTool(tool.name, tool.description, parameters, tool.is_custom)


def _kill(child: _Child) -> None:
    with suppress(ProcessLookupError):
        child.process.kill()
