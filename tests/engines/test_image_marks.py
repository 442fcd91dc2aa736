"""Marks in the place of images: nobody can forge one, and none is lost on the way through a template."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganglion.core.errors import InvalidValue
from ganglion.core.request import Attachment, ChatPrompt, Message
from ganglion.engines.rendering.image_marks import marked, split

CONTENTS = st.lists(
    st.tuples(st.text(max_size=20), st.lists(st.integers(0, 20), max_size=4)), min_size=1, max_size=4
)


def prompt_of(contents) -> ChatPrompt:
    number = iter(range(100))
    return ChatPrompt(
        tuple(
            Message(
                "user",
                text,
                attachments=tuple(
                    Attachment(str(next(number)).encode(), min(place, len(text))) for place in sorted(places)
                ),
            )
            for text, places in contents
        )
    )


@given(CONTENTS)
def test_each_image_stands_where_its_message_has_it_and_no_text_is_lost(contents):
    prompt = prompt_of(contents)
    plain = marked(prompt)
    assert not any(message.attachments for message in plain.prompt.messages)
    text = "".join(message.content for message in plain.prompt.messages)
    found = split(text, plain)
    assert "".join(found.pieces) == "".join(text for text, _ in contents)
    assert [each.data for each in found.attachments] == [each.data for each in plain.attachments]
    before = 0
    expected = []
    for message in prompt.messages:
        expected += [before + each.at for each in message.attachments]
        before += len(message.content)
    lengths = [len(piece) for piece in found.pieces[:-1]]
    assert [sum(lengths[: number + 1]) for number in range(len(lengths))] == expected


def test_a_prompt_without_images_is_not_touched():
    prompt = ChatPrompt((Message("user", "no image"),))
    assert marked(prompt).prompt is prompt
    assert split("no image", marked(prompt)).pieces == ("no image",)


def test_two_requests_have_different_marks():
    prompt = prompt_of([("text", [2])])
    assert marked(prompt).marks != marked(prompt).marks


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda text: "", id="dropped"),
        pytest.param(lambda text: text * 2, id="doubled"),
        pytest.param(str.upper, id="changed"),
    ],
)
def test_a_template_that_spoils_a_mark_is_told(spoil):
    plain = marked(prompt_of([("text", [2])]))
    with pytest.raises(InvalidValue, match="exactly once"):
        split(spoil(plain.prompt.messages[0].content), plain)


def test_images_that_a_template_puts_in_another_order_keep_their_files():
    plain = marked(prompt_of([("one", [3]), ("two", [3])]))
    first, second = (message.content for message in plain.prompt.messages)
    assert [each.data for each in split(second + first, plain).attachments] == [b"1", b"0"]
