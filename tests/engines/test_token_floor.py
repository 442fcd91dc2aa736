"""A text's lower bound on tokens is one, and is enough to refuse what could never fit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganglion.engines.llama.native.library import open_library
from ganglion.engines.llama.native.model import NativeModel, load_model
from ganglion.engines.token_floor import TokenFloor, longest_pieces
from ganglion.engines.tokenizing import longest_pieces_of
from support.embedded_model import embedded_model

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def model() -> NativeModel:
    found = embedded_model()
    return load_model(open_library(), str(found.path), gpu_layers=0)


@pytest.fixture(scope="module")
def floor(model: NativeModel) -> TokenFloor:
    return TokenFloor(longest_pieces_of(model))


WORDS = [
    "<|im_start|>",
    "hello ",
    "  ",
    "\n\n",
    "====",
    "é",
    "漢",
    "\x04",
    "def f(x):\n    ",
    "7",
    "\U0001f600",
]


@given(
    st.one_of(st.text(max_size=300), st.lists(st.sampled_from(WORDS), max_size=200).map("".join)),
    st.booleans(),
)
def test_no_text_has_fewer_tokens_than_its_floor(
    model: NativeModel, floor: TokenFloor, text: str, parse_special: bool
) -> None:
    tokens = model.tokenize(text, add_special=False, parse_special=parse_special)
    assert floor._parts(text.encode("utf-8", "surrogatepass")) <= len(tokens) + 1e-6


async def test_a_long_text_is_judged_by_as_much_of_it_as_it_takes(
    model: NativeModel, floor: TokenFloor
) -> None:
    text = "The quick brown fox jumps over the lazy dog. " * 40_000
    least = await floor.above(text, 8192)
    assert least is not None
    assert 8192 < least < 20_000, "counted no further than needed"
    assert await floor.above(text[:8192], 8192) is None
    assert await floor.above("a b " * 5000, 8192) is None, "it may fit"


async def test_what_a_tokenizer_may_drop_is_no_part_of_a_token() -> None:
    longest = longest_pieces([b"a", b" a"], drops_whitespace=True)
    assert await TokenFloor(longest).above(" \x00" * 1000, 10) is None
    assert await TokenFloor(longest).above("a" * 1000, 10) is not None
    assert await TokenFloor([]).above("a" * 1000, 10) is None, "of this vocabulary nothing is known"
