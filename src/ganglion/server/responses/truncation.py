"""An engine that rather forgets the oldest turns than refuses a prompt that is too long."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from ganglion.core.engine import Engine, ModelState, PromptReader, ReadPrompt
from ganglion.core.errors import ContextLengthExceeded
from ganglion.core.events import Event, Failed
from ganglion.core.request import ChatPrompt, Request
from ganglion.server.answers import Answers
from ganglion.server.responses.responses_service import ResponsesExchange
from ganglion.wire.responses import prompt_characters, without_oldest_turns

_FILL = 0.9
"""How much of the context a shortened prompt may fill by estimate: an answer wants room too."""


class TruncatingEngine:
    """Asks again with fewer turns for as long as the inner engine says that the prompt is too long."""

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
                        shorter = _shorter(request, event.error)
                        if shorter is not None:
                            break
                    yield event
            if shorter is None:
                return
            request = shorter


def answers_to(exchange: ResponsesExchange, engine: Engine, *, is_folded: bool = False) -> Answers:
    """The answers to an exchange's request, which may be shortened when the call says so."""
    chosen = TruncatingEngine(engine) if exchange.call.may_truncate else engine
    return Answers(chosen, (exchange.call.request,), visit=exchange.visit, is_folded=is_folded)


async def read_prompt(exchange: ResponsesExchange, reader: PromptReader, context_length: int) -> ReadPrompt:
    """The prompt that an exchange is answered from: shortened where the call says so and it would not fit."""
    request = exchange.call.request
    least = 0 if request.max_tokens == 0 else 1
    while True:
        read = await reader.read(request)
        length = len(read.tokens)
        if not exchange.call.may_truncate or not context_length or length + least <= context_length:
            return read
        shorter = _shorter(request, ContextLengthExceeded(length, context_length))
        if shorter is None:
            return read
        request = shorter


def _shorter(request: Request, error: ContextLengthExceeded) -> Request | None:
    """The request without as many of its oldest turns as, by their length, must go; None when none can."""
    if not isinstance(request.prompt, ChatPrompt):
        return None
    prompt_tokens, max_tokens = error.extras["prompt_len"], error.extras["max"]
    assert isinstance(prompt_tokens, int) and isinstance(max_tokens, int)
    wanted = prompt_characters(request.prompt) * max_tokens * _FILL / prompt_tokens
    prompt = without_oldest_turns(request.prompt, wanted)
    return None if prompt is None else replace(request, prompt=prompt)
