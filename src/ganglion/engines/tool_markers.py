"""Which of a family's markers are control tokens of a model, as its tokenizer tells."""

from collections.abc import Iterable

from ganglion.core.engine import TokenEngine


async def control_ids(tokens: TokenEngine, markers: Iterable[str]) -> dict[str, int]:
    """The ids of those markers that are one token, and only where special tokens are read."""
    found: dict[str, int] = {}
    for marker in markers:
        special = await tokens.tokenize(marker, add_special=False, parse_special=True)
        plain = await tokens.tokenize(marker, add_special=False, parse_special=False)
        if len(special) == 1 and plain != special:
            found[marker] = special[0]
    return found
