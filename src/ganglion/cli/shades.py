"""How likely a token was, as a colour; and its text, fit for a terminal."""

from typing import Final

SHADES: Final = ((-0.5, "green"), (-2.0, "cyan"), (-5.0, "yellow"), (float("-inf"), "red"))
"""From which logprob on a token has which colour."""
UNSCORED: Final = "dim"


def shade_of(logprob: float | None) -> str:
    """The style of a token; None is one without a logprob."""
    if logprob is None:
        return UNSCORED
    return next(style for least, style in SHADES if logprob >= least)


def legend() -> tuple[tuple[str, str], ...]:
    """What the colours mean, and each meaning's own."""
    least, most = [f"{bound:g}" for bound, _ in SHADES[:-1]], [style for _, style in SHADES]
    words = [f"from {bound}" for bound in least] + [f"below {least[-1]}"]
    return tuple(zip(words, most, strict=True))


def visible(text: str) -> str:
    """Text that does nothing to a terminal but stand there; line breaks and tabs stay."""
    return "".join(sign if sign.isprintable() or sign in "\n\t" else f"\\x{ord(sign):02x}" for sign in text)
