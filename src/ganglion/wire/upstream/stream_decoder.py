"""Decodes a chat stream of another server, ours or not, into events: the reverse of the projection.

Law: an end is never made up. A stream ends well when its server said why (`finish_reason`, or `[DONE]`), and
with `Failed` in every other case. Calls come one after another; one that goes on after the next began cannot
be told as events, and fails the answer.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from ganglion.core.errors import GanglionError, UpstreamUnavailable
from ganglion.core.events import (
    Closed,
    Delta,
    Event,
    Failed,
    Finished,
    FinishReason,
    Kind,
    Opened,
    Started,
    Token,
    Usage,
)
from ganglion.core.sampling import ResolvedSampling
from ganglion.wire.upstream.chunks import (
    NO_ERROR,
    NULL,
    UpstreamChoice,
    UpstreamChunk,
    UpstreamDelta,
    UpstreamFunction,
    UpstreamToolCall,
    UpstreamUsage,
    chunk_tokens,
)
from ganglion.wire.upstream.upstream_errors import decode_error_frame

# Lines end with LF, CRLF or CR; comments, names and ids are passed over; several data lines of an event are
# joined.

MAX_EVENT_BYTES = 16 * 2**20
"""Of one event; whoever sends more is not to be believed."""


class SseEventTooLarge(ValueError):
    """An event that never ends."""


class SseReader:
    """Feed it bytes as they come; whoever reads an event reads it whole."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._is_after_return = False

    def feed(self, data: bytes) -> list[bytes]:
        """The data of every event that is whole now; raises SseEventTooLarge."""
        if b"\r" in data or self._is_after_return:
            data = self._with_line_feeds(data)
        lines = (self._rest + data if self._rest else data).split(b"\n")
        self._rest = lines.pop()
        found: list[bytes] = []
        held = self._data
        for line in lines:
            if line.startswith(b"data:"):
                held.append(line[6:] if line.startswith(b"data: ") else line[5:])
            elif not line and held:
                found.append(held[0] if len(held) == 1 else b"\n".join(held))
                held.clear()
            elif line.startswith(b"error:"):  # how llama-server told errors for a long time
                held.append(b'{"error":%b}' % line[6:])
        if held or self._rest:
            self._check(held)
        return found

    def end(self) -> list[bytes]:
        """The data of an event without its last line break: servers that end abruptly leave one behind."""
        found = self.feed(b"\n\n")
        self._rest = b""
        return found

    def _with_line_feeds(self, data: bytes) -> bytes:
        """The same lines, each ended by LF alone; a CRLF may come in two parts."""
        if self._is_after_return and data:
            data = data.removeprefix(b"\n")
            self._is_after_return = False
        if data:
            self._is_after_return = data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _check(self, held: list[bytes]) -> None:
        if len(self._rest) + sum(map(len, held)) > MAX_EVENT_BYTES:
            raise SseEventTooLarge(f"An event is larger than {MAX_EVENT_BYTES} bytes.")


_decode = msgspec.json.Decoder(UpstreamChunk).decode
_encode = msgspec.json.Encoder().encode
_DONE: Final = b"[DONE]"
_REASONS: Final[dict[str, FinishReason]] = {
    "length": "length",
    "max_tokens": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
}
"""Everything else is a stop."""


class _OpenCall:
    """The call that is open, or waits for its name."""

    __slots__ = ("call_id", "held", "index", "is_open")

    def __init__(self, index: int | None, call_id: str | None) -> None:
        self.index = index
        self.call_id = call_id
        self.held = ""
        self.is_open = False


