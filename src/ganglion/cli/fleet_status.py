"""`ganglion fleet status`: every node of a gateway, its models, and what cannot be served."""

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from cyclopts import Parameter

from ganglion.cli.fleet_gateway import GATEWAY_UNSET, Gateway, GatewayFlags
from ganglion.cli.models_here import Json
from ganglion.core.errors import UpstreamUnavailable

if TYPE_CHECKING:
    from ganglion.wire.overview import FleetOverview

PERIOD_S: Final = 1.0
DEGRADED: Final = 1


def status(
    *,
    watch: Annotated[
        bool, Parameter(help="Show it anew every second, until Ctrl-C.", negative=(), show_default=False)
    ] = False,
    json: Json = False,
    gateway: GatewayFlags = GATEWAY_UNSET,
) -> int:
    """Show every node, its models, and what cannot be served."""
    from ganglion.cli.output import console, print_json

    asked = gateway.asked()
    overview = asked.overview()
    if watch:
        return _watch(asked, overview, json=json)
    if json:
        print_json(overview)
    else:
        from ganglion.cli.fleet_view import view

        console().print(view(overview))
    return DEGRADED if overview.status == "degraded" else 0


def _watch(asked: Gateway, overview: "FleetOverview", *, json: bool) -> int:
    """Show it until somebody interrupts, who thereby gets what they wanted."""
    try:
        if json:
            _lines(asked, overview)
        else:
            _tables(asked, overview)
    except KeyboardInterrupt:
        pass
    return 0


def _lines(asked: Gateway, overview: "FleetOverview") -> None:
    while True:
        sys.stdout.write(msgspec.json.encode(overview).decode() + "\n")
        sys.stdout.flush()
        time.sleep(PERIOD_S)
        overview = asked.overview()


def _tables(asked: Gateway, overview: "FleetOverview") -> None:
    from rich.live import Live

    from ganglion.cli.fleet_view import view
    from ganglion.cli.output import console

    where = console()
    if not where.is_terminal:
        for each, trouble in _news(asked, overview):
            where.print(view(each, trouble))
            where.file.flush()
        return
    with Live(console=where, auto_refresh=False) as live:
        for each, trouble in _news(asked, overview):
            live.update(view(each, trouble), refresh=True)


def _news(asked: Gateway, overview: "FleetOverview") -> Iterator[tuple["FleetOverview", str | None]]:
    """What the gateway says now, or said last and why it says no more; without end."""
    trouble: str | None = None
    while True:
        yield overview, trouble
        time.sleep(PERIOD_S)
        try:
            overview, trouble = asked.overview(), None
        except UpstreamUnavailable as error:  # it may be starting again
            trouble = f"{error.message} This is what it said last:"
