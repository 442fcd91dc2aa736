"""`ganglion usage`: tokens, requests and cost by key, tenant and model."""

import sys
from collections.abc import Sequence
from time import time
from typing import TYPE_CHECKING, Annotated, Final, Literal

from cyclopts import Parameter

from ganglion.cli.flags import OUTPUT, ConfigFile, Json, option
from ganglion.cli.keys.access_store import StoreFlag, store_location, with_access_store
from ganglion.cli.terminal.console import say
from ganglion.cli.terminal.format import date_words, day_words, moment_s, units_words
from ganglion.cli.terminal.output import TableRow, print_json, print_table
from ganglion.core.errors import InvalidValue

if TYPE_CHECKING:
    from ganglion.store.access_store import StoredKey, UsageLine

_Grouping = Literal["key", "tenant", "model", "day"]
_COUNTS: Final = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens", "cost")
_NUMBERS: Final = ("requests", "prompt", "cached", "completion", "cost")


_UsageRow = dict[str, str | int | None]
"""One line of the report, as `--json` prints it; what was not asked for is null, costs are in units."""


def usage(
    *,
    since: Annotated[str, option("How far back, in whole hours: 24h, 7d, or a date.")] = "7d",
    by: Annotated[
        list[_Grouping] | None,
        Parameter(help="What a line is for; may be repeated (default: key).", negative=()),
    ] = None,
    json: Json = False,
    csv: Annotated[bool, Parameter(help="CSV, with a line of names.", group=OUTPUT, negative=())] = False,
    store: StoreFlag = None,
    config: ConfigFile = None,
) -> None:
    """Show what was used."""
    from ganglion.store.access_store import HOUR_S, AccessStore

    if json and csv:
        raise InvalidValue("--json and --csv exclude each other.", hint="Leave one of the two out.")
    now_s = time()
    since_s = moment_s(since, now_s, is_past=True, flag="--since") // HOUR_S * HOUR_S
    groups: Sequence[_Grouping] = by or ["key"]

    async def work(access: AccessStore) -> tuple[_UsageRow, ...]:
        names = {key.id: key for key in await access.keys()}
        # A gateway whose clock is ahead may have written into an hour that has not begun here.
        found = await access.usage(since_s, now_s + HOUR_S, groups)
        return tuple(_line(line, names) for line in found)

    _print(with_access_store(store_location(store, config), work), groups, since_s, is_json=json, is_csv=csv)


def _line(line: "UsageLine", names: "dict[str, StoredKey]") -> _UsageRow:
    return {
        "day": None if line.day_s is None else day_words(line.day_s),
        "key_id": line.key_id,
        "key": names[line.key_id].name if line.key_id in names else line.key_id,
        "tenant": line.tenant,
        "model": line.model,
        "requests": line.sums.requests,
        "prompt_tokens": line.sums.prompt_tokens,
        "cached_tokens": line.sums.cached_tokens,
        "completion_tokens": line.sums.completion_tokens,
        "cost": units_words(line.sums.cost),
    }


def _print(
    lines: tuple[_UsageRow, ...], groups: Sequence[_Grouping], since_s: float, *, is_json: bool, is_csv: bool
) -> None:
    columns = [name for name in ("day", "key", "tenant", "model") if name in groups]
    if is_json:
        print_json(lines)
        return
    if is_csv:
        _print_csv(lines, [*(["key_id"] if "key" in columns else []), *columns, *_COUNTS])
        return
    # Where no key was needed there is none to name.
    rows = [TableRow(tuple(str(line[name]) or "-" for name in (*columns, *_COUNTS))) for line in lines]
    print_table((*columns, *_NUMBERS), rows, right=_NUMBERS)
    say(f"since {date_words(since_s)} UTC")


def _print_csv(lines: tuple[_UsageRow, ...], columns: Sequence[str]) -> None:
    import csv

    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([line[name] for name in columns] for line in lines)
