"""The fields of a Responses body that are ignored or not supported, each with its neutral values.

Law: a sampling, stop, format or tool field is honoured or refused, never accepted and ignored.
"""

from dataclasses import replace
from functools import cache
from types import MappingProxyType
from typing import Final

from ganglion.wire.field_policy import IGNORED as OPENAI_IGNORED
from ganglion.wire.field_policy import UNSUPPORTED_IN_CHAT, NeutralValues
from ganglion.wire.responses.items import ItemReference, OwnItem
from ganglion.wire.responses.responses_tools import NamespaceTool, ResponsesCustomTool, ResponsesFunctionTool
from ganglion.wire.responses.schema import ResponsesBody
from ganglion.wire.unknown_fields import FieldShape, FieldShapes, fields_of, list_of, shape_of

IGNORED_INSIDE: Final = frozenset(
    {
        *("async", "caller", "allowed_callers", "defer_loading", "output_schema"),
        *("name", "namespace", "prompt_cache_breakpoint"),
    }
)
"""Fields of items and tools that ask nothing of an answer here."""


@cache
def body_shapes() -> FieldShapes:
    """The fields of a body, with what is read inside them."""
    callable_tools = shape_of(ResponsesFunctionTool | ResponsesCustomTool)
    assert callable_tools is not None
    namespace = {**_fields_in(NamespaceTool), "description": None, "tools": list_of(callable_tools)}
    # A hosted tool's fields are its vendor's: it is echoed, and nothing of it is read.
    tools = list_of(replace(callable_tools, objects={**callable_tools.objects, "namespace": namespace}))
    items = shape_of(OwnItem | ItemReference)
    assert items is not None
    additional = {**items.objects["additional_tools"], "tools": tools}
    items = replace(items, objects={**items.objects, "additional_tools": additional}, untagged="message")
    return {**fields_of(ResponsesBody), "input": list_of(items), "tools": tools}


def _fields_in(kind: type[NamespaceTool]) -> FieldShapes:
    """The fields that are read of a kind of tool."""
    shape = shape_of(kind)
    assert isinstance(shape, FieldShape)
    return shape.objects["namespace"]


IGNORED = OPENAI_IGNORED | {"access_programs", "image", "client_metadata", "personality"}
"""Fields that ask nothing of the answer, and that it does not echo."""

OF_OTHER_WIRES: NeutralValues = {
    "messages": (),
    "n": (1,),
    "max_tokens": (),
    "max_completion_tokens": (),
    "response_format": ({"type": "text"},),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "logprobs": (False,),
    "reasoning_effort": (),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "grammar": (),
    "json_schema": (),
    "prompt_logprobs": (),
    "echo": (False,),
    "suffix": ("",),
    "thinking": (),
    "prompt": (),
    "moderation": (),
    "readout": (False,),
    "steering": ([],),
    "prediction": (),
    "verbosity": (),
    "bad_words": ([],),
    "skip_special_tokens": (True,),
    "return_token_ids": (False,),
    "truncate_prompt_tokens": (),
}

UNSUPPORTED: NeutralValues = MappingProxyType({**UNSUPPORTED_IN_CHAT, **OF_OTHER_WIRES})

INSTEAD = MappingProxyType(
    {
        "messages": "input",
        "max_tokens": "max_output_tokens",
        "max_completion_tokens": "max_output_tokens",
        "n_predict": "max_output_tokens",
        "response_format": "text.format",
        "guided_json": "text.format",
        "json_schema": "text.format",
        "structured_outputs": "text.format",
        "verbosity": "text.verbosity",
        "functions": "tools",
        "function_call": "tool_choice",
        "logprobs": "include",
        "n_probs": "top_logprobs",
        "reasoning_effort": "reasoning.effort",
        "thinking": "reasoning",
        "enable_thinking": "chat_template_kwargs",
        "prompt": "input",
    }
)
