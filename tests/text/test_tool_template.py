"""Models are shown their tools and earlier calls as their template has them, or in our words."""

from datetime import datetime

import pytest
from test_template import GEMMA2, QWEN3, SMOLLM2

from ganglion.core.errors import InvalidValue
from ganglion.core.request import ChatPrompt, JsonValue, Message, Thinking, Tool, ToolCall, ToolUse
from ganglion.text.template import render
from ganglion.text.tools.families import family_of
from ganglion.text.tools.tool_prompt import INSTRUCTIONS

NOON = datetime(2026, 3, 1, 12, 0)
ADD = Tool("add", "Adds.", {"type": "object", "properties": {"a": {"type": "integer"}}})
PATCH = Tool("patch", is_custom=True)
ASKED = Message("user", "What is 2 + 3?")
CALLED = Message("assistant", "", tool_calls=(ToolCall("call_1", "add", '{"a": "é"}'),))
ANSWERED = Message("tool", "5", tool_call_id="call_1")
TURNS = "{% for m in messages %}[{{ m.role }}: {{ m.content }}]{% endfor %}"


def rendered(source: str, *messages: Message, tools: tuple[Tool, ...] = (), **fields: object) -> str:
    prompt = ChatPrompt(messages, tool_use=ToolUse(tools), **fields)  # type: ignore[arg-type]
    return render(source, prompt, bos_token="<s>", eos_token="</s>", now=NOON)


def test_a_template_that_knows_tools_gets_them_as_functions() -> None:
    source = "{{ tools | tojson }}"
    assert rendered(source, tools=(ADD,)) == (
        '[{"type": "function", "function": {"name": "add", "description": "Adds.", '
        '"parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}}]'
    )
    assert '"required": ["input"]' in rendered(source, tools=(PATCH,))
    assert rendered(source) == "null"
    none = ChatPrompt((), tool_use=ToolUse((ADD,), "none"))
    assert render(source, none, bos_token="", eos_token="", now=NOON) == "null"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ c.arguments | tojson }}", '{"a": "é"}'),
        ("{{ c.arguments }}", '{"a": "é"}'),
        ("{{ '```json\n' + c.arguments + '\n```' }}", '```json\n{"a": "é"}\n```'),
        ("{% for k, v in c.arguments.items() %}{{ k }}={{ v }}{% endfor %}", "a=é"),
        ("{% if c.arguments is mapping %}yes{% endif %}", "yes"),
        (
            "{% if c.arguments is string %}{{ c.arguments }}{% else %}{{ c.arguments | tojson }}{% endif %}",
            '{"a": "é"}',
        ),
    ],
)
def test_arguments_read_as_a_mapping_and_as_text(source: str, expected: str) -> None:
    source = "{# tools #}{% set c = messages[0].tool_calls[0].function %}" + source
    assert rendered(source, CALLED) == expected


def test_text_that_is_no_object_is_a_custom_tools_input() -> None:
    source = "{# tools #}{{ messages[0].tool_calls[0].function.arguments | tojson }}"
    for text in ("*** Begin", "[1]", "5"):
        call = Message("assistant", "", tool_calls=(ToolCall("1", "patch", text),))
        assert rendered(source, call) == f'{{"input": "{text}"}}'
    assert rendered(source, Message("assistant", "", tool_calls=(ToolCall("1", "f", ""),))) == "{}"


def test_a_result_has_the_name_of_what_was_called() -> None:
    source = "{# tools #}{{ messages[-1] | tojson }}"
    assert rendered(source, CALLED, ANSWERED) == (
        '{"role": "tool", "content": "5", "name": "add", "tool_call_id": "call_1"}'
    )


def test_ids_are_shortened_alike_for_templates_that_want_nine_characters() -> None:
    source = "{# tools, |length != 9 #}{{ messages[0].tool_calls[0].id }} {{ messages[1].tool_call_id }}"
    called, answered = rendered(source, CALLED, ANSWERED).split()
    assert called == answered and len(called) == 9 and called.isalnum()
    assert rendered(source.replace("!= 9", "> 9"), CALLED, ANSWERED) == "call_1 call_1"


