"""The frames between the server and its template child, in msgpack.

Apart from the child, so that the server does not load what only the child needs.
"""

from datetime import datetime

import msgspec

from ganglion.core.request import Message, Thinking


class TemplateTool(msgspec.Struct, frozen=True, array_like=True):
    """A tool, as far as a template shows it."""

    name: str
    description: str | None
    parameters: dict[str, object] | None
    is_custom: bool


class RenderRequest(msgspec.Struct, frozen=True, array_like=True):
    """One template to render."""

    source: str
    messages: tuple[Message, ...]
    template_arguments: dict[str, object]
    bos_token: str
    eos_token: str
    now: datetime
    tools: tuple[TemplateTool, ...] = ()
    thinking: Thinking = Thinking()
    is_continued: bool = False
    is_typed: bool = False
    """Whether contents are lists of parts."""


class RenderedPrompt(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The prompt."""

    text: str


class RenderRefusal(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Why there is no prompt, in words for the client."""

    message: str


RenderReply = RenderedPrompt | RenderRefusal
