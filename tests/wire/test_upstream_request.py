"""A request put to another server in its own words: nothing is lost on ours, nothing dropped on others."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ganglion.core.errors import UnsupportedParameter
from ganglion.core.request import (
    Attachment,
    ChatPrompt,
    Choice,
    Gbnf,
    JsonSchema,
    Lark,
    Message,
    Regex,
    Request,
    Score,
    Steer,
    Stop,
    TextPrompt,
    Thinking,
    TokenPrompt,
    Tool,
    ToolCall,
    ToolUse,
    WithoutWords,
)
from ganglion.core.sampling import Samplers, Sampling
from ganglion.wire.answer_format import ParseContext
from ganglion.wire.chat import parse
from ganglion.wire.upstream.chat_request import encode_request
from support.pictures import KINDS

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
SHORT = st.text('abc[] \n"\\é🦊', min_size=1, max_size=8)
NAME = st.text("abcXYZ_-.1", min_size=1, max_size=12)
OPTIONAL = st.none() | TEXT
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | TEXT, lambda inner: st.lists(inner, max_size=2)
)
OBJECT = st.dictionaries(NAME, JSON, max_size=3)


@st.composite
def attachments(draw: st.DrawFn, text: str) -> tuple[Attachment, ...]:
    files = st.sampled_from([Attachment(data, 0) for data in KINDS.values()])
    elsewhere = st.just(Attachment(b"", 0, url="https://host.example/a.png", detail="low"))
    drawn = draw(st.lists(st.tuples(st.integers(0, len(text)), files | elsewhere), max_size=3))
    return tuple(replace(each, at=at) for at, each in sorted(drawn, key=lambda placed: placed[0]))


@st.composite
def messages(draw: st.DrawFn) -> Message:
    role = draw(st.sampled_from(["system", "developer", "user", "assistant", "tool"]))
    name = draw(OPTIONAL)
    if role == "tool":
        text = draw(TEXT)
        shown = draw(attachments(text))
        return Message("tool", text, name=name, tool_call_id=draw(TEXT), attachments=shown)
    if role == "user":
        text = draw(TEXT)
        return Message("user", text, name=name, attachments=draw(attachments(text)))
    if role != "assistant":
        return Message(role, draw(TEXT), name=name)
    calls = draw(st.lists(st.builds(ToolCall, TEXT, NAME, TEXT), max_size=2))
    return Message("assistant", draw(TEXT), draw(OPTIONAL), name, tool_calls=tuple(calls))


FUNCTION = st.builds(Tool, NAME, OPTIONAL, st.none() | OBJECT, st.booleans())
CUSTOM = st.builds(
    Tool,
    NAME,
    OPTIONAL,
    is_custom=st.just(True),
    text_format=st.none() | st.builds(Lark, SHORT) | st.builds(Regex, SHORT),
)


@st.composite
def tool_uses(draw: st.DrawFn) -> ToolUse:
    tools = tuple(draw(st.lists(FUNCTION | CUSTOM, max_size=3, unique_by=lambda tool: tool.name)))
    is_parallel = draw(st.booleans())
    if not tools:
        return ToolUse(choice=draw(st.sampled_from(["none", "auto"])), is_parallel=is_parallel)
    choice = draw(st.sampled_from(["none", "auto", "required"]))
    allowed = None
    if choice != "none" and draw(st.booleans()):
        names = st.sampled_from([tool.name for tool in tools])
        allowed = tuple(draw(st.lists(names, min_size=1, max_size=3, unique=True)))
    return ToolUse(tools, choice, allowed, is_parallel)


@st.composite
def prompts(draw: st.DrawFn) -> ChatPrompt:
    said = tuple(draw(st.lists(messages(), min_size=1, max_size=4)))
    thinking = Thinking(
        draw(st.none() | st.booleans()), draw(st.sampled_from([None, "none", "low", "high", "max"]))
    )
    is_continued = said[-1].role == "assistant" and draw(st.booleans())
    return ChatPrompt(said, draw(OBJECT), draw(tool_uses()), thinking, is_continued)


UNIT = st.floats(0, 1, width=32)
SAMPLERS = st.builds(
    Samplers,
    repeat_last_n=st.integers(-1, 99),
    typical_p=st.floats(0.1, 1),
    top_n_sigma=st.floats(-1, 9),
    xtc_probability=UNIT,
    xtc_threshold=UNIT,
    dry_multiplier=st.floats(0, 9),
    dry_base=st.floats(1, 9),
    dry_allowed_length=st.integers(1, 9),
    dry_penalty_last_n=st.integers(-1, 99),
    dry_sequence_breakers=st.lists(SHORT, max_size=2).map(tuple),
    mirostat=st.integers(0, 2),
    mirostat_tau=st.floats(0, 9),
    mirostat_eta=UNIT,
    dynatemp_range=st.floats(0, 9),
    dynatemp_exponent=st.floats(0.5, 9),
    allowed_token_ids=st.none() | st.lists(st.integers(0, 99), min_size=1, max_size=3).map(tuple),
)
SAMPLING = st.builds(
    Sampling,
    temperature=st.none() | st.floats(0, 2),
    top_p=st.none() | st.floats(0.1, 1),
    top_k=st.none() | st.integers(0, 99),
    min_p=st.none() | UNIT,
    repetition_penalty=st.none() | st.floats(0.5, 9),
    presence_penalty=st.none() | st.floats(-2, 2),
    frequency_penalty=st.none() | st.floats(-2, 2),
    seed=st.none() | st.integers(0, 2**32 - 2),
    logit_bias=st.dictionaries(st.integers(0, 999), st.floats(-100, 100), max_size=2).map(
        lambda bias: tuple(bias.items())
    ),
    samplers=st.just(Samplers()) | SAMPLERS,
)
STOP = st.builds(
    Stop,
    st.lists(SHORT, max_size=2).map(tuple),
    st.lists(st.integers(0, 999), max_size=2).map(tuple),
    st.booleans(),
    st.booleans(),
)
CONSTRAINT = (
    st.none()
    | st.builds(JsonSchema, OBJECT)
    | st.builds(Regex, SHORT)
    | st.builds(Choice, st.lists(SHORT, min_size=1, max_size=3).map(tuple))
    | st.builds(Lark, SHORT)
    | st.builds(Gbnf, SHORT)
    | st.builds(WithoutWords, st.lists(SHORT, min_size=1, max_size=3, unique=True).map(tuple))
)
STEER = st.builds(
    Steer,
    SHORT,
    st.floats(-100, 100),
    st.none() | st.lists(st.integers(0, 99), min_size=1, max_size=3, unique=True).map(tuple),
)
REQUESTS = st.builds(
    Request,
    id=st.just("r"),
    model=NAME,
    prompt=prompts(),
    sampling=SAMPLING,
    stop=STOP,
    max_tokens=st.none() | st.integers(9, 9999),
    min_tokens=st.integers(0, 9),
    constraint=CONSTRAINT,
    top_logprobs=st.none() | st.integers(0, 20),
    priority=st.integers(-1000, 1000),
    tenant=st.just("t"),
    keep_markers=st.booleans(),
    wants_readout=st.booleans(),
    steering=st.lists(STEER, max_size=2).map(tuple),
    affinity=TEXT,
    shows_special=st.booleans(),
    truncate_prompt=st.none() | st.just(-1) | st.integers(1, 99),
)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(REQUESTS)
def test_our_own_wire_reads_back_the_request_that_was_put_into_its_words(request: Request) -> None:
    arrival = ParseContext("r", 0, tenant="t", keep_markers=request.keep_markers, is_strict=True)
    call = parse(encode_request(request, request.model, is_ours=True), arrival)
    assert call.requests == (request,)
    assert call.is_streamed
    assert call.reply.usage_reporting == "last"
    assert call.unknown_fields == ()


def asked(prompt: ChatPrompt | None = None, **changes: Any) -> Request:
    return Request("r", "m", prompt or ChatPrompt((Message("user", "hi"),)), **changes)


def foreign(request: Request) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(encode_request(request, "theirs", is_ours=False))
    return body


def test_a_budget_reaches_our_templates_though_no_field_is_for_it() -> None:
    request = asked(ChatPrompt((Message("user", "hi"),), thinking=Thinking(budget_tokens=99)))
    (read,) = parse(encode_request(request, "m", is_ours=True), ParseContext("r", 0)).requests
    assert isinstance(read.prompt, ChatPrompt)
    assert read.prompt.template_arguments == {"thinking_budget": 99}
    assert read.prompt.thinking == Thinking(is_enabled=True)


def test_a_plain_question_asks_a_foreign_server_for_nothing_else() -> None:
    assert foreign(asked()) == {
        "model": "theirs",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"steering": (Steer("joy", 1.0),)}, "steering"),
        ({"wants_readout": True}, "readout"),
        ({"constraint": Regex("a+")}, "response_format"),
        ({"constraint": Choice(("a",))}, "response_format"),
        ({"constraint": Lark("start: A")}, "response_format"),
        ({"constraint": Gbnf("root ::= A")}, "response_format"),
        ({"stop": Stop(token_ids=(1,))}, "stop_token_ids"),
        ({"min_tokens": 2}, "min_tokens"),
        ({"keep_markers": True}, "x-include-thinking"),
        ({"prompt": TokenPrompt((1, 2))}, "prompt"),
        ({"prompt": TextPrompt("once")}, "prompt"),
        ({"score": Score(((0, None),))}, "prompt_logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"wants_token_ids": True}, "return_token_ids"),
        ({"shows_special": True}, "skip_special_tokens"),
        ({"truncate_prompt": 9}, "truncate_prompt_tokens"),
        ({"stop": Stop(("a",), is_shown=True)}, "include_stop_str_in_output"),
        ({"constraint": WithoutWords(("a",))}, "bad_words"),
        ({"sampling": Sampling(samplers=Samplers(mirostat=2))}, "mirostat"),
        ({"sampling": Sampling(samplers=Samplers(allowed_token_ids=(1,)))}, "allowed_token_ids"),
    ],
)
def test_what_a_foreign_server_cannot_honour_is_refused_by_name(changes: dict[str, Any], param: str) -> None:
    with pytest.raises(UnsupportedParameter) as caught:
        encode_request(replace(asked(), **changes), "theirs", is_ours=False)
    assert caught.value.param == param


def test_a_foreign_server_is_told_sampling_schemas_and_thinking() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    prompt = ChatPrompt((Message("user", "hi"),), {"verbosity": "low"}, thinking=Thinking(False, "max", 99))
    body = foreign(
        asked(
            prompt,
            sampling=Sampling(temperature=0.0, top_k=3, repetition_penalty=1.1, logit_bias=((5, -1.0),)),
            stop=Stop(("END",), ignore_eos=True),
            max_tokens=7,
            top_logprobs=2,
            constraint=JsonSchema(schema),
            priority=5,
        )
    )
    told = {
        name: body[name] for name in body if name not in ("model", "messages", "stream", "stream_options")
    }
    assert told == {
        "temperature": 0.0,
        "top_k": 3,
        "repetition_penalty": 1.1,
        "repeat_penalty": 1.1,
        "logit_bias": {"5": -1.0},
        "stop": ["END"],
        "ignore_eos": True,
        "max_tokens": 7,
        "logprobs": True,
        "top_logprobs": 2,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": schema, "strict": True},
        },
        "chat_template_kwargs": {"enable_thinking": False, "thinking_budget": 99},
        "thinking_budget_tokens": 99,
        "verbosity": "low",
        "reasoning_effort": "high",
    }
    assert foreign(asked(constraint=JsonSchema({"type": "object"})))["response_format"] == {
        "type": "json_object"
    }


def test_tools_that_take_text_become_functions_of_one_text_and_their_calls_too() -> None:
    tools = (
        Tool("patch", "Edits.", is_custom=True, text_format=Lark("start: A")),
        Tool("weather", parameters={"type": "object"}, is_strict=True),
    )
    calls = (
        ToolCall("c1", "patch", 'say "hi"'),
        ToolCall("c2", "weather", '{"city": "Oslo"}'),
        ToolCall("c3", "gone", "bare text"),
        ToolCall("c4", "weather", ""),
    )
    said = (
        Message("developer", "Be brief."),
        Message("user", "hi"),
        Message("assistant", "", "Hm.", tool_calls=calls),
        Message("tool", "done", name="patch", tool_call_id="c1"),
    )
    body = foreign(asked(ChatPrompt(said, tool_use=ToolUse(tools, "required", is_parallel=False))))
    patch, weather = (tool["function"] for tool in body["tools"])
    assert patch["description"] == "Edits.\n\nThe input is text of this Lark grammar:\nstart: A"
    assert patch["parameters"]["required"] == ["input"]
    assert weather == {"name": "weather", "parameters": {"type": "object"}, "strict": True}
    assert (body["tool_choice"], body["parallel_tool_calls"]) == ("required", False)
    system, _, assistant, answered = body["messages"]
    assert system == {"role": "system", "content": "Be brief."}
    assert (assistant["content"], assistant["reasoning_content"]) == (None, "Hm.")
    assert [call["function"]["arguments"] for call in assistant["tool_calls"]] == [
        '{"input":"say \\"hi\\""}',
        '{"city": "Oslo"}',
        '{"input":"bare text"}',
        "{}",
    ]
    assert answered == {"role": "tool", "content": "done", "tool_call_id": "c1"}


def test_a_choice_among_some_tools_offers_only_these() -> None:
    tools = (Tool("a"), Tool("b"), Tool("c"))
    prompt = ChatPrompt((Message("user", "hi"),), tool_use=ToolUse(tools, "auto", ("a", "b")))
    body = foreign(asked(prompt))
    assert [tool["function"]["name"] for tool in body["tools"]] == ["a", "b"]
    assert "tool_choice" not in body
    named = foreign(asked(replace(prompt, tool_use=ToolUse(tools, "required", ("b",)))))
    assert named["tool_choice"] == {"type": "function", "function": {"name": "b"}}


def test_a_continued_message_is_continued() -> None:
    prompt = ChatPrompt((Message("user", "hi"), Message("assistant", "Well")), is_continued=True)
    body = foreign(asked(prompt))
    assert (body["continue_final_message"], body["add_generation_prompt"]) == (True, False)
