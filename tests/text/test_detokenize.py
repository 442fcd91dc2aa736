"""Token bytes become text without losing a byte, a token or their order."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ganglion.core.events import Piece, Token
from ganglion.text.detokenize import Detokenizer


def token(piece: bytes, position: int = 0) -> Token:
    return Token(position, piece, position)


def detokenized(pieces: list[bytes], special: frozenset[int] = frozenset()) -> list[Piece]:
    detokenizer = Detokenizer()
    out: list[Piece] = []
    for position, piece in enumerate(pieces):
        out.extend(detokenizer.feed(token(piece, position), position in special))
    out.extend(detokenizer.flush())
    return out


@st.composite
def split_bytes(draw: st.DrawFn) -> list[bytes]:
    whole = draw(st.one_of(st.text(max_size=40).map(str.encode), st.binary(max_size=40)))
    cuts = sorted(draw(st.lists(st.integers(0, len(whole)), max_size=25)))
    borders = [0, *cuts, len(whole)]
    return [whole[a:b] for a, b in pairwise(borders)]


@given(split_bytes())
def test_any_split_of_any_bytes_decodes_like_the_whole(pieces: list[bytes]) -> None:
    out = detokenized(pieces)
    assert "".join(piece.text for piece in out) == b"".join(pieces).decode("utf-8", "replace")


@given(split_bytes())
def test_tokens_are_neither_lost_nor_doubled_nor_reordered(pieces: list[bytes]) -> None:
    out = detokenized(pieces)
    assert [one.id for piece in out for one in piece.tokens] == list(range(len(pieces)))


@given(split_bytes())
def test_a_token_is_in_the_piece_that_carries_its_last_character(pieces: list[bytes]) -> None:
    shown = ""
    for piece in detokenized(pieces):
        shown += piece.text
        for one in piece.tokens:
            so_far = b"".join(pieces[: one.position + 1])
            # Decoding only this far gives as many characters as were shown, give or take an open one.
            assert len(shown) - len(piece.text) <= len(so_far.decode("utf-8", "replace")) <= len(shown)


@given(st.lists(st.tuples(st.binary(max_size=5), st.booleans()), max_size=20))
def test_each_run_between_special_tokens_decodes_on_its_own(tokens: list[tuple[bytes, bool]]) -> None:
    special = frozenset(index for index, (_, is_special) in enumerate(tokens) if is_special)
    expected, run = "", b""
    for piece, is_special in tokens:
        if is_special:
            expected += run.decode("utf-8", "replace") + piece.decode("utf-8", "replace")
            run = b""
        else:
            run += piece
    expected += run.decode("utf-8", "replace")
    out = detokenized([piece for piece, _ in tokens], special)
    assert "".join(piece.text for piece in out) == expected
    assert [one.id for piece in out for one in piece.tokens] == list(range(len(tokens)))


def test_a_character_over_three_tokens_is_one_piece_with_all_three() -> None:
    out = detokenized([b"\xe2", b"\x82", b"\xac"])
    assert out == [Piece("€", (token(b"\xe2", 0), token(b"\x82", 1), token(b"\xac", 2)))]


def test_whole_characters_are_shown_while_the_next_one_waits() -> None:
    detokenizer = Detokenizer()
    assert detokenizer.feed(token(b"ab\xe2"), False) == (Piece("ab", ()),)
    assert detokenizer.feed(token(b"\x82\xac", 1), False) == (
        Piece("€", (token(b"ab\xe2"), token(b"\x82\xac", 1))),
    )


def test_a_special_token_flushes_what_waits_and_stands_alone() -> None:
    out = detokenized([b"\xf0\x9f", b"<|im_end|>"], frozenset({1}))
    assert out == [
        Piece("�", (token(b"\xf0\x9f", 0),)),
        Piece("<|im_end|>", (token(b"<|im_end|>", 1),), is_special=True),
    ]
