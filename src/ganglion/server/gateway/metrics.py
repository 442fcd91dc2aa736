"""What `/metrics` says of the fleet, beside what the front counted."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from ganglion.gateway.fleet import Fleet
from ganglion.gateway.gateway_metrics import GatewayMetrics
from ganglion.gateway.node import NodeView
from ganglion.gateway.tally import KeyCount


class FleetMetrics:
    """Adds keys to the front's registry, and nodes and replicas unless `fleet` is for another to tell of."""

    def __init__(
        self, front: GatewayMetrics, fleet: Fleet | None, keys: Callable[[], tuple[KeyCount, ...]]
    ) -> None:
        self._registry = front.registry
        self._fleet = fleet
        self._keys = keys
        self._nodes: Sequence[NodeView] = ()
        self._counts: tuple[KeyCount, ...] = ()
        self._registry.register(self)

    async def page(self) -> bytes:
        """In Prometheus' text format; written off the event loop."""
        self._nodes = () if self._fleet is None else tuple(self._fleet.nodes.values())
        self._counts = self._keys()
        return await asyncio.to_thread(generate_latest, self._registry)

    def describe(self) -> list[Metric]:
        """Nothing ahead of time: what `collect` finds is only known then."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The fleet at this moment."""
        if self._fleet is not None:
            yield from _of_nodes(self._nodes)
        yield from _of_keys(self._counts)


def _of_nodes(nodes: Sequence[NodeView]) -> Iterator[Metric]:
    healthy = GaugeMetricFamily("ganglion_gateway_node_healthy", "Whether a node answers.", labels=("node",))
    replicas = GaugeMetricFamily(
        "ganglion_gateway_replicas", "Models on nodes, by their status.", labels=("model", "status")
    )
    held: Counter[tuple[str, str]] = Counter()
    for view in nodes:
        healthy.add_metric((view.name,), float(view.is_healthy))
        held.update((replica.id, replica.status) for replica in view.replicas if view.is_healthy)
    for labels, count in sorted(held.items()):
        replicas.add_metric(labels, count)
    yield healthy
    yield replicas


def _of_keys(counts: tuple[KeyCount, ...]) -> Iterator[Metric]:
    requests = CounterMetricFamily(
        "ganglion_gateway_key_requests", "Requests let in, by key.", labels=("key", "tenant")
    )
    tokens = CounterMetricFamily(
        "ganglion_gateway_key_tokens", "Tokens that they took, by key.", labels=("key", "tenant", "kind")
    )
    for count in counts:
        requests.add_metric((count.key, count.tenant), count.requests)
        tokens.add_metric((count.key, count.tenant, "prompt"), count.prompt_tokens)
        tokens.add_metric((count.key, count.tenant, "completion"), count.completion_tokens)
    yield requests
    yield tokens
