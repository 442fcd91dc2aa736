"""What a starting node fetches, shown on stderr until it is there."""

import asyncio
from collections.abc import Callable
from typing import Final

from ganglion.cli.progress import download_bars
from ganglion.cli.talk import say
from ganglion.core.engine import ModelState

LOOK_S: Final = 0.25
SAY_S: Final = 10.0
"""How often it is said where no bar can be drawn."""


async def show_downloads(models: Callable[[], tuple[ModelState, ...]], opening: asyncio.Task[None]) -> None:
    """Show how far each download is, as bars on a terminal and as lines elsewhere, until all is opened."""
    loop = asyncio.get_running_loop()
    said_s = -SAY_S
    with download_bars() as show:
        while not opening.done() or any(model.status in ("downloading", "loading") for model in models()):
            fetching = [model for model in models() if model.status == "downloading"]
            for model in fetching:
                show(model.id, model.bytes_done, model.bytes_total)
            if fetching and not show.is_drawn and loop.time() >= said_s + SAY_S:
                said_s = loop.time()
                for model in fetching:
                    done, total = model.bytes_done >> 20, model.bytes_total >> 20
                    say(f"downloading {model.id}: {done} of {total} MiB")
            await asyncio.sleep(LOOK_S)
