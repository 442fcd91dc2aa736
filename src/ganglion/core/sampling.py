"""Sampling parameters: every way to choose the next token, with its bounds, its default and what it does.

Law: a parameter is declared here once. The wires, gRPC, the command line and the model manifest take its
bounds from here, requests are merged field by field, frames to a worker carry the values whole, and `make
reference` writes the tables of the documentation. The names are those that llama-server, vLLM and Ollama give
their fields.

A model file is read more leniently than a request: what its author wrote runs as it stands, up to `file_high`
and with 0 where a request must stay above it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Final, Literal, TypedDict, get_type_hints

# llama.cpp reads the last uint32 as "choose one for me", so seeds are folded below it.
SEEDS: Final = 2**32 - 1
_INT32: Final = 2**31 - 1


class Limits(TypedDict, total=False):
    """Bounds in the words of msgspec's Meta."""

    ge: float
    gt: float
    le: float


@dataclass(frozen=True, slots=True)
class Param:
    """The documentation and bounds of a parameter; one without bounds is checked where it is read."""

    doc: str
    low: float | None = None
    high: float | None = None
    excludes_low: bool = False
    file_high: float | None = None
    """How far a model file may go where that is further than a request."""
    values: str = ""
    """The values in words, where bounds do not say them."""
    alias: str | None = None
    """Another server's name for it, which the wires understand too."""

    @property
    def limits(self) -> Limits:
        """The bounds of a request."""
        if self.low is None or self.high is None:
            return {}
        return {"gt": self.low, "le": self.high} if self.excludes_low else {"ge": self.low, "le": self.high}

    def has(self, value: float) -> bool:
        """Whether a request may ask for a value; a NaN never."""
        if self.low is None or self.high is None:
            return True
        return self.low <= value <= self.high and not (self.excludes_low and value == self.low)

    @property
    def bounds(self) -> str:
        """The bounds in words, as they stand after the parameter's name."""
        if self.low is None or self.high is None or self.values:
            return self.values
        if self.high == _INT32:
            return f"{self.low:g} and up"
        return (
            f"above {self.low:g}, to {self.high:g}" if self.excludes_low else f"{self.low:g} to {self.high:g}"
        )


@dataclass(frozen=True, slots=True)
class Samplers:
    """Samplers that few requests use; each default leaves the choice as it is."""

    repeat_last_n: Annotated[
        int,
        Param(
            "How many of the last tokens the penalties see: -1 all of them, 0 none. "
            "`repetition_penalty` sees the prompt, the other penalties do not.",
            -1,
            _INT32,
        ),
    ] = -1
    typical_p: Annotated[
        float,
        Param(
            "Keeps the tokens whose surprise is nearest to the expected one, up to this much probability.",
            0,
            1,
            excludes_low=True,
        ),
    ] = 1.0
    top_n_sigma: Annotated[
        float,
        Param(
            "Keeps what lies within so many standard deviations of the best logit; 0 and below keep all.",
            -1,
            100,
        ),
    ] = -1.0
    xtc_probability: Annotated[
        float, Param("How often all tokens above `xtc_threshold` but the last are left out.", 0, 1)
    ] = 0.0
    xtc_threshold: Annotated[float, Param("How likely a token must be for that.", 0, 1)] = 0.1
    dry_multiplier: Annotated[
        float,
        Param(
            "Lowers a token that would prolong a repetition by "
            "`multiplier * base ^ (its length - allowed_length)`; 0 does not.",
            0,
            100,
        ),
    ] = 0.0
    dry_base: Annotated[float, Param("How fast that grows with the repetition.", 1, 10)] = 1.75
    dry_allowed_length: Annotated[int, Param("How long a repetition may be for nothing.", 1, 1024)] = 2
    dry_penalty_last_n: Annotated[
        int,
        Param(
            "How many of the last tokens are searched for repetitions, at most 8,192: -1 all, 0 none. "
            "Repetitions count up to 50 tokens.",
            -1,
            _INT32,
        ),
    ] = -1
    dry_sequence_breakers: Annotated[
        tuple[str, ...],
        Param("Nothing repeats across one of these texts.", values="up to 16 texts of 1 to 40 characters"),
    ] = (
        "\n",
        ":",
        '"',
        "*",
    )
    mirostat: Annotated[
        Literal[0, 1, 2],
        Param(
            "1 and 2 keep the surprise near `mirostat_tau`, **in place of** `top_k`, `top_p`, `min_p`, "
            "`typical_p`, `top_n_sigma` and XTC, as in llama.cpp; temperature, penalties, DRY and bias hold.",
            0,
            2,
            values="0, 1, 2",
        ),
    ] = 0
    mirostat_tau: Annotated[float, Param("The surprise that mirostat aims at.", 0, 100)] = 5.0
    mirostat_eta: Annotated[float, Param("How fast mirostat corrects itself.", 0, 1)] = 0.1
    dynatemp_range: Annotated[
        float,
        Param("How far the temperature may move either way, by how sure the model is.", 0, 10),
    ] = 0.0
    dynatemp_exponent: Annotated[
        float, Param("How the temperature follows that.", 0, 10, excludes_low=True)
    ] = 1.0
    allowed_token_ids: Annotated[
        tuple[int, ...] | None,
        Param(
            "The only tokens that may be chosen; an end that is not among them is not chosen either.",
            values="1 to 65536 token ids of the vocabulary",
        ),
    ] = None

    @property
    def has_dry(self) -> bool:
        """Whether repetitions are punished."""
        return self.dry_multiplier > 0.0 and self.dry_base >= 1.0 and self.dry_penalty_last_n != 0

    @property
    def draws(self) -> bool:
        """Whether something may choose another token than the likeliest even at temperature 0."""
        return bool(
            self.mirostat or self.typical_p < 1.0 or self.xtc_probability > 0.0 or self.dynatemp_range > 0.0
        )


