"""A node with a model that sees, and how its answers are judged: here it is an echo."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from ganglion.engines.echo.engine import SEEING_ID
from ganglion.server.life.storage import StoreTarget
from support.pictures import positions
from support.served import Served, echo, serving


@dataclass(frozen=True)
class Seeing:
    """A served model that sees; `names` says whether its answer shows that it saw these files, in order."""

    node: Served
    model: str

    @property
    def url(self) -> str:
        return self.node.url

    def names(self, answer: str | None, *files: bytes) -> bool:
        """Whether an answer to a message with these files names them all, and no others."""
        places = [f"[image {number}: {positions(data)} positions]" for number, data in enumerate(files, 1)]
        said = answer or ""
        found = [said.find(place) for place in places]
        return -1 not in found and found == sorted(found) and said.count("[image ") == len(files)


@asynccontextmanager
async def seeing_echo(**fields: object) -> AsyncIterator[Seeing]:
    """An echo that sees, with a store in memory."""
    engine = echo(model_id=SEEING_ID, sees=True)
    async with serving(engine, **({"storage": StoreTarget(":memory:")} | fields)) as node:
        yield Seeing(node, SEEING_ID)
