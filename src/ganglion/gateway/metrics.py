"""What `/metrics` says of the gateway, counted in plain numbers and turned into metrics only when asked.

Reason: a labelled metric of the library costs a microsecond a touch, and a request touches ten.
"""

import asyncio
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from ganglion.core.events import Usage
from ganglion.gateway.access.ledger import KeyCount
from ganglion.gateway.fleet.fleet import Fleet
from ganglion.gateway.node import NodeView

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_MAX_LABELS = 1024
"""Pairs of tenant and model with counts of their own; the rest share one."""
_OTHERS = ("other", "other")
_MAX_SERIES = 16_384
"""Of requests: each node has some for each wire and status, and nodes that join name themselves."""
_MAX_NODES = 1024
_OTHER = "other"

_Labels = tuple[str, ...]


class _HistogramCounts:
    """One histogram's counts."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(_SECONDS) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        """Count one value."""
        self.counts[bisect_left(_SECONDS, seconds)] += 1
        self.total += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """As the text format has them: each with all below it."""
        running, cumulative = 0, []
        for bound, count in zip((*map(str, _SECONDS), "+Inf"), self.counts, strict=True):
            running += count
            cumulative.append((bound, float(running)))
        return cumulative


class GatewayMetrics:
    """Every count of one proxy; `registry` collects them."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = CollectorRegistry() if registry is None else registry
        self.connections = 0
        self.events = 0
        self.in_flight: Mapping[str, int] = {}
        """Requests by node; the fleet's own counts."""
        self._requests: dict[tuple[str, int, str], int] = {}
        self._refused: dict[str, int] = {}
        self._retries: dict[str, int] = {}
        self._failures: dict[str, int] = {}
        self._broken: dict[str, int] = {}
        self._spent: dict[tuple[str, str], list[int]] = {}
        self._first_byte_s: defaultdict[str, _HistogramCounts] = defaultdict(_HistogramCounts)
        self._duration_s: defaultdict[str, _HistogramCounts] = defaultdict(_HistogramCounts)
        self.registry.register(self)

    def ended(self, wire: str, status: int, node: str, duration_s: float) -> None:
        """Count a request that is over."""
        key = (wire, status, node)
        count = self._requests.get(key)
        if count is None:
            key = key if len(self._requests) < _MAX_SERIES else (wire, status, _OTHER)
            count = self._requests.get(key, 0)
        self._requests[key] = count + 1
        self._duration_s[wire].observe(duration_s)

    def begun(self, wire: str, after_s: float) -> None:
        """Count the time to the first byte of an answer."""
        self._first_byte_s[wire].observe(after_s)

    def spent(self, tenant: str, model: str, usage: Usage) -> None:
        """Count the tokens of one answer."""
        counts = self._spent.get((tenant, model))
        if counts is None:
            key = (tenant, model) if len(self._spent) < _MAX_LABELS else _OTHERS
            counts = self._spent.setdefault(key, [0, 0, 0])
        counts[0] += usage.prompt_tokens
        counts[1] += usage.completion_tokens
        counts[2] += usage.cached_tokens

    def refused(self, code: str) -> None:
        """Count an error of the gateway itself."""
        self._refused[code] = self._refused.get(code, 0) + 1

    def retried(self, node: str) -> None:
        """Count a request that leaves a node for another."""
        _count(self._retries, node)

    def failed(self, node: str) -> None:
        """Count a node that could not be reached, or broke off."""
        _count(self._failures, node)

    def broke(self, wire: str) -> None:
        """Count an answer that broke off after its first byte."""
        self._broken[wire] = self._broken.get(wire, 0) + 1

    def describe(self) -> list[Metric]:
        """Nothing ahead of time."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Everything as it stands; copies first, since a thread may ask while the loop counts."""
        requests = CounterMetricFamily(
            "ganglion_gateway_requests", "Requests answered.", labels=("wire", "status", "node")
        )
        for (wire, status, node), count in self._requests.copy().items():
            requests.add_metric((wire, str(status), node), count)
        yield requests
        yield from self._counters()
        yield from self._gauges()
        for name, words, spreads in (
            ("first_byte", "From the request to the first byte of its answer.", self._first_byte_s),
            ("request", "From the request to the end of its answer.", self._duration_s),
        ):
            family = HistogramMetricFamily(f"ganglion_gateway_{name}_seconds", words, labels=("wire",))
            for wire, spread in spreads.copy().items():
                family.add_metric((wire,), spread.buckets(), spread.total)
            yield family

    def _counters(self) -> Iterator[Metric]:
        for name, words, label, counts in (
            ("refusals", "Requests that the gateway itself refused.", "code", self._refused),
            ("retries", "Requests that left a node for another.", "node", self._retries),
            ("upstream_failures", "Times a node was not there, or broke off.", "node", self._failures),
            ("broken_streams", "Answers that broke off after their first byte.", "wire", self._broken),
        ):
            counter = CounterMetricFamily(f"ganglion_gateway_{name}", words, labels=(label,))
            for value, count in counts.copy().items():
                counter.add_metric((value,), count)
            yield counter
        tokens = CounterMetricFamily(
            "ganglion_gateway_tokens", "Tokens of prompts and answers.", labels=("tenant", "model", "kind")
        )
        cached = CounterMetricFamily(
            "ganglion_gateway_cached_tokens", "Of prompts, those that were known.", labels=("tenant", "model")
        )
        for labels, (prompt, completion, known) in self._spent.copy().items():
            tokens.add_metric((*labels, "prompt"), prompt)
            tokens.add_metric((*labels, "completion"), completion)
            cached.add_metric(labels, known)
        yield tokens
        yield cached
        yield CounterMetricFamily("ganglion_gateway_events", "Events passed on.", value=self.events)

    def _gauges(self) -> Iterator[Metric]:
        in_flight = GaugeMetricFamily(
            "ganglion_gateway_in_flight", "Requests that run on each node.", labels=("node",)
        )
        for node, count in dict(self.in_flight).items():
            in_flight.add_metric((node,), count)
        yield in_flight
        yield GaugeMetricFamily(
            "ganglion_gateway_connections", "Clients that are connected.", value=self.connections
        )


def _count(counts: dict[str, int], node: str) -> None:
    name = node if node in counts or len(counts) < _MAX_NODES else _OTHER
    counts[name] = counts.get(name, 0) + 1


class FleetMetrics:
    """Adds keys, nodes and replicas to the proxy's registry."""

    def __init__(self, proxy: GatewayMetrics, fleet: Fleet, keys: Callable[[], tuple[KeyCount, ...]]) -> None:
        self._registry = proxy.registry
        self._fleet = fleet
        self._keys = keys
        self._nodes: Sequence[NodeView] = ()
        self._counts: tuple[KeyCount, ...] = ()
        self._registry.register(self)

    async def page(self) -> bytes:
        """In Prometheus' text format; written off the event loop."""
        self._nodes = tuple(self._fleet.nodes.values())
        self._counts = self._keys()
        return await asyncio.to_thread(generate_latest, self._registry)

    def describe(self) -> list[Metric]:
        """Nothing ahead of time: what `collect` finds is only known then."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The fleet at this moment."""
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
