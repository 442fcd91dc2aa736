"""`ganglion engines list`: the engines and libraries that are here, and what each can do."""

from typing import Annotated

from cyclopts import Parameter

from ganglion.cli.flags import Json


def list_engines(
    *,
    check: Annotated[
        bool,
        Parameter(help="Also import vLLM in its own Python, which takes a while.", negative=()),
    ] = False,
    json: Json = False,
) -> int:
    """Show every engine; ends with 0, whatever can be used."""
    from ganglion.cli.engines.presence import this_machines_engines
    from ganglion.cli.terminal.console import say
    from ganglion.cli.terminal.output import TableRow, print_json, print_table

    found = this_machines_engines(is_thorough=check)
    if json:
        print_json(found)
        return 0
    rows = [
        TableRow(
            (
                each.engine,
                each.source,
                each.version or "-",
                "yes" if each.is_used and each.problem is None else "no",
                ", ".join(each.devices) or "-",
                ", ".join(each.formats) or "-",
            )
        )
        for each in found
    ]
    print_table(("engine", "from", "version", "used", "devices", "reads"), rows)
    for each in found:
        if each.problem is not None:
            say(f"{each.engine} ({each.source}): {each.problem}{f' {each.hint}' if each.hint else ''}")
    return 0
