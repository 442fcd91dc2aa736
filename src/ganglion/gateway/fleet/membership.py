"""Leases of nodes that joined by themselves: which node has which name, and until when.

A lease is good for `lease_s` seconds. The node counts them from when it *sent* the request that was
answered, the gateway from when it *received* it. So the node's end comes first, by as long as the request was
on its way (clocks may differ in what they say, and hardly in how fast they go). Hence the laws:

* The node is the careful one in using the lease: after its own end it takes no work, and refuses what the
  gateway still sends under that epoch for a moment. Such work has not begun, and goes to another node.
* The gateway is the careful one in giving the name away: nobody else gets it before the gateway's end, when
  the node's is over for certain. So no two nodes ever hold one name at a time. A node that leaves asks for
  nothing more before it says so, and then only finishes what was sent to it before.
* An epoch is never used twice, and a later one is larger, also after the gateway started anew (`first_epoch`
  must rise from start to start). So work that was sent under an old lease is refused however late it comes.

Who holds a live lease keeps its name against every other URL and boot. One exception lets a node that crashed
come back at once: where a health check found the new boot at the very URL that holds the lease, the old
process is gone. Two nodes that claim one name and one URL do not fight over it: only one of them answers
there.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from ganglion.core.errors import InvalidValue, NotAllowed, Overloaded
from ganglion.gateway.fleet.fleet import Fleet
from ganglion.gateway.fleet.node_views import grpc_of, parse_grpc
from ganglion.gateway.node import NodeSpec
from ganglion.gateway.upstream.address import parse_node_url
from ganglion.wire.fleet import Join, Lease, Leave

_LEASE_S: Final = 10.0
MAX_JOINED: Final = 1024
_MAX_BOOT_CHARS: Final = 128


def first_epoch(wall_s: float) -> int:
    """The first epoch of a gateway that starts now; within what JSON numbers carry exactly."""
    return int(wall_s) << 20  # more joins in a second than any gateway answers


@dataclass(frozen=True, slots=True)
class _HeldLease:
    url: str
    boot: str
    epoch: int
    ends_s: float


class NodeLeases:
    """Grants leases and ends them: of nodes that joined, the fleet has those whose leases are live."""

    def __init__(
        self,
        fleet: Fleet,
        *,
        first_epoch: int,
        lease_s: float = _LEASE_S,
        node_key: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fleet = fleet
        self._lease_s = lease_s
        self._node_key = node_key
        self._clock = clock
        self._next_epoch = first_epoch
        self._held: dict[str, _HeldLease] = {}

    def join(self, join: Join) -> Lease:
        """Grant or renew a node's lease; raises NotAllowed, InvalidValue, Overloaded."""
        self.expire()
        spec = self._spec(join)
        known = self._fleet.nodes.get(join.name)
        if known is not None and known.spec.epoch is None:
            raise NotAllowed(
                f"The name {join.name!r} belongs to a node that was declared.",
                hint="Join under another name.",
            )
        held = self._held.get(join.name)
        if held is not None and not self._is_same(held, join):
            left_s = held.ends_s - self._clock()
            raise InvalidValue(
                f"The name {join.name!r} is held by another node, at {held.url}.",
                param="name",
                hint=f"Join under another name, or again in {left_s:.1f} s if that node is gone.",
            )
        if held is None and len(self._held) >= MAX_JOINED:
            raise Overloaded(f"{MAX_JOINED} nodes have joined already.")
        is_renewed = held is not None and (held.boot, held.epoch) == (join.boot, join.epoch)
        epoch = held.epoch if held is not None and is_renewed else self._epoch()
        self._held[join.name] = _HeldLease(spec.url, join.boot, epoch, self._clock() + self._lease_s)
        self._fleet.add(replace(spec, epoch=epoch))
        return Lease(name=join.name, epoch=epoch, lease_s=self._lease_s)

    def declare(self, specs: tuple[NodeSpec, ...]) -> None:
        """Let these be the declared nodes; a node that joined under such a name gives way."""
        for spec in specs:
            if spec.name in self._held:
                self._end(spec.name)
        self._fleet.declare(specs)

    def leave(self, leave: Leave) -> bool:
        """End a node's lease at once; False, and nothing happens, where it holds another epoch."""
        held = self._held.get(leave.name)
        if held is None or held.epoch != leave.epoch:
            return False
        self._end(leave.name)
        return True

    def expire(self) -> None:
        """End every lease whose time is over."""
        now_s = self._clock()
        for name in [name for name, held in self._held.items() if held.ends_s <= now_s]:
            del self._held[name]
            self._fleet.expire(name)

    async def keep_expiring(self) -> None:
        """End leases as their time comes, until cancelled."""
        while True:
            self.expire()
            now_s = self._clock()
            # A lease that is granted meanwhile ends later than this: all are equally long.
            ends_s = min((held.ends_s for held in self._held.values()), default=now_s + self._lease_s)
            await asyncio.sleep(ends_s - now_s)

    def _is_same(self, held: _HeldLease, join: Join) -> bool:
        known = self._fleet.nodes.get(join.name)
        boots = (held.boot, known.boot if known is not None else "")
        return held.url == join.url.rstrip("/") and join.boot in boots

    def _spec(self, join: Join) -> NodeSpec:
        if not 0 < len(join.boot) <= _MAX_BOOT_CHARS:
            raise InvalidValue(
                f"Invalid value for 'boot': expected 1 to {_MAX_BOOT_CHARS} characters.", param="boot"
            )
        url = join.url.rstrip("/")
        parse_node_url(url)
        spec = NodeSpec(join.name, url, api_key=self._node_key)
        if join.grpc is None:
            return spec
        return replace(spec, grpc=grpc_of(spec, parse_grpc(join.grpc)))

    def _epoch(self) -> int:
        epoch, self._next_epoch = self._next_epoch, self._next_epoch + 1
        return epoch

    def _end(self, name: str) -> None:
        del self._held[name]
        self._fleet.remove(name)
