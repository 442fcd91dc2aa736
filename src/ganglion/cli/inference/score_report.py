"""The output of `ganglion score`: the sums, every token on request, or everything as JSON."""

import json
import math
import sys
from typing import TYPE_CHECKING, Final

import msgspec

from ganglion.cli.terminal.console import colour_of, legend, visible
from ganglion.cli.terminal.format import NOTHING
from ganglion.cli.terminal.output import TableRow, print_facts, print_table
from ganglion.wire.score import ScoredAlternative, ScoredToken, Scores

if TYPE_CHECKING:
    from rich.console import Console

_HEADINGS: Final = ("position", "token", "logprob", "probability", "likeliest")


class _Report(msgspec.Struct, frozen=True, kw_only=True):
    """The score of one text, as `--json` prints it."""

    model: str
    total_logprob: float
    mean_logprob: float | None
    """Null where no token has a logprob."""
    perplexity: float | None
    scored_tokens: int
    """Those with a logprob."""
    prompt_tokens: int
    """All that were read."""
    tokens: list[ScoredToken]


def report_of(scores: Scores) -> _Report:
    """What one range says of a text."""
    [only] = scores.scores
    tokens = only.tokens or []
    count = sum(token.logprob is not None for token in tokens)
    mean = only.total_logprob / count if count else None
    return _Report(
        model=scores.model,
        total_logprob=only.total_logprob,
        mean_logprob=mean,
        perplexity=None if mean is None else _perplexity(mean),
        scored_tokens=count,
        prompt_tokens=scores.usage.prompt_tokens,
        tokens=tokens,
    )


def print_report(report: _Report) -> None:
    """The text in colours where there are any, and its numbers."""
    from rich.console import Console

    console = Console(file=sys.stdout, highlight=False)
    if console.color_system is not None and not console.no_color:
        _print_coloured(report, console)
    print_facts(_facts(report))


def print_tokens(report: _Report) -> None:
    """A line for each token, then the numbers."""
    rows = [TableRow(_cells(token)) for token in report.tokens]
    has_top = any(token.top for token in report.tokens)
    headings = _HEADINGS if has_top else _HEADINGS[:-1]
    print_table(
        headings,
        [TableRow(row.cells[: len(headings)]) for row in rows],
        right=("position", "logprob", "probability"),
    )
    print_facts(_facts(report))


def _facts(report: _Report) -> list[tuple[str, str]]:
    facts = [
        ("model", report.model),
        ("tokens", f"{report.scored_tokens} scored of {report.prompt_tokens} read"),
        ("total logprob", f"{report.total_logprob:.4f}"),
    ]
    if report.mean_logprob is not None and report.perplexity is not None:
        facts += [
            ("mean logprob", f"{report.mean_logprob:.4f}"),
            ("perplexity", f"{report.perplexity:.4g}"),
        ]
    scored = [(token.logprob, token) for token in report.tokens if token.logprob is not None]
    if scored:
        lowest, token = min(scored, key=lambda each: each[0])
        facts.append(("least likely", f"{_quoted(token.token)} {lowest:.4f} at {token.position}"))
    return facts


def _print_coloured(report: _Report, console: "Console") -> None:
    from rich.text import Text

    console.print(Text.assemble(*((visible(each.token), colour_of(each.logprob)) for each in report.tokens)))
    console.print(Text("  ").join(Text(*each) for each in (("logprob", ""), *legend())))
    console.print()


def _cells(token: ScoredToken) -> tuple[str, ...]:
    is_scored = token.logprob is not None
    return (
        str(token.position),
        _quoted(token.token),
        f"{token.logprob:.4f}" if is_scored else NOTHING,
        _share(token.logprob) if token.logprob is not None else NOTHING,
        "  ".join(map(_alternative, token.top)),
    )


def _alternative(each: ScoredAlternative) -> str:
    return f"{_quoted(each.token)} {_share(each.logprob)}"


def _share(logprob: float) -> str:
    return f"{100 * math.exp(logprob):.3g} %"


def _quoted(text: str) -> str:
    """A token as JSON writes it: spaces and line breaks can be seen."""
    return json.dumps(visible(text), ensure_ascii=False)


def _perplexity(mean_logprob: float) -> float:
    try:
        return math.exp(-mean_logprob)
    except OverflowError:
        return math.inf
