"""The whole answer is the stream, folded: there is no second, non-streaming path."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import assert_never

from ganglion.core.errors import EngineFailed
from ganglion.core.events import (
    Closed,
    Delta,
    Event,
    Failed,
    Finished,
    Kind,
    Opened,
    Progress,
    Scored,
    Started,
    Token,
)
from ganglion.core.sampling import ResolvedSampling


@dataclass(frozen=True, slots=True)
class Block:
    """One finished block of an answer."""

    kind: Kind
    text: str
    tokens: tuple[Token, ...] = ()
    call_id: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished answer: its blocks in order and how it ended."""

    blocks: tuple[Block, ...]
    finished: Finished
    scored: tuple[Token, ...] = ()
    """Tokens of the prompt, where their logprobs were asked for."""
    readout_concepts: int = 0
    """How many values of a token's readout belong to one layer, where readouts were asked for."""
    prompt_token_ids: tuple[int, ...] | None = None
    """The prompt as it was read, where somebody asked for it."""
    sampling: ResolvedSampling | None = None
    """How its tokens were chosen, as far as its engine says."""

    @property
    def tokens(self) -> tuple[Token, ...]:
        """The tokens of all blocks, in order."""
        return tuple(token for block in self.blocks for token in block.tokens)

    def text(self, kind: Kind) -> str:
        """All text of one kind."""
        return "".join(block.text for block in self.blocks if block.kind == kind)


def fold(events: Iterable[Event]) -> Answer:
    """Fold a complete stream into its answer; raises the stream's own error when it failed."""
    blocks: list[Block] = []
    opened: Opened | None = None
    texts: list[str] = []
    tokens: list[Token] = []
    scored: list[Token] = []
    readout_concepts = 0
    prompt_token_ids: tuple[int, ...] | None = None
    sampling: ResolvedSampling | None = None
    for event in events:
        match event:
            case Progress():
                pass
            case Started():
                readout_concepts, sampling = event.readout_concepts, event.sampling
                prompt_token_ids = event.prompt_token_ids
            case Scored(tokens=more):
                scored.extend(more)
            case Opened():
                opened, texts, tokens = event, [], []
            case Delta(text=text, tokens=more):
                texts.append(text)
                tokens.extend(more)
            case Closed():
                assert opened is not None
                blocks.append(Block(opened.kind, "".join(texts), tuple(tokens), opened.call_id, opened.name))
            case Finished():
                ended = (event, tuple(scored), readout_concepts)
                return Answer(tuple(blocks), *ended, prompt_token_ids, sampling)
            case Failed(error=error):
                raise error
            case _:
                assert_never(event)
    raise EngineFailed("the engine ended its stream without saying how")