PLAIN: Final = Samplers()
"""Nothing special is asked."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling as it was requested; None takes the model's own default, then the calibrated one."""

    temperature: Annotated[
        float | None, Param("0 always takes the likeliest token.", 0, 2, file_high=100)
    ] = None
    top_p: Annotated[
        float | None,
        Param(
            "Chooses among the likeliest tokens that sum to this probability; 0 takes the likeliest.", 0, 1
        ),
    ] = None
    top_k: Annotated[
        int | None, Param("Chooses among so many of the likeliest tokens; -1 and 0 mean all.", -1, _INT32)
    ] = None
    min_p: Annotated[
        float | None, Param("Leaves out tokens below this share of the likeliest one's probability.", 0, 1)
    ] = None
    repetition_penalty: Annotated[
        float | None,
        Param(
            "Above 1 makes what stands in prompt and answer less likely.",
            0,
            10,
            excludes_low=True,
            file_high=100,
            alias="repeat_penalty",
        ),
    ] = None
    presence_penalty: Annotated[
        float | None, Param("Above 0 makes what the answer said less likely, once for all times.", -2, 2)
    ] = None
    frequency_penalty: Annotated[
        float | None, Param("Above 0 makes what the answer said less likely, for each time.", -2, 2)
    ] = None
    seed: Annotated[
        int | None,
        Param("The same seed gives the same answer; folded into 32 bits.", values="64-bit integer"),
    ] = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    samplers: Samplers = PLAIN


@dataclass(frozen=True, slots=True)
class ResolvedSampling:
    """Sampling with every default filled in, here the calibrated ones: what an engine runs."""

    temperature: float = 1.0
    top_p: float = 0.95
    top_k: int = 64
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    samplers: Samplers = PLAIN


def _params(kind: type[Samplers | Sampling]) -> dict[str, Param]:
    hints = get_type_hints(kind, include_extras=True)
    return {
        name: extra
        for name, hint in hints.items()
        for extra in getattr(hint, "__metadata__", ())
        if isinstance(extra, Param)
    }


PARAMS: Final[Mapping[str, Param]] = _params(Sampling)
"""The numbers of `Sampling`, in order."""
SAMPLER_PARAMS: Final[Mapping[str, Param]] = _params(Samplers)
_FIELDS: Final = tuple((each.name, each.default) for each in fields(Sampling))


def limits(name: str) -> Limits:
    """The bounds of a parameter, for `Meta(**limits(name))`."""
    return (PARAMS.get(name) or SAMPLER_PARAMS[name]).limits


def file_bounds(name: str) -> tuple[float, float]:
    """The smallest and the largest default that a model file may give."""
    param = PARAMS[name]
    assert param.low is not None and param.high is not None
    return param.low, param.file_high or param.high


def sampling_from(values: Mapping[str, Any]) -> Sampling:
    """Make sampling of values within their bounds: `top_k` -1 becomes 0, a seed is folded into 32 bits."""
    top_k, seed = values.get("top_k"), values.get("seed")
    folded = None if seed is None else seed % SEEDS
    return Sampling(**{**values, "top_k": 0 if top_k == -1 else top_k, "seed": folded})


def merge(*layers: Sampling) -> Sampling:
    """Take each value from the first layer that asks for one; an explicit 0 asks."""
    return Sampling(**_asked(layers))


def resolve(request: Sampling, model: Sampling) -> ResolvedSampling:
    """Fill each value from the request, then the model's own defaults, then the calibrated ones."""
    return ResolvedSampling(**_asked((request, model)))


def _asked(layers: tuple[Sampling, ...]) -> dict[str, Any]:
    asked = {}
    for name, default in _FIELDS:
        for layer in layers:
            value = getattr(layer, name)
            if value is not default and value != default:
                asked[name] = value
                break
    return asked
