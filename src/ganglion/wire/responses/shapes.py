"""What is read inside a Responses body, its items and tools included: those are read one by one, by type."""

from dataclasses import replace
from functools import cache
from typing import Final

from ganglion.wire.nested import Fields, Shape, fields_of, list_of, shape_of
from ganglion.wire.responses.asked import ResponsesBody
from ganglion.wire.responses.items import ItemReference, OwnItem
from ganglion.wire.responses.tools import CustomTool, FunctionTool, NamespaceTool

HARMLESS_INSIDE: Final = frozenset(
    {
        *("async", "caller", "allowed_callers", "defer_loading", "output_schema"),
        *("name", "namespace", "prompt_cache_breakpoint"),
    }
)
"""Fields of items and tools that ask nothing of an answer here."""


@cache
def body_shapes() -> Fields:
    """The fields of a body, with what is read inside them."""
    callable_tools = shape_of(FunctionTool | CustomTool)
    assert callable_tools is not None
    namespace = {**fields_in(NamespaceTool), "description": None, "tools": list_of(callable_tools)}
    # A hosted tool's fields are its vendor's: it is echoed, and nothing of it is read.
    tools = list_of(replace(callable_tools, objects={**callable_tools.objects, "namespace": namespace}))
    items = shape_of(OwnItem | ItemReference)
    assert items is not None
    additional = {**items.objects["additional_tools"], "tools": tools}
    items = replace(items, objects={**items.objects, "additional_tools": additional}, untagged="message")
    return {**fields_of(ResponsesBody), "input": list_of(items), "tools": tools}


def fields_in(kind: type[NamespaceTool]) -> Fields:
    """What is read of a kind of tool."""
    shape = shape_of(kind)
    assert isinstance(shape, Shape)
    return shape.objects["namespace"]
