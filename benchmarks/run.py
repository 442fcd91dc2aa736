"""Measure Ganglion and its peer side by side: one table on stdout, one JSON file, progress on stderr.

    make bench
    make bench ARGS="--only W1,W5 --rounds 1"
    make bench ARGS="--footprint --bare"

Law: one server runs at a time. Each round starts one for each workload and stops it, then the other; which
goes first alternates from round to round, so that a machine that slows down or warms up favours neither.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from random import SystemRandom
from typing import IO

import uvloop
from rich.console import Console

from benchmarks import footprint, report, workloads
from benchmarks.report import Row, Run
from benchmarks.servers import KV_TOKENS, PARALLEL, Launch, ServerDied, ours, peer, running
from benchmarks.step_times import step_seconds
from benchmarks.workloads import WORKLOADS, Workload

RESULTS = Path(__file__).parent / "results"
PAUSE_S = 1.0
MODEL_NAME = "smollm2-135m-instruct"

console = Console(stderr=True, highlight=False)


@dataclass(slots=True)
class Results:
    """The measurements so far."""

    runs: list[Run] = field(default_factory=list)
    bare: list[list[dict[str, object]]] = field(default_factory=list)
    """One list of rates for each round."""
    rows: list[Row] = field(default_factory=list)
    """Rows that are not of a workload."""
    outside: list[float] = field(default_factory=list)
    """The share of our steps in W2 that was not the library's, for each round."""


