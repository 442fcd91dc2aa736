"""`ganglion chat`: a conversation in the terminal, through the same engine that a server fronts."""

import asyncio
import sys
import threading
from collections.abc import Coroutine
from contextlib import aclosing
from typing import Annotated, Any, Self, TypeVar, assert_never

from cyclopts import Parameter

from ganglion.cli.flags import (
    ENGINE_UNSET,
    MODEL,
    OUTPUT_UNSET,
    SAMPLING_UNSET,
    EngineFlags,
    OutputFlags,
    SamplingFlags,
)
from ganglion.cli.inference.local_engine import local_engine
from ganglion.cli.terminal.console import prompt_lines, say, say_error
from ganglion.core.engine import ManagedEngine
from ganglion.core.errors import GanglionError
from ganglion.core.events import Closed, Delta, Failed, Finished, Opened, Progress, Scored, Started
from ganglion.core.request import ChatPrompt, Message

_T = TypeVar("_T")


class _EngineThread:
    """Runs coroutines on another thread; Ctrl-C cancels the one that is waited for, and nothing else."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="engine", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Wait for a coroutine; a KeyboardInterrupt is raised after its cancellation has been carried out."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            self._settle()
            raise

    def _settle(self) -> None:
        asyncio.run_coroutine_threadsafe(_cancelled_tasks_end(), self._loop).result()


async def _cancelled_tasks_end() -> None:
    current = asyncio.current_task()
    cancelled = [task for task in asyncio.all_tasks() if task is not current and task.cancelling()]
    await asyncio.gather(*cancelled, return_exceptions=True)


_COMMANDS = """\
/reset         forget the conversation
/system TEXT   set the system prompt, and forget the conversation
/help          this list
/exit          leave, as Ctrl-D does
Ctrl-C stops an answer."""


def chat(
    model: Annotated[
        str | None, Parameter(help="A GGUF file or a name (default: the embedded model).", group=MODEL)
    ] = None,
    /,
    *,
    system: Annotated[str | None, Parameter(help="A system prompt.", group=MODEL)] = None,
    sampling: SamplingFlags = SAMPLING_UNSET,
    engine: EngineFlags = ENGINE_UNSET,
    output: OutputFlags = OUTPUT_UNSET,
) -> None:
    """Talk to a model in this terminal."""
    running = local_engine(engine, output, model)
    with _EngineThread() as background:
        try:
            background.run(running.open())
            _ChatRepl(running, background, sampling, system).run()
        finally:
            background.run(running.close())


class _ChatRepl:
    """A conversation at the terminal: reads lines, answers them, keeps the turns."""

    def __init__(
        self, engine: ManagedEngine, background: _EngineThread, sampling: SamplingFlags, system: str | None
    ) -> None:
        self._engine = engine
        self._background = background
        self._sampling = sampling
        self._system = system
        self._turns: list[Message] = []
        self._answer_parts: list[str] = []
        self._model_id = engine.models()[0].id

    def run(self) -> None:
        """Read lines and answer them until the person leaves."""
        for line in prompt_lines(f"{self._model_id}: /help lists commands, Ctrl-D leaves"):
            self._take(line.strip())

    def _take(self, line: str) -> None:
        command, _, rest = line.partition(" ")
        match command:
            case "":
                pass
            case "/reset":
                self._turns.clear()
            case "/system":
                self._system = rest.strip() or None
                self._turns.clear()
            case "/help":
                say(_COMMANDS)
            case _ if command.startswith("/"):
                say(f"There is no {command}.\n{_COMMANDS}")
            case _:
                self._answer(line)

    def _answer(self, line: str) -> None:
        """Answer one turn; one that brought nothing leaves no trace in the history."""
        self._answer_parts.clear()
        turn = Message("user", line)
        try:
            self._background.run(self._stream((*self._turns, turn)))
        except GanglionError as error:
            say_error(error.message, error.hint)
        except KeyboardInterrupt:
            say("\n(stopped)")
        else:
            sys.stdout.write("\n")
            sys.stdout.flush()
        if self._answer_parts:
            self._turns += [turn, Message("assistant", "".join(self._answer_parts))]

    async def _stream(self, turns: tuple[Message, ...]) -> None:
        system = () if self._system is None else (Message("system", self._system),)
        request = self._sampling.request("chat", self._model_id, ChatPrompt((*system, *turns)))
        kind = "text"
        async with aclosing(self._engine.generate(request)) as events:
            async for event in events:
                match event:
                    case Opened(kind=kind):
                        pass
                    case Delta(text=text):
                        self._show(text, is_answer=kind == "text")
                    case Closed() if kind != "text":
                        self._show("\n", is_answer=False)
                    case Failed(error=error):
                        raise error
                    case Progress() | Started() | Scored() | Closed() | Finished():
                        pass
                    case _:
                        assert_never(event)

    def _show(self, text: str, *, is_answer: bool) -> None:
        # The answer is data; thoughts are talk, so that a pipe sees only the answer.
        stream = sys.stdout if is_answer else sys.stderr
        if is_answer:
            self._answer_parts.append(text)
        stream.write(text)
        stream.flush()
