"""A flow under way, whoever drives it, and the result that a generation's events add up to."""

from collections.abc import Callable
from typing import Generic, TypeVar

from ganglion.client.errors import Disconnected
from ganglion.client.flow import Effect, EffectReply, Flow
from ganglion.client.values import Done, Event, Result, TokenEvent
from ganglion.core.errors import GanglionError

_T = TypeVar("_T")


class FlowRun(Generic[_T]):
    """A flow and the effect it waits for; None once it is over."""

    def __init__(self, flow: Flow[_T]) -> None:
        self._flow = flow
        self._answers: list[_T] = []
        self.effect: Effect | None = None
        self.is_over = False
        self._step(lambda: next(flow))

    @property
    def answer(self) -> _T:
        """The flow's return value, once it is over; raises Disconnected where it was abandoned."""
        if not self._answers:
            raise Disconnected("The call was cancelled before its end.")
        return self._answers[0]

    def reply(self, message: EffectReply) -> None:
        """The effect was performed."""
        self._step(lambda: self._flow.send(message))

    def fail(self, error: GanglionError) -> None:
        """The effect failed; raises what the flow makes of it."""
        self._step(lambda: self._flow.throw(error))

    def abandon(self) -> None:
        """Close the flow where it stands."""
        self._end()
        self._flow.close()

    def _step(self, advance: Callable[[], Effect]) -> None:
        try:
            self.effect = advance()
        except StopIteration as stop:
            self._answers.append(stop.value)
            self._end()
        except BaseException:
            self._end()
            raise

    def _end(self) -> None:
        self.is_over = True
        self.effect = None


class ResultBuilder:
    """The events of one generation so far."""

    def __init__(self) -> None:
        self._tokens: list[TokenEvent] = []
        self._done: Done | None = None

    @property
    def tokens(self) -> tuple[int, ...]:
        """The ids that were generated so far."""
        return tuple(token.id for token in self._tokens if not token.is_prefill)

    def take(self, event: Event) -> None:
        """One more event."""
        if isinstance(event, TokenEvent):
            self._tokens.append(event)
        elif isinstance(event, Done):
            self._done = event

    def result(self) -> Result:
        """The whole result; raises Disconnected where it was cancelled before its end."""
        if self._done is None:
            raise Disconnected("The generation was cancelled before its end.")
        shown = [token for token in self._tokens if not token.is_prefill]
        if shown and self._done.stop_token is not None:
            # Emitted and committed, but no part of the text.
            del shown[-1]
        text = b"".join(token.piece for token in shown).decode("utf-8", "replace")
        if self._done.stop_text is not None:
            text = text.partition(self._done.stop_text)[0]
        text = text.removeprefix(self._done.healed)
        return Result(text, self.tokens, tuple(self._tokens), self._done)