class ChatStreamDecoder:
    """Feed it bytes at any split, then say that they ended; `is_done` says that the last event is out.

    `new_call_id` makes an id for a call that came without one. With `has_readout` the start waits for the
    first token, which says how many concepts a layer has. No chat tells how its tokens are chosen: `sampling`
    is what is known of that.
    """

    def __init__(
        self,
        *,
        new_call_id: Callable[[], str],
        model: str = "",
        prompt_tokens: int = 0,
        has_readout: bool = False,
        sampling: ResolvedSampling | None = None,
    ) -> None:
        self._new_call_id = new_call_id
        self._model = model
        self._prompt_tokens = prompt_tokens
        self._has_readout = has_readout
        self._sampling = sampling
        self._reader = SseReader()
        self._events: list[Event] = []
        self._is_started = False
        self._index = -1
        self._kind: Kind | None = None
        self._call: _OpenCall | None = None
        self._ended_calls: set[int] = set()
        self._reason: str | None = None
        self._stop: str | int | None = None
        self._usage: UpstreamUsage | None = None
        self._position = 0
        self._spoken = 0
        self._reasoned = 0
        self.is_done = False
        """Whether `Finished` or `Failed` has been handed out."""

    def feed(self, data: bytes) -> list[Event]:
        """The events that these bytes add; none once the stream is done."""
        if self.is_done:
            return []
        try:
            for frame in self._reader.feed(data):
                if not self._goes_on(frame):
                    break
        except SseEventTooLarge as error:
            self._fail(str(error))
        return self._taken()

    def whole(self, body: bytes) -> list[Event]:
        """The events of an answer that came as one JSON document."""
        self._frame(body)
        return self._taken() + self.end()

    def end(self, error: GanglionError | None = None) -> list[Event]:
        """The events that the end of the bytes adds; `error` says why they ended, where that is known."""
        if self.is_done:
            return []
        if all(map(self._goes_on, self._reader.end())):
            if self._reason is not None:
                self._finish()
            elif error is not None:
                self._end_with(Failed(error))
            else:
                self._fail("The server that holds this model ended its answer without a finish reason.")
        return self._taken()

    def _taken(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def _goes_on(self, frame: bytes) -> bool:
        self._frame(frame)
        return not self.is_done

    def _frame(self, data: bytes) -> None:
        if data == _DONE:
            self._finish()
            return
        try:
            chunk = _decode(data)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            self._fail("The server that holds this model sent something other than a chat chunk.")
            return
        if chunk.object == "error" or (chunk.error is not NO_ERROR and bytes(chunk.error) != NULL):
            self._end_with(Failed(decode_error_frame(data, model=self._model)))
            return
        if chunk.usage is not None:
            self._usage = chunk.usage
        for choice in chunk.choices or ():
            if choice.index == 0 and not self.is_done:
                self._read_choice(choice)

    def _read_choice(self, choice: UpstreamChoice) -> None:
        delta = choice.delta or choice.message
        has_tokens = choice.logprobs is not None or choice.readout is not None
        if delta is not None:
            if not self._is_started and not (self._has_readout and choice.readout is None):
                self._start(choice)
            reasoning = delta.reasoning_content or delta.reasoning
            if reasoning:
                tokens = self._tokens(choice) if has_tokens and not delta.content else ()
                self._add_text("reasoning", reasoning, tokens)
            text = delta.content or delta.refusal
            if text:
                self._add_text("text", text, self._tokens(choice) if has_tokens else ())
            if delta.tool_calls:
                self._calls(delta, choice)
            elif delta.function_call is not None:
                self._add_call_part(UpstreamToolCall(0, None, delta.function_call), ())
            elif has_tokens and not reasoning and not text:
                self._silent(self._tokens(choice))
        if choice.finish_reason:
            self._reason = choice.finish_reason
            self._stop = choice.stop_reason

    def _start(self, choice: UpstreamChoice | None = None) -> None:
        self._is_started = True
        usage, readout = self._usage, choice.readout if choice is not None else None
        told = usage.prompt_tokens if usage is not None else None
        concepts = len(readout[0].values[0]) if readout and readout[0].values else 0
        prompt_tokens = told or self._prompt_tokens
        self._events.append(Started(prompt_tokens, readout_concepts=concepts, sampling=self._sampling))

    def _add_text(self, kind: Kind, text: str, tokens: tuple[Token, ...]) -> None:
        if self._kind != kind:
            self._open(kind)
        self._spoken += 1
        self._reasoned += kind == "reasoning"
        self._events.append(Delta(self._index, text, tokens))

    def _silent(self, tokens: tuple[Token, ...]) -> None:
        """Tokens without text, which belong to whatever is being said."""
        if tokens:
            if self._kind is None:
                self._open("text")
            self._events.append(Delta(self._index, "", tokens))

    def _open(self, kind: Kind, call_id: str | None = None, name: str | None = None) -> None:
        if not self._is_started:
            self._start()
        self._close()
        self._index += 1
        self._kind = kind
        self._events.append(Opened(self._index, kind, call_id, name))

    def _close(self) -> None:
        if self._kind is not None:
            self._events.append(Closed(self._index))
            self._kind = None

    def _calls(self, delta: UpstreamDelta, choice: UpstreamChoice) -> None:
        tokens = self._tokens(choice) if choice.readout is not None else ()
        for part in delta.tool_calls or ():
            if self.is_done:
                return
            self._add_call_part(part, tokens)
            tokens = ()

    def _add_call_part(self, part: UpstreamToolCall, tokens: tuple[Token, ...]) -> None:
        name, text = _called(part)
        call = self._call
        if call is None or not _is_same(call, part, name):
            if part.index is not None and part.index in self._ended_calls and not part.id:
                if text:
                    self._fail(
                        "The server that holds this model continued a tool call after the next one began."
                    )
                return
            self._leave_call()
            if self.is_done:
                return
            call = self._call = _OpenCall(part.index, part.id)
        call.call_id = call.call_id or part.id
        if not call.is_open:
            if not name:
                call.held += text
                return
            call.is_open = True
            self._open("tool_call", call.call_id or self._new_call_id(), name)
            text, call.held = call.held + text, ""
        if text or tokens:
            self._spoken += 1
            self._events.append(Delta(self._index, text, tokens))

    def _leave_call(self) -> None:
        call, self._call = self._call, None
        if call is None:
            return
        if not call.is_open:
            self._fail("The server that holds this model called a tool without naming it.")
        if call.index is not None:
            self._ended_calls.add(call.index)

    def _tokens(self, choice: UpstreamChoice) -> tuple[Token, ...]:
        tokens = chunk_tokens(choice, self._position)
        self._position += len(tokens)
        return tokens

    def _finish(self) -> None:
        had_calls = self._call is not None or bool(self._ended_calls)
        self._leave_call()
        if self.is_done:
            return
        if not self._is_started:
            self._start()
        self._close()
        reason: FinishReason = _REASONS.get(self._reason or "", "stop")
        if reason != "length":
            # Servers say "stop" after calls, too, and agents would not run them.
            reason = "tool_calls" if had_calls else "stop"
        stop = self._stop
        self._end_with(
            Finished(
                reason,
                self._counted(),
                stop_sequence=stop if isinstance(stop, str) else None,
                stop_token=stop if isinstance(stop, int) else None,
            )
        )

    def _counted(self) -> Usage:
        """The counts of the server; without them, what was heard."""
        usage = self._usage
        if usage is None or usage.completion_tokens is None:
            return Usage(self._prompt_tokens, self._spoken, 0, self._reasoned)
        prompt, completion = usage.prompt_tokens_details, usage.completion_tokens_details
        prompt_tokens = usage.prompt_tokens or 0
        return Usage(
            prompt_tokens,
            usage.completion_tokens,
            min((prompt.cached_tokens if prompt is not None else 0) or 0, prompt_tokens),
            (completion.reasoning_tokens if completion is not None else 0) or 0,
        )

    def _fail(self, why: str) -> None:
        self._end_with(Failed(UpstreamUnavailable(why)))

    def _end_with(self, event: Finished | Failed) -> None:
        self.is_done = True
        self._events.append(event)


def _is_same(call: _OpenCall, part: UpstreamToolCall, name: str | None) -> bool:
    """Whether a part belongs to the call before it: by its place, and by its id where both are told.

    Some servers number all calls 0, others none: there a new id, or a name without one, begins a call.
    """
    if part.id and call.call_id and part.id != call.call_id:
        return False
    if part.index is not None:
        return part.index == call.index
    return bool(part.id) or not name or not call.is_open


def _called(part: UpstreamToolCall) -> tuple[str | None, str]:
    """The name, where it is told, and more of the arguments."""
    if part.custom is not None:
        return part.custom.name, part.custom.input or ""
    function = part.function or UpstreamFunction()
    arguments = function.arguments
    if isinstance(arguments, dict):
        return function.name, _encode(arguments).decode()
    return function.name, arguments or ""
