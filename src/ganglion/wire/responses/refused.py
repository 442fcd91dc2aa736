"""What this wire does not do: fields of other wires and servers, each with the values that ask for nothing.

Law: a sampling, stop, format or tool field is honoured or refused, never accepted and ignored.
"""

from collections.abc import Mapping
from types import MappingProxyType

from ganglion.core.request import JsonValue
from ganglion.wire.responses.asked import ResponsesBody
from ganglion.wire.unhonoured import UNHONOURED_IN_CHAT

HARMLESS = frozenset({"access_programs", "image", "client_metadata", "personality"})
"""Fields that ask nothing of the answer, and that it does not echo."""

_OF_OTHER_WIRES: Mapping[str, tuple[JsonValue, ...]] = {
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

REFUSED: Mapping[str, tuple[JsonValue, ...]] = MappingProxyType(
    {
        name: neutral
        for name, neutral in {**UNHONOURED_IN_CHAT, **_OF_OTHER_WIRES}.items()
        if name not in ResponsesBody.__struct_fields__
    }
)

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
