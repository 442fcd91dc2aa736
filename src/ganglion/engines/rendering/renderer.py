"""Renders chat templates in child processes that can be killed.

Law: a template may take `budget_s` of processor time, `memory_bytes` of memory and `max_bytes` of output. One
that takes more, or refuses, is the request's fault; that the machine is busy or has no room for a child is
ours. Either costs its own request an error and the others at most the wait for a child. Tenants take turns,
and none has all children unless there is only one.

Templates come with model files, so they are somebody else's programs. Jinja's sandbox keeps them from Python;
only a process boundary keeps `{{ 'a' * 10**9 }}` from the server.
"""

import asyncio
import signal
from datetime import datetime
from typing import Final, cast

import msgspec

from ganglion.core.errors import EngineFailed, GanglionError, InvalidValue, Overloaded, ShuttingDown
from ganglion.core.fair_queue import FairQueue
from ganglion.core.request import ChatPrompt, Tool
from ganglion.engines.async_child import AsyncChild, spawn_async
from ganglion.engines.child import ChildDied, ChildLimits, ChildNotStarted
from ganglion.engines.fair_semaphore import FairPermit, FairSemaphore
from ganglion.engines.rendering.template_frames import (
    RenderRefusal,
    RenderReply,
    RenderRequest,
    TemplateTool,
)

_MEBIBYTE = 1024 * 1024
BUDGET_S: Final = 1.0
"""Processor time that one template may take: what others do to this machine is not its fault."""
WALL_S: Final = 30.0
"""How long a prompt waits for that."""
MAX_BYTES: Final = 16 * _MEBIBYTE
MEMORY_BYTES: Final = 512 * _MEBIBYTE
_CHILD: Final = "ganglion.engines.rendering.template_child"
_FRAME_SLACK_BYTES: Final = 4096
"""Room for a frame's wrapping and for a refusal, which quotes at most a few hundred characters."""

# A child that dies was perhaps killed from outside; rendering is pure, so it is tried once more.
_ATTEMPTS: Final = 2
CHILDREN: Final = 3
"""At most; all but the first are started when somebody has waited."""
_PATIENCE_S: Final = 0.05
"""A wait after which another child is started: a prompt takes a millisecond, and a start a hundred."""
_SPARE_S: Final = 5.0
"""How long those beside the first stay when nothing is rendered."""
_WAITING: Final = 96 * _MEBIBYTE
_WAITING_EACH: Final = 48 * _MEBIBYTE
"""Characters that wait to be rendered, and of one tenant."""


