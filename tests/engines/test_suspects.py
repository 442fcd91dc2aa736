"""Who is blamed for a worker's death, and what comes of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganglion.engines.supervision.isolation import PromptKey, Suspects, key_of_text, key_of_tokens

ONE, OTHER = key_of_tokens("a", (1, 2)), key_of_tokens("a", (1, 3))


@pytest.mark.parametrize(
    ("history", "verdict"),
    [
        ([], "clear"),
        (["crash"], "suspect"),
        (["crash", "crash"], "suspect"),
        (["crash", "crash alone"], "quarantined"),
        (["crash", "clear"], "clear"),
        (["crash", "clear", "crash"], "suspect"),
        (["crash", "crash alone", "clear"], "quarantined"),
        (["crash", "crash alone", "crash"], "quarantined"),
    ],
)
def test_a_history_has_its_verdict(history: list[str], verdict: str) -> None:
    suspects = Suspects()
    for what in history:
        if what == "clear":
            suspects.clear(ONE)
        else:
            suspects.blame(ONE, 0.0, was_alone=what == "crash alone")
    assert suspects.judge(ONE, 1.0) == verdict
    assert suspects.judge(OTHER, 1.0) == "clear"


def test_suspicion_passes_with_time_and_quarantine_does_not() -> None:
    suspects = Suspects(suspicion_s=60.0)
    suspects.blame(ONE, 100.0, was_alone=False)
    suspects.blame(OTHER, 100.0, was_alone=True)
    assert [suspects.judge(ONE, now_s) for now_s in (159.0, 160.0)] == ["suspect", "clear"]
    assert suspects.judge(OTHER, 1e9) == "quarantined"


def test_the_same_words_of_another_tenant_are_another_request() -> None:
    keys = {
        key_of_tokens("a", (1, 2)),
        key_of_tokens("b", (1, 2)),
        key_of_tokens("a", (2, 1)),
        key_of_tokens("a", (1,)),
        key_of_text("12"),
        key_of_text("21"),
    }
    assert len(keys) == 6
    assert key_of_tokens("a", (1, 2)) == ONE


BLAMES = st.tuples(st.integers(0, 9), st.booleans())


@given(st.lists(BLAMES, max_size=60), st.integers(1, 5))
def test_the_newest_are_remembered_and_no_more_than_allowed(blames, most) -> None:
    suspects = Suspects(most=most)
    keys = [PromptKey("", bytes([number])) for number in range(10)]
    for now_s, (number, was_alone) in enumerate(blames):
        suspects.blame(keys[number], float(now_s), was_alone=was_alone)
        assert suspects.judge(keys[number], now_s) != "clear"
    verdicts = [suspects.judge(key, float(len(blames))) for key in keys]
    assert verdicts.count("suspect") <= most
    assert verdicts.count("quarantined") <= most
    newest = list(dict.fromkeys(number for number, was_alone in reversed(blames) if was_alone))[:most]
    assert {number for number, verdict in enumerate(verdicts) if verdict == "quarantined"} == set(newest)
