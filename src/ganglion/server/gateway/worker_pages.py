"""The `/metrics` of several workers as one page: each sample says whose it is. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Family:
    """One metric: what is said of it once, and every worker's samples."""

    words: list[str] = field(default_factory=list)
    samples: list[str] = field(default_factory=list)


def merged(pages: Mapping[int, bytes]) -> bytes:
    """Pages of Prometheus' text format, by worker, as one in which `worker` is a label.

    Samples are told apart rather than added up: what a sum means is for whoever asks to say.
    """
    families: dict[str, _Family] = {}
    for place, page in sorted(pages.items()):
        family = _Family()
        for line in page.decode().splitlines():
            if line.startswith(("# HELP ", "# TYPE ")):
                family = families.setdefault(line.split(" ", 3)[2], _Family())
                if line not in family.words:
                    family.words.append(line)
            elif line and not line.startswith("#"):
                family.samples.append(_labelled(line, place))
    lines = [line for family in families.values() for line in (*family.words, *family.samples)]
    return "".join(f"{line}\n" for line in lines).encode()


def _labelled(sample: str, place: int) -> str:
    """Neither a brace nor a space is in a metric's name, so the first of either ends it."""
    name, brace, rest = sample.partition("{")
    if brace and " " not in name:
        return f'{name}{{worker="{place}",{rest}'
    name, _, rest = sample.partition(" ")
    return f'{name}{{worker="{place}"}} {rest}'
