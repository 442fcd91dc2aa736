"""Stop strings are found wherever the text is split, and nothing of them is shown."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganglion.core.events import Piece, Token
from ganglion.text.stops import StopMatcher


def piece(text: str, position: int = 0, is_special: bool = False) -> Piece:
    return Piece(text, (Token(position, text.encode(), position),), is_special)


def run(strings: tuple[str, ...], texts: list[str]) -> tuple[list[Piece], str | None]:
    matcher = StopMatcher(strings)
    out: list[Piece] = []
    for position, text in enumerate(texts):
        out.extend(matcher.feed((piece(text, position),)))
    out.extend(matcher.flush())
    return out, matcher.matched


def naive(strings: tuple[str, ...], text: str) -> tuple[str, str | None]:
    """What is shown and what stopped it: the string that is complete first, the longer of two."""
    for end in range(len(text) + 1):
        complete = [string for string in strings if string and text[:end].endswith(string)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], longest
    return text, None


few_letters = st.text(alphabet="ab\n", max_size=5)
strings_and_texts = st.tuples(
    st.lists(few_letters, max_size=4).map(tuple), st.lists(st.text(alphabet="ab\n", max_size=4), max_size=12)
)


@given(strings_and_texts)
def test_any_split_is_cut_like_the_whole_text(case: tuple[tuple[str, ...], list[str]]) -> None:
    strings, texts = case
    out, matched = run(strings, texts)
    assert ("".join(one.text for one in out), matched) == naive(strings, "".join(texts))


@given(strings_and_texts)
def test_tokens_are_kept_if_any_of_their_text_is(case: tuple[tuple[str, ...], list[str]]) -> None:
    strings, texts = case
    out, matched = run(strings, texts)
    shown = len("".join(one.text for one in out))
    kept = [token.id for one in out for token in one.tokens]
    starts = [len("".join(texts[:index])) for index in range(len(texts))]
    if matched is None:
        assert kept == list(range(len(texts)))
    else:
        with_text = [index for index, text in enumerate(texts) if text and starts[index] < shown]
        assert [index for index in kept if texts[index]] == with_text
        assert kept == sorted(set(kept))


@given(strings_and_texts)
def test_exactly_the_longest_possible_beginning_is_held_back(case: tuple[tuple[str, ...], list[str]]) -> None:
    strings, texts = case
    matcher = StopMatcher(strings)
    fed = shown = ""
    for text in texts:
        fed += text
        shown += "".join(one.text for one in matcher.feed((piece(text),)))
        if matcher.matched is not None:
            return
        held = max((k for s in strings for k in range(len(s) + 1) if fed.endswith(s[:k])), default=0)
        assert shown == fed[: len(fed) - held]


def test_without_strings_the_pieces_come_back_as_they_are() -> None:
    pieces = (piece("anything"),)
    assert StopMatcher(()).feed(pieces) is pieces
    assert StopMatcher(("",)).feed(pieces) is pieces


def test_a_token_partly_before_the_match_is_kept_with_its_text_cut() -> None:
    out, matched = run(("\n\n",), ["one", " two\n", "\nthree", "four"])
    assert matched == "\n\n"
    assert [(one.text, [token.id for token in one.tokens]) for one in out] == [
        ("one", [0]),
        (" two", []),
        ("", [1]),
    ]


def test_the_string_that_is_complete_first_wins_and_of_two_the_longer() -> None:
    assert run(("abcd", "bc"), ["xabcd"])[1] == "bc"
    assert run(("bc", "abc"), ["xabcd"])[1] == "abc"


def test_a_match_reaches_across_a_special_piece() -> None:
    matcher = StopMatcher(("a<|x|>b",))
    assert matcher.feed((piece("ta"), piece("<|x|>", 1, is_special=True))) == (Piece("t", ()),)
    released = matcher.feed((piece("b", 2),))
    assert matcher.matched == "a<|x|>b"
    assert [(one.text, one.is_special) for one in released] == [("", False)]


def test_a_special_piece_is_held_whole() -> None:
    matcher = StopMatcher((">!",))
    assert matcher.feed((piece("<think>", is_special=True),)) == ()
    assert matcher.feed((piece("so"),)) == (piece("<think>", is_special=True), piece("so"))


def test_nothing_is_released_after_a_match() -> None:
    matcher = StopMatcher(("stop",))
    assert matcher.feed((piece("stop"), piece("more"))) == ()
    assert matcher.feed((piece("more"),)) == ()
    assert matcher.flush() == ()


@pytest.mark.parametrize("strings", [("a" * 5_000 + "b",), tuple("a" * n + "b" for n in range(1, 60))])
def test_time_is_linear_on_texts_that_almost_match(strings: tuple[str, ...]) -> None:
    matcher = StopMatcher(strings)
    started = time.process_time()
    for _ in range(20_000):
        matcher.feed((piece("aaaa"),))
    assert time.process_time() - started < 2.0
    assert matcher.matched is None
