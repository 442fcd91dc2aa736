"""Which node is asked, and which one after it: the rules under which a request may be put to another node.

Law: a node that certainly did nothing (not reached, 503, a lost lease) costs nothing, and all others may be
asked. One that may have begun, and died or failed over it, costs one of two chances: a request that kills
nodes meets two at most.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final, assert_never

from msgspec.structs import replace

from ganglion.core.errors import (
    EngineFailed,
    GanglionError,
    ModelLoading,
    ModelNotFound,
    UpstreamRefused,
    UpstreamUnavailable,
)
from ganglion.gateway.decision import Asked, Chooser, Chosen, Cold, Refused, Translated
from ganglion.gateway.fleet import Fleet
from ganglion.gateway.loading import Loader
from ganglion.gateway.node import NodeSpec
from ganglion.gateway.pool import Unreached

MAX_LIVES: Final = 2
"""Nodes that one request may take down."""

Poke = Callable[[str], None]
"""Hears the name of a node that should be looked at now."""


class Attempts:
    """One request's way through the fleet."""

    def __init__(
        self, fleet: Fleet, chooser: Chooser, loader: Loader, asked: Asked, poke: Poke | None = None
    ) -> None:
        self._fleet = fleet
        self._chooser = chooser
        self._loader = loader
        self._asked = asked
        self._poke = poke
        self._tried: set[str] = set()
        self._lives = MAX_LIVES
        self._has_loaded = False
        self._last: GanglionError | None = None

    async def next(self) -> Chosen | Translated:
        """The node to ask; raises why there is none, which is what the last one said where one was asked."""
        while True:
            asked = replace(self._asked, tried=frozenset(self._tried))
            match self._chooser.choose(asked):
                case Chosen() | Translated() as chosen:
                    return chosen
                case Cold(model=model):
                    if self._has_loaded:
                        raise self._last or ModelLoading(f"The model {model!r} was loaded and is gone again.")
                    self._has_loaded = True
                    await self._loader.load(model)
                case Refused(error=error):
                    raise self._last or error
                case never:
                    assert_never(never)

    @contextmanager
    def running(self, spec: NodeSpec) -> Generator[None, None, None]:
        """Count a request on its node for as long as it runs there."""
        in_flight = self._fleet.in_flight
        in_flight[spec.name] = in_flight.get(spec.name, 0) + 1
        try:
            yield
        finally:
            in_flight[spec.name] -= 1

    def answered(self, spec: NodeSpec) -> None:
        """The node does what it should."""
        self._fleet.succeeded(spec.name)

    def failed(self, spec: NodeSpec, error: GanglionError) -> GanglionError | None:
        """Note a failure; returns what the client is told, or None where somebody else may be asked."""
        self.broke(spec, error)
        match error:
            case _ if is_deadly(error):
                self._lives -= 1
                may_go_on = self._lives > 0
            case UpstreamUnavailable() | ModelNotFound():
                may_go_on = True
            case _:
                may_go_on = error.status == 503
        told = _told(spec, error)
        if not may_go_on:
            return told
        self._tried.add(spec.name)
        self._last = told
        return None

    def broke(self, spec: NodeSpec, error: GanglionError) -> None:
        """Note that a node failed, before or while it answered."""
        if error.status < 500:  # it answered, if only that the client is wrong
            self._fleet.succeeded(spec.name)
        is_foreign = spec.kind != "ganglion"
        if isinstance(error, UpstreamUnavailable) or (is_foreign and error.status == 503):
            self._fleet.failed(spec.name)
        if self._poke is not None and error.status >= 500:
            self._poke(spec.name)


def is_deadly(error: GanglionError) -> bool:
    """Whether a node may have begun, and died or failed over it."""
    return isinstance(error, EngineFailed | UpstreamUnavailable) and not isinstance(
        error, Unreached | UpstreamRefused
    )


def _told(spec: NodeSpec, error: GanglionError) -> GanglionError:
    """The error as a client hears it, with the node that it is about."""
    if isinstance(error, Unreached):
        return UpstreamUnavailable(error.message, extras={"node": spec.name})
    if isinstance(error, UpstreamUnavailable):
        error.extras.setdefault("node", spec.name)
    return error
