"""The prompt of `ganglion session`: the open sessions, and the commands that a person types."""

import shlex
from collections.abc import Callable, Iterable, Sequence
from typing import Final, cast

from rich.console import Console
from rich.text import Text

from ganglion.cli.inference.picture_files import read_picture
from ganglion.cli.terminal.console import colour_of, legend, say, visible
from ganglion.client import Alternative, Client, Done, Image, Progress, Readout, Session, Steer, TokenEvent
from ganglion.client.options import GenerateOptions
from ganglion.core.errors import InvalidValue
from ganglion.core.sampling import PARAMS

_BAR_WIDTH: Final = 12
"""Columns of a bar, half of them on either side of zero."""
_BLOCKS: Final = " ▏▎▍▌▋▊▉█"
_LONGEST_PIECE: Final = 20


class SessionView:
    """Writes tokens to stdout; without colours their numbers say the same."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False, soft_wrap=True)

    def token(self, event: TokenEvent) -> None:
        """One token as it comes."""
        self._console.print(Text(visible(event.text), colour_of(event.logprob)), end="")

    def end(self) -> None:
        """Finish the line of tokens."""
        self._console.print()

    def text(self, text: str) -> None:
        """A text that is there at once."""
        self._console.print(Text(visible(text)))

    def tokens(self, events: Sequence[TokenEvent]) -> None:
        """Some tokens: as a coloured text, or one a line where there are no colours."""
        if self._console.color_system is None:
            for event in events:
                self._console.print(_row(event))
            return
        line = Text()
        for event in events:
            line.append(visible(event.text), colour_of(event.logprob))
        self._console.print(line)
        meanings = Text("logprob: ")
        for meaning, style in legend():
            meanings.append(f"{meaning}  ", style)
        self._console.print(meanings)

    def readouts(self, events: Sequence[TokenEvent]) -> None:
        """A line for each token, with a bar for each concept: the mean over the layers."""
        read = [(event, event.readout) for event in events if event.readout is not None]
        if not read:
            return
        concepts = read[0][1].manifest.concepts
        means = [[_mean(readout, concept) for concept in concepts] for _, readout in read]
        reach = [max(abs(row[column]) for row in means) or 1.0 for column in range(len(concepts))]
        heading = Text(" " * (_LONGEST_PIECE + 8))
        for concept in concepts:
            heading.append(f" {concept[:_BAR_WIDTH]:^{_BAR_WIDTH}}        ", "bold")
        self._console.print(heading)
        for (event, _), row in zip(read, means, strict=True):
            line = _row(event, with_logprob=False)
            for value, most in zip(row, reach, strict=True):
                line.append(f" {bar(value / most)} {value:+6.2f}")
            self._console.print(line)

    def alternatives(self, top: Iterable[Alternative]) -> None:
        """The likeliest tokens, one a line."""
        for each in top:
            piece = repr(each.piece.decode("utf-8", "replace"))
            line = Text(f"{each.id:>8}  {piece:{_LONGEST_PIECE}}  ")
            line.append(f"{each.logprob:8.3f}", colour_of(each.logprob))
            self._console.print(line)


def bar(share: float) -> str:
    """A value between -1 and 1 as a bar to the left or to the right of the middle."""
    half = _BAR_WIDTH // 2
    eighths = round(min(abs(share), 1.0) * half * 8)
    full, part = divmod(eighths, 8)
    if share >= 0:
        filled = "█" * full + (_BLOCKS[part] if part else "")
        return f"{'':{half}}{filled:<{half}}"
    # There are no blocks that fill from the right; whole ones are exact enough for a glance.
    filled = "█" * (full + (part >= 4))
    return f"{filled:>{half}}{'':{half}}"


def _row(event: TokenEvent, *, with_logprob: bool = True) -> Text:
    piece = repr(event.piece.decode("utf-8", "replace"))[:_LONGEST_PIECE]
    line = Text(f"{event.position:>6}  ")
    line.append(f"{piece:{_LONGEST_PIECE}}", colour_of(event.logprob))
    if with_logprob:
        line.append("        -" if event.logprob is None else f" {event.logprob:8.3f}")
    return line


def _mean(readout: Readout, concept: str) -> float:
    values = readout.concept(concept).values()
    return sum(values) / len(values)


_COMMANDS: Final = """\
TEXT             append it; \\n is a line break, and a leading space counts
/user TEXT       append it as a message of the user, by the model's own template
/image PATH      append a picture, where the model sees
/generate [N]    go on for up to N tokens (default 64); Ctrl-C stops, what was shown stays
/best [N]        the best of N answers (default 4), which are tried side by side
/score TEXT      how likely TEXT would be here; the session stays as it is
/tokens [N]      the last N tokens (default all), coloured by how likely each was
/read [N]        the same with a bar for each concept that the node reads out
/top [N]         the likeliest next tokens
/cut LENGTH      forget everything from a position on
/fork [AT]       go on in another session that begins like this one
/sessions        the sessions that are open here; /use NUMBER goes to another
/set [KEY VALUE] show or change temperature, top_p, top_k, min_p, seed, the penalties (presence_penalty,
                 frequency_penalty, repetition_penalty), stop (a text) and pattern (a regular expression);
                 a KEY alone is forgotten
