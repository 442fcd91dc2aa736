"""The right markers are looked for, and a prompt that opens a thought is noticed."""

import pytest

from ganglion.text.markers import FAMILIES, GEMMA, HARMONY, THINK, MarkerFamily, family_of, opens_reasoning


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_template_that_mentions_a_marker_has_its_family(family: MarkerFamily) -> None:
    for sign in family.signs:
        assert family_of("{{ '" + sign + "' }}") is family


def test_a_template_that_mentions_none_has_the_think_family() -> None:
    assert family_of(None) is THINK
    assert family_of("<|im_start|>{{ message.content }}<|im_end|>") is THINK


@pytest.mark.parametrize(
    ("prompt", "family", "is_open"),
    [
        ("<|im_start|>assistant\n<think>\n", THINK, True),
        ("<|im_start|>assistant\n<think>", THINK, True),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", THINK, False),
        ("<think> is a tag<|im_end|>\n<|im_start|>assistant\n", THINK, False),
        ("<|turn>model\n<|channel>thought\n", GEMMA, True),
        ("<|turn>model\n<|channel>thought\n<channel|>", GEMMA, False),
        ("<|turn>model\n<|channel>thought ", GEMMA, True),
        ("<|turn>model\n<|channel>thought it over", GEMMA, False),
        ("<|turn>model\n<|channel>final\n", GEMMA, False),
        ("<|turn>model\n", GEMMA, False),
        ("<|start|>assistant", HARMONY, False),
        ("<|start|>assistant<|channel|>analysis<|message|>", HARMONY, True),
        ("<|start|>assistant<|channel|>final<|message|>", HARMONY, False),
        ("<think>", None, False),
    ],
)
def test_a_prompt_opens_reasoning_when_it_ends_with_the_opening(
    prompt: str, family: MarkerFamily | None, is_open: bool
) -> None:
    assert opens_reasoning(prompt, family) is is_open
