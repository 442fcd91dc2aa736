"""The table of results: each measure, its ratio, its target, and whether it is reached."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Literal

from rich.table import Table

from benchmarks.measure import Summary

NOISE = 0.05
"""A ratio this near its target has neither reached nor missed it."""

Unit = Literal["tok/s", "s", "ms", "µs", "MiB", "MB", "B", "%", ""]
Verdict = Literal["ok", "within noise", "MISS", ""]


@dataclass(frozen=True, slots=True)
class Target:
    """A bound on the ratio ours / peer, or on ours alone, without an allowance for noise."""

    bound: float
    is_floor: bool
    is_ratio: bool = True

    def verdict(self, value: float | None) -> Verdict:
        if value is None:
            return ""
        if value >= self.bound if self.is_floor else value <= self.bound:
            return "ok"
        slack = NOISE if self.is_ratio else 0.0
        near = value >= self.bound * (1 - slack) if self.is_floor else value <= self.bound * (1 + slack)
        return "within noise" if near else "MISS"


def at_least(bound: float) -> Target:
    return Target(bound, is_floor=True)


def at_most(bound: float) -> Target:
    return Target(bound, is_floor=False)


def within(bound: float) -> Target:
    """A bound on our own number, whatever the peer's."""
    return Target(bound, is_floor=False, is_ratio=False)


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table, and of the JSON."""

    subject: str
    measure: str
    unit: Unit
    ours: float | None
    peer: float | None
    ratio: float | None
    target: Target | None
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Run:
    """One workload on one server in one round."""

    round: int
    server: str
    workload: str
    summary: Summary


@dataclass(frozen=True, slots=True)
class Column:
    """A number of a summary that the table shows."""

    field: str
    measure: str
    unit: Unit


TOK_S = Column("tok_s", "throughput", "tok/s")
WALL = Column("wall_s", "wall", "s")
TTFT_P50 = Column("ttft_p50_s", "TTFT p50", "s")
TTFT_P99 = Column("ttft_p99_s", "TTFT p99", "s")
ITL_P50 = Column("itl_p50_s", "ITL p50", "ms")
ITL_P99 = Column("itl_p99_s", "ITL p99", "ms")
WORST_GAP = Column("worst_gap_s", "worst gap", "s")
LONG_TTFT = Column("long_ttft_s", "long prompt's TTFT", "s")
SECOND_TTFT = Column("long_ttft_s", "second turn's TTFT", "s")
USUAL = (TOK_S, WALL, TTFT_P50, TTFT_P99, ITL_P50, ITL_P99, WORST_GAP)
COLUMNS = {
    "W5": (TOK_S, WALL, TTFT_P50, ITL_P50, ITL_P99, WORST_GAP, LONG_TTFT),
    "W7": (TTFT_P50, SECOND_TTFT),
}

TARGETS = {
    ("W1", "tok_s"): at_least(1.0),
    ("W2", "tok_s"): at_least(1.15),
    ("W2", "ttft_p50_s"): at_most(0.6),
    ("W3", "wall_s"): at_most(0.2),
    ("W4", "tok_s"): at_least(1.3),
    ("W5", "worst_gap_s"): within(0.6),
    ("W5", "long_ttft_s"): at_most(1.1),
    ("W6", "tok_s"): at_least(1.05),
    ("W6", "ttft_p50_s"): at_most(0.6),
    ("W7", "ttft_p50_s"): at_most(0.95),
    ("W7", "long_ttft_s"): at_most(0.95),
}


def row(
    subject: str,
    measure: str,
    unit: Unit,
    ours: Sequence[float | None],
    peer: Sequence[float | None],
    target: Target | None = None,
) -> Row:
    """Fold the rounds: the medians of each, and the median of the ratios inside each round."""
    pairs = zip(ours, peer, strict=False)
    ratio = _median([one / other for one, other in pairs if one is not None and other])
    ours_median = _median(ours)
    judged = ratio if target is None or target.is_ratio else ours_median
    verdict: Verdict = target.verdict(judged) if target else ""
    return Row(subject, measure, unit, ours_median, _median(peer), ratio, target, verdict)


def workload_rows(runs: Sequence[Run], workloads: Sequence[str]) -> list[Row]:
    """All rows of the workloads that ran, failures first where there were any."""
    rows: list[Row] = []
    for name in workloads:
        mine = _by_round(runs, "ganglion", name)
        theirs = _by_round(runs, "peer", name)
        failures = [float(sum(run.summary.failures for run in side)) for side in (mine, theirs)]
        if any(failures):
            rows.append(
                Row(name, "failures", "", failures[0], failures[1], None, None, "MISS" if failures[0] else "")
            )
        for column in COLUMNS.get(name, USUAL):
            rows.append(
                row(
                    name,
                    column.measure,
                    column.unit,
                    [_value(run, column) for run in mine],
                    [_value(run, column) for run in theirs],
                    TARGETS.get((name, column.field)),
                )
            )
    return rows


def table(rows: Sequence[Row], title: str) -> Table:
    drawn = Table(title=title, title_justify="left")
    drawn.add_column("")
    drawn.add_column("measure")
    for name in ("ganglion", "peer", "ratio", "target"):
        drawn.add_column(name, justify="right", no_wrap=True)
    drawn.add_column("verdict", no_wrap=True)
    previous = None
    for each in rows:
        if previous not in (None, each.subject):
            drawn.add_section()
        drawn.add_row(
            "" if each.subject == previous else each.subject,
            each.measure,
            shown(each.ours, each.unit),
            shown(each.peer, each.unit),
            "-" if each.ratio is None else f"{each.ratio:.2f}x",
            _bound(each.target, each.unit),
            each.verdict,
        )
        previous = each.subject
    return drawn


def write(rows: Sequence[Row], title: str, path: Path) -> None:
    """The same as JSON, to compare runs."""
    document = {"title": title, "rows": [asdict(each) for each in rows]}
    path.write_text(json.dumps(document, indent=1) + "\n")


def shown(value: float | None, unit: Unit) -> str:
    """A number as a person reads it; seconds may be shown as milliseconds, bytes as their multiples."""
    if value is None:
        return "-"
    match unit:
        case "ms":
            return f"{value * 1000:.1f} ms"
        case "µs":
            return f"{value * 1e6:.0f} µs"
        case "B":
            return f"{value:,.0f} B"
        case "MiB":
            return f"{value / 2**20:.0f} MiB"
        case "MB":
            return f"{value / 1e6:.0f} MB"
        case "s":
            return f"{value:.2f} s"
        case "%":
            return f"{value:.1f} %"
        case "tok/s":
            return f"{value:.1f} tok/s"
        case "":
            return f"{value:g}"


def _bound(target: Target | None, unit: Unit) -> str:
    if target is None:
        return ""
    sign = "≥" if target.is_floor else "≤"
    return f"{sign} {target.bound:g}x" if target.is_ratio else f"{sign} {shown(target.bound, unit)}"


def _value(run: Run, column: Column) -> float | None:
    # A run with failures did other work: counting it would flatter the other server.
    return None if run.summary.failures else getattr(run.summary, column.field)


def _by_round(runs: Sequence[Run], server: str, workload: str) -> list[Run]:
    found = [run for run in runs if run.server == server and run.workload == workload]
    return sorted(found, key=lambda run: run.round)


def _median(values: Sequence[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return median(present) if present else None
