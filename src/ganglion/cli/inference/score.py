"""`ganglion score`: how likely a model finds a text, in this process or on a node."""

import asyncio
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from cyclopts import Parameter, validators

from ganglion.cli.flags import (
    ENGINE_UNSET,
    MODEL,
    OUTPUT,
    OUTPUT_UNSET,
    EngineFlags,
    Json,
    OutputFlags,
    is_text,
)
from ganglion.cli.inference.local_engine import local_engine
from ganglion.cli.remote.node_client import NODE, NodeApiClient
from ganglion.cli.terminal.console import colour_of, legend, visible
from ganglion.cli.terminal.format import NOTHING
from ganglion.cli.terminal.output import TableRow, print_facts, print_json, print_table
from ganglion.core.errors import InvalidValue, MissingParameter
from ganglion.core.fold import fold
from ganglion.core.request import Request, TextPrompt
from ganglion.wire.score import ScoreBody, ScoredAlternative, ScoredToken, Scores

if TYPE_CHECKING:
    from rich.console import Console

    from ganglion.registry.loading.residency import Residency

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
    headings = _HEADINGS if any(token.top for token in report.tokens) else _HEADINGS[:-1]
    rows = [TableRow(_cells(token)[: len(headings)]) for token in report.tokens]
    print_table(headings, rows, right=("position", "logprob", "probability"))
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


_MAX_TEXT_BYTES: Final = 16 << 20
"""More than any model reads at once."""
_MOST_ALTERNATIVES: Final = 20


@dataclass(frozen=True, slots=True)
class _Question:
    """A text, and what stands before it."""

    prompt: str
    text: str
    top: int

    @property
    def whole(self) -> str:
        return self.prompt + self.text

    def body(self, model: str, start: int) -> ScoreBody:
        return ScoreBody(model=model, prompt=self.whole, score_ranges=[(start, None)], top_k=self.top)


def score(
    text: Annotated[
        str | None,
        Parameter(
            help="The text to score; left out or -, it is read from stdin.",
            group=MODEL,
            allow_leading_hyphen=True,
            validator=is_text,
        ),
    ] = None,
    /,
    *,
    prompt: Annotated[
        str,
        Parameter(
            help="What stands before the text; it is read and not scored.", group=MODEL, show_default=False
        ),
    ] = "",
    file: Annotated[Path | None, Parameter(help="A file that holds the text.", group=MODEL)] = None,
    model: Annotated[
        str | None,
        Parameter(
            help="A GGUF file or a name (default: the embedded model, or the only one of the node).",
            group=MODEL,
        ),
    ] = None,
    node: Annotated[
        str | None,
        Parameter(
            name=("--node", "--url"),
            help="Address of a node to ask, instead of running a model here.",
            group=NODE,
        ),
    ] = None,
    api_key: Annotated[
        str | None,
        Parameter(help="A key of the node.", group=NODE, env_var="GANGLION_API_KEY", show_default=False),
    ] = None,
    top: Annotated[
        int,
        Parameter(
            help="So many of the likeliest tokens beside each (0 to 20), with --tokens or --json.",
            group=OUTPUT,
            validator=validators.Number(gte=0, lte=_MOST_ALTERNATIVES),
        ),
    ] = 0,
    tokens: Annotated[bool, Parameter(help="A table of all tokens.", group=OUTPUT, negative=())] = False,
    json: Json = False,
    engine: EngineFlags = ENGINE_UNSET,
    output: OutputFlags = OUTPUT_UNSET,
) -> None:
    """Say how likely a model finds a text."""
    question = _Question(prompt, _text(text, file), top)
    if node is not None:
        scores = _on_node(node, api_key, model, question)
    else:
        scores = asyncio.run(_scored(local_engine(engine, output, model), question))
    report = report_of(scores)
    if json:
        print_json(report)
    elif tokens:
        print_tokens(report)
    else:
        print_report(report)


def _text(text: str | None, file: Path | None) -> str:
    if file is not None and text is not None:
        raise InvalidValue("A text and --file are both given.", param="file", hint="Give one of them.")
    try:
        if file is not None:
            with file.open("rb") as opened:
                found = opened.read(_MAX_TEXT_BYTES + 1).decode()
        else:
            found = sys.stdin.read(_MAX_TEXT_BYTES + 1) if text in (None, "-") else text or ""
    except OSError as error:
        raise InvalidValue(f"{file} could not be read: {error.strerror}.", param="file") from error
    except UnicodeDecodeError as error:
        raise InvalidValue("The text is not UTF-8.", param="text") from error
    if len(found) > _MAX_TEXT_BYTES:
        raise InvalidValue(f"The text is larger than {_MAX_TEXT_BYTES} bytes.", param="text")
    if not found:
        raise InvalidValue("There is nothing to score.", param="text", hint="Give a text, --file, or stdin.")
    return found


def _on_node(url: str, api_key: str | None, model: str | None, question: _Question) -> Scores:
    from ganglion.wire.tokenizer import TokenizeBody

    node = NodeApiClient(url, api_key)
    if model is None:
        here = [each.id for each in node.models() if each.status in ("loaded", "recovering")]
        if len(here) != 1:
            found = ", ".join(here) or "none"
            raise MissingParameter(
                f"The node has not exactly one model loaded, but {found}.",
                param="model",
                hint="Name one with --model.",
            )
        [model] = here
    start = 0
    if question.prompt:
        first, both = (
            node.tokenize(TokenizeBody(model=model, prompt=each)).tokens
            for each in (question.prompt, question.whole)
        )
        start = _shared(first, both)
    return node.score(question.body(model, start))


async def _scored(engine: "Residency", question: _Question) -> Scores:
    from ganglion.wire.score import call_of, scores_of

    try:
        await engine.open()
        model, start = engine.models()[0].id, 0
        if question.prompt:
            first, both = [
                (await engine.read(Request("score", model, TextPrompt(each)))).tokens
                for each in (question.prompt, question.whole)
            ]
            start = _shared(first, both)
        call = call_of(question.body(model, start), request_id="score")
        return scores_of(fold([event async for event in engine.generate(call.request)]), call)
    finally:
        await engine.close()


def _shared(first: Sequence[object], second: Sequence[object]) -> int:
    """How many tokens two begin with alike: what a text changes at the end of its prompt belongs to it."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(first), len(second)))
