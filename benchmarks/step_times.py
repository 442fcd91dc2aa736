"""Our server's own figures of its steps: their time, and the part of it inside the library."""

from __future__ import annotations

import re
import urllib.error
import urllib.request

from benchmarks.load import Endpoint


def step_seconds(endpoint: Endpoint) -> tuple[float, float] | None:
    """Seconds of all steps so far, and of these inside the library; None from a server without metrics."""
    try:
        with urllib.request.urlopen(f"http://{endpoint.host}:{endpoint.port}/metrics", timeout=5) as response:
            page = response.read().decode()
    except (urllib.error.URLError, OSError):
        return None
    found = [
        re.search(rf"^ganglion_{name}_seconds_total\S* (\S+)$", page, re.MULTILINE)
        for name in ("step", "native")
    ]
    step, native = found
    return (float(step[1]), float(native[1])) if step and native else None
