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
from ganglion.core.engine import ManagedEngine
from ganglion.core.events import Closed, Delta, Failed, Finished, Opened, Progress, Scored, Started
from ganglion.core.request import Request, Stop, TextPrompt


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
    from ganglion.cli.compose import compose
    from ganglion.cli.flags import load_config
    from ganglion.cli.terminal.logs import set_up_logging
    from ganglion.cli.terminal.progress import download_bar

    prompt = sys.stdin.read() if text == "-" else text
    config = load_config(output, engine.settings())
    set_up_logging(output.log_level or "warning", config.log.format)
    composition = compose(config, [model] if model else config.models[:1], [], bar=download_bar)
    request = Request(
        id="complete",
        model=composition.engine.models()[0].id,
        prompt=TextPrompt(prompt),
        sampling=sampling.sampling(),
        stop=Stop(strings=tuple(sampling.stop or ())),
        max_tokens=sampling.max_tokens,
    )
    asyncio.run(_print_answer(composition.engine, request))


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
