"""An engine that plays a model by a list of scripts, one for each turn of a conversation.

The turn is read from the prompt (how many times the assistant has spoken), not counted: a client that retries
or asks something on the side hears the same again, and any number of conversations may run at once.
"""

from collections.abc import AsyncGenerator, Sequence

from ganglion.core.engine import ModelState, ReadPrompt, TokenizerInfo
from ganglion.core.events import Event
from ganglion.core.request import ChatPrompt, Request
from ganglion.engines.echo.answer import EchoScript
from ganglion.engines.echo.engine import EchoEngine, EchoSettings


class PlayedEngine:
    """Answers turn n with script n, and with the last one from there on; remembers what it was asked."""

    def __init__(self, scripts: Sequence[EchoScript], settings: EchoSettings | None = None) -> None:
        settings = settings or EchoSettings(context=1 << 20)
        self._players = [EchoEngine(settings, script) for script in scripts]
        self.requests: list[Request] = []

    async def open(self) -> None:
        for player in self._players:
            await player.open()

    async def close(self) -> None:
        for player in self._players:
            await player.close()

    def models(self) -> tuple[ModelState, ...]:
        return self._players[0].models()

    def generate(self, request: Request) -> AsyncGenerator[Event, None]:
        self.requests.append(request)
        return self._players[min(turn(request), len(self._players) - 1)].generate(request)

    async def read(self, request: Request) -> ReadPrompt:
        return await self._players[0].read(request)

    async def detokenize(self, model: str, tokens: tuple[int, ...], *, tenant: str = "") -> str:
        return await self._players[0].detokenize(model, tokens)

    async def pieces(self, model: str, tokens: tuple[int, ...], *, tenant: str = "") -> tuple[bytes, ...]:
        return await self._players[0].pieces(model, tokens)

    async def tokenizer_info(self, model: str) -> TokenizerInfo:
        return await self._players[0].tokenizer_info(model)


def turn(request: Request) -> int:
    """How many times the assistant has spoken before."""
    if not isinstance(request.prompt, ChatPrompt):
        return 0
    return sum(message.role == "assistant" for message in request.prompt.messages)