def test_a_template_that_knows_no_tools_is_told_of_them_in_the_system_message() -> None:
    told = rendered(SMOLLM2, Message("system", "Be brief."), ASKED, CALLED, ANSWERED, tools=(ADD,))
    assert family_of(SMOLLM2).name == "generic"
    words = INSTRUCTIONS.format(
        tools='{"type": "function", "function": {"name": "add", "description": "Adds.", '
        '"parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}}'
    )
    assert told == (
        f"<|im_start|>system\n{words}\n\nBe brief.<|im_end|>\n<|im_start|>user\nWhat is 2 + 3?<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "add", "arguments": {"a": "é"}}\n</tool_call>'
        "<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\n5\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )
    assert rendered(TURNS, ASKED, tools=(ADD,)).startswith("[system: # Tools")


def test_results_that_follow_each_other_are_one_turn() -> None:
    assert rendered(TURNS, ANSWERED, ANSWERED, ASKED) == (
        "[user: <tool_response>\n5\n</tool_response>\n<tool_response>\n5\n</tool_response>]"
        "[user: What is 2 + 3?]"
    )


def test_where_system_messages_are_refused_the_user_tells_of_the_tools() -> None:
    told = rendered(GEMMA2, ASKED, tools=(ADD,))
    assert told.startswith("<s><start_of_turn>user\n# Tools\n") and told.count("# Tools") == 1
    told = rendered(GEMMA2, Message("system", "Be brief."), ASKED, tools=(ADD,))
    assert told.index("# Tools") < told.index("Be brief.") < told.index("What is 2 + 3?")


def test_without_tools_nothing_is_added() -> None:
    assert rendered(TURNS, ASKED) == "[user: What is 2 + 3?]"


def test_a_message_that_goes_on_is_left_open() -> None:
    opened = rendered(QWEN3, ASKED, Message("assistant", "It is "), is_continued=True)
    assert opened.endswith("It is ") and opened.count("<|im_start|>assistant") == 1
    assert rendered(SMOLLM2, ASKED, Message("assistant", ""), is_continued=True).endswith(
        "<|im_start|>assistant\n"
    )
    trimming = "{% for m in messages %}<{{ m.content | trim }}>{% endfor %}{{ add_generation_prompt }}"
    assert rendered(trimming, ASKED, Message("assistant", " a "), is_continued=True) == "<What is 2 + 3?><a "
    with pytest.raises(InvalidValue, match="assistant's own"):
        rendered(TURNS, ASKED, is_continued=True)
    with pytest.raises(InvalidValue, match="does not show"):
        rendered("nothing", Message("assistant", "a"), is_continued=True)


@pytest.mark.parametrize(
    ("thinking", "expected"),
    [
        (Thinking(), "-,-,-,-"),
        (Thinking(is_enabled=False), "False,False,-,-"),
        (Thinking(effort="none"), "False,False,-,-"),
        (Thinking(effort="high"), "True,True,high,-"),
        (Thinking(effort="max"), "True,True,high,-"),
        (Thinking(effort="minimal"), "True,True,low,-"),
        (Thinking(effort="xhigh"), "True,True,xhigh,-"),
        (Thinking(budget_tokens=512), "True,True,-,512"),
        (Thinking(budget_tokens=0), "False,False,-,0"),
        (Thinking(is_enabled=True, effort="none"), "True,True,-,-"),
    ],
)
def test_thinking_is_mapped_to_what_templates_offer(thinking: Thinking, expected: str) -> None:
    names = ("enable_thinking", "thinking", "reasoning_effort", "thinking_budget")
    source = "{# 'xhigh' #}" + ",".join(f"{{{{ {name} | default('-') }}}}" for name in names)
    assert rendered(source, thinking=thinking) == expected


def test_explicit_arguments_win_over_thinking() -> None:
    arguments: dict[str, JsonValue] = {"reasoning_effort": "own"}
    assert (
        rendered("{{ reasoning_effort }}", thinking=Thinking(effort="low"), template_arguments=arguments)
        == "own"
    )
