"""Searches over continuations of one session: several are tried together in forks, and the best is appended.

Law: what is tried is never in the session itself; the winner's tokens are appended to it at the end, once.
Forks share what came before, so each costs its own tokens only. They are closed at the end; those of a search
that is abandoned are dropped by the node after `_FORK_TTL_S`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ganglion.client.flow import Flow, gather
from ganglion.client.options import GenerateOptions
from ganglion.client.session_flows import SessionFlows
from ganglion.client.values import Branch
from ganglion.core.errors import GanglionError, InvalidValue
from ganglion.core.events import Alternative

_MAX_BRANCHES: Final = 64
"""At one time: each runs in a thread of the blocking client, and takes a slot on the node."""
_MAX_WIDTH: Final = 16
_MAX_STEPS: Final = 4096
_FORK_TTL_S: Final = 300.0

Judge = Callable[[Branch], float]
"""How good a branch is; the highest wins."""


def mean_logprob(branch: Branch) -> float:
    """How likely its tokens were, each."""
    return branch.mean


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A branch and its session, None of one that has ended."""

    branch: Branch
    flows: SessionFlows | None
    unsent: tuple[int, ...] = ()
    """Its tokens that the session does not have yet."""


class _Forks:
    """The forks of one search, to be closed together."""

    def __init__(self) -> None:
        self._open: list[SessionFlows] = []

    def of(self, flows: SessionFlows, at: int | None = None) -> Flow[SessionFlows]:
        """Another fork; one after another, since a session takes one call at a time."""
        fork = yield from flows.fork(at, _FORK_TTL_S)
        self._open.append(fork)
        return fork

    def close(self) -> Flow[None]:
        """Close all of them."""
        forks, self._open = self._open, []
        yield from gather(fork.close() for fork in forks)


_ROOT: Final = Branch((), "", 0.0, is_ended=False)


def tree(
    root: SessionFlows,
    options: GenerateOptions,
    *,
    depth: int,
    breadth: int,
    keep: int,
    judge: Judge = mean_logprob,
) -> Flow[tuple[Branch, ...]]:
    """Sample `breadth` continuations of each branch, keep the best few, `depth` times; the best is appended.

    A branch that has ended stays among them as it is. With a seed, every sample has one of its own.
    """
    _check("depth", depth, _MAX_STEPS)
    _check("keep", keep, _MAX_BRANCHES)
    _check("breadth", breadth, _MAX_BRANCHES // keep)
    forks = _Forks()
    try:
        kept = [_Candidate(_ROOT, root)]
        for level in range(depth):
            fresh: list[_Candidate] = []
            for each in kept:
                for _ in range(breadth if each.flows is not None else 0):
                    assert each.flows is not None
                    fresh.append(_Candidate(each.branch, (yield from forks.of(each.flows))))
            if not fresh:
                break
            first = level * _MAX_BRANCHES
            sampled = yield from gather(
                _sampled(each, _seeded(options, first + number)) for number, each in enumerate(fresh)
            )
            judged = [
                replace(each, branch=replace(each.branch, score=float(judge(each.branch))))
                for each in sampled
            ]
            ended = [each for each in kept if each.flows is None]
            kept = sorted([*ended, *judged], key=lambda each: -each.branch.score)[:keep]
        return (yield from _append_best(root, [each.branch for each in kept], forks))
    except Exception:  # also what the caller's own judge raises
        yield from forks.close()
        raise


def beam(
    root: SessionFlows, *, width: int, max_tokens: int, length_penalty: float = 1.0
) -> Flow[tuple[Branch, ...]]:
    """The likeliest continuations, found by following the `width` best at each token; the best is appended.

    They are ranked by logprob / tokens ** length_penalty: 1 is the mean, 0 the sum, which prefers short ones.
    """
    _check("width", width, _MAX_WIDTH)
    _check("max_tokens", max_tokens, _MAX_STEPS)
    forks = _Forks()
    try:
        alive = [_Candidate(_ROOT, (yield from forks.of(root)))]
        ended: list[Branch] = []
        for _ in range(max_tokens):
            tops = yield from gather(_likeliest(each, width) for each in alive)
            ends = root.node.end_ids.get(root.model, frozenset[int]())
            found = [
                (index, _longer(alive[index].branch, one, length_penalty, one.id in ends))
                for index, top in enumerate(tops)
                for one in top
            ]
            best = sorted(found, key=lambda each: -each[1].logprob)[:width]
            ended += [branch for _, branch in best if branch.is_ended]
            alive = yield from _followed(alive, [each for each in best if not each[1].is_ended], forks)
            if not alive or len(ended) >= width:
                break
        branches = ended + [each.branch for each in alive]
        return (yield from _append_best(root, sorted(branches, key=lambda each: -each.score)[:width], forks))
    except GanglionError:
        yield from forks.close()
        raise


def _sampled(growing: _Candidate, options: GenerateOptions) -> Flow[_Candidate]:
    """A branch with one continuation more."""
    flows, before = growing.flows, growing.branch
    assert flows is not None
    result = yield from flows.generate_result({**options, "logprobs": "generated"})
    logprobs = (token.logprob for token in result.events if not token.is_prefill)
    branch = Branch(
        (*before.tokens, *result.tokens),
        before.text + result.text,
        before.logprob + sum(each for each in logprobs if each is not None),
        is_ended=result.done.finish_reason == "stop",
    )
    return _Candidate(branch, None if branch.is_ended else flows)


def _likeliest(growing: _Candidate, count: int) -> Flow[tuple[Alternative, ...]]:
    assert growing.flows is not None
    return (yield from growing.flows.likeliest(growing.unsent, count))


def _longer(branch: Branch, one: Alternative, length_penalty: float, is_end: bool) -> Branch:
    """A branch with one token more; the one that ends it is no part of its text."""
    tokens, logprob = (*branch.tokens, one.id), branch.logprob + one.logprob
    text = branch.text if is_end else branch.text + one.piece.decode("utf-8", "replace")
    return Branch(tokens, text, logprob, is_end, logprob / len(tokens) ** length_penalty)


def _followed(
    alive: Sequence[_Candidate], best: Sequence[tuple[int, Branch]], forks: _Forks
) -> Flow[list[_Candidate]]:
    """The best branches, each in a session of its own: the first takes over where it came from."""
    followed: list[_Candidate] = []
    taken: set[int] = set()
    for index, branch in best:
        flows = alive[index].flows
        assert flows is not None
        if index in taken:
            flows = yield from forks.of(flows, flows.committed.length)
        taken.add(index)
        followed.append(_Candidate(branch, flows, branch.tokens[-1:]))
    return followed


def _append_best(root: SessionFlows, ranked: Sequence[Branch], forks: _Forks) -> Flow[tuple[Branch, ...]]:
    """Append the first of them, and close the forks."""
    yield from root.append(ranked[0].tokens, parse_special=False)
    yield from forks.close()
    return tuple(ranked)


def _seeded(options: GenerateOptions, number: int) -> GenerateOptions:
    return {**options, "seed": options["seed"] + number} if "seed" in options else options


def _check(name: str, value: int, most: int) -> None:
    if not 1 <= value <= most:
        raise InvalidValue(f"Expected {name} from 1 to {most}, found {value}.", param=name)
