"""The lines of a request's head that are the same for every request to one node."""

from dataclasses import dataclass

from ganglion.gateway.heads import value_of
from ganglion.gateway.node import NodeSpec
from ganglion.gateway.pool import Pool, Pools
from ganglion.gateway.trusted import EPOCH, USAGE

MAX_LINES = 2048


@dataclass(frozen=True, slots=True)
class Line:
    """How one node is spoken to."""

    spec: NodeSpec
    pool: Pool
    prefix: bytes
    """Of every path there."""
    head: bytes
    """From behind the path on: the version, whom it is for, and the gateway's own key."""


class Lines:
    """Every node's, made once for each word of it."""

    def __init__(self, pools: Pools) -> None:
        self._pools = pools
        self._lines: dict[str, Line] = {}

    def to(self, spec: NodeSpec) -> Line:
        """A node's; raises InvalidValue where its URL is none."""
        line = self._lines.get(spec.name)
        if line is None or line.spec is not spec:
            if len(self._lines) >= MAX_LINES:
                self._lines.clear()  # of nodes that are gone, mostly; the others are made again
            line = self._lines[spec.name] = self._made(spec)
        return line

    def _made(self, spec: NodeSpec) -> Line:
        pool = self._pools.of(spec)
        head = b" HTTP/1.1\r\nhost: %b\r\n" % pool.address.authority.encode()
        if spec.api_key is not None:
            head += b"authorization: Bearer %b\r\n" % value_of(spec.api_key)
        if spec.kind == "ganglion":
            head += b"%b: 1\r\n" % USAGE
            if spec.epoch is not None:
                head += b"%b: %d\r\n" % (EPOCH, spec.epoch)
        return Line(spec, pool, pool.address.prefix.encode(), head)
