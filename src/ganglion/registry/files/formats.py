"""The formats that models are kept in."""

from typing import Final, Literal, get_args

Format = Literal["gguf", "safetensors"]
FORMATS: Final[tuple[Format, ...]] = get_args(Format)
"""In the order of preference where nothing else decides."""


def format_of_tag(tag: str | None) -> Format | None:
    """The format that the tag of a name spells, as in `org/repo:safetensors`; None for any other tag."""
    return next((each for each in FORMATS if tag is not None and each == tag.casefold()), None)
