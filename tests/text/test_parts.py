"""Reasoning and text come apart the same way wherever an answer is split."""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganglion.core.events import Delta, Finished, Opened, Piece, Started, Token, Usage
from ganglion.core.fold import fold
from ganglion.core.grammar import Grammar
from ganglion.text.markers import FAMILIES, GEMMA, HARMONY, THINK, WHITESPACE, MarkerFamily
from ganglion.text.parts import Part, PartSplitter

Blocks = list[tuple[str, str]]


def piece(text: str, position: int = 0, is_special: bool = False) -> Piece:
    return Piece(text, (Token(position, text.encode(), position),), is_special)


def split(
    pieces: list[Piece],
    family: MarkerFamily | None = THINK,
    *,
    is_open: bool = False,
    keep_markers: bool = False,
) -> tuple[list[Part], int]:
    splitter = PartSplitter(family, is_open=is_open, keep_markers=keep_markers)
    parts = [part for one in pieces for part in splitter.feed((one,))]
    parts += splitter.finish()
    grammar = Grammar()
    for event in [Started(1), *parts, Finished("stop", Usage(1, 1))]:
        grammar.feed(event)
    grammar.check_ended()
    return parts, splitter.reasoning_tokens


def blocks(parts: list[Part]) -> Blocks:
    answer = fold([*parts, Finished("stop", Usage(1, 1))])
    return [(block.kind, block.text) for block in answer.blocks]


def blocks_of(text: str, family: MarkerFamily | None = THINK, *, is_open: bool = False) -> Blocks:
    return blocks(split([piece(text)], family, is_open=is_open)[0])


def reference(text: str, is_open: bool) -> Blocks:
    """The rule for tags, on a whole text."""
    out: Blocks = []
    opening = re.compile(r"[ \t\r\n]*<think>")
    is_trimming = is_open
    while is_open or opening.match(text):
        text = opening.sub("", text, count=1) if opening.match(text) else text
        thought, _, text = text.partition("</think>")
        if thought.strip(WHITESPACE):
            out.append(("reasoning", thought.strip(WHITESPACE)))
        is_open, is_trimming = False, True
    text = text.lstrip(WHITESPACE) if is_trimming else text
    return [*out, ("text", text)] if text else out


FRAGMENTS = {
    THINK: ["<think>", "</think>", "\n", " ", "a", "é", "<", "</", "think>", "<th", "<|im_end|>"],
    GEMMA: ["<|channel>", "<channel|>", "thought", "final", "\n", " ", "a", "<", "<|", "channel", ">"],
    HARMONY: [
        "<|start|>",
        "assistant",
        "<|channel|>",
        "analysis",
        "final",
        "commentary to=f <|constrain|>json",
        "<|message|>",
        "<|end|>",
        "<|return|>",
        "a",
        "\n",
        "<|",
        "x" * 90,
    ],
}


@st.composite
def fragmented(draw: st.DrawFn, family: MarkerFamily) -> list[Piece]:
    """Fragments of an answer, those that look like control tokens special or not, the others cut anywhere."""
    out: list[Piece] = []
    for fragment in draw(st.lists(st.sampled_from(FRAGMENTS[family]), max_size=12)):
        if fragment.startswith("<") and fragment.endswith(">") and draw(st.booleans()):
            out.append(piece(fragment, is_special=True))
        else:
            cut = draw(st.integers(0, len(fragment)))
            out += [piece(text) for text in (fragment[:cut], fragment[cut:])]
    return [piece(one.text, position, one.is_special) for position, one in enumerate(out)]


def merged(pieces: list[Piece]) -> list[Piece]:
    """The same answer with every run of ordinary pieces in one."""
    out: list[Piece] = []
    for one in pieces:
        if out and not one.is_special and not out[-1].is_special:
            out[-1] = Piece(out[-1].text + one.text, out[-1].tokens + one.tokens)
        else:
            out.append(one)
    return out


@given(st.lists(st.sampled_from(FRAGMENTS[THINK]), max_size=12).map("".join), st.booleans(), st.data())
def test_any_split_gives_the_blocks_of_the_rule(text: str, is_open: bool, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=20)))
    borders = [0, *cuts, len(text)]
    pieces = [piece(text[a:b]) for a, b in pairwise(borders)]
    assert blocks(split(pieces, is_open=is_open)[0]) == reference(text, is_open)


@pytest.mark.parametrize("family", [THINK, GEMMA, HARMONY], ids=lambda family: family.name)
@given(data=st.data(), is_open=st.booleans())
def test_borders_between_pieces_change_nothing(
    family: MarkerFamily, data: st.DataObject, is_open: bool
) -> None:
    pieces = data.draw(fragmented(family))
    parts, _ = split(pieces, family, is_open=is_open)
    whole, _ = split(merged(pieces), family, is_open=is_open)
    assert blocks(parts) == blocks(whole)


