"""Data on stdout: a table for people, JSON for programs."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_WIDE: Final = 240
"""Columns where nobody says how wide the reader is: a program wants one line for each row."""
_NAME_WIDTH: Final = 22
"""So much of the first column is not given up for the others."""


@dataclass(frozen=True, slots=True)
class TableRow:
    """One line of a table, and what stands under its first cell."""

    cells: tuple[str, ...]
    note: str | None = None


def print_json(value: object) -> None:
    """One JSON document, indented."""
    import msgspec

    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")


def print_table(headings: Sequence[str], rows: Sequence[TableRow], *, right: Sequence[str] = ()) -> None:
    """A table that can be read without colour; columns in `right` hold numbers."""
    stdout_console().print(table_of(headings, rows, right=right))


def table_of(headings: Sequence[str], rows: Sequence[TableRow], *, right: Sequence[str] = ()) -> "Table":
    """The table, for the caller to print."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    longest = max((len(row.cells[0]) for row in rows), default=0)
    for number, heading in enumerate(headings):
        is_right = heading in right
        table.add_column(
            heading,
            justify="right" if is_right else "left",
            overflow="fold",
            no_wrap=is_right,
            min_width=min(longest, _NAME_WIDTH) if number == 0 else None,
        )
    for row in rows:
        first, *others = row.cells
        words = Text(first)
        if row.note:
            words.append(f"\n{row.note}", "bold")
        table.add_row(words, *map(Text, others))
    return table


def print_facts(facts: Sequence[tuple[str, str]]) -> None:
    """Print names and values, one pair a line."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts:
        table.add_row(Text(name, "bold"), Text(value))
    stdout_console().print(table)


def stdout_console() -> "Console":
    """The console of stdout."""
    from rich.console import Console

    is_measured = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(file=sys.stdout, highlight=False, width=None if is_measured else _WIDE)
