"""The recorder of a streamed response: begun beside the first step, ended before the last frame."""

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from ganglion.core.errors import GanglionError
from ganglion.core.events import Failed
from ganglion.server.responses.responses_service import ResponsesExchange, ResponsesService, only_frames
from ganglion.wire.frame import Comment, Frame


class ResponseRecorder:
    """Stores one response while it is streamed.

    What is being written when the client leaves is written to its end. A response that did not end by then is
    stored as failed, when an error ended it, and as cancelled otherwise.
    """

    def __init__(self, service: ResponsesService, exchange: ResponsesExchange) -> None:
        self._service = service
        self._exchange = exchange
        self._ending: asyncio.Task[list[Frame]] | None = None

    async def __aenter__(self) -> Self:
        self._beginning = asyncio.create_task(
            self._service.save_begun(self._exchange), name=f"begin {self._exchange.id}"
        )
        return self

    async def wait_begun(self) -> None:
        """Return once the response is stored as begun; raises why it cannot be."""
        await asyncio.shield(self._beginning)

    async def record_end(self, frames: Sequence[Frame | Comment]) -> list[Frame]:
        """Store the end of the response; returns the frames to end with."""
        return await asyncio.shield(self._end(only_frames(frames)))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        is_open = self._exchange.call.is_stored and self._ending is None
        if is_open and await self._has_begun():
            projection = self._exchange.projection
            if isinstance(error, GanglionError):
                self._end(projection.feed(Failed(error)))
            else:
                self._end(projection.cancel())
        if self._ending is not None:
            await self._ending

    def _end(self, frames: list[Frame]) -> asyncio.Task[list[Frame]]:
        ending = self._service.save_ended(self._exchange, frames)
        self._ending = asyncio.create_task(ending, name=f"end {self._exchange.id}")
        return self._ending

    async def _has_begun(self) -> bool:
        await asyncio.wait({self._beginning})
        return not self._beginning.cancelled() and self._beginning.exception() is None