@pytest.mark.parametrize("family", [THINK, GEMMA, HARMONY], ids=lambda family: family.name)
@given(data=st.data(), is_open=st.booleans(), keep_markers=st.booleans())
def test_tokens_come_out_once_and_in_order_and_are_counted(
    family: MarkerFamily, data: st.DataObject, is_open: bool, keep_markers: bool
) -> None:
    pieces = data.draw(fragmented(family))
    parts, reasoning_tokens = split(pieces, family, is_open=is_open, keep_markers=keep_markers)
    kinds = {part.index: part.kind for part in parts if isinstance(part, Opened)}
    shown = [
        (kinds[part.index], token.id) for part in parts if isinstance(part, Delta) for token in part.tokens
    ]
    ids = [position for _, position in shown]
    assert ids == sorted(set(ids))
    assert sum(kind == "reasoning" for kind, _ in shown) <= reasoning_tokens <= len(pieces)


@pytest.mark.parametrize("family", [THINK, GEMMA, HARMONY], ids=lambda family: family.name)
@given(data=st.data())
def test_kept_markers_leave_every_ordinary_character_in_one_text(
    family: MarkerFamily, data: st.DataObject
) -> None:
    pieces = [Piece(one.text, one.tokens) for one in data.draw(fragmented(family))]
    text = "".join(one.text for one in pieces)
    parts, _ = split(pieces, family, keep_markers=True)
    assert "".join(content for kind, content in blocks(parts) if kind == "text") == text
    assert len(blocks(parts)) <= 1


def test_thoughts_and_answer_come_apart_and_are_trimmed() -> None:
    assert blocks_of("<think>\nhm, so\n\n</think>\n\nHello\n") == [
        ("reasoning", "hm, so"),
        ("text", "Hello\n"),
    ]


def test_an_answer_that_mentions_the_tag_stays_an_answer() -> None:
    text = "Use <think> and </think> around it."
    assert blocks_of(text) == [("text", text)]


def test_a_control_token_that_is_a_tag_but_not_obeyed_is_content() -> None:
    pieces = [piece("Use "), piece("<think>", 1, is_special=True), piece(" first.", 2)]
    assert blocks(split(pieces)[0]) == [("text", "Use <think> first.")]


def test_an_empty_block_is_never_seen() -> None:
    assert blocks_of("<think>\n\n</think>\n\nHello") == [("text", "Hello")]
    assert blocks_of("<think></think>") == []
    assert blocks_of("") == []


def test_a_block_that_the_prompt_opened_may_be_opened_again() -> None:
    assert blocks_of("so</think>yes", is_open=True) == [("reasoning", "so"), ("text", "yes")]
    assert blocks_of("<think>\nso</think>yes", is_open=True) == [("reasoning", "so"), ("text", "yes")]


def test_reasoning_that_never_ends_is_closed_as_reasoning() -> None:
    assert blocks_of("<think>and then </thi") == [("reasoning", "and then </thi")]


def test_text_without_markers_keeps_its_whitespace() -> None:
    assert blocks_of("\n  indented\n") == [("text", "\n  indented\n")]
    assert blocks_of(" \n") == [("text", " \n")]


def test_the_first_character_is_shown_as_soon_as_it_cannot_be_a_marker() -> None:
    splitter = PartSplitter(THINK, is_open=False, keep_markers=False)
    assert splitter.feed((piece("<thin"),)) == []
    assert splitter.feed((piece("g", 1),)) == [
        Opened(0, "text"),
        Delta(0, "<thin", piece("<thin").tokens),
        Delta(0, "g", piece("g", 1).tokens),
    ]


def test_markers_may_come_as_control_tokens_and_count_as_reasoning() -> None:
    pieces = [
        piece("<think>", 0, is_special=True),
        piece("\n", 1),
        piece("so", 2),
        piece("</think>", 3, is_special=True),
        piece("\n\n", 4),
        piece("yes", 5),
        piece("<|im_end|>", 6, is_special=True),
    ]
    parts, reasoning_tokens = split(pieces)
    assert blocks(parts) == [("reasoning", "so"), ("text", "yes")]
    assert reasoning_tokens == 4
    assert [token.id for part in parts if isinstance(part, Delta) for token in part.tokens] == [2, 5]


def test_tokens_go_with_what_is_shown_of_them_when_their_end_is_trimmed() -> None:
    parts, _ = split([piece("<think>so.\n\n", 0), piece("\n", 1), piece("</think>yes", 2)])
    assert [
        (part.text, [token.id for token in part.tokens]) for part in parts if isinstance(part, Delta)
    ] == [
        ("so.", [0]),
        ("yes", [2]),
    ]


def test_kept_markers_keep_control_tokens_that_are_markers_and_drop_others() -> None:
    pieces = [
        piece("<think>", 0, is_special=True),
        piece("\nso\n", 1),
        piece("</think>", 2, is_special=True),
        piece("\n\nyes", 3),
        piece("<|im_end|>", 4, is_special=True),
    ]
    parts, reasoning_tokens = split(pieces, keep_markers=True)
    assert blocks(parts) == [("text", "<think>\nso\n</think>\n\nyes")]
    assert reasoning_tokens == 3


