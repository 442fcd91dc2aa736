"""What the answers to one call take, counted as their events pass."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ganglion.core.events import Delta, Event, Finished, Started, Usage
from ganglion.core.request import Request


@dataclass(slots=True)
class _Choice:
    """One answer so far."""

    usage: Usage | None = None
    is_finished: bool = False
    tokens: int = 0
    deltas: int = 0

    def told(self) -> Usage | None:
        if self.usage is None or self.is_finished:
            return self.usage
        # An engine that does not tell its tokens tells about one with each delta.
        return Usage(self.usage.prompt_tokens, self.tokens or self.deltas, self.usage.cached_tokens)


@dataclass(slots=True)
class Spent:
    """The counts of all choices; one that failed counts with what it took until then."""

    requests: Sequence[Request]
    _choices: list[_Choice] = field(init=False)

    def __post_init__(self) -> None:
        self._choices = [_Choice() for _ in self.requests]

    def see(self, choice: int, event: Event) -> None:
        """The next event of a choice."""
        of_choice = self._choices[choice]
        match event:
            case Delta(tokens=tokens):
                of_choice.tokens += len(tokens)
                of_choice.deltas += 1
            case Started(prompt_tokens=prompt_tokens, cached_tokens=cached_tokens):
                of_choice.usage = Usage(prompt_tokens, 0, cached_tokens)
            case Finished(usage=usage):
                of_choice.usage, of_choice.is_finished = usage, True
            case _:
                pass

    def total(self) -> Usage | None:
        """Everything together; a prompt that several choices share counts once. None where nothing ran."""
        prompts: dict[int, list[Usage]] = {}
        for request, choice in zip(self.requests, self._choices, strict=True):
            usage = choice.told()
            if usage is not None:
                prompts.setdefault(id(request.prompt), []).append(usage)
        if not prompts:
            return None
        every = [usage for shared in prompts.values() for usage in shared]
        return Usage(
            prompt_tokens=sum(max(usage.prompt_tokens for usage in shared) for shared in prompts.values()),
            completion_tokens=sum(usage.completion_tokens for usage in every),
            cached_tokens=sum(min(usage.cached_tokens for usage in shared) for shared in prompts.values()),
            reasoning_tokens=sum(usage.reasoning_tokens for usage in every),
        )
