"""Python libraries against a node: a script of the library's own environment plays every scene in turn.

The model is played by scenes, told apart by what the user says first, so that a script may play them in any
order; the wire, the store and the library are real. The script reports what the library made of each scene.
"""

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ganglion.core.engine import (
    Embedded,
    EmbedRequest,
    ModelState,
    Ranked,
    RankRequest,
    ReadPrompt,
    TokenizerInfo,
)
from ganglion.core.events import Event
from ganglion.core.request import ChatPrompt, Message, Request, TextPrompt
from ganglion.engines.echo.answer import EchoScript, ScriptedCall
from ganglion.engines.echo.engine import EchoEngine, EchoSettings
from ganglion.registry.hub.embedded import SMOLLM2
from ganglion.server.life.storage import StoreTarget
from support.played_engine import PlayedEngine
from support.served import serving

HERE = Path(__file__).parent
CLIENTS = HERE.parents[1] / ".clients"
"""Where `make test-clients` puts the environments."""
WITHIN_S = 100.0
ALONE = {
    # Whoever looks beyond this machine is told no at once instead of after a timeout.
    **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), "http://127.0.0.1:9"),
    "NO_PROXY": "127.0.0.1,localhost",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "LANGSMITH_TRACING": "false",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
}


HELLO = (EchoScript(reasoning="A greeting.", reply="Hello there, you."),)
WEATHER = (
    EchoScript(
        reasoning="I look it up.",
        reply="One moment.",
        calls=(ScriptedCall("weather", '{"city": "Oslo"}'),),
    ),
    EchoScript(reasoning="There it is.", reply="It rains in Oslo."),
    EchoScript(reply="An umbrella."),
    EchoScript(reply="Bye."),
)
"""A tool and three turns: the user's are the scene's name and these two."""
LATER = ("What shall I take?", "Thanks.")
FINALS = ["It rains in Oslo.", "An umbrella.", "Bye."]


def weather_as_heard(scene: str, *, has_reasoning: bool = True) -> list[tuple[object, ...]]:
    """All of WEATHER but its last answer, as a library sends it back."""
    looked, found = ("I look it up.", "There it is.") if has_reasoning else (None, None)
    return [
        ("system", "Be brief.", None, []),
        ("user", scene, None, []),
        ("assistant", "One moment.", looked, [("weather", {"city": "Oslo"})]),
        ("tool", "rain in Oslo", None, []),
        ("assistant", "It rains in Oslo.", found, []),
        ("user", LATER[0], None, []),
        ("assistant", "An umbrella.", None, []),
        ("user", LATER[1], None, []),
    ]


class Cast:
    """An engine that plays the scene which the user's first words name."""

    def __init__(self, scenes: Mapping[str, Sequence[EchoScript]]) -> None:
        settings = EchoSettings(aliases=(SMOLLM2.id,), context=1 << 20)
        self._scenes = {name: PlayedEngine(scripts, settings) for name, scripts in scenes.items()}
        self._aside = EchoEngine(settings)

    async def open(self) -> None:
        for scene in self._scenes.values():
            await scene.open()

    async def close(self) -> None:
        for scene in self._scenes.values():
            await scene.close()

    def models(self) -> tuple[ModelState, ...]:
        return next(iter(self._scenes.values())).models()

    def generate(self, request: Request) -> AsyncGenerator[Event, None]:
        match request.prompt:
            case ChatPrompt(messages=messages):
                scene = next(message.content for message in messages if message.role == "user")
            case TextPrompt(text=scene):
                pass
            case other:
                raise AssertionError(other)
        return self._scenes[scene].generate(request)

    async def read(self, request: Request) -> ReadPrompt:
        return await self._aside.read(request)

    async def detokenize(self, model: str, tokens: tuple[int, ...], *, tenant: str = "") -> str:
        return await self._aside.detokenize(model, tokens)

    async def pieces(self, model: str, tokens: tuple[int, ...], *, tenant: str = "") -> tuple[bytes, ...]:
        return await self._aside.pieces(model, tokens)

    async def tokenizer_info(self, model: str) -> TokenizerInfo:
        return await self._aside.tokenizer_info(model)

    async def embed(self, request: EmbedRequest) -> Embedded:
        return await self._aside.embed(request)

    async def rank(self, request: RankRequest) -> Ranked:
        return await self._aside.rank(request)

    def heard(self, scene: str) -> list[Request]:
        return self._scenes[scene].requests


@dataclass(frozen=True)
class Played:
    """What a library made of every scene, and what the model heard in each."""

    reports: dict[str, Any]
    cast: Cast

    def report(self, scene: str) -> Any:
        told = self.reports[scene]
        assert "failed" not in told, told["failed"]
        return told["saw"]

    def requests(self, scene: str) -> list[Request]:
        return self.cast.heard(scene)

    def last_heard(self, scene: str) -> list[tuple[object, ...]]:
        """The whole conversation as the model heard it last, less the ids; every call has its result."""
        prompt = self.requests(scene)[-1].prompt
        assert isinstance(prompt, ChatPrompt)
        called = [call.call_id for message in prompt.messages for call in message.tool_calls]
        assert called == [message.tool_call_id for message in prompt.messages if message.tool_call_id]
        return [_told(message) for message in prompt.messages]


def _told(message: Message) -> tuple[object, ...]:
    calls = [(call.name, json.loads(call.arguments)) for call in message.tool_calls]
    return (message.role, message.content, message.reasoning, calls)


def needs(group: str) -> pytest.MarkDecorator:
    """Skip where the library's environment is not there."""
    is_absent = not (CLIENTS / f"{group}.stamp").exists()
    return pytest.mark.skipif(is_absent, reason=f"no .clients/{group}: `make test-clients` installs it")


def play(
    group: str, script: str, scenes: Mapping[str, Sequence[EchoScript]], home: Path, *arguments: str
) -> Played:
    """Run a script of `python/` against a node whose model plays these scenes."""
    cast = Cast(scenes)
    return Played(asyncio.run(_play(group, script, cast, home, *arguments)), cast)


async def _play(group: str, script: str, cast: Cast, home: Path, *arguments: str) -> dict[str, Any]:
    async with serving(cast, storage=StoreTarget(home / "state.db"), is_strict=True) as node:
        said = await run_in(group, "python", f"{HERE}/python/{script}", node.url, *arguments, home=home)
    reports: dict[str, Any] = json.loads(said.splitlines()[-1])
    return reports


async def run_in(group: str, program: str, *arguments: str, home: Path) -> str:
    """What a program of a client's environment printed; it must end well."""
    process = await asyncio.create_subprocess_exec(
        *(str(CLIENTS / group / "bin" / program), *arguments),
        env={**ALONE, "HOME": str(home), "PATH": os.environ["PATH"]},
        cwd=home,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        said, complained = await asyncio.wait_for(process.communicate(), WITHIN_S)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, complained.decode()
    return said.decode()