class Renderer:
    """Renders templates, as many at once as there are children."""

    def __init__(
        self,
        budget_s: float = BUDGET_S,
        max_bytes: int = MAX_BYTES,
        memory_bytes: int = MEMORY_BYTES,
        *,
        wall_s: float = WALL_S,
        children: int = CHILDREN,
    ) -> None:
        self._max_bytes = max_bytes
        self._limits = ChildLimits(
            wall_s, cpu_s=budget_s, memory_bytes=memory_bytes, max_frame_bytes=max_bytes + _FRAME_SLACK_BYTES
        )
        self._most = children
        self._turns = FairSemaphore(
            1, 1, FairQueue(most=_WAITING, most_each=_WAITING_EACH, of="prompts to be rendered")
        )
        self._children: set[AsyncChild] = set()
        self._idle: list[AsyncChild] = []
        self._growing: asyncio.Task[None] | None = None
        self._shrinking: asyncio.Task[None] | None = None
        self._rendered = self._inside = 0
        self._is_empty = asyncio.Event()
        self._is_empty.set()
        self._is_closed = False

    @property
    def process_ids(self) -> tuple[int, ...]:
        """The children that there are."""
        return tuple(child.process_id for child in self._children)

    async def open(self) -> None:
        """Start the first child now, so that the first render does not wait for it."""
        self._is_closed = False
        if not self._children:
            with await self._turns.enter(""):
                self._idle.append(await self._start())

    async def close(self) -> None:
        """End the children; renders that run or wait end with ShuttingDown."""
        self._is_closed = True
        tasks = [task for task in (self._growing, self._shrinking) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for child in self._children:
            child.kill()
        await self._is_empty.wait()
        for child in tuple(self._children):
            await self._discard(child)

    async def render(
        self, source: str, prompt: ChatPrompt, *, bos_token: str, eos_token: str, tenant: str = ""
    ) -> str:
        """Render a prompt; raises InvalidValue where the template refuses, fails or takes too much.

        Raises Overloaded where too many wait, or the machine does not get to it. Cancelling a render that has
        begun kills the child it runs in.
        """
        cost = _size_of(prompt)
        self._rendered += 1
        self._inside += 1
        self._is_empty.clear()
        try:
            with self._turns.take(tenant, cost=cost) or await self._wait(tenant, cost):
                return await self._render(self._request(source, prompt, bos_token, eos_token))
        finally:
            self._inside -= 1
            if not self._inside:
                self._is_empty.set()

    async def _render(self, frame: bytes) -> str:
        failure: GanglionError | None = None
        for _ in range(_ATTEMPTS):
            if self._is_closed:
                break
            child = self._idle.pop() if self._idle else await self._start()
            try:
                reply = await child.ask(frame)
            except TimeoutError:
                raise self._timed_out() from None
            except ChildDied as death:
                if death.code == -signal.SIGPROF:
                    raise self._took_too_much() from None
                failure = _child_killed() if death.code == -signal.SIGKILL else _child_crashed()
                continue
            finally:
                self._put_back(child)
            return _text_of(reply)
        if failure is None or self._is_closed:
            raise ShuttingDown("The template renderer is shutting down.")
        raise failure

    def _timed_out(self) -> Overloaded:
        return Overloaded(
            f"The machine is too busy: in {self._limits.wall_s:g} s the prompt could not be rendered.",
            hint="Retry in a moment.",
        )

    def _took_too_much(self) -> InvalidValue:
        return InvalidValue(
            "The model's chat template did not finish in time: it may take "
            f"{self._limits.cpu_s:g} s of processor time.",
            param="messages",
        )

    async def _wait(self, tenant: str, cost: int) -> FairPermit:
        growth = asyncio.get_running_loop().call_later(_PATIENCE_S, self._grow)
        try:
            return await self._turns.enter(tenant, cost=cost)
        finally:
            growth.cancel()

    def _grow(self) -> None:
        """Start another child beside those that are busy, where somebody waits and there may be one more."""
        has_room = self._growing is None and self._turns.room < self._most
        if self._turns.waiting and has_room and not self._is_closed:
            self._growing = asyncio.create_task(self._add_child())

    async def _add_child(self) -> None:
        try:
            self._idle.append(await self._start())
        except Overloaded:
            return  # those that are there go on; whoever waits next tries again
        finally:
            self._growing = None
        self._turns.room += 1
        # One is left to whoever comes anew.
        self._turns.share(max(self._turns.room - 1, 1))
        asyncio.get_running_loop().call_later(_PATIENCE_S, self._grow)
        if self._shrinking is None or self._shrinking.done():
            self._shrinking = asyncio.create_task(self._shrink())

    async def _shrink(self) -> None:
        """End all children but one once nothing has been rendered for a while."""
        rendered = -1
        while rendered != self._rendered or self._inside:
            rendered = self._rendered
            await asyncio.sleep(_SPARE_S)
        spare, self._idle = self._idle[1:], self._idle[:1]
        self._turns.room = 1
        self._turns.share(1)
        for child in spare:
            await self._discard(child)

    async def _start(self) -> AsyncChild:
        try:
            child = await spawn_async(_CHILD, str(self._max_bytes), limits=self._limits)
        except ChildNotStarted as error:
            raise Overloaded(
                "The process that renders templates did not start.", hint="Retry in a moment."
            ) from error
        self._children.add(child)
        return child

    def _put_back(self, child: AsyncChild) -> None:
        if child.is_ended:
            self._children.discard(child)
        else:
            self._idle.append(child)

    async def _discard(self, child: AsyncChild) -> None:
        self._children.discard(child)
        if child in self._idle:
            self._idle.remove(child)
        await child.end()

    def _request(self, source: str, prompt: ChatPrompt, bos_token: str, eos_token: str) -> bytes:
        use = prompt.tool_use
        request = RenderRequest(
            source,
            prompt.messages,
            cast("dict[str, object]", prompt.template_arguments),
            bos_token,
            eos_token,
            datetime.now(),  # templates write the date as the people around this machine know it
            tools=tuple(_template_tool(tool) for tool in use.tools) if use.choice != "none" else (),
            thinking=prompt.thinking,
            is_continued=prompt.is_continued,
        )
        try:
            return msgspec.msgpack.encode(request)
        except (UnicodeEncodeError, OverflowError, RecursionError) as error:
            raise InvalidValue(f"The messages cannot be rendered: {error}.", param="messages") from error


def _text_of(reply: bytes) -> str:
    try:
        decoded: RenderReply = msgspec.msgpack.decode(reply, type=RenderReply)
    except msgspec.MsgspecError as error:
        raise EngineFailed("The template renderer answered nonsense.") from error
    if isinstance(decoded, RenderRefusal):
        raise InvalidValue(decoded.message, param="messages")
    return decoded.text


def _size_of(prompt: ChatPrompt) -> int:
    return len(prompt.messages) + sum(
        len(message.content) + len(message.reasoning or "") for message in prompt.messages
    )


def _template_tool(tool: Tool) -> TemplateTool:
    parameters = cast("dict[str, object] | None", tool.parameters)
    return TemplateTool(tool.name, tool.description, parameters, tool.is_custom)


def _child_crashed() -> InvalidValue:
    return InvalidValue(
        "The model's chat template ended the process that it was rendered in.", param="messages"
    )


def _child_killed() -> Overloaded:
    return Overloaded(
        "The process that renders templates was killed, perhaps for want of memory.",
        hint="Retry in a moment.",
    )
