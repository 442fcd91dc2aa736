"""The blocking client is generated, and current."""

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_blocking_client_is_what_the_script_writes_from_the_other(tmp_path: Path) -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "unasync.py"))
    script["write_sync"](tmp_path)
    written = {path.name: path.read_text() for path in tmp_path.glob("*.py")}
    checked_in = {path.name: path.read_text() for path in (script["CLIENT"] / "_sync").glob("*.py")}
    assert written == checked_in, "run `make generate`"
    assert all(text.startswith(script["HEADER"]) for text in written.values())
