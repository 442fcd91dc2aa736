"""`ganglion chat`: a conversation in the terminal, through the same engine that a server fronts."""

import asyncio
import sys
import threading
from collections.abc import Coroutine, Sequence
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
from ganglion.cli.inference.picture_files import STDIN, PictureFile, read_picture, read_pictures
from ganglion.cli.terminal.console import prompt_lines, say, say_error
from ganglion.core.engine import ManagedEngine
from ganglion.core.errors import GanglionError, InvalidValue
from ganglion.core.events import Closed, Delta, Failed, Finished, Opened, Progress, Scored, Started
from ganglion.core.request import Attachment, ChatPrompt, Message

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
/image PATH    show a picture with what you say next; several may be shown
/system TEXT   set the system prompt, and forget the conversation
/help          this list
/exit          leave, as Ctrl-D does
Ctrl-C stops an answer."""


def _is_path(_: object, paths: list[str] | None) -> None:
    """Keeps a mistyped flag from being taken for a path, which `-` made possible."""
    for path in paths or ():
        if path.startswith("-") and path != STDIN:
            raise ValueError("There is no such flag; a path that begins with - can be written ./-name.")


def chat(
    model: Annotated[
        str | None, Parameter(help="A GGUF file or a name (default: the embedded model).", group=MODEL)
    ] = None,
    /,
    *,
    system: Annotated[str | None, Parameter(help="A system prompt.", group=MODEL)] = None,
    image: Annotated[
        list[str] | None,
        Parameter(
            help="A picture to show with the first message, to a model that sees; - reads it from stdin. "
            "May be repeated.",
            group=MODEL,
            negative=(),
            allow_leading_hyphen=True,
            validator=_is_path,
        ),
    ] = None,
    ask: Annotated[str | None, Parameter(help="Say this, print the answer, and leave.", group=MODEL)] = None,
    sampling: SamplingFlags = SAMPLING_UNSET,
    engine: EngineFlags = ENGINE_UNSET,
    output: OutputFlags = OUTPUT_UNSET,
) -> None:
    """Talk to a model in this terminal."""
    pictures = _first_pictures(image or (), ask)
    running = local_engine(engine, output, model)
    with _EngineThread() as background:
        try:
            background.run(running.open())
            repl = _ChatRepl(running, background, sampling, system)
            for picture in pictures:
                repl.show_picture(picture)
            if ask is None:
                repl.run()
            else:
                repl.say_once(ask)
        finally:
            background.run(running.close())


def _first_pictures(paths: Sequence[str], ask: str | None) -> list[PictureFile]:
    """The pictures of the command line; raises InvalidValue before a model is loaded."""
    if STDIN in paths and ask is None:
        raise InvalidValue(
            "A picture from stdin leaves no place to type.",
            param="image",
            hint="Say what you ask of it: --image - --ask TEXT.",
        )
    return read_pictures(paths)


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
        self._pictures: list[PictureFile] = []
        """Those to go with the next message."""
        self._answer_parts: list[str] = []
        self._model_id = engine.models()[0].id

    def run(self) -> None:
        """Read lines and answer them until the person leaves."""
        for line in prompt_lines(f"{self._model_id}: /help lists commands, Ctrl-D leaves"):
            self._take(line.strip())

    def show_picture(self, picture: PictureFile) -> None:
        """Let a picture go with the next message."""
        self._pictures.append(picture)
        say(f"{picture}; it goes with what you say next")

    def say_once(self, line: str) -> None:
        """Answer one message; raises what went wrong."""
        self._background.run(self._stream((self._turn(line),)))
        sys.stdout.write("\n")

    def _take(self, line: str) -> None:
        command, _, rest = line.partition(" ")
        match command:
            case "":
                pass
            case "/reset":
                self._turns.clear()
            case "/image":
                self._add_picture(rest.strip())
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
        turn = self._turn(line)
        try:
            self._background.run(self._stream((*self._turns, turn)))
        except GanglionError as error:
            say_error(error.message, error.hint)
            if turn.attachments:
                say("The pictures were not kept; /image shows them again.")
        except KeyboardInterrupt:
            say("\n(stopped)")
        else:
            sys.stdout.write("\n")
            sys.stdout.flush()
        if self._answer_parts:
            self._turns += [turn, Message("assistant", "".join(self._answer_parts))]

    def _turn(self, line: str) -> Message:
        """What the person says, with the pictures that wait for it before it."""
        pictures, self._pictures = self._pictures, []
        return Message("user", line, attachments=tuple(Attachment(each.data, 0) for each in pictures))

    def _add_picture(self, path: str) -> None:
        if not path:
            say("\n".join(map(str, self._pictures)) or "Say which: /image PATH.")
            return
        try:
            self.show_picture(read_picture(path))
        except InvalidValue as error:
            say_error(error.message, error.hint)

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
