"""When NaN is a request's own end, and when it is the worker's."""

import pytest

from ganglion.core.errors import EngineFailed
from ganglion.engines.llama.worker.loop import NanGuard

Rows = list[tuple[int, bool]]


def good(*prompts: int) -> Rows:
    return [(prompt, True) for prompt in prompts]


def bad(*prompts: int) -> Rows:
    return [(prompt, False) for prompt in prompts]


@pytest.mark.parametrize(
    "steps",
    [
        [good(1, 2), bad(1) + good(2)],
        [bad(1, 2) + good(3)],
        [bad(1), bad(2), good(3), bad(4), bad(5)],
        [bad(1)] * 10,
        [bad(1), bad(2), bad(1), bad(2)],
        [[], bad(1), [], bad(2), []],
    ],
)
def test_nan_that_may_be_a_prompts_own_fault_leaves_the_worker_alone(steps: list[Rows]) -> None:
    sanity = NanGuard()
    for step in steps:
        sanity.check(step)


@pytest.mark.parametrize(
    "steps",
    [
        [good(1, 2), bad(1, 2)],
        [bad(1, 1)],
        [bad(1), bad(2), bad(3)],
        [good(9), bad(1), [], bad(2), bad(2), bad(3)],
    ],
)
def test_nan_wherever_one_looks_ends_the_worker(steps: list[Rows]) -> None:
    sanity = NanGuard()
    for step in steps[:-1]:
        sanity.check(step)
    with pytest.raises(EngineFailed, match="NaN"):
        sanity.check(steps[-1])
