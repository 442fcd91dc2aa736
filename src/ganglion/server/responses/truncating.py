"""An engine that rather forgets the oldest turns than refuses a prompt that is too long."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from ganglion.core.engine import Engine, ModelState
from ganglion.core.errors import ContextLengthExceeded
from ganglion.core.events import Event, Failed
from ganglion.core.request import ChatPrompt, Message, Request
from ganglion.server.answers import Answers
from ganglion.server.responses.desk import Exchange
from ganglion.wire.responses import shortened

_ROOM = 0.9
"""How much of the context a shortened prompt may fill by estimate: an answer wants room too."""


class Truncating:
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


def answers_to(exchange: Exchange, engine: Engine) -> Answers:
    """The answers to an exchange's request, which may be shortened when the call says so."""
    chosen = Truncating(engine) if exchange.call.may_truncate else engine
    return Answers(chosen, (exchange.call.request,), visit=exchange.visit)


def _shorter(request: Request, error: ContextLengthExceeded) -> Request | None:
    """The request without as many of its oldest turns as, by their length, must go; None when none can."""
    if not isinstance(request.prompt, ChatPrompt):
        return None
    prompt_tokens, max_tokens = error.extras["prompt_len"], error.extras["max"]
    assert isinstance(prompt_tokens, int) and isinstance(max_tokens, int)
    wanted = _characters(request.prompt) * max_tokens * _ROOM / prompt_tokens
    prompt = shortened(request.prompt)
    while prompt is not None and _characters(prompt) > wanted:
        further = shortened(prompt)
        if further is None:
            break
        prompt = further
    return None if prompt is None else replace(request, prompt=prompt)


def _characters(prompt: ChatPrompt) -> int:
    return 1 + sum(map(_length, prompt.messages))


def _length(message: Message) -> int:
    called = sum(len(call.arguments) for call in message.tool_calls)
    return len(message.content) + len(message.reasoning or "") + called
