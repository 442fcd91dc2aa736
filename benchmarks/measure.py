"""The figures of a workload's records: rates, waits and gaps."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.load import Record


@dataclass(frozen=True, slots=True)
class Summary:
    """One workload on one server. None where there was nothing to measure."""

    tok_s: float
    wall_s: float
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    itl_p50_s: float | None
    itl_p99_s: float | None
    worst_gap_s: float | None
    long_ttft_s: float | None
    """TTFT of the long prompt that comes in between, where there is one."""
    decode_tok_s: float | None
    """Streams over the median gap, while as many decode as the workload has at once."""
    requests: int
    failures: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    errors: tuple[str, ...] = ()
    """Different errors, each once."""


def percentile(values: Sequence[float], fraction: float) -> float | None:
    """The smallest value with at least that fraction of all at or below it."""
    if not values:
        return None
    rank = math.ceil(fraction * len(values))
    return sorted(values)[max(rank, 1) - 1]


def worst_gap(records: Iterable[Record], since_s: float = -math.inf) -> float | None:
    """The longest silence inside a stream that was not over by `since_s`."""
    gaps = [end - start for record in records for start, end in record.gaps if end > since_s]
    return max(gaps, default=None)


def full_windows(records: Iterable[Record], streams: int) -> list[tuple[float, float]]:
    """The spans of time in which `streams` streams were between their first text and their last."""
    # At equal times an end comes first: streams that only touch do not overlap.
    edges = sorted(
        edge
        for record in records
        if record.delta_s
        for edge in ((record.delta_s[0], 1), (record.delta_s[-1], -1))
    )
    active = list(itertools.accumulate(change for _, change in edges))
    return [
        (edges[i][0], edges[i + 1][0])
        for i in range(len(edges) - 1)
        if active[i] == streams and edges[i + 1][0] > edges[i][0]
    ]


def decode_rate(records: Sequence[Record], streams: int) -> float | None:
    """Tokens a second while all streams decode and nothing else happens."""
    windows = full_windows(records, streams)
    gaps = [
        end - start
        for record in records
        for start, end in record.gaps
        if any(opened <= start and end <= closed for opened, closed in windows)
    ]
    return streams / median(gaps) if gaps and median(gaps) > 0 else None


def summarise(
    records: Sequence[Record], *, streams: int, intruder: Record | None = None, wall_s: float | None = None
) -> Summary:
    """Fold records of the streams, and of the long prompt that came between them where there was one."""
    everyone = [*records, intruder] if intruder else list(records)
    good = [record for record in records if record.error is None]
    if wall_s is None:
        wall_s = max(r.ended_s for r in everyone) - min(r.sent_s for r in everyone)
    gaps = [end - start for record in good for start, end in record.gaps]
    ttfts = [record.ttft_s for record in good if record.ttft_s is not None]
    errors = [record.error for record in everyone if record.error is not None]
    completion_tokens = sum(record.completion_tokens for record in everyone if record.error is None)
    return Summary(
        tok_s=completion_tokens / wall_s,
        wall_s=wall_s,
        ttft_p50_s=percentile(ttfts, 0.5),
        ttft_p99_s=percentile(ttfts, 0.99),
        itl_p50_s=percentile(gaps, 0.5),
        itl_p99_s=percentile(gaps, 0.99),
        worst_gap_s=worst_gap(good, since_s=intruder.sent_s if intruder else -math.inf),
        long_ttft_s=intruder.ttft_s if intruder and intruder.error is None else None,
        decode_tok_s=decode_rate(good, streams),
        requests=len(everyone),
        failures=len(errors),
        prompt_tokens=sum(record.prompt_tokens for record in everyone),
        cached_tokens=sum(record.cached_tokens for record in everyone),
        completion_tokens=completion_tokens,
        errors=tuple(dict.fromkeys(errors)),
    )
