"""The child process that renders chat templates.

`python -m ganglion.engines.rendering.template_child MEMORY_BYTES MAX_BYTES CPU_S` says `READY`, then
answers each `RenderRequest` on stdin with a `Reply` on stdout until stdin ends. The frames are in
`template_frames.py`.

It imports little, because every template that must be killed costs a new start: no asyncio, no engine.
"""

import os
import signal
import sys
from typing import BinaryIO, cast

import msgspec

from ganglion.core.errors import InvalidValue
from ganglion.core.request import ChatPrompt, JsonValue, Tool, ToolUse
from ganglion.engines.child import confine
from ganglion.engines.rendering.template_frames import (
    LENGTH_BYTES,
    READY,
    RenderedPrompt,
    RenderRefusal,
    RenderRequest,
    TemplateTool,
    framed,
)
from ganglion.text.template import render


def main() -> None:
    """Serve one parent until it closes our stdin."""
    memory_bytes, max_bytes, cpu_s = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    confine(memory_bytes)
    try:
        _serve(sys.stdin.buffer, sys.stdout.buffer, max_bytes, cpu_s)
    except BrokenPipeError:
        # The parent is gone; an ordinary exit would flush stdout and complain about it on stderr.
        os._exit(0)


def _serve(source: BinaryIO, sink: BinaryIO, max_bytes: int, cpu_s: float) -> None:
    decoder = msgspec.msgpack.Decoder(RenderRequest)
    sink.write(READY)
    sink.flush()
    while length := source.read(LENGTH_BYTES):
        data = source.read(int.from_bytes(length, "big"))
        # Nobody handles it, so it ends the process even inside one endless C call.
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        reply = _reply(decoder.decode(data), max_bytes)
        signal.setitimer(signal.ITIMER_PROF, 0)
        sink.write(framed(reply))
        sink.flush()


def _reply(ask: RenderRequest, max_bytes: int) -> bytes:
    prompt = ChatPrompt(
        ask.messages,
        cast("dict[str, JsonValue]", ask.template_arguments),
        ToolUse(tuple(_tool(asked) for asked in ask.tools)),
        ask.thinking,
        ask.is_continued,
    )
    try:
        text = render(ask.source, prompt, bos_token=ask.bos_token, eos_token=ask.eos_token, now=ask.now)
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


def _tool(asked: TemplateTool) -> Tool:
    parameters = cast("dict[str, JsonValue] | None", asked.parameters)
    return Tool(asked.name, asked.description, parameters, is_custom=asked.is_custom)


if __name__ == "__main__":
    main()
