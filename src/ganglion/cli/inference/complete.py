"""`ganglion complete`: continue a text, as data on stdout."""

import asyncio
import sys
from contextlib import aclosing
from typing import Annotated, assert_never

from cyclopts import Parameter

from ganglion.cli.flags import (
    ENGINE_UNSET,
    MODEL,
    OUTPUT_UNSET,
    SAMPLING_UNSET,
    EngineFlags,
    OutputFlags,
    SamplingFlags,
    is_text,
)
from ganglion.cli.inference.local_engine import local_engine
from ganglion.core.engine import ManagedEngine
from ganglion.core.events import Closed, Delta, Failed, Finished, Opened, Progress, Scored, Started
from ganglion.core.request import Request, TextPrompt


def complete(
    text: Annotated[
        str,
        Parameter(
            help="The text to continue; - reads it from stdin.",
            group=MODEL,
            allow_leading_hyphen=True,
            validator=is_text,
        ),
    ],
    /,
    *,
    model: Annotated[
        str | None, Parameter(help="A GGUF file or a name (default: the embedded model).", group=MODEL)
    ] = None,
    sampling: SamplingFlags = SAMPLING_UNSET,
    engine: EngineFlags = ENGINE_UNSET,
    output: OutputFlags = OUTPUT_UNSET,
) -> None:
    """Continue a text and print it."""
    prompt = sys.stdin.read() if text == "-" else text
    running = local_engine(engine, output, model)
    request = sampling.request("complete", running.models()[0].id, TextPrompt(prompt))
    asyncio.run(_print_answer(running, request))


async def _print_answer(engine: ManagedEngine, request: Request) -> None:
    try:
        await engine.open()
        async with aclosing(engine.generate(request)) as events:
            async for event in events:
                match event:
                    case Delta(text=text):
                        sys.stdout.write(text)
                        sys.stdout.flush()
                    case Failed(error=error):
                        raise error
                    case Finished():
                        sys.stdout.write("\n")
                    case Progress() | Started() | Scored() | Opened() | Closed():
                        pass
                    case _:
                        assert_never(event)
    finally:
        await engine.close()
