"""How much reasoning was asked for, as the variables that templates offer a say with.

A variable that a template does not know changes nothing, so all that fit are set.
"""

from ganglion.core.request import Effort, JsonValue, Thinking

# The three words that templates with an effort were trained on.
NEAREST: dict[Effort, str] = {
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "high",
    "max": "high",
}


def template_arguments(thinking: Thinking, source: str) -> dict[str, JsonValue]:
    """The variables for one template; an effort whose own word it quotes is passed as it is."""
    arguments: dict[str, JsonValue] = {}
    is_enabled = thinking.is_enabled
    if is_enabled is None and (thinking.effort is not None or thinking.budget_tokens is not None):
        is_enabled = thinking.effort != "none" and thinking.budget_tokens != 0
    if is_enabled is not None:
        arguments |= {"enable_thinking": is_enabled, "thinking": is_enabled}
    if thinking.effort is not None and thinking.effort != "none":
        is_known = f'"{thinking.effort}"' in source or f"'{thinking.effort}'" in source
        arguments["reasoning_effort"] = thinking.effort if is_known else NEAREST[thinking.effort]
    if thinking.budget_tokens is not None:
        arguments["thinking_budget"] = thinking.budget_tokens
    return arguments
