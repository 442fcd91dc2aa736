"""Renders chat templates in child processes that can be killed.

Law: a template may take `budget_s` of processor time, `memory_bytes` of memory and `max_bytes` of output. One
that takes more, or refuses, is the request's fault; that the machine is busy or has no room for a child is
ours. Either costs its own request an error and the others at most the wait for a child.

Templates come with model files, so they are somebody else's programs. Jinja's sandbox keeps them from Python;
only a process boundary keeps `{{ 'a' * 10**9 }}` from the server.
"""

import signal
from datetime import datetime
from typing import Final, cast

import msgspec

from ganglion.core.errors import EngineFailed, GanglionError, InvalidValue, Overloaded
from ganglion.core.request import ChatPrompt, Tool
from ganglion.engines.child import ChildDied, ChildLimits
from ganglion.engines.child_pool import ChildPool
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

CHILDREN: Final = 3
"""At most; all but the first are started when somebody has waited."""
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
        self._limits = ChildLimits(
            wall_s, cpu_s=budget_s, memory_bytes=memory_bytes, max_frame_bytes=max_bytes + _FRAME_SLACK_BYTES
        )
        self._pool = ChildPool(
            _CHILD,
            str(max_bytes),
            limits=self._limits,
            most=children,
            most_waiting=_WAITING,
            most_waiting_each=_WAITING_EACH,
            work="renders templates",
            items="prompts to be rendered",
        )

    @property
    def process_ids(self) -> tuple[int, ...]:
        """The children that there are."""
        return self._pool.process_ids

    async def open(self) -> None:
        """Start the first child now, so that the first render does not wait for it."""
        await self._pool.open()

    async def close(self) -> None:
        """End the children; renders that run or wait end with ShuttingDown."""
        await self._pool.close()

    async def render(
        self,
        source: str,
        prompt: ChatPrompt,
        *,
        bos_token: str,
        eos_token: str,
        tenant: str = "",
        is_typed: bool = False,
    ) -> str:
        """Render a prompt; raises InvalidValue where the template refuses, fails or takes too much.

        Raises Overloaded where too many wait, or the machine does not get to it. Cancelling a render that has
        begun kills the child it runs in. With `is_typed` the template gets contents as lists of parts.
        """
        try:
            reply = await self._pool.ask(
                tenant,
                _size_of(prompt),
                lambda: self._request(source, prompt, bos_token, eos_token, is_typed=is_typed),
            )
        except TimeoutError:
            raise self._timed_out() from None
        except ChildDied as death:
            raise self._ended(death.code) from None
        return _text_of(reply)

    def _timed_out(self) -> Overloaded:
        return Overloaded(
            f"The machine is too busy: in {self._limits.wall_s:g} s the prompt could not be rendered.",
            hint="Retry in a moment.",
        )

    def _ended(self, code: int | None) -> GanglionError:
        if code == -signal.SIGPROF:
            return InvalidValue(
                "The model's chat template did not finish in time: it may take "
                f"{self._limits.cpu_s:g} s of processor time.",
                param="messages",
            )
        if code == -signal.SIGKILL:
            return Overloaded(
                "The process that renders templates was killed, perhaps for want of memory.",
                hint="Retry in a moment.",
            )
        return InvalidValue(
            "The model's chat template ended the process that it was rendered in.", param="messages"
        )

    def _request(
        self, source: str, prompt: ChatPrompt, bos_token: str, eos_token: str, *, is_typed: bool
    ) -> bytes:
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
            is_typed=is_typed,
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
