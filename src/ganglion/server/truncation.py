"""An engine that drops the oldest turns of a prompt that is too long, instead of refusing it."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from ganglion.core.engine import Engine, ModelState
from ganglion.core.errors import ContextLengthExceeded
from ganglion.core.events import Event, Failed
from ganglion.core.request import ChatPrompt, Request
from ganglion.wire.responses import prompt_characters, without_oldest_turns

_FILL = 0.9
"""How much of the context a shortened prompt may fill by estimate: an answer needs room too."""


class TruncatingEngine:
    """Asks the inner engine again with fewer turns for as long as it says that the prompt is too long."""

    def __init__(self, inner: Engine) -> None:
        self._inner = inner

    def models(self) -> tuple[ModelState, ...]:
        """The inner engine's."""
        return self._inner.models()

    async def generate(self, request: Request) -> AsyncGenerator[Event, None]:
        """Answer the longest prompt that fits."""
        while True:
            shorter: Request | None = None
            async with aclosing(self._inner.generate(request)) as events:
                async for event in events:
                    if isinstance(event, Failed) and isinstance(event.error, ContextLengthExceeded):
                        shorter = shortened(request, event.error)
                        if shorter is not None:
                            break
                    yield event
            if shorter is None:
                return
            request = shorter


def shortened(request: Request, error: ContextLengthExceeded) -> Request | None:
    """The request without as many of its oldest turns as must go by estimate; None where none can."""
    if not isinstance(request.prompt, ChatPrompt):
        return None
    prompt_tokens, max_tokens = error.extras["prompt_len"], error.extras["max"]
    assert isinstance(prompt_tokens, int) and isinstance(max_tokens, int)
    most_characters = prompt_characters(request.prompt) * max_tokens * _FILL / prompt_tokens
    prompt = without_oldest_turns(request.prompt, most_characters)
    return None if prompt is None else replace(request, prompt=prompt)
