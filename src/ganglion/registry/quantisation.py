"""Quantisations: how file names write them, and which one is taken when nobody said."""

import re
from typing import Final

PREFERRED: Final = (
    *("Q4_K_M", "Q4_0", "Q5_K_M", "Q8_0"),
    *("Q4_K_XL", "Q4_K_L", "Q4_K_S", "IQ4_NL", "IQ4_XS", "Q4_1", "Q4_K", "MXFP4"),
    *("Q5_K_XL", "Q5_K_L", "Q5_K_S", "Q5_0", "Q5_1", "Q5_K", "Q6_K", "Q6_K_L", "Q6_K_XL", "Q8_K_XL"),
    *("Q3_K_XL", "Q3_K_L", "Q3_K_M", "IQ3_M", "Q3_K_S", "IQ3_S", "IQ3_XS", "IQ3_XXS"),
    *("Q2_K_XL", "Q2_K_L", "Q2_K", "IQ2_M", "IQ2_S", "IQ2_XS", "IQ2_XXS", "TQ2_0", "TQ1_0", "IQ1_M", "IQ1_S"),
)
"""What is taken when no quantisation was asked for: the first of these that exists."""
UNQUANTISED: Final = ("BF16", "F16", "F32")
"""Taken last: two to eight times the memory for what few can tell from Q8_0."""

_PREFIXES: Final = ("UD-", "I1-")  # what two large publishers write before the quantisation
_SUFFIX: Final = re.compile(
    r"(?P<base>.+?)[-._ ](?P<quant>(?:UD-|i1-)?"
    r"(?:I?Q[1-8](?:_[0-9A-Z]{1,3}){0,3}|TQ[12]_0|BF16|FP?16|FP?32|MXFP4(?:_MOE)?))",
    re.IGNORECASE,
)


def canonical(text: str) -> str:
    """One spelling for each quantisation."""
    upper = text.strip().upper()
    return {"FP16": "F16", "FP32": "F32", "MXFP4_MOE": "MXFP4"}.get(upper, upper)


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
    """Its place among all: those of PREFERRED, others, none at all, then those of UNQUANTISED."""
    bare = without_prefix(quantisation)
    if bare in PREFERRED:
        return PREFERRED.index(bare)
    if bare in UNQUANTISED:
        return len(PREFERRED) + 2 + UNQUANTISED.index(bare)
    return len(PREFERRED) + (not bare)
