"""Which sampling an engine runs: the request's, then the model's own, then the calibrated."""

from dataclasses import fields, replace

from hypothesis import given
from hypothesis import strategies as st

from ganglion.core.request import ResolvedSampling, Sampling, resolve
from ganglion.core.samplers import Samplers

NUMBERS = [field.name for field in fields(Sampling) if field.name not in ("logit_bias", "samplers")]


def test_nothing_asked_and_nothing_known_is_calibrated() -> None:
    resolved = resolve(Sampling(), Sampling())
    assert resolved == ResolvedSampling()
    assert (resolved.temperature, resolved.top_p, resolved.top_k) == (1.0, 0.95, 64)


@given(name=st.sampled_from(NUMBERS), asked=st.integers(0, 5), own=st.integers(0, 5))
def test_the_request_wins_over_the_model_and_zero_is_a_value(name: str, asked: int, own: int) -> None:
    request, model = replace(Sampling(), **{name: asked}), replace(Sampling(), **{name: own})
    assert getattr(resolve(request, model), name) == asked
    assert getattr(resolve(Sampling(), model), name) == own


def test_logit_bias_and_special_samplers_are_the_request_s_alone() -> None:
    assert resolve(Sampling(logit_bias=((1, 2.0),)), Sampling()).logit_bias == ((1, 2.0),)
    special = Samplers(mirostat=2)
    assert resolve(Sampling(samplers=special), Sampling()).samplers == special