def main() -> None:
    options = _options()
    chosen = _chosen(options)
    started = datetime.datetime.now().astimezone()
    path = options.json or RESULTS / f"{started:%Y-%m-%dT%H%M%S}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    results = Results()
    status = 0
    try:
        with (
            path.with_suffix(".log").open("wb") as log,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            runner.run(_measure(options, chosen, results, log))
    except ServerDied as error:
        console.print(
            f"error: {error}\n\nhint: its output is in {path.with_suffix('.log')}",
            markup=False,
            soft_wrap=True,
        )
        status = 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("interrupted; the results so far follow")
        status = 130
    rows = _rows(results, chosen)
    path.write_text(json.dumps(_document(options, chosen, results, rows, started), indent=1) + "\n")
    _show(options, results, rows)
    console.print(f"written to {path}", markup=False)
    sys.exit(status)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--only", default=",".join(WORKLOADS), help="workloads, by comma; 'none' for none (default: all)")
    add("--rounds", type=int, default=3, help="interleaved rounds to take the median of (default: 3)")
    add(
        "--threads",
        type=int,
        default=len(os.sched_getaffinity(0)),
        help="for both servers (default: all cores)",
    )
    add("--skip-peer", action="store_true", help="measure ganglion alone")
    add("--skip-ours", action="store_true", help="measure the peer alone")
    add(
        "--peer-cache",
        choices=("auto", "split", "unified"),
        default="unified",
        help="the peer's slots: one cache for all (default: the one setting that can take every workload), "
        "a cache each, which decodes faster and takes 2,048 tokens, or whichever suits the workload",
    )
    add("--serve-args", default="", help="more flags for ganglion serve")
    add("--model-name", default=MODEL_NAME, help=f"the model's name on both (default: {MODEL_NAME})")
    add("--bare", action="store_true", help="also a bare loop over the library, once a round")
    add("--footprint", action="store_true", help="also cold start and idle memory")
    add(
        "--download-size",
        action="store_true",
        help="also the size of what an installation downloads (downloads it)",
    )
    add(
        "--quick",
        action="store_true",
        help="shrunk workloads, to see that everything runs; the numbers mean nothing",
    )
    add("--seed", type=int, default=None, help="of the first round (default: random)")
    add("--json", type=Path, help="where the results go (default: benchmarks/results/<date>.json)")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds: expected at least 1")
    if options.skip_ours and options.skip_peer:
        parser.error("--skip-ours and --skip-peer leave nothing to measure")
    if options.seed is None:
        options.seed = SystemRandom().randrange(2**31)
    return options


def _chosen(options: argparse.Namespace) -> list[Workload]:
    names = [] if options.only == "none" else [name.strip().upper() for name in options.only.split(",")]
    unknown = [name for name in names if name not in WORKLOADS]
    if unknown:
        console.print(f"error: no workload {', '.join(unknown)}\n\nhint: there are {', '.join(WORKLOADS)}")
        sys.exit(2)
    found = [WORKLOADS[name] for name in names]
    return [workloads.shrunk(workload) for workload in found] if options.quick else found


async def _measure(
    options: argparse.Namespace, chosen: Sequence[Workload], results: Results, log: IO[bytes]
) -> None:
    task = asyncio.current_task()
    assert task is not None
    # A shell's background job ignores SIGINT, and an unhandled SIGTERM would leave the server running.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    for number in range(options.rounds if chosen or options.bare else 0):
        for launch, part in _plan(options, chosen, number):
            await _serve(launch, part, options, number, results, log)
            await asyncio.sleep(PAUSE_S)
        if options.bare:
            console.print(f"round {number + 1}/{options.rounds} · bare loop")
            results.bare.append(await asyncio.to_thread(_bare, options))
    if options.footprint:
        results.rows += await _footprint_rows(options, log)
    if options.download_size:
        console.print("downloading everything once to add up its size")
        size = float(await asyncio.to_thread(footprint.download_bytes))
        results.rows.append(report.row("footprint", "download", "MB", [size], [], report.within(200e6)))


def _plan(
    options: argparse.Namespace, chosen: Sequence[Workload], number: int
) -> list[tuple[Launch, list[Workload]]]:
    """The servers to start in one round, in order, and the workloads of each.

    Both run a workload before either runs the next: the machine's speed drifts over minutes.
    """
    plan: list[tuple[Launch, list[Workload]]] = []
    for workload in chosen:
        pair = []
        if not options.skip_ours:
            pair.append(ours(options.model_name, options.threads, extra=options.serve_args))
        if not options.skip_peer:
            is_unified = _is_unified(options, workload)
            pair.append(peer(options.model_name, options.threads, is_unified=is_unified))
        plan += [(launch, [workload]) for launch in (pair if number % 2 == 0 else pair[::-1])]
    return plan


def _is_unified(options: argparse.Namespace, workload: Workload) -> bool:
    """Whether the peer shares one cache between its slots, which decodes slower but takes longer prompts."""
    if options.peer_cache != "auto":
        return bool(options.peer_cache == "unified")
    return workload.shape.longest_tokens > KV_TOKENS // PARALLEL


async def _serve(
    launch: Launch,
    part: Sequence[Workload],
    options: argparse.Namespace,
    number: int,
    results: Results,
    log: IO[bytes],
) -> None:
    async with running(launch, log) as server:
        for workload in part:
            before = await asyncio.to_thread(step_seconds, server.endpoint)
            summary = await workloads.run(workload, server.endpoint, options.seed + number)
            after = await asyncio.to_thread(step_seconds, server.endpoint)
            if workload.name == "W2" and before is not None and after is not None:
                step_s, native_s = after[0] - before[0], after[1] - before[1]
                results.outside.append(1.0 - native_s / step_s)
            results.runs.append(Run(number, launch.server, workload.name, summary))
            console.print(
                f"round {number + 1}/{options.rounds} · {launch.server} · {workload.name} {workload.title} · "
                f"{summary.tok_s:.1f} tok/s in {summary.wall_s:.1f} s"
                + (
                    f" · {summary.failures} of {summary.requests} failed: {summary.errors[0]}"
                    if summary.errors
                    else ""
                ),
                markup=False,
                soft_wrap=True,
            )


def _bare(options: argparse.Namespace) -> list[dict[str, object]]:
    command = [sys.executable, "-m", "benchmarks.bare", "--threads", str(options.threads)]
    command += ["--output-tokens", "8"] if options.quick else []
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    return list(json.loads(done.stdout))


async def _footprint_rows(options: argparse.Namespace, log: IO[bytes]) -> list[Row]:
    theirs = None
    if not options.skip_peer:
        console.print("footprint · peer")
        theirs = await footprint.measure(peer(options.model_name, options.threads, is_unified=False), log)
    peer_start = [theirs.cold_start_s] if theirs else []
    peer_pss = [float(theirs.idle_pss_bytes)] if theirs else []
    if options.skip_ours:
        return [
            report.row("footprint", "cold start to first token", "s", [], peer_start),
            report.row("footprint", "idle PSS, 32k-token pool", "MiB", [], peer_pss),
        ]
    console.print("footprint · ganglion")
    pool = await footprint.measure(ours(options.model_name, options.threads, extra=options.serve_args), log)
    small = await footprint.measure(ours(options.model_name, None, kv_tokens=None), log)
    pool_pss, small_pss = float(pool.idle_pss_bytes), float(small.idle_pss_bytes)
    cold = report.within(1.5)
    return [
        report.row("footprint", "cold start to first token", "s", [pool.cold_start_s], peer_start, cold),
        report.row("footprint", "the same with defaults", "s", [small.cold_start_s], [], cold),
        report.row(
            "footprint", "idle PSS, 32k-token pool", "MiB", [pool_pss], peer_pss, report.within(1.1 * 2**30)
        ),
        report.row("footprint", "idle PSS with defaults", "MiB", [small_pss], []),
    ]


def _rows(results: Results, chosen: Sequence[Workload]) -> list[Row]:
    names = [workload.name for workload in chosen]
    rows = report.workload_rows(results.runs, names) if results.runs else []
    if results.outside:
        share = [100.0 * outside for outside in results.outside]
        rows.append(report.row("W2", "time outside the library", "%", share, [], report.within(5.0)))
    return rows + _bare_rows(results) + results.rows


def _bare_rows(results: Results) -> list[Row]:
    """Decoding over HTTP against the faster of the bare loops; the loop is in the peer's column."""
    rows: list[Row] = []
    for workload, streams in (("W1", 1), ("W2", PARALLEL)):
        ceiling = [
            max(float(str(rate["tok_s"])) for rate in rates if rate["streams"] == streams)
            for rates in results.bare
        ]
        through_http = [
            run.summary.decode_tok_s
            for run in results.runs
            if run.server == "ganglion" and run.workload == workload
        ]
        if ceiling:
            measure = f"decode, {streams} stream{'s' if streams > 1 else ''}: HTTP | loop"
            rows.append(report.row("bare", measure, "tok/s", through_http, ceiling, report.at_least(0.95)))
    return rows


def _document(
    options: argparse.Namespace,
    chosen: Sequence[Workload],
    results: Results,
    rows: Sequence[Row],
    started: datetime.datetime,
) -> dict[str, object]:
    return {
        "started": started.isoformat(timespec="seconds"),
        "options": {
            name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()
        },
        "machine": {
            "cores": os.cpu_count(),
            "processor": platform.machine(),
            "python": platform.python_version(),
        },
        "versions": {name: metadata.version(name) for name in ("ganglion", "xllamacpp")},
        "workloads": [asdict(workload) for workload in chosen],
        "rows": [asdict(row) for row in rows],
        "runs": [asdict(run) for run in results.runs],
        "bare": results.bare,
    }


def _show(options: argparse.Namespace, results: Results, rows: Sequence[Row]) -> None:
    if not rows:
        return
    rounds = len({run.round for run in results.runs}) or 1
    title = f"ganglion against xllamacpp's server · {options.threads} threads · median of {rounds} rounds"
    title += " · shrunk, not comparable" if options.quick else ""
    terminal = Console()
    # A pipe is 80 columns to rich, which would fold the table.
    (terminal if terminal.is_terminal else Console(width=120)).print(report.table(rows, title))


if __name__ == "__main__":
    main()
