"""`ganglion doctor`: check this machine and advise."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ganglion import __version__
from ganglion.cli.flags import OUTPUT
from ganglion.cli.terminal.console import say

if TYPE_CHECKING:
    from ganglion.cli.system.checks import Finding

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def doctor(
    *,
    config: Annotated[
        Path | None,
        Parameter(help="A TOML file (default: config.toml in GANGLION_HOME).", group=OUTPUT),
    ] = None,
    json: Annotated[
        bool, Parameter(help="One JSON object instead of a table.", group=OUTPUT, negative=())
    ] = False,
) -> int:
    """Check this machine; ends with 1 when something keeps a node from working."""
    from ganglion.cli.system.checks import run_checks

    findings = list(run_checks(config, os.environ))
    if json:
        _print_json(findings)
    else:
        _print_table(findings)
    count = {verdict: sum(each.verdict == verdict for each in findings) for verdict in _STYLES}
    say(f"{count['ok']} ok, {count['warn']} to look at, {count['fail']} failed")
    return 1 if count["fail"] else 0


def _print_json(findings: "Sequence[Finding]") -> None:
    import msgspec

    has_failed = any(each.verdict == "fail" for each in findings)
    report = {"version": __version__, "has_failed": has_failed, "checks": findings}
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(report), indent=2).decode() + "\n")


def _print_table(findings: "Sequence[Finding]") -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # What to do stands under its finding: a column of its own leaves too little room on 80 columns.
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("check", "", "finding, and what to do"):
        table.add_column(heading, overflow="fold")
    for each in findings:
        words = Text(each.finding)
        if each.advice:
            words.append(f"\nto do: {each.advice}", "bold")
        table.add_row(Text(each.check), Text(each.verdict, _STYLES[each.verdict]), words)
    Console(file=sys.stdout, highlight=False).print(table)
