"""Choosing a token: the arithmetic on a row of logits, with the real sampler chain where chance decides."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ganglion.core.sampling import ResolvedSampling, Samplers
from ganglion.engines.llama.native.context import NativeContext
from ganglion.engines.llama.native.library import open_library
from ganglion.engines.llama.native.model import NativeModel, load_model
from ganglion.engines.llama.worker.sampling import (
    MAX_MATCH,
    MAX_WINDOW,
    DryPenalty,
    NotANumber,
    NothingLeft,
    Sampler,
    logprobs,
)
from support.embedded_model import embedded_model

ROWS = arrays(np.float32, st.integers(8, 200), elements=st.floats(-60, 60, width=32))
END = 3
"""The only end token of the vocabulary that these tests imagine."""


class Words:
    """What a greedy sampler asks of a model."""

    end_tokens = (END,)
    vocabulary_size = 4

    def piece(self, token: int) -> bytes:
        return PIECES[token]


PIECES = [b"a", b"b", b"\n", b""]


def greedy(prompt: list[int] | None = None, *, ignore_eos: bool = False, **fields: object) -> Sampler:
    defaults = {
        "temperature": 0.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "seed": None,
        "logit_bias": (),
    }
    sampling = ResolvedSampling(**(defaults | fields))
    return Sampler(Words(), sampling, prompt or [], ignore_eos=ignore_eos)


def choose(sampler: Sampler, *logits: float) -> tuple[int, list[float]]:
    """The choice, and the row as it was chosen from."""
    row = np.array(logits, np.float32)
    return sampler.choose(None, 0, row), row.tolist()


@given(ROWS, st.integers(0, 8))
def test_logprobs_are_those_of_double_precision(row, count):
    exact = row.astype(np.float64)
    exact -= exact.max() + np.log(np.exp(exact - exact.max()).sum())
    normaliser, likeliest = logprobs(row, count)
    assert np.allclose(row.astype(np.float64) - normaliser, exact, atol=1e-5)
    values = [value for _, value in likeliest]
    assert values == sorted(values, reverse=True)
    assert np.allclose(values, np.sort(exact)[::-1][:count], atol=1e-5)
    assert all(abs(exact[token] - value) < 1e-5 for token, value in likeliest)
    assert len({token for token, _ in likeliest}) == count


def test_greedy_takes_the_likeliest_and_leaves_the_row_alone():
    token, row = choose(greedy(), 0.0, 2.0, 1.0, -1.0)
    assert (token, row) == (1, [0.0, 2.0, 1.0, -1.0])


def test_a_bias_is_added_once():
    token, row = choose(greedy(logit_bias=((0, 3.0), (2, -5.0))), 0.0, 2.0, 1.0, 0.0)
    assert (token, row) == (0, [3.0, 2.0, -4.0, 0.0])


def test_an_ignored_end_is_never_chosen_whatever_its_bias():
    token, row = choose(greedy(ignore_eos=True, logit_bias=((END, 100.0),)), 0.0, 1.0, 0.0, 9.0)
    assert token == 1
    assert row[END] == -np.inf


def test_presence_counts_once_and_frequency_every_time():
    sampler = greedy(presence_penalty=0.5, frequency_penalty=0.25)
    assert choose(sampler, 1.0, 0.0, 0.0, 0.0) == (0, [1.0, 0.0, 0.0, 0.0])
    assert choose(sampler, 1.0, 0.0, 0.0, 0.0) == (0, [0.25, 0.0, 0.0, 0.0])
    assert choose(sampler, 1.0, 0.5, 0.0, 0.0) == (1, [0.0, 0.5, 0.0, 0.0])
    assert choose(sampler, 1.0, 1.0, 0.0, 0.0)[1] == [0.0, 0.25, 0.0, 0.0]


def test_presence_and_frequency_forgive_the_prompt_and_repetition_does_not():
    assert choose(greedy([0], presence_penalty=2.0), 1.0, 0.5, 0.0, 0.0)[0] == 0
    token, row = choose(greedy([0, 2], repetition_penalty=2.0), 1.0, 0.6, -1.0, -3.0)
    assert token == 1
    assert row == pytest.approx([0.5, 0.6, -2.0, -3.0])


def test_repetition_remembers_what_was_said():
    sampler = greedy(repetition_penalty=4.0)
    assert choose(sampler, 1.0, 0.5, 0.0, 0.0)[0] == 0
    assert choose(sampler, 1.0, 0.5, 0.0, 0.0)[0] == 1


def test_a_window_forgets_what_falls_out_of_it():
    sampler = greedy([1, 0], repetition_penalty=2.0, samplers=Samplers(repeat_last_n=2))
    assert choose(sampler, 1.0, 0.9, 0.8, 0.0)[1] == pytest.approx([0.5, 0.45, 0.8, 0.0])  # says 2
    assert choose(sampler, 1.0, 0.9, 0.8, 0.0)[1] == pytest.approx([0.5, 0.9, 0.4, 0.0])  # says 1
    assert choose(sampler, 1.0, 0.9, 0.8, 0.0)[1] == pytest.approx([1.0, 0.45, 0.4, 0.0])
    counted = greedy([0], frequency_penalty=0.25, samplers=Samplers(repeat_last_n=1))
    assert [choose(counted, 1.0, 0.0, 0.0, 0.0)[1][0] for _ in range(3)] == [1.0, 0.75, 0.75]


def test_no_window_is_no_penalty():
    sampler = greedy([0], repetition_penalty=2.0, presence_penalty=2.0, samplers=Samplers(repeat_last_n=0))
    assert [choose(sampler, 1.0, 0.5, 0.0, 0.0) for _ in range(2)] == [(0, [1.0, 0.5, 0.0, 0.0])] * 2


def test_only_allowed_tokens_are_chosen():
    assert choose(greedy(samplers=Samplers(allowed_token_ids=(2, 3))), 5.0, 4.0, 1.0, 0.0)[0] == 2
    with pytest.raises(NothingLeft):
        choose(greedy(samplers=Samplers(allowed_token_ids=())), 5.0, 4.0, 1.0, 0.0)


def dry_rule(tokens: list[int], samplers: Samplers) -> dict[int, float]:
    """DRY as its author wrote it down, token by token."""
    last = len(tokens) - 1
    broken = [PIECES[token] in (b"\n",) for token in tokens]
    found: dict[int, float] = {}
    for place in range(last):
        length = 0
        while (
            length <= place
            and length < MAX_MATCH
            and tokens[place - length] == tokens[last - length]
            and not broken[last - length]
        ):
            length += 1
        if length >= samplers.dry_allowed_length:
            penalty = samplers.dry_multiplier * samplers.dry_base ** (length - samplers.dry_allowed_length)
            found[tokens[place + 1]] = max(found.get(tokens[place + 1], 0.0), penalty)
    return found


@given(st.lists(st.integers(0, 2), min_size=1, max_size=60), st.integers(1, 4), st.integers(0, 8))
def test_dry_is_the_rule_of_its_author(tokens, allowed, split):
    asked = Samplers(dry_multiplier=0.5, dry_base=1.5, dry_allowed_length=allowed)
    dry = DryPenalty(asked, tokens[:split], PIECES.__getitem__)
    for token in tokens[split:]:
        dry.remember(token)
    row = np.zeros(4, np.float32)
    dry.apply(row)
    expected = dry_rule(tokens, asked)
    assert (-row).tolist() == pytest.approx([expected.get(token, 0.0) for token in range(4)], rel=1e-5)


def test_dry_looks_no_further_back_than_its_window_and_never_further_than_the_bound():
    row = np.zeros(4, np.float32)
    DryPenalty(Samplers(dry_multiplier=1.0, dry_penalty_last_n=4), [0, 1, 1, 1, 0], PIECES.__getitem__).apply(
        row
    )
    assert not row.any()
    dry = DryPenalty(Samplers(dry_multiplier=1.0), [0] * 3 * MAX_WINDOW, PIECES.__getitem__)
    for _ in range(2 * MAX_WINDOW + 1):
        dry.remember(1)
    dry.apply(row)
    assert row[0] == 0.0 and row[1] == -np.float32(1e6)


@pytest.mark.parametrize(
    "row", [[np.nan] * 4, [0.0, np.nan, 1.0, 0.0], [-np.inf] * 4, [0.0, np.inf, 0.0, 0.0]]
)
def test_a_row_that_is_not_a_number_ends_its_own_request(row):
    with pytest.raises(NotANumber):
        choose(greedy(), *row)


@pytest.fixture(scope="module")
def model():
    found = embedded_model()
    loaded = load_model(open_library(), str(found.path), gpu_layers=0)
    yield loaded
    loaded.free()


@pytest.fixture(scope="module")
def context(model: NativeModel):
    opened = model.new_context(
        cells=256, slots=1, is_unified=True, batch=32, threads=2, kv_type="f16", flash_attention=False
    )
    yield opened
    opened.free()


def draws(model: NativeModel, context: NativeContext, count: int, **fields: object) -> list[int]:
    """Tokens drawn from one and the same row: four equally likely ones, and a fifth at half their chance."""
    defaults = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "seed": 5}
    penalties = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    sampling = ResolvedSampling(**(defaults | penalties | {"logit_bias": ()} | fields))
    sampler = Sampler(model, sampling, [], ignore_eos=False)
    (row,) = context.decode([(0, 0, [1], True)])
    logits = context.logits(row)
    tokens = []
    for _ in range(count):
        logits[:] = -50.0
        logits[[10, 20, 30, 40]] = 5.0
        logits[50] = 5.0 - np.log(2.0)
        tokens.append(sampler.choose(context, row, logits))
    sampler.free()
    context.trim(0, 0)
    return tokens


@pytest.mark.model
def test_a_draw_follows_the_probabilities_and_the_seed(model, context):
    drawn = draws(model, context, 900)
    counts = Counter(drawn)
    assert set(counts) == {10, 20, 30, 40, 50}
    assert all(150 < counts[token] < 250 for token in (10, 20, 30, 40))
    assert 60 < counts[50] < 145
    assert draws(model, context, 900) == drawn
    assert draws(model, context, 900, seed=6) != drawn


@pytest.mark.model
def test_the_filters_leave_out_what_they_say(model, context):
    assert set(draws(model, context, 200, min_p=0.6)) == {10, 20, 30, 40}
    assert set(draws(model, context, 200, top_k=4)) == {10, 20, 30, 40}
    assert len(set(draws(model, context, 200, top_p=0.4))) == 2
    assert len(set(draws(model, context, 50, top_k=1))) == 1


@pytest.mark.model
def test_the_special_samplers_leave_out_what_they_say(model, context):
    """Four tokens at 2/9 and one at 1/9; the rest is 55 nats away."""
    assert set(draws(model, context, 200, samplers=Samplers(top_n_sigma=0.1))) == {10, 20, 30, 40}
    assert 50 not in draws(model, context, 200, samplers=Samplers(typical_p=0.8))
    drawn = draws(model, context, 200, samplers=Samplers(xtc_probability=1.0, xtc_threshold=0.1))
    assert len(set(drawn)) == 1, "of those above the threshold the least likely stays"
    rest = draws(model, context, 200, samplers=Samplers(xtc_probability=1.0, xtc_threshold=0.4))
    assert len(set(rest)) == 5, "nothing is above the threshold"


@pytest.mark.model
@pytest.mark.parametrize("version", [1, 2])
def test_mirostat_draws_by_its_seed_and_a_small_tau_draws_little(model, context, version):
    loose = Samplers(mirostat=version, mirostat_tau=8.0)
    drawn = draws(model, context, 200, samplers=loose)
    assert draws(model, context, 200, samplers=loose) == drawn
    assert draws(model, context, 200, samplers=loose, seed=6) != drawn
    tight = Samplers(mirostat=version, mirostat_tau=0.01)
    assert len(set(draws(model, context, 200, samplers=tight)[100:])) < len(set(drawn[100:]))
    assert len(set(draws(model, context, 50, temperature=0.0, samplers=loose))) <= len(set(drawn))


@pytest.mark.model
def test_a_dynamic_temperature_moves_with_the_range(model, context):
    cold = Counter(draws(model, context, 600, temperature=0.1))
    warm = Counter(draws(model, context, 600, temperature=0.1, samplers=Samplers(dynatemp_range=2.0)))
    assert warm[50] != cold[50]
    assert draws(model, context, 3, temperature=0.0) == [10] * 3
    moved = draws(model, context, 200, temperature=0.0, samplers=Samplers(dynatemp_range=1.0))
    assert len(set(moved)) > 1
