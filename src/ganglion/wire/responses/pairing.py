"""Whether every output of the input answers a call, as OpenAI's own wire has it."""

from collections.abc import Iterable, Sequence

from ganglion.core.errors import InvalidValue
from ganglion.wire.responses.foreign import call_id_of
from ganglion.wire.responses.items import (
    CompactionItem,
    CustomToolCallItem,
    CustomToolCallOutputItem,
    ForeignItem,
    FunctionCallItem,
    FunctionCallOutputItem,
    Item,
)


def check_answers(history: Sequence[Item], items: Sequence[Item]) -> None:
    """Raise where the input answers a call that nobody made; what was compacted may have held one."""
    everything = (*history, *items)
    if any(isinstance(item, CompactionItem) for item in everything):
        return
    calls = _calls_of(everything)
    for place, item in enumerate(items):
        match item:
            case FunctionCallOutputItem(call_id=call_id) | CustomToolCallOutputItem(call_id=call_id):
                if call_id not in calls:
                    raise InvalidValue(
                        f"No tool call found for the output with call_id {call_id[:200]!r}.",
                        param=f"input[{place}].call_id",
                        hint="Send the call before its output.",
                    )
            case _:
                pass


def _calls_of(items: Iterable[Item]) -> set[str | None]:
    calls: set[str | None] = set()
    for item in items:
        match item:
            case FunctionCallItem(call_id=call_id) | CustomToolCallItem(call_id=call_id):
                calls.add(call_id)
            case ForeignItem():
                calls.add(call_id_of(item))
            case _:
                pass
    return calls
