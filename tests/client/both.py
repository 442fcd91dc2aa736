"""One test, both clients: what the blocking one answers is taken as it is, the other one is awaited."""

import inspect
from collections.abc import Awaitable
from typing import Any, Literal, TypeVar

from ganglion.client import AsyncClient, AsyncGeneration, AsyncSession, Client, Event, Generation, Session
from ganglion.client.fake import FakeNode

T = TypeVar("T")
Kind = Literal["blocking", "awaiting"]
KINDS: tuple[Kind, ...] = ("blocking", "awaiting")
AnyClient = Client | AsyncClient
AnySession = Session | AsyncSession
AnyGeneration = Generation | AsyncGeneration


def client_of(node: FakeNode, kind: Kind, **options: Any) -> AnyClient:
    return node.client(**options) if kind == "blocking" else node.async_client(**options)


async def done(answer: T | Awaitable[T]) -> T:
    if inspect.isawaitable(answer):
        return await answer
    return answer  # type: ignore[return-value]


async def some(generation: AnyGeneration, count: int) -> list[Event]:
    """The first events."""
    events: list[Event] = []
    while len(events) < count:
        try:
            if isinstance(generation, Generation):
                events.append(next(generation))
            else:
                events.append(await anext(generation))
        except (StopIteration, StopAsyncIteration):
            break
    return events


async def every(generation: AnyGeneration) -> list[Event]:
    return await some(generation, 1 << 30)
