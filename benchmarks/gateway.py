"""The cost of a gateway: nginx, vllm-router, LiteLLM and ours in front of an upstream that answers at once.

    python -m benchmarks.gateway
    python -m benchmarks.gateway --only ours,nginx --seconds 3

Law: each gateway has one core to itself; wrk and the upstream share the other. Ours runs with a key check,
routing, metrics, request ids and usage counting on, and its figures are beside those of the same run.
Needs `wrk` and `nginx` from the system's packages; LiteLLM and vllm-router are looked for in `.bench/litellm`
and `.bench/vllm-router`, where `make bench-gateway` puts them, and left out where they are not. BENCH_PYTHON
names another interpreter of the same version for ours: how Python was compiled is a sixth of the result.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table
from tests.support.ports import free_port

from benchmarks.footprint import pss_bytes
from benchmarks.instant import EVENTS, MODEL

ROOT = Path(__file__).parent.parent
GATEWAY_CORE, LOAD_CORE = "0", "1"
START_S = 60.0
KEY = "sk-bench-0123456789abcdef0123456789abcdef"
console = Console(stderr=True, highlight=False)

WHOLE = {"model": MODEL, "messages": [{"role": "user", "content": "Hello there, how are you?"}]}
BURST = WHOLE | {"stream": True}
PACED = BURST | {"user": "paced"}
TRANSLATED = BURST | {"max_tokens": 256}
CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"


@dataclass(frozen=True, slots=True)
class LoadResult:
    """The result of one load, as wrk reports it."""

    requests_s: float
    p50_ms: float
    p99_ms: float
    errors: int


@dataclass(frozen=True, slots=True)
class Figures:
    """One gateway, or no gateway at all; medians of the rounds."""

    name: str
    c1_p50_ms: float
    requests_s: float
    c256_p50_ms: float
    c256_p99_ms: float
    stream_c1_p50_ms: float
    burst_events_s: float
    paced_events_s: float
    translated_events_s: float | None
    """Chat chunks of the upstream as events of Messages; None where nothing is translated."""
    pss_mib: float
    errors: int


def main() -> None:
    options = _options()
    names = options.only.split(",")
    with tempfile.TemporaryDirectory() as folder, _upstream() as upstream:
        rows = [_measured("direct", upstream, None, Path(folder), options)]
        for name in names:
            launch = LAUNCHES[name](free_port(), upstream, Path(folder))
            if launch is None:
                console.print(f"{name} is not installed and is left out")
                continue
            with _running(launch) as pid:
                rows.append(_measured(name, launch.port, pid, Path(folder), options))
    Console(width=130).print(_table(rows, options))
    if options.json:
        Path(options.json).write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gateway", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only",
        default="nginx,vllm-router,litellm,ours,ours-foreign",
        help="the gateways to measure, in this order",
    )
    parser.add_argument("--seconds", type=float, default=4.0, help="of each load")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", help="also write the figures to a file")
    return parser.parse_args()


@dataclass(frozen=True, slots=True)
class Launch:
    """A gateway to start on a port."""

    port: int
    command: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()


def _nginx(port: int, upstream: int, folder: Path) -> Launch | None:
    if shutil.which("nginx") is None:
        return None
    config = folder / "nginx.conf"
    config.write_text(
        f"daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log /dev/null;\n"
        "events { worker_connections 4096; }\n"
        "http { access_log off; keepalive_requests 10000000;\n"
        f"  client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;\n"
        f"  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;\n"
        f"  upstream up {{ server 127.0.0.1:{upstream}; keepalive 512; keepalive_requests 10000000; }}\n"
        f"  server {{ listen 127.0.0.1:{port} backlog=2048; location / {{ proxy_pass http://up;\n"
        '    proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off; } } }\n'
    )
    return Launch(port, ("nginx", "-c", str(config), "-e", "/dev/null"))


def _vllm_router(port: int, upstream: int, folder: Path) -> Launch | None:
    program = ROOT / ".bench" / "vllm-router" / "bin" / "vllm-router"
    if not program.exists():
        return None
    metrics = ("--prometheus-port", str(free_port()))
    worker = ("--worker-urls", f"http://127.0.0.1:{upstream}", "--policy", "round_robin")
    limits = ("--max-concurrent-requests", "4096", "--log-level", "error", "--log-dir", str(folder))
    return Launch(
        port, (str(program), "--host", "127.0.0.1", "--port", str(port), *worker, *metrics, *limits)
    )


def _litellm(port: int, upstream: int, folder: Path) -> Launch | None:
    program = ROOT / ".bench" / "litellm" / "bin" / "litellm"
    if not program.exists():
        return None
    config = folder / "litellm.yaml"
    config.write_text(
        f"model_list:\n  - model_name: {MODEL}\n    litellm_params:\n      model: openai/{MODEL}\n"
        f"      api_base: http://127.0.0.1:{upstream}/v1\n      api_key: none\n"
    )
    flags = ("--config", str(config), "--host", "127.0.0.1", "--port", str(port), "--num_workers", "1")
    return Launch(port, (str(program), *flags), (("LITELLM_LOG", "ERROR"), ("LITELLM_MASTER_KEY", KEY)))


def _ours(port: int, upstream: int, folder: Path) -> Launch | None:
    return _gateway(port, f"up=http://127.0.0.1:{upstream}", folder)


def _ours_foreign(port: int, upstream: int, folder: Path) -> Launch | None:
    """The same before a foreign server: usage is requested and removed again, Messages are translated."""
    return _gateway(port, f"up=openai+http://127.0.0.1:{upstream}", folder)


def _gateway(port: int, node: str, folder: Path) -> Launch:
    python = os.environ.get("BENCH_PYTHON", sys.executable)
    fleet = ("--node", node, "--api-key", KEY)
    flags = (
        "-m",
        "ganglion.cli.main",
        "gateway",
        "--port",
        str(port),
        "--no-grpc",
        *fleet,
        "--log-level",
        "warning",
    )
    packages = ":".join((str(ROOT / "src"), sysconfig.get_paths()["purelib"]))
    settings = (("GANGLION_HOME", str(folder / "home")), ("PYTHONPATH", packages))
    return Launch(port, (python, *flags), settings)


LAUNCHES = {
    "nginx": _nginx,
    "vllm-router": _vllm_router,
    "litellm": _litellm,
    "ours": _ours,
    "ours-foreign": _ours_foreign,
}


@contextmanager
def _upstream() -> Iterator[int]:
    port = free_port()
    command = ("taskset", "-c", LOAD_CORE, sys.executable, "-m", "benchmarks.instant", "--port", str(port))
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        _until_answering(port, process)
        yield port
    finally:
        _end(process)


@contextmanager
def _running(launch: Launch) -> Iterator[int]:
    environment = os.environ | dict(launch.environment)
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            ("taskset", "-c", GATEWAY_CORE, *launch.command),
            stdout=log,
            stderr=log,
            env=environment,
            cwd=ROOT,
        )
        try:
            _until_answering(launch.port, process)
            yield process.pid
        finally:
            _end(process)


def _until_answering(port: int, process: subprocess.Popen[bytes]) -> None:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions",
        json.dumps(WHOLE).encode(),
        {"content-type": "application/json", "authorization": f"Bearer {KEY}"},
    )
    until_s = time.monotonic() + START_S
    while time.monotonic() < until_s and process.poll() is None:
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                answer.read()
                return
        except OSError:
            time.sleep(0.2)
    raise SystemExit(f"error: nothing answers on {port}")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _measured(name: str, port: int, pid: int | None, folder: Path, options: argparse.Namespace) -> Figures:
    def load(body: dict[str, object], connections: int, path: str = CHAT) -> LoadResult:
        rounds = [_wrk(port, path, body, connections, folder, options.seconds) for _ in range(options.rounds)]
        return LoadResult(
            median(each.requests_s for each in rounds),
            median(each.p50_ms for each in rounds),
            median(each.p99_ms for each in rounds),
            sum(each.errors for each in rounds),
        )

    console.print(f"{name} …")
    load(WHOLE, 16)
    one, many, crowd = load(WHOLE, 1), load(WHOLE, 64), load(WHOLE, 256)
    stream, burst, paced = load(BURST, 1), load(BURST, 32), load(PACED, 32)
    translated = load(TRANSLATED, 32, MESSAGES) if name == "ours-foreign" else None
    return Figures(
        name,
        one.p50_ms,
        max(many.requests_s, crowd.requests_s),
        crowd.p50_ms,
        crowd.p99_ms,
        stream.p50_ms,
        burst.requests_s * EVENTS,
        paced.requests_s * EVENTS,
        None if translated is None else translated.requests_s * EVENTS,
        0.0 if pid is None else pss_bytes(pid)[0] / 2**20,
        sum(each.errors for each in (one, many, crowd, stream, burst, paced, translated) if each),
    )


def _wrk(
    port: int, path: str, body: dict[str, object], connections: int, folder: Path, seconds: float
) -> LoadResult:
    script = folder / "load.lua"
    script.write_text(
        'wrk.method = "POST"\n'
        f"wrk.body = [=[{json.dumps(body, separators=(',', ':'))}]=]\n"
        'wrk.headers["content-type"] = "application/json"\n'
        f'wrk.headers["authorization"] = "Bearer {KEY}"\n'
        "done = function(summary, latency, requests)\n"
        '  io.write(string.format("result %f %f %f %d\\n", summary.requests / (summary.duration / 1e6),\n'
        "    latency:percentile(50) / 1000, latency:percentile(99) / 1000,\n"
        "    summary.errors.connect + summary.errors.read + summary.errors.write + summary.errors.status\n"
        "    + summary.errors.timeout))\nend\n"
    )
    load = ("wrk", "-t1", f"-c{connections}", f"-d{seconds:g}s", "--timeout", "30s", "-s", str(script))
    command = ("taskset", "-c", LOAD_CORE, *load, f"http://127.0.0.1:{port}{path}")
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"result (\S+) (\S+) (\S+) (\d+)", output)
    assert found is not None, output
    return LoadResult(float(found[1]), float(found[2]), float(found[3]), int(found[4]))


def _table(rows: list[Figures], options: argparse.Namespace) -> Table:
    table = Table(title=f"gateways · one core each · {options.rounds} x {options.seconds:g} s a load")
    heads = ("", "added p50, c=1", "req/s", "c=256 p50 / p99", "stream p50, c=1", "events/s, bursts")
    for head in (*heads, "events/s, a write each", "events/s, translated", "PSS", "errors"):
        table.add_column(head, justify="left" if not head else "right")
    direct = rows[0]
    for row in rows:
        table.add_row(
            row.name,
            f"{row.c1_p50_ms - direct.c1_p50_ms:.3f} ms" if row is not direct else f"({row.c1_p50_ms:.3f})",
            f"{row.requests_s:,.0f}",
            f"{row.c256_p50_ms:.1f} / {row.c256_p99_ms:.1f} ms",
            f"{row.stream_c1_p50_ms:.3f} ms",
            f"{row.burst_events_s:,.0f}",
            f"{row.paced_events_s:,.0f}",
            "" if row.translated_events_s is None else f"{row.translated_events_s:,.0f}",
            f"{row.pss_mib:.0f} MiB" if row.pss_mib else "",
            str(row.errors),
        )
    return table


if __name__ == "__main__":
    main()
