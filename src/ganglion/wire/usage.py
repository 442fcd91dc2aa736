"""Token counts in the format of OpenAI's first wires."""

from collections.abc import Sequence

from msgspec import Struct

from ganglion.core.events import Usage


class PromptTokenDetails(Struct, frozen=True):
    cached_tokens: int


class CompletionTokenDetails(Struct, frozen=True):
    reasoning_tokens: int


class CompletionUsage(Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokenDetails
    completion_tokens_details: CompletionTokenDetails


def usage_of(choices: Sequence[Usage], per_prompt: int | None = None) -> CompletionUsage:
    """One usage for all choices: a prompt that `per_prompt` of them share (all, when None) counts once.

    Later choices find the first one's prompt in the cache, so the smallest cached count is what was there
    before this call.
    """
    size = per_prompt or len(choices)
    prompts = [choices[start : start + size] for start in range(0, len(choices), size)]
    prompt_tokens = sum(max(usage.prompt_tokens for usage in prompt) for prompt in prompts)
    completion_tokens = sum(usage.completion_tokens for usage in choices)
    return CompletionUsage(
        prompt_tokens,
        completion_tokens,
        prompt_tokens + completion_tokens,
        PromptTokenDetails(sum(min(usage.cached_tokens for usage in prompt) for prompt in prompts)),
        CompletionTokenDetails(sum(usage.reasoning_tokens for usage in choices)),
    )
