"""`ganglion chat`: a conversation in the terminal, through the same engine that a server fronts."""

import sys
from contextlib import aclosing
from typing import Annotated, assert_never

from cyclopts import Parameter

from ganglion.cli.background import Background
from ganglion.cli.options import (
    ENGINE_UNSET,
    MODEL,
    OUTPUT_UNSET,
    SAMPLING_UNSET,
    EngineFlags,
    OutputFlags,
    SamplingFlags,
)
from ganglion.cli.talk import say, say_error
from ganglion.cli.typed import typed_lines
from ganglion.core.engine import ManagedEngine
from ganglion.core.errors import GanglionError
from ganglion.core.events import Closed, Delta, Failed, Finished, Opened, Progress, Scored, Started
from ganglion.core.request import ChatPrompt, Message, Request, Stop

COMMANDS = """\
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
    from ganglion.cli.compose import compose
    from ganglion.cli.configured import load_config
    from ganglion.cli.logs import set_up
    from ganglion.cli.progress import download_bar

    config = load_config(output, engine.settings())
    set_up(output.log_level or "warning", config.log.format)
    composition = compose(config, [model] if model else config.models[:1], [], bar=download_bar)
    with Background() as background:
        try:
            background.run(composition.engine.open())
            Conversation(composition.engine, background, sampling, system).hold()
        finally:
            background.run(composition.engine.close())


class Conversation:
    """The turns so far, and what the person's next line does to them."""

    def __init__(
        self, engine: ManagedEngine, background: Background, sampling: SamplingFlags, system: str | None
    ) -> None:
        self._engine = engine
        self._background = background
        self._sampling = sampling
        self._system = system
        self._turns: list[Message] = []
        self._said: list[str] = []
        self._model_id = engine.models()[0].id

    def hold(self) -> None:
        """Read lines and answer them until the person leaves."""
        for line in typed_lines(f"{self._model_id}: /help lists commands, Ctrl-D leaves"):
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
                say(COMMANDS)
            case _ if command.startswith("/"):
                say(f"There is no {command}.\n{COMMANDS}")
            case _:
                self._answer(line)

    def _answer(self, line: str) -> None:
        """Answer one turn; one that brought nothing leaves no trace in the history."""
        self._said.clear()
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
        if self._said:
            self._turns += [turn, Message("assistant", "".join(self._said))]

    async def _stream(self, turns: tuple[Message, ...]) -> None:
        system = () if self._system is None else (Message("system", self._system),)
        request = Request(
            id="chat",
            model=self._model_id,
            prompt=ChatPrompt((*system, *turns)),
            sampling=self._sampling.sampling(),
            stop=Stop(strings=tuple(self._sampling.stop or ())),
            max_tokens=self._sampling.max_tokens,
        )
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
            self._said.append(text)
        stream.write(text)
        stream.flush()
