"""One of several processes that share a gateway's port: which it is, and where the others are found."""

import asyncio
import logging
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from ganglion.core.errors import GanglionError
from ganglion.gateway import shared
from ganglion.gateway.fleet.node import NodeSpec
from ganglion.gateway.shared import MAX_SHARED_BYTES, Shared
from ganglion.gateway.upstream.node_client import NodeClient, NodeResponse

logger = logging.getLogger("ganglion.gateway")

LEADER: Final = 0
"""The place whose process watches the nodes, grants leases, has models loaded and serves gRPC."""
ASK_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Worker:
    """A place among the workers, in a folder that only they reach."""

    place: int
    of: int
    folder: Path
    listener: socket.socket
    """Bound before any of them was there, and shared by all."""
    channel: socket.socket
    """From and to whoever started it."""

    @property
    def is_leader(self) -> bool:
        """Whether it leads."""
        return self.place == LEADER

    @property
    def others(self) -> tuple[int, ...]:
        """Everybody else's place."""
        return tuple(place for place in range(self.of) if place != self.place)

    def desk_path(self, place: int) -> Path:
        """Where the desk of a place is: only fronts call there."""
        return self.folder / f"desk-{place}"

    def door_path(self, place: int) -> Path:
        """Where a place is told things by the others: no front calls there, so nobody from outside does."""
        return self.folder / f"worker-{place}"

    @property
    def leading_desk(self) -> NodeSpec:
        """The leader's desk, for what operators and joining nodes ask."""
        return NodeSpec("leader", f"unix://{self.desk_path(LEADER)}")

    def door(self, place: int) -> NodeSpec:
        """That as an address."""
        return NodeSpec(f"worker-{place}", f"unix://{self.door_path(place)}")


class Colleagues:
    """The other workers, asked all at once; who does not answer is left out."""

    def __init__(self, worker: Worker, outbound: NodeClient) -> None:
        self._worker = worker
        self._outbound = outbound

    async def pages(self) -> dict[int, bytes]:
        """What each says of itself at `/metrics`, by its place."""
        return {place: answer.body for place, answer in (await self._ask("/metrics")).items()}

    async def in_flight(self) -> Mapping[str, int]:
        """Requests of all of them that run on each node."""
        total: dict[str, int] = {}
        for answer in (await self._ask("/in_flight")).values():
            for name, count in shared.parse_counts(answer.body).items():
                total[name] = total.get(name, 0) + count
        return total

    async def legacy(self) -> Shared | None:
        """What they know of the fleet; None where nobody knows anything."""
        for answer in (await self._ask("/shared")).values():
            try:
                told = shared.parse_shared(answer.body)
            except msgspec.MsgspecError as error:
                logger.warning("what a worker remembers of the fleet is not readable: %s", error)
                continue
            if told.names:
                return told
        return None

    async def _ask(self, target: str) -> dict[int, NodeResponse]:
        others = self._worker.others
        answers = await asyncio.gather(*(self._answer(place, target) for place in others))
        return {place: answer for place, answer in zip(others, answers, strict=True) if answer is not None}

    async def _answer(self, place: int, target: str) -> NodeResponse | None:
        spec = self._worker.door(place)
        try:
            answer = await self._outbound.call(
                spec, "GET", target, timeout_s=ASK_S, max_bytes=MAX_SHARED_BYTES
            )
        except GanglionError as error:
            logger.debug("worker %d does not answer: %s", place, error)
            return None
        return answer if answer.status == 200 else None
