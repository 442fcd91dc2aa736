"""When a worker is given up, and when it is only slow."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganglion.engines.supervision.watchdog import FIRST, PATIENCE, Watchdog, WorkerLimits, WorkerVitals

LIMITS = WorkerLimits(hang_s=30.0, silence_s=10.0, ping_s=2.0)


class Watch:
    """A worker under watch, in steps of one ping."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.watchdog = Watchdog(LIMITS, 0.0)
        self.vitals = WorkerVitals()

    def look(self, after_s: float = 2.0, *, is_answering: bool = True, **changes: object) -> str | None:
        self.now_s += after_s
        self.vitals = replace(self.vitals, frames=self.vitals.frames + is_answering, **changes)
        return self.watchdog.look(self.vitals, self.now_s)

    def time_until_trouble(self, *, is_answering: bool = True, most_s: float = 10_000.0) -> float:
        began_s = self.now_s
        while self.now_s < began_s + most_s:
            if self.look(is_answering=is_answering) is not None:
                return self.now_s - began_s
        return most_s


def working(steps: int = 1) -> Watch:
    watch = Watch()
    assert watch.look(owes_step=True) is None
    assert watch.look(steps=steps) is None
    return watch


def test_a_worker_that_is_silent_is_stopped_whether_it_has_work_or_not() -> None:
    for watch in (Watch(), working()):
        watch.look()
        assert 10.0 <= watch.time_until_trouble(is_answering=False) <= 14.0


def test_pongs_are_no_steps() -> None:
    assert 30.0 <= working().time_until_trouble() <= 34.0


def test_an_idle_worker_owes_nothing() -> None:
    watch = working()
    watch.look(owes_step=False)
    assert watch.time_until_trouble() == 10_000.0


def test_the_first_step_may_take_longer() -> None:
    watch = Watch()
    watch.look(owes_step=True)
    assert FIRST * 30.0 <= watch.time_until_trouble() <= FIRST * 30.0 + 4.0


def test_a_slow_machine_is_given_several_times_its_longest_step() -> None:
    watch = working()
    for _ in range(10):
        watch.look()
    assert watch.look(steps=2) is None
    assert PATIENCE * 20.0 <= watch.time_until_trouble() <= PATIENCE * 20.0 + 4.0


def test_one_slow_step_is_forgotten_in_time() -> None:
    watch = working()
    for _ in range(10):
        watch.look()
    for steps in range(2, 200):
        watch.look(steps=steps)
    assert watch.time_until_trouble() <= 34.0


def test_steps_do_not_hide_that_nothing_is_tokenized() -> None:
    watch = working()
    watch.look(owes_answer=True)
    verdicts = [watch.look(steps=steps) for steps in range(2, 100)]
    assert verdicts[int(FIRST * 15) - 2] is None
    assert verdicts[-1] == "tokenized nothing for 120 s"


@given(st.lists(st.floats(0.0, 1e5), max_size=5))
def test_time_in_which_the_server_itself_stood_still_is_not_held_against_the_worker(gaps_s) -> None:
    watch = working()
    for number, gap_s in enumerate(gaps_s):
        assert watch.look(gap_s, is_answering=False) is None or number > 1
        assert watch.look(steps=watch.vitals.steps + 1) is None


@pytest.mark.parametrize("is_answering", [True, False])
def test_the_trouble_is_no_time_in_health(is_answering) -> None:
    watch = working()
    watch.time_until_trouble(is_answering=is_answering)
    assert watch.watchdog.troubled_s > 10.0
