"""Files of examples: one a line, or a JSON object with a text a line."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import msgspec
from cyclopts import Parameter

from ganglion.core.errors import InvalidValue
from ganglion.registry.files.whole_files import read_text

_MAX_FILE_BYTES: Final = 16 * 2**20
_MAX_EXAMPLES: Final = 1000
"""Of each kind: what all layers of a large model make of so many texts still fits in memory."""
_MAX_TEXT_BYTES: Final = 16 * 2**10

Positive = Annotated[Path, Parameter(help="Examples that have it, one a line, or a .jsonl file.")]
Negative = Annotated[Path, Parameter(help="Examples that have it not.")]


@dataclass(frozen=True, slots=True)
class Examples:
    """Texts that have something, and texts that do not."""

    positive: tuple[str, ...]
    negative: tuple[str, ...]

    @property
    def all(self) -> tuple[str, ...]:
        """Both, the positive ones first."""
        return self.positive + self.negative


def read_examples(positive: Path, negative: Path, *, fewest: int) -> Examples:
    """Both files without repetitions; raises InvalidValue for what cannot be learnt from."""
    if _is_same(positive, negative):
        raise InvalidValue(
            f"--positive and --negative both name {positive}.",
            param="negative",
            hint="The one holds examples of the concept, the other examples of its opposite.",
        )
    sides = Examples(_texts(positive, "positive", fewest), _texts(negative, "negative", fewest))
    both = sorted(set(sides.positive) & set(sides.negative))
    if both:
        raise InvalidValue(
            f"{len(both)} examples stand in both files, as {both[0][:60]!r}.",
            param="negative",
            hint="An example either has the concept or has it not.",
        )
    return sides


def _is_same(first: Path, second: Path) -> bool:
    try:
        return first.samefile(second)
    except OSError:
        return False  # whichever is not there is told of when it is read


def _texts(path: Path, param: str, fewest: int) -> tuple[str, ...]:
    texts = tuple(dict.fromkeys(_lines(path, param)))
    if not texts:
        raise InvalidValue(f"{path} is empty.", param=param, hint="Write one example a line.")
    if not fewest <= len(texts) <= _MAX_EXAMPLES:
        raise InvalidValue(
            f"{path} holds {len(texts)} different examples; expected {fewest} to {_MAX_EXAMPLES}.",
            param=param,
            hint="Forty of each kind, alike in everything but the concept, make a good one.",
        )
    return texts


def _lines(path: Path, param: str) -> Iterator[str]:
    is_json = path.suffix in (".jsonl", ".json")
    hint = f"--{param} names a file of examples."
    content = read_text(path, param=param, hint=hint, limit_bytes=_MAX_FILE_BYTES)
    for number, line in enumerate(content.splitlines(), 1):
        text = line.strip()
        if not text:
            continue
        if is_json:
            text = _from_json(text, f"{path}, line {number}", param)
        if len(text.encode("utf-8", "surrogatepass")) > _MAX_TEXT_BYTES:
            raise InvalidValue(
                f"{path}, line {number}: the example is longer than {_MAX_TEXT_BYTES} bytes.",
                param=param,
                hint="A sentence or two is enough.",
            )
        if text:
            yield text


def _from_json(line: str, place: str, param: str) -> str:
    class Line(msgspec.Struct):
        text: str

    try:
        return msgspec.json.decode(line, type=Line).text.strip()
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidValue(
            f"{place}: {error}.", param=param, hint='Each line of a .jsonl file is {"text": "..."}.'
        ) from error
