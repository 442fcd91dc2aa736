"""Quantisations: how file names write them, and which one is taken when nobody said."""

import re
from typing import Final

PREFERRED: Final = (
    "Q4_K_M",
    "Q4_K_XL",
    "Q4_K_S",
    "Q4_K_L",
    "MXFP4",
    "MXFP4_MOE",
    "Q5_K_M",
    "Q5_K_S",
    "Q5_K_XL",
    "Q4_1",
    "Q4_0",
    "IQ4_NL",
    "IQ4_XS",
    "Q6_K",
    "Q8_0",
    "Q3_K_L",
    "Q3_K_M",
    "Q3_K_S",
    "BF16",
    "F16",
    "F32",
)
"""First the size at which little is lost, then more exact and smaller ones, last what was never quantised."""

_PREFIXES: Final = ("UD-", "I1-")  # what two large publishers write before the quantisation
_SUFFIX: Final = re.compile(
    r"(?P<base>.+?)[-._ ](?P<quant>(?:UD-|i1-)?"
    r"(?:I?Q[1-8](?:_[0-9A-Z]{1,3}){0,3}|TQ[12]_0|BF16|FP?16|FP?32|MXFP4(?:_MOE)?))",
    re.IGNORECASE,
)


def canonical(text: str) -> str:
    """One spelling for each quantisation."""
    upper = text.strip().upper()
    return {"FP16": "F16", "FP32": "F32"}.get(upper, upper)


def split_suffix(stem: str) -> tuple[str, str]:
    """A stem without its quantisation, and the quantisation; the whole stem and "" when it has none."""
    found = _SUFFIX.fullmatch(stem)
    return (found["base"], canonical(found["quant"])) if found else (stem, "")


def without_prefix(quantisation: str) -> str:
    """The quantisation itself, without its publisher's mark."""
    for prefix in _PREFIXES:
        quantisation = quantisation.removeprefix(prefix)
    return quantisation


def rank(quantisation: str) -> int:
    """Its place in PREFERRED; what is not listed comes last."""
    bare = without_prefix(quantisation)
    return PREFERRED.index(bare) if bare in PREFERRED else len(PREFERRED)
