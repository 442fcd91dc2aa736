"""The child process that renders chat templates: it answers each `RenderRequest` with a `RenderReply`.

Started by `child.py` with the most bytes that a prompt may have. It imports little: no asyncio, no engine.
"""

from collections.abc import Iterator
from typing import cast

import msgspec

from ganglion.core.errors import InvalidValue
from ganglion.core.request import ChatPrompt, JsonValue, Tool, ToolUse
from ganglion.engines.child_main import Answer, serve
from ganglion.engines.rendering.template_frames import (
    RenderedPrompt,
    RenderRefusal,
    RenderRequest,
    TemplateTool,
)
from ganglion.text.template import render


def _prepare(arguments: list[str]) -> Answer:
    decoder = msgspec.msgpack.Decoder(RenderRequest)
    max_bytes = int(arguments[0])

    def answer(body: bytes) -> Iterator[bytes]:
        yield _reply(decoder.decode(body), max_bytes)

    return answer


def _reply(ask: RenderRequest, max_bytes: int) -> bytes:
    prompt = ChatPrompt(
        ask.messages,
        cast("dict[str, JsonValue]", ask.template_arguments),
        ToolUse(tuple(_tool(tool) for tool in ask.tools)),
        ask.thinking,
        ask.is_continued,
    )
    try:
        text = render(
            ask.source,
            prompt,
            bos_token=ask.bos_token,
            eos_token=ask.eos_token,
            now=ask.now,
            is_typed=ask.is_typed,
        )
        reply = msgspec.msgpack.encode(RenderedPrompt(text))
    except InvalidValue as error:
        return msgspec.msgpack.encode(RenderRefusal(error.message))
    except MemoryError:
        return msgspec.msgpack.encode(
            RenderRefusal("The model's chat template rendered more than fits in memory.")
        )
    except UnicodeEncodeError:
        return msgspec.msgpack.encode(
            RenderRefusal("The model's chat template rendered half a surrogate pair.")
        )
    if len(reply) > max_bytes:
        return msgspec.msgpack.encode(
            RenderRefusal(
                f"The model's chat template rendered more than {max_bytes} bytes. Shorten the messages."
            )
        )
    return reply


def _tool(tool: TemplateTool) -> Tool:
    parameters = cast("dict[str, JsonValue] | None", tool.parameters)
    return Tool(tool.name, tool.description, parameters, is_custom=tool.is_custom)


if __name__ == "__main__":
    serve(_prepare)
