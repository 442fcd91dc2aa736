"""A fleet as one process of a gateway tells it to another of the same gateway, over a socket of theirs alone.

`GET /shared?since=VERSION&wait=SECONDS` answers `Shared`: at once, or, when `since` is the version that it
would tell, once something changed or the wait is over. `POST /load` takes `Wanted` and answers `Caught` when
some node holds the model. `POST /notice` takes `Noticed`. Nodes' keys are among what is told.
"""

from collections.abc import Mapping
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from ganglion.gateway.fleet.fleet import FailedLoad
from ganglion.gateway.fleet.node import NodeView
from ganglion.gateway.fleet.quarantine import MAX_REMEMBERED

MAX_SHARED_BYTES: Final = 256 * 2**20
MAX_WAIT_S: Final = 10.0

Version = Annotated[str, Meta(max_length=64)]
"""Of one telling process: what was told before to somebody who names it need not be told again."""
NodeName = Annotated[str, Meta(max_length=64)]


class Shared(Struct, frozen=True, kw_only=True):
    """What is known of the fleet, as far as it changed."""

    version: Version
    names: tuple[str, ...]
    """Every node; who is not among them is gone."""
    views: tuple[NodeView, ...]
    """Those that changed since."""
    resting: frozenset[str]
    learned: tuple[tuple[str, str, str], ...]
    """Node, the model's name there, and its id in the catalogue."""
    loading: frozenset[str]
    lapsed: tuple[tuple[str, int], ...] = ()
    """Leases that were not renewed, the latest ones: node and epoch."""
    failed_loads: tuple[FailedLoad, ...] = ()
    poison: frozenset[bytes]
    """Digests of requests that took nodes down, for nobody to try them again."""


class Wanted(Struct, frozen=True):
    """A model that somebody needs."""

    model: Annotated[str, Meta(min_length=1, max_length=512)]


class Caught(Struct, frozen=True):
    """The version in which the model is seen."""

    version: Version


class Noticed(Struct, frozen=True):
    """What a process found out by itself: who could not be reached, and which requests are poison."""

    nodes: Annotated[tuple[NodeName, ...], Meta(max_length=4096)]
    poison: Annotated[tuple[bytes, ...], Meta(max_length=MAX_REMEMBERED)]


_encode = msgspec.msgpack.Encoder().encode
_shared = msgspec.msgpack.Decoder(Shared)
_wanted = msgspec.msgpack.Decoder(Wanted)
_caught = msgspec.msgpack.Decoder(Caught)
_noticed = msgspec.msgpack.Decoder(Noticed)
_counts = msgspec.msgpack.Decoder(dict[str, int])


def encode(value: Shared | Wanted | Caught | Noticed | Mapping[str, int]) -> bytes:
    """Any of these as it goes over the socket."""
    return _encode(value)


def parse_shared(body: bytes) -> Shared:
    """What is known of the fleet; raises msgspec.MsgspecError, as the others do."""
    return _shared.decode(body)


def parse_wanted(body: bytes) -> Wanted:
    """What is to be loaded."""
    return _wanted.decode(body)


def parse_caught(body: bytes) -> Caught:
    """When it is seen."""
    return _caught.decode(body)


def parse_noticed(body: bytes) -> Noticed:
    """What is to be looked at."""
    return _noticed.decode(body)


def parse_counts(body: bytes) -> dict[str, int]:
    """How much of a process runs on each node."""
    return _counts.decode(body)
