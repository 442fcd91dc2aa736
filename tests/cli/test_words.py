"""Numbers as people read them."""

import pytest

from ganglion.cli.terminal.format import age_words, count_words, memory_words, size_words


@pytest.mark.parametrize(
    ("size_bytes", "words"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1 kB"),
        (98_362_432, "98.4 MB"),
        (999_990_000, "1 GB"),
        (4_683_073_184, "4.7 GB"),
        (10**18, "1000000 TB"),
    ],
)
def test_sizes_have_the_units_of_hubs(size_bytes: int, words: str) -> None:
    assert size_words(size_bytes) == words


@pytest.mark.parametrize(
    ("age_s", "words"),
    [(0.4, "just now"), (1, "1 second ago"), (119, "1 minute ago"), (7300, "2 hours ago"), (-5, "just now")],
)
def test_ages_are_told_in_their_largest_unit(age_s: float, words: str) -> None:
    assert age_words(age_s) == words


def test_counts_and_memory() -> None:
    assert [count_words(count) for count in (0, 16, 134_515_008, 7_241_732_096)] == [
        "-",
        "16",
        "135M",
        "7.2B",
    ]
    assert [memory_words(size_mb) for size_mb in (302, 1024, 23_552)] == ["302 MiB", "1.0 GiB", "23.0 GiB"]
