"""Templates of real models render as their makers meant, and say why when they refuse."""

from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganglion.core.errors import InvalidValue
from ganglion.core.request import ChatPrompt, JsonValue, Message, Role
from ganglion.engines.text_engine import GENERIC_TEMPLATE
from ganglion.text.template import MAX_QUOTED_CHARACTERS, render

TEMPLATES = Path(__file__).parent / "templates"
SMOLLM2, QWEN3, LLAMA3, GEMMA2 = (
    (TEMPLATES / f"{name}.jinja").read_text() for name in ("smollm2", "qwen3", "llama3", "gemma2")
)
NOON = datetime(2026, 3, 1, 12, 0)


def rendered(source: str, *turns: tuple[Role, str] | Message, **template_arguments: JsonValue) -> str:
    messages = tuple(turn if isinstance(turn, Message) else Message(*turn) for turn in turns)
    return render(
        source, ChatPrompt(messages, template_arguments), bos_token="<s>", eos_token="</s>", now=NOON
    )


def test_smollm2_adds_its_system_prompt_only_when_there_is_none() -> None:
    assert rendered(SMOLLM2, ("user", "Hi")) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert rendered(SMOLLM2, ("system", "Be brief."), ("user", "Hi")) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_qwen3_closes_the_thought_itself_when_thinking_is_off() -> None:
    assert rendered(QWEN3, ("user", "Hi")) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert rendered(QWEN3, ("user", "Hi"), enable_thinking=False).endswith(
        "assistant\n<think>\n\n</think>\n\n"
    )


def test_qwen3_reads_earlier_reasoning_beside_the_content() -> None:
    assistant = Message("assistant", "Yes.", reasoning="hm")
    assert "<think>\nhm\n</think>\n\nYes.<|im_end|>" in rendered(QWEN3, ("user", "Hi"), assistant)
    assert "hm" not in rendered(QWEN3, ("user", "Hi"), assistant, ("user", "Sure?"))


def test_llama3_is_told_the_date_that_was_handed_in() -> None:
    assert rendered(LLAMA3, ("system", " Be brief. "), ("user", "Hi")) == (
        "<s><|start_header_id|>system<|end_header_id|>\n\nToday Date: 01 Mar 2026\n\nBe brief.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )
    assert "Today Date: today" in rendered(LLAMA3, ("user", "Hi"), date_string="today")


def test_gemma_renders_turns_and_quotes_its_own_refusal() -> None:
    assert rendered(GEMMA2, ("user", "Hi"), ("assistant", "Ho"), ("user", "Hm")) == (
        "<s><start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\nHo<end_of_turn>\n"
        "<start_of_turn>user\nHm<end_of_turn>\n<start_of_turn>model\n"
    )
    with pytest.raises(InvalidValue, match="System role not supported") as refused:
        rendered(GEMMA2, ("system", "Be brief."))
    assert refused.value.param == "messages"
    with pytest.raises(InvalidValue, match="roles must alternate"):
        rendered(GEMMA2, ("user", "a"), ("assistant", "b"), ("assistant", "c"))


def test_what_a_strict_template_refuses_is_reordered_for_it_and_for_no_other() -> None:
    agent = (("system", "S"), ("developer", "D"), ("user", "a"), ("system", "T"), ("user", "b"))
    assert rendered(GEMMA2, *agent) == (
        "<s><start_of_turn>user\nS\n\nD\n\na\n\nT\n\nb<end_of_turn>\n<start_of_turn>model\n"
    )
    plain = rendered(GENERIC_TEMPLATE, *agent)
    assert [part.split("\n")[0] for part in plain.split("<|im_start|>")[1:-1]] == [
        *("system", "system", "user", "system", "user")
    ]


def test_the_generic_template_is_chatml() -> None:
    assert rendered(GENERIC_TEMPLATE, ("system", "S"), ("user", "U")) == (
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_developer_is_the_system_where_the_template_knows_no_developer() -> None:
    assert rendered("{{ messages[0].role }}", ("developer", "x")) == "system"
    assert rendered("{# developer #}{{ messages[0].role }}", ("developer", "x")) == "developer"


def test_messages_carry_what_was_given_and_nothing_else() -> None:
    source = "{% for message in messages %}{{ message | tojson }}{% endfor %}"
    assert rendered(source, ("user", "a")) == '{"role": "user", "content": "a"}'
    tool = Message("tool", "5", name="add", tool_call_id="call_1")
    assert (
        rendered("{# tools #}" + source, tool)
        == '{"role": "tool", "content": "5", "name": "add", "tool_call_id": "call_1"}'
    )


def test_json_is_written_for_models_not_for_html() -> None:
    assert rendered("{{ x | tojson }}", x={"a": "<é & 'b'>"}) == """{"a": "<é & 'b'>"}"""
    assert rendered("{{ x | tojson(indent=1) }}", x=[1]) == "[\n 1\n]"


def test_arguments_cannot_replace_the_messages() -> None:
    assert rendered(
        "{{ messages[0].content }}{{ bos_token }}", ("user", "mine"), messages=[], bos_token="x"
    ) == ("mine<s>")


def test_the_generation_tag_renders_its_body() -> None:
    assert rendered("a{% generation %}{{ 'b' }}{% endgeneration %}c") == "abc"


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_content_is_rendered_verbatim_whatever_it_says(content: str) -> None:
    assert rendered("[{{ messages[0].content }}]", ("user", content)) == f"[{content}]"


def test_content_is_never_read_as_a_template() -> None:
    assert rendered(GENERIC_TEMPLATE, ("user", "{{ 7 * 7 }}{% raw %}")).count("{{ 7 * 7 }}{% raw %}") == 1


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{% if %}", "line 1"),
        ("{{ nothing.here }}", "'nothing' is undefined"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ 'a' + 1 }}", "TypeError"),
        ("{{ messages[9].content.x }}", "UndefinedError"),
        ("{{ 'x' | no_such_filter }}", "no_such_filter"),
        ("{% include 'x' %}", "no loader"),
        ("{{ range(10**9) }}", "OverflowError"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "RecursionError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{{ strftime_now(1) }}", "TypeError"),
    ],
)
def test_a_template_that_fails_is_an_invalid_value_in_its_own_words(source: str, words: str) -> None:
    with pytest.raises(InvalidValue) as failed:
        rendered(source)
    assert words in failed.value.message
    assert failed.value.param == "messages"


def test_a_long_refusal_is_shortened() -> None:
    with pytest.raises(InvalidValue) as refused:
        rendered("{{ raise_exception('x' * 9999) }}")
    assert len(refused.value.message) < MAX_QUOTED_CHARACTERS + 100