def test_without_a_family_everything_is_text() -> None:
    assert blocks_of("<think>a</think>b", None) == [("text", "<think>a</think>b")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<|channel>thought\nhm\n<channel|>Hello", [("reasoning", "hm"), ("text", "Hello")]),
        ("<|channel>thought\n<channel|>Hello", [("text", "Hello")]),
        ("<|channel>thought<channel|>Hello", [("text", "Hello")]),
        (
            "<|channel>analysis\nhm<channel|><|channel>final\nHi<channel|>",
            [("reasoning", "hm"), ("text", "Hi")],
        ),
        ("<|channel>thought\nhm", [("reasoning", "hm")]),
        ("<|channel>thou", []),
        ("<|channel>thought it over", [("reasoning", "it over")]),
        ("<|channel>thought:hm<|channel>final Hi", [("reasoning", ":hm"), ("text", "Hi")]),
        (
            "<|channel>thought I think so<|channel>assistant The answer",
            [("reasoning", "I think so"), ("text", "The answer")],
        ),
        ("say <|channel>thought\nx<|channel>y\nz", [("text", "say "), ("reasoning", "x"), ("text", "z")]),
        ("<|channel>\nHello", [("text", "Hello")]),
        ("<|channel><channel|>Hello", [("text", "Hello")]),
        ("<|channel>(hm)", [("text", "<|channel>(hm)")]),
        (f"<|channel>{'n' * 33} x", [("text", f"<|channel>{'n' * 33} x")]),
        ("Hello", [("text", "Hello")]),
    ],
)
def test_the_name_of_a_gemma_channel_decides_its_kind_at_every_split(text: str, expected: Blocks) -> None:
    assert blocks_of(text, GEMMA) == expected
    for cut in range(len(text)):
        assert blocks(split([piece(text[:cut]), piece(text[cut:])], GEMMA)[0]) == expected
    assert blocks(split([piece(one) for one in text], GEMMA)[0]) == expected


def test_a_control_token_opens_a_channel_in_the_middle_of_text() -> None:
    pieces = [piece("Hi."), piece("<|channel>", 1, is_special=True), piece("thought\nhm", 2)]
    assert blocks(split(pieces, GEMMA)[0]) == [("text", "Hi."), ("reasoning", "hm")]


def answer_of(family: MarkerFamily) -> str:
    """A thought and a reply as the family writes them."""
    if family is GEMMA:
        return "<|channel>thought\nhm, so<channel|><|channel>final\nHello"
    if family is HARMONY:
        return "<|channel|>analysis<|message|>hm, so<|end|><|start|>assistant<|channel|>final<|message|>Hello"
    return f"{family.opening[0]}hm, so{family.closing[0]}Hello"


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_an_answer_that_is_cut_anywhere_shows_no_half_marker(family: MarkerFamily) -> None:
    text = answer_of(family)
    for cut in range(len(text) + 1):
        for pieces in ([piece(text[:cut])], [piece(one) for one in text[:cut]]):
            splitter = PartSplitter(family, is_open=False, keep_markers=False)
            parts = [part for one in pieces for part in splitter.feed((one,))]
            parts += splitter.finish(is_cut=True)
            shown = dict(blocks(parts))
            assert set(shown) <= {"reasoning", "text"}
            assert "hm, so".startswith(shown.get("reasoning", ""))
            assert "Hello".startswith(shown.get("text", ""))


def test_half_a_marker_stays_where_the_model_itself_ended_there_or_markers_are_kept() -> None:
    assert blocks_of("<think>so</thi") == [("reasoning", "so</thi")]
    splitter = PartSplitter(THINK, is_open=False, keep_markers=True)
    parts = [*splitter.feed((piece("<think>so</thi"),)), *splitter.finish(is_cut=True)]
    assert blocks(parts) == [("text", "<think>so</thi")]


@pytest.mark.parametrize("family", [GEMMA, HARMONY], ids=lambda family: family.name)
def test_a_channel_that_is_written_as_plain_text_switches_in_the_middle_at_every_split(
    family: MarkerFamily,
) -> None:
    text = {
        "gemma": "<|channel>thought I think so<|channel>assistant The answer",
        "harmony": "<|channel|>analysis<|message|>I think so<|channel|>final<|message|>The answer",
    }[family.name]
    expected = [("reasoning", "I think so"), ("text", "The answer")]
    for cut in range(len(text)):
        assert blocks(split([piece(text[:cut]), piece(text[cut:])], family)[0]) == expected
    assert blocks(split([piece(one) for one in text], family)[0]) == expected


def test_harmony_channels_come_apart_and_their_headers_disappear() -> None:
    text = (
        "<|channel|>analysis<|message|>hm<|end|>"
        "<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>"
        "<|start|>assistant<|channel|>final<|message|>Hello<|return|>"
    )
    expected = [("reasoning", "hm"), ("text", "{}"), ("text", "Hello")]
    assert blocks_of(text, HARMONY) == expected
    pieces = [
        piece(part, position, part.startswith("<|"))
        for position, part in enumerate(filter(None, re.split(r"(<\|\w+\|>)", text)))
    ]
    assert blocks(split(pieces, HARMONY)[0]) == expected
