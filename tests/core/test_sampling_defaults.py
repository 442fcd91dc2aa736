"""Sampling parameters: one declaration for bounds, defaults and merging."""

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganglion.core.sampling import (
    PARAMS,
    PLAIN,
    SAMPLER_PARAMS,
    SEEDS,
    ResolvedSampling,
    Samplers,
    Sampling,
    file_bounds,
    merge,
    resolve,
    sampling_from,
)

FIELDS = {field.name for field in fields(Sampling)}


def test_nothing_asked_and_nothing_known_is_calibrated() -> None:
    resolved = resolve(Sampling(), Sampling())
    assert resolved == ResolvedSampling()
    assert (resolved.temperature, resolved.top_p, resolved.top_k) == (1.0, 0.95, 64)


@given(name=st.sampled_from([*PARAMS]), asked=st.integers(0, 5), own=st.integers(0, 5))
def test_the_request_wins_over_the_model_and_zero_is_a_value(name: str, asked: int, own: int) -> None:
    request, model = replace(Sampling(), **{name: asked}), replace(Sampling(), **{name: own})
    assert getattr(resolve(request, model), name) == asked
    assert getattr(resolve(Sampling(), model), name) == own
    assert merge(Sampling(), request, model) == request


def test_a_bias_and_special_samplers_come_from_the_first_who_asks() -> None:
    special, biased = Sampling(samplers=Samplers(mirostat=2)), Sampling(logit_bias=((1, 2.0),))
    assert resolve(biased, special).logit_bias == ((1, 2.0),)
    assert resolve(special, biased).samplers == Samplers(mirostat=2)
    assert merge(biased, special, Sampling(logit_bias=((3, 1.0),))) == replace(
        biased, samplers=special.samplers
    )


def test_every_number_is_declared_with_its_bounds_and_a_calibrated_default_within_them() -> None:
    assert FIELDS == {*PARAMS, "logit_bias", "samplers"} == {each.name for each in fields(ResolvedSampling)}
    assert [*SAMPLER_PARAMS] == [each.name for each in fields(Samplers)]
    for name, param in PARAMS.items():
        assert param.doc.endswith(".")
        default = getattr(ResolvedSampling(), name)
        assert default is None or param.has(default)
    for name, param in SAMPLER_PARAMS.items():
        assert param.low is None or param.has(getattr(PLAIN, name))


@pytest.mark.parametrize(
    ("name", "inside", "outside"),
    [
        ("temperature", (0, 2), (-0.1, 2.1, float("nan"))),
        ("repetition_penalty", (0.1, 10), (0, 10.1)),
        ("top_k", (-1, 2**31 - 1), (-2, 2**31)),
        ("seed", (-(2**70), 2**70), ()),
    ],
)
def test_a_request_stays_within_bounds(
    name: str, inside: tuple[float, ...], outside: tuple[float, ...]
) -> None:
    assert all(PARAMS[name].has(value) for value in inside)
    assert not any(PARAMS[name].has(value) for value in outside)


def test_a_model_file_may_go_further_than_a_request() -> None:
    assert file_bounds("temperature") == (0, 100)
    assert file_bounds("repetition_penalty") == (0, 100)
    assert file_bounds("top_p") == (0, 1)


def test_all_tokens_have_one_name_and_a_seed_is_folded() -> None:
    assert sampling_from({"top_k": -1, "seed": SEEDS + 2}) == Sampling(top_k=0, seed=2)
    assert sampling_from({"top_k": None, "seed": -1}) == Sampling(seed=SEEDS - 1)
    assert sampling_from({}) == Sampling()