/save FILE       tokens and KV into a file; /restore FILE opens one
/help, /exit     this list; leave, as Ctrl-D does"""
_SAMPLING: Final[dict[str, type[int] | type[float] | type[str]]] = {
    **{
        name: int if name in ("top_k", "seed") else float
        for name in PARAMS
        if name in GenerateOptions.__annotations__
    },
    "stop": str,
    "pattern": str,
}
_GENERATE_TOKENS: Final = 64
_BEST_OF: Final = 4
_SHOWN_ALTERNATIVES: Final = 8


class SessionRepl:
    """The open sessions, one of which is the current one."""

    def __init__(self, client: Client, model: str, steering: Sequence[Steer]) -> None:
        self._client = client
        self._view = SessionView()
        self._sessions = [client.session(model, steering=steering)]
        self._current = 0
        self._sampling: dict[str, float | int | str] = {}
        self._commands: dict[str, Callable[[str], None]] = {
            "/generate": self._generate,
            "/g": self._generate,
            "/user": self._user,
            "/image": self._image,
            "/best": self._best,
            "/score": self._score,
            "/tokens": self._tokens,
            "/read": self._read,
            "/top": self._top,
            "/cut": self._cut,
            "/fork": self._fork,
            "/sessions": self._list,
            "/use": self._use,
            "/set": self._set,
            "/save": self._save,
            "/restore": self._restore,
            "/help": lambda _: say(_COMMANDS),
        }

    def run_line(self, line: str) -> None:
        """Run one typed line."""
        command, _, rest = line.strip().partition(" ")
        if not line.strip():
            return
        if not command.startswith("/"):
            self._append(line)
        elif command in self._commands:
            self._commands[command](rest.strip() if command != "/score" else rest)
        else:
            say(f"There is no {command}.\n{_COMMANDS}")

    def close(self) -> None:
        """Close every session."""
        for session in self._sessions:
            session.close()

    @property
    def _session(self) -> Session:
        return self._sessions[self._current]

    def _append(self, line: str) -> None:
        before = self._session.length
        length = self._session.append(_unescaped(line))
        say(f"{length - before} tokens, {length} in all")

    def _generate(self, rest: str) -> None:
        options = GenerateOptions(max_tokens=_number(rest, _GENERATE_TOKENS), logprobs="generated")
        options.update(cast(GenerateOptions, self._sampling))
        generation = self._session.generate(**options)
        try:
            for event in generation:
                match event:
                    case TokenEvent():
                        self._view.token(event)
                    case Progress(prefilled=prefilled, total=total):
                        say(f"read {prefilled} of {total} tokens")
                    case Done():
                        self._view.end()
                        say(_ending(event))
                    case _:
                        pass
        finally:
            generation.close()

    def _user(self, rest: str) -> None:
        if not rest:
            raise InvalidValue("Say what the user says: /user TEXT.")
        before = self._session.length
        length = self._session.append_messages([{"role": "user", "content": _unescaped(rest)}])
        say(f"{length - before} tokens, {length} in all")

    def _image(self, rest: str) -> None:
        if not rest:
            raise InvalidValue("Say which: /image PATH.")
        picture = read_picture(_path(rest))
        before = self._session.length
        length = self._session.append(Image.of(picture.data))
        say(f"{picture}; {length - before} positions, {length} in all")

    def _best(self, rest: str) -> None:
        options = GenerateOptions(max_tokens=_GENERATE_TOKENS)
        options.update(cast(GenerateOptions, self._sampling))
        (best,) = self._session.best_of(_number(rest, _BEST_OF), **options)
        self._view.text(best.text)
        say(f"{len(best.tokens)} tokens, {best.mean:.3f} a token; {self._session.length} in all")

    def _score(self, rest: str) -> None:
        if not rest:
            raise InvalidValue("Say which text to score: /score TEXT.")
        scored = self._session.score(_unescaped(rest))
        self._view.tokens(scored.tokens)
        say(f"logprob {scored.total:.3f}, {scored.mean:.3f} a token, perplexity {scored.perplexity:.2f}")

    def _tokens(self, rest: str) -> None:
        self._view.tokens(self._seen(rest, GenerateOptions(max_tokens=0)))

    def _read(self, rest: str) -> None:
        start = self._start(rest)
        options = GenerateOptions(max_tokens=0, readout=[(start, None)])
        self._view.readouts(self._seen(rest, options))

    def _seen(self, rest: str, options: GenerateOptions) -> list[TokenEvent]:
        """The last tokens again, with their logprobs and whatever else is asked of them."""
        self._check_not_empty()
        ranges = [(self._start(rest), None)]
        options["logprobs"] = ranges
        events = self._session.generate(**options)
        return [event for event in events if isinstance(event, TokenEvent)]

    def _start(self, rest: str) -> int:
        length = self._session.length
        return max(length - _number(rest, length), 0)

    def _top(self, rest: str) -> None:
        self._check_not_empty()
        count = _number(rest, _SHOWN_ALTERNATIVES)
        with self._session.fork() as trial:
            events = trial.generate(max_tokens=1, logprobs="generated", top_k_logprobs=count)
            for event in events:
                if isinstance(event, TokenEvent):
                    self._view.alternatives(event.top)

    def _cut(self, rest: str) -> None:
        say(f"{self._session.truncate(_number(rest, None))} tokens in all")

    def _fork(self, rest: str) -> None:
        forked = self._session.fork(_number(rest, None) if rest else None)
        self._sessions.append(forked)
        self._current = len(self._sessions) - 1
        say(f"session {self._current + 1}, {forked.length} tokens in all")

    def _list(self, _: str) -> None:
        for number, session in enumerate(self._sessions):
            sign = "*" if number == self._current else " "
            say(f"{sign} {number + 1}  {session.length} tokens  {session.id or 'not opened yet'}")

    def _use(self, rest: str) -> None:
        number = _number(rest, None)
        if not 1 <= number <= len(self._sessions):
            raise InvalidValue(f"There are sessions 1 to {len(self._sessions)}.")
        self._current = number - 1

    def _set(self, rest: str) -> None:
        if rest:
            key, _, value = rest.partition(" ")
            if key not in _SAMPLING:
                raise InvalidValue(f"There is no {key}; there are {', '.join(_SAMPLING)}.")
            try:
                if value:
                    self._sampling[key] = _SAMPLING[key](_unescaped(value))
                else:
                    self._sampling.pop(key, None)
            except ValueError:
                raise InvalidValue(f"Expected a number for {key}, found {value!r}.") from None
        for key in _SAMPLING:
            say(f"{key:18} {self._sampling.get(key, 'the model decides')}")

    def _save(self, rest: str) -> None:
        size_bytes = len(self._session.save(_path(rest)))
        say(f"{size_bytes / 2**20:.1f} MiB in {_path(rest)}")

    def _restore(self, rest: str) -> None:
        try:
            self._sessions.append(self._client.restore(_path(rest)))
        except OSError as error:
            raise InvalidValue(f"{_path(rest)} could not be read: {error.strerror}.") from error
        self._current = len(self._sessions) - 1
        say(f"session {self._current + 1}, {self._session.length} tokens in all")

    def _check_not_empty(self) -> None:
        if not self._session.length:
            raise InvalidValue("The session is empty.", hint="Type some text first.")


def steering_of(flags: Sequence[str]) -> tuple[Steer, ...]:
    """Steering as a command line says it: `concept=strength`."""
    found = []
    for flag in flags:
        concept, _, strength = flag.rpartition("=")
        try:
            found.append(Steer(concept, float(strength)))
        except ValueError:
            found.append(Steer("", 0.0))
        if not found[-1].concept:
            raise InvalidValue(
                f"Expected a concept and its strength, found {flag!r}.",
                param="steer",
                hint="It looks like --steer formal=1.5.",
            )
    return tuple(found)


def _ending(done: Done) -> str:
    return (
        f"{done.completion_tokens} tokens ({done.finish_reason}), {done.total_tokens} in all; "
        f"{done.cached_tokens} of {done.prompt_tokens} were cached"
    )


def _unescaped(line: str) -> str:
    return line.replace("\\n", "\n")


def _number(rest: str, default: int | None) -> int:
    if not rest and default is not None:
        return default
    if not rest.isdecimal():
        raise InvalidValue(f"Expected a number, found {rest!r}.")
    return int(rest)


def _path(rest: str) -> str:
    parts = shlex.split(rest)
    if len(parts) != 1:
        raise InvalidValue("Say which file.")
    return parts[0]
