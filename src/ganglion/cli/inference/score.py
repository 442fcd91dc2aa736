"""`ganglion score`: how likely a model finds a text, in this process or on a node."""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

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
from ganglion.cli.remote.node_client import NODE, NodeApiClient
from ganglion.core.errors import InvalidValue, MissingParameter

if TYPE_CHECKING:
    from ganglion.registry.loading.residency import Residency
    from ganglion.wire.score import ScoreBody, Scores

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

    def body(self, model: str, start: int) -> "ScoreBody":
        from ganglion.wire.score import ScoreBody

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
    from ganglion.cli.inference.score_report import print_report, print_tokens, report_of
    from ganglion.cli.terminal.output import print_json

    question = _Question(prompt, _text(text, file), top)
    if node is not None:
        scores = _on_node(node, api_key, model, question)
    else:
        scores = _here(engine, output, model, question)
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


def _on_node(url: str, api_key: str | None, model: str | None, question: _Question) -> "Scores":
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


def _here(engine: EngineFlags, output: OutputFlags, model: str | None, question: _Question) -> "Scores":
    from ganglion.cli.compose import compose
    from ganglion.cli.flags import load_config
    from ganglion.cli.terminal.logs import set_up_logging
    from ganglion.cli.terminal.progress import download_bar

    config = load_config(output, engine.settings())
    set_up_logging(output.log_level or "warning", config.log.format)
    composition = compose(config, [model] if model else config.models[:1], [], bar=download_bar)
    return asyncio.run(_scored(composition.engine, question))


async def _scored(engine: "Residency", question: _Question) -> "Scores":
    from ganglion.core.fold import fold
    from ganglion.core.request import Request, TextPrompt
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
