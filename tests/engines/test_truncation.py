"""A prompt that may be cut keeps its end, and leaves the answer its room."""

import pytest

from ganglion.engines.prompt_checks import truncated

TOKENS = tuple(range(100))


@pytest.mark.parametrize(
    ("asked", "answer", "kept"),
    [(None, 10, 100), (4, 10, 4), (200, 10, 100), (-1, 10, 70), (-1, 0, 80), (-1, 2048, 40), (-1, 80, 40)],
)
def test_a_prompt_keeps_its_last_tokens(asked: int | None, answer: int, kept: int) -> None:
    assert truncated(TOKENS, asked, 80, answer) == TOKENS[-kept:]


def test_something_is_always_left() -> None:
    assert truncated(TOKENS, -1, 1, 1) == TOKENS[-1:]
