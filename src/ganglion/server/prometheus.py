"""The metrics of a server, in a Prometheus registry of its own."""

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import psutil
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString

from ganglion.core.engine import ModelState

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_TTFT_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_ITL_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 5)


@dataclass(frozen=True, slots=True)
class SessionCounts:
    """How many sessions are kept, and how many tokens and bytes of images they hold in memory."""

    open: int
    tokens: int
    image_bytes: int


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """Values that are read on the event loop before a thread writes the page."""

    models: Sequence[ModelState] = ()
    tasks: int = 0
    sessions: SessionCounts | None = None


class TokenGaps:
    """The times between pieces of answers, in buckets.

    Not a Histogram of the library: its locks cost more than all else that is done to count a token.
    """

    __slots__ = ("_counts", "_sum_s")

    def __init__(self) -> None:
        self._counts = [0] * (len(_ITL_S) + 1)
        self._sum_s = 0.0

    def observe(self, gap_s: float) -> None:
        """Count one."""
        self._counts[bisect_left(_ITL_S, gap_s)] += 1
        self._sum_s += gap_s

    def add_to(self, family: HistogramMetricFamily, model: str) -> None:
        """Write it down as a model's."""
        bounds = [*map(floatToGoString, _ITL_S), "+Inf"]
        family.add_metric((model,), list(zip(bounds, accumulate(self._counts), strict=True)), self._sum_s)


class ModelMetrics:
    """One model's own children of the labelled metrics, looked up once."""

    def __init__(self, metrics: "Metrics", model: str) -> None:
        self.model = model
        self.requests = metrics.requests
        self.prompt_tokens = metrics.prompt_tokens.labels(model)
        self.completion_tokens = metrics.completion_tokens.labels(model)
        self.cached_tokens = metrics.cached_tokens.labels(model)
        self.first_token_s = metrics.first_token_s.labels(model)
        self.between_tokens_s = TokenGaps()
        self.in_flight = metrics.in_flight.labels(model)


class Metrics:
    """Every counter of this server; nothing global, so that two servers in one process do not mix."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._snapshot = _Snapshot()
        self.by_model: dict[str, ModelMetrics] = {}
        """The metrics of the models that were counted so far, by their ids."""
        registry, by_model = self.registry, ("model",)
        self.requests = Counter(
            "ganglion_requests",
            "Answers ended, by finish reason, error code or cancelled.",
            ("model", "outcome"),
            registry=registry,
        )
        self.prompt_tokens = Counter("ganglion_prompt_tokens", "Prompt tokens.", by_model, registry=registry)
        self.completion_tokens = Counter(
            "ganglion_completion_tokens", "Tokens generated.", by_model, registry=registry
        )
        self.cached_tokens = Counter(
            "ganglion_cached_tokens", "Prompt tokens found in the cache.", by_model, registry=registry
        )
        self.first_token_s = Histogram(
            "ganglion_time_to_first_token_seconds",
            "From the request to its first token.",
            by_model,
            registry=registry,
            buckets=_TTFT_S,
        )
        self.in_flight = Gauge(
            "ganglion_requests_in_flight", "Answers being made.", by_model, registry=registry
        )
        self.rpcs = Counter(
            "ganglion_rpcs", "gRPC calls ended, by status.", ("method", "code"), registry=registry
        )
        self.sessions: Callable[[], SessionCounts] | None = None
        """Counts the sessions, where some are kept."""
        registry.register(self)

    def of_model(self, model: str) -> ModelMetrics:
        """The model's own metrics; `model` is an id that an engine names, never a name from a client."""
        found = self.by_model.get(model)
        if found is None:
            found = self.by_model[model] = ModelMetrics(self, model)
        return found

    async def page(self, models: Sequence[ModelState]) -> bytes:
        """The page in Prometheus' text format; walking processes takes a while, so a thread writes it."""
        sessions = None if self.sessions is None else self.sessions()
        self._snapshot = _Snapshot(models, len(asyncio.all_tasks()), sessions)
        return await asyncio.to_thread(generate_latest, self.registry)

    def describe(self) -> list[Metric]:
        """Describe nothing ahead of time: what `collect` finds is only known then."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The metrics that the engines and the operating system give at this moment."""
        snapshot = self._snapshot
        yield from _models(snapshot.models)
        gaps = HistogramMetricFamily(
            "ganglion_inter_token_seconds", "Between two pieces of an answer.", labels=("model",)
        )
        for model, metrics in list(self.by_model.items()):
            metrics.between_tokens_s.add_to(gaps, model)
        yield gaps
        if snapshot.sessions is not None:
            yield _gauge("ganglion_sessions_open", "Token sessions kept.", snapshot.sessions.open)
            yield _gauge("ganglion_session_tokens", "Tokens that they hold.", snapshot.sessions.tokens)
            images = snapshot.sessions.image_bytes
            yield _gauge("ganglion_session_image_bytes", "Image files that they hold.", images)
        yield _gauge("ganglion_asyncio_tasks", "Tasks on the event loop.", snapshot.tasks)
        process = psutil.Process()
        with process.oneshot():
            yield _gauge("ganglion_open_fds", "Open file descriptors.", process.num_fds())
            yield _gauge("ganglion_threads", "Threads of this process.", process.num_threads())
            yield _gauge("ganglion_resident_bytes", "Memory of this process.", process.memory_info().rss)
        children = len(process.children(recursive=True))
        yield _gauge("ganglion_child_processes", "Processes below this one.", children)


def _gauge(name: str, documentation: str, value: float) -> Metric:
    return GaugeMetricFamily(name, documentation, value=value)


def _models(models: Sequence[ModelState]) -> Iterator[Metric]:
    gauges: dict[str, tuple[str, Callable[[ModelState], int]]] = {
        "ganglion_queue_depth": ("Requests waiting in the engine.", lambda model: model.queued),
        "ganglion_slots_used": ("Sequences running.", lambda model: model.slots_used),
        "ganglion_slots_total": ("Sequences that can run at once.", lambda model: model.slots_total),
        "ganglion_kv_cells_used": ("KV cells in use.", lambda model: model.kv_used),
        "ganglion_kv_cells_total": ("KV cells there are.", lambda model: model.kv_total),
    }
    for name, (documentation, read) in gauges.items():
        family = GaugeMetricFamily(name, documentation, labels=("model",))
        for model in models:
            family.add_metric((model.id,), read(model))
        yield family
    counters: dict[str, tuple[str, Callable[[ModelState], float]]] = {
        "ganglion_worker_restarts": ("Workers started again.", lambda model: model.restarts),
        "ganglion_step_seconds": ("Time spent on steps.", lambda model: model.load.step_s),
        "ganglion_native_seconds": (
            "Time of these inside the native library.",
            lambda model: model.load.native_s,
        ),
    }
    for name, (documentation, count) in counters.items():
        counter = CounterMetricFamily(name, documentation, labels=("model",))
        for model in models:
            counter.add_metric((model.id,), count(model))
        yield counter
