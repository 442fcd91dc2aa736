"""What a chat body means, and what is said of one that means nothing."""

import json
import time
from dataclasses import asdict, fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganglion.core.errors import GanglionError, InvalidRequest, UnknownParameter, UnsupportedParameter
from ganglion.core.request import (
    ChatPrompt,
    JsonSchema,
    Message,
    Score,
    Thinking,
    Tool,
    ToolCall,
    ToolUse,
    WithoutWords,
)
from ganglion.core.sampling import PLAIN, Samplers
from ganglion.wire.answer_format import ParseContext, ParsedCall
from ganglion.wire.chat import ChatReplyContext, parse
from ganglion.wire.field_policy import IGNORED
from ganglion.wire.field_policy import UNSUPPORTED_IN_CHAT as UNHONOURED
from ganglion.wire.fields import SamplerFields

ARRIVAL = ParseContext("chatcmpl-1", 1700000000, "fp", "tenant")
HELLO = {"role": "user", "content": "hello"}


def read(arrival: ParseContext = ARRIVAL, **fields: object) -> ParsedCall[ChatReplyContext]:
    return parse(json.dumps({"model": "tiny", "messages": [HELLO]} | fields).encode(), arrival)


def refusal(raw: str | bytes, arrival: ParseContext = ARRIVAL) -> GanglionError:
    with pytest.raises(InvalidRequest) as caught:
        parse(raw.encode() if isinstance(raw, str) else raw, arrival)
    return caught.value


def body(**fields: object) -> str:
    return json.dumps({"model": "tiny", "messages": [HELLO]} | fields)


def test_a_plain_body_is_one_request() -> None:
    call = read()
    (request,) = call.requests
    assert (request.id, request.model, request.tenant, request.max_tokens) == (
        "chatcmpl-1",
        "tiny",
        "tenant",
        None,
    )
    assert request.prompt == ChatPrompt((Message("user", "hello"),))
    assert not call.is_streamed
    assert call.unknown_fields == ()


def test_every_field_reaches_the_request() -> None:
    call = read(
        ParseContext("a", 1, tenant="t", keep_markers=True, shows_thought=True),
        temperature=0,
        top_p=0.5,
        top_k=-1,
        min_p=0.1,
        presence_penalty=1,
        frequency_penalty=-2,
        repetition_penalty=1.1,
        seed=7,
        logit_bias={"5": -100, "6": 1.5},
        logprobs=True,
        top_logprobs=3,
        stop="END",
        stop_token_ids=[2],
        ignore_eos=True,
        priority=-5,
        max_completion_tokens=9,
        max_tokens=9,
        min_tokens=4,
        reasoning_effort="low",
        enable_thinking=True,
        tools=[{"type": "function", "function": {"name": "f"}}],
        tool_choice="required",
        parallel_tool_calls=False,
        response_format={"type": "json_object"},
        chat_template_kwargs={"enable_thinking": False, "deep": [{"a": 1}]},
        stream=True,
        stream_options={"include_usage": True},
    )
    (request,) = call.requests
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0, 0.5, 0, 0.1)
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (
        1,
        -2,
        1.1,
    )
    assert (sampling.seed, sampling.logit_bias) == (7, ((5, -100), (6, 1.5)))
    assert (request.stop.strings, request.stop.token_ids, request.stop.ignore_eos) == (("END",), (2,), True)
    assert (request.top_logprobs, request.priority, request.max_tokens, request.keep_markers) == (
        3,
        -5,
        9,
        True,
    )
    assert isinstance(request.prompt, ChatPrompt)
    assert request.prompt.template_arguments == {"enable_thinking": False, "deep": [{"a": 1}]}
    assert request.prompt.thinking == Thinking(True, "low")
    assert request.prompt.tool_use == ToolUse((Tool("f"),), "required", is_parallel=False)
    assert (request.min_tokens, request.constraint) == (4, JsonSchema({"type": "object"}))
    assert call.is_streamed
    assert call.reply.usage_reporting == "last"
    assert call.reply.shows_thought
    assert call.reply.has_logprobs


def test_n_choices_share_the_prompt_and_differ_in_seed() -> None:
    requests = read(n=3, seed=2**32 - 3).requests
    assert [request.id for request in requests] == ["chatcmpl-1-0", "chatcmpl-1-1", "chatcmpl-1-2"]
    assert [request.sampling.seed for request in requests] == [2**32 - 3, 2**32 - 2, 0]
    assert len({id(request.prompt) for request in requests}) == 1
    assert [request.sampling.seed for request in read(n=2).requests] == [None, None]


@given(st.integers(-(2**63), 2**63 - 1))
def test_any_seed_folds_to_one_that_means_itself(seed: int) -> None:
    folded = read(seed=seed).requests[0].sampling.seed
    assert folded is not None
    assert 0 <= folded < 2**32 - 1
    assert folded == read(seed=seed).requests[0].sampling.seed


def test_every_role_and_form_of_content_is_read() -> None:
    call = read(
        messages=[
            {"role": "system", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "developer", "content": "c", "name": "dev"},
            {"role": "user", "content": ""},
            {"role": "assistant", "content": "d", "reasoning_content": "why", "reasoning": "why"},
            {"role": "assistant", "content": None, "refusal": "no"},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "e"}], "reasoning": "r"},
            {"role": "tool", "content": "f", "tool_call_id": "call_1"},
            {
                "role": "assistant",
                "tool_calls": [
                    {"id": "a", "type": "function", "function": {"name": "g", "arguments": '{"x": 1}'}},
                    {"id": "b", "type": "custom", "custom": {"name": "sh", "input": "ls"}},
                ],
            },
            {"role": "tool", "content": [{"type": "text", "text": "9"}], "tool_call_id": "nobody's"},
        ]
    )
    prompt = call.requests[0].prompt
    assert isinstance(prompt, ChatPrompt)
    assert prompt.messages == (
        Message("system", "ab"),
        Message("developer", "c", name="dev"),
        Message("user", ""),
        Message("assistant", "d", reasoning="why"),
        Message("assistant", "no"),
        Message("assistant", "e", reasoning="r"),
        Message("tool", "f", tool_call_id="call_1"),
        Message("assistant", "", tool_calls=(ToolCall("a", "g", '{"x": 1}'), ToolCall("b", "sh", "ls"))),
        Message("tool", "9", tool_call_id="nobody's"),
    )


def test_a_final_message_can_be_continued() -> None:
    asked = [HELLO, {"role": "assistant", "content": "Well,"}]
    for more in ({}, {"add_generation_prompt": False}):
        prompt = read(messages=asked, continue_final_message=True, **more).requests[0].prompt
        assert isinstance(prompt, ChatPrompt)
        assert prompt.is_continued
    neutral = read(messages=asked, continue_final_message=False, add_generation_prompt=True)
    assert neutral.requests[0].prompt == read(messages=asked).requests[0].prompt


def test_functions_are_tools_in_older_words_and_answered_in_them() -> None:
    call = read(
        functions=[{"name": "now", "description": "The time.", "parameters": {"type": "object"}}],
        function_call={"name": "now"},
        messages=[
            HELLO,
            {"role": "assistant", "content": None, "function_call": {"name": "now", "arguments": "{}"}},
            {"role": "function", "name": "now", "content": "12:00"},
        ],
    )
    prompt = call.requests[0].prompt
    assert isinstance(prompt, ChatPrompt)
    tools = (Tool("now", "The time.", {"type": "object"}),)
    assert prompt.tool_use == ToolUse(tools, "required", ("now",), is_parallel=False)
    assert prompt.messages[1:] == (
        Message("assistant", "", tool_calls=(ToolCall("call_1", "now", "{}"),)),
        Message("tool", "12:00", name="now", tool_call_id="call_1"),
    )
    assert call.reply.is_legacy
    assert not read(functions=[], function_call="none").reply.is_legacy


def test_reasoning_is_asked_for_in_either_spelling() -> None:
    for spelt in ({"reasoning": {"effort": "high"}}, {"reasoning_effort": "high"}):
        prompt = read(**spelt).requests[0].prompt
        assert isinstance(prompt, ChatPrompt)
        assert prompt.thinking == Thinking(effort="high")
    prompt = read(reasoning={"enabled": True, "max_tokens": 64, "exclude": False}).requests[0].prompt
    assert isinstance(prompt, ChatPrompt)
    assert prompt.thinking == Thinking(True, None, 64)


def test_verbosity_reaches_the_template_and_its_own_arguments_win() -> None:
    prompt = read(verbosity="low").requests[0].prompt
    assert isinstance(prompt, ChatPrompt) and prompt.template_arguments == {"verbosity": "low"}
    prompt = read(verbosity="low", chat_template_kwargs={"verbosity": "high"}).requests[0].prompt
    assert isinstance(prompt, ChatPrompt) and prompt.template_arguments == {"verbosity": "high"}


def test_a_prediction_is_a_hint_and_what_is_to_be_stored_is_said_to_be_left_out() -> None:
    call = read(prediction={"type": "content", "content": "x" * 2**19}, store=True)
    assert call.requests == read().requests
    (said,) = call.ignored
    assert said.startswith("'store'")
    assert read(store=False).ignored == ()


SPECIAL = {
    "repeat_last_n": 64,
    "typical_p": 0.9,
    "top_n_sigma": 1.5,
    "xtc_probability": 0.5,
    "xtc_threshold": 0.2,
    "dry_multiplier": 0.8,
    "dry_base": 1.5,
    "dry_allowed_length": 3,
    "dry_penalty_last_n": 256,
    "dry_sequence_breakers": ["\n"],
    "mirostat": 2,
    "mirostat_tau": 4.0,
    "mirostat_eta": 0.2,
    "dynatemp_range": 0.5,
    "dynatemp_exponent": 2.0,
    "allowed_token_ids": [1, 2],
}


def test_every_special_sampler_is_a_field_of_the_same_name() -> None:
    assert set(SPECIAL) == {field.name for field in fields(Samplers)} <= set(SamplerFields.__struct_fields__)
    found = read(**SPECIAL).requests[0].sampling.samplers
    expected = {name: tuple(value) if isinstance(value, list) else value for name, value in SPECIAL.items()}
    assert asdict(found) == expected
    assert read().requests[0].sampling.samplers == PLAIN


def test_the_fields_of_other_servers_reach_the_request() -> None:
    call = read(
        stop="END",
        include_stop_str_in_output=True,
        skip_special_tokens=False,
        return_token_ids=True,
        truncate_prompt_tokens=9,
        bad_words=["no", "no", "never"],
        repeat_penalty=1.5,
        stream=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
    )
    request = call.requests[0]
    assert (request.stop.strings, request.stop.is_shown) == (("END",), True)
    assert (request.shows_special, request.wants_token_ids, request.truncate_prompt) == (True, True, 9)
    assert request.constraint == WithoutWords(("no", "never"))
    assert request.sampling.repetition_penalty == 1.5
    assert (call.reply.usage_reporting, call.reply.has_token_ids) == ("always", True)
    assert read(stream=True, stream_options={"continuous_usage_stats": True}).reply.usage_reporting == "never"


def test_the_prompt_of_all_choices_is_scored_once() -> None:
    requests = read(n=3, prompt_logprobs=2).requests
    assert [request.score for request in requests] == [Score(((0, None),), 2), None, None]
    assert read().requests[0].score is None


SHAPES = [
    ("", "invalid_json", None),
    ("{", "invalid_json", None),
    ("nope", "invalid_json", None),
    (b"\xff\xfe", "invalid_json", None),
    (b'{"model":"\xff","messages":[]}', "invalid_json", None),
    ("﻿{}", "invalid_json", None),
    ("[" * 100_000, "invalid_value", None),
    ('{"a":' * 100_000, "invalid_json", None),
    (
        '{"model":"tiny","messages":[],"documents":' + "[" * 900 + "]" * 900 + "}",
        "unsupported_parameter",
        "documents",
    ),
    ("[]", "invalid_value", None),
    ("null", "invalid_value", None),
    ("{}", "missing_required_parameter", "model"),
    ('{"model":"tiny"}', "missing_required_parameter", "messages"),
    ('{"messages":[]}', "invalid_value", "messages"),
    (body(messages=[]), "invalid_value", "messages"),
    (body(messages={}), "invalid_value", "messages"),
    (body(messages=[3]), "invalid_value", "messages[0]"),
    (body(messages=[{}]), "missing_required_parameter", "messages[0].role"),
    (body(messages=[HELLO, {"role": "user"}]), "missing_required_parameter", "messages[1].content"),
    (body(messages=[{"role": "wizard", "content": ""}]), "invalid_value", "messages[0].role"),
    (body(messages=[{"role": "user", "content": None}]), "invalid_value", "messages[0].content"),
    (body(messages=[{"role": "user", "content": 3}]), "invalid_value", "messages[0].content"),
    (
        body(messages=[{"role": "user", "content": [{"type": "text"}]}]),
        "missing_required_parameter",
        "messages[0].content[0].text",
    ),
    (
        body(messages=[{"role": "user", "content": [{"type": "hologram"}]}]),
        "invalid_value",
        "messages[0].content[0].type",
    ),
    (
        body(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]),
        "invalid_value",
        "messages[0].content[0].image_url.url",
    ),
    (
        body(messages=[{"role": "user", "content": [{"type": "input_audio"}]}]),
        "missing_required_parameter",
        "messages[0].content[0].input_audio",
    ),
    (
        body(messages=[{"role": "assistant", "tool_calls": [{"id": "x"}]}]),
        "missing_required_parameter",
        "messages[0].tool_calls[0].type",
    ),
    (
        body(messages=[{"role": "assistant", "tool_calls": [{"id": "x", "type": "function"}]}]),
        "missing_required_parameter",
        "messages[0].tool_calls[0].function",
    ),
    (
        body(messages=[{"role": "assistant", "function_call": {"arguments": ""}}]),
        "missing_required_parameter",
        "messages[0].function_call.name",
    ),
    (
        body(messages=[{"role": "function", "content": ""}]),
        "missing_required_parameter",
        "messages[0].name",
    ),
    (body(messages=[{"role": "oracle", "content": ""}]), "invalid_value", "messages[0].role"),
    (body(function_call={"name": "f"}), "invalid_value", "function_call"),
    (body(functions=[{"name": "f"}], function_call={"name": "g"}), "invalid_value", "tool_choice"),
    (body(functions=[{"name": "f"}], tool_choice="auto"), "invalid_value", "functions"),
    (body(reasoning={"effort": "lots"}), "invalid_value", "reasoning.effort"),
    (body(reasoning={"effort": "low"}, reasoning_effort="high"), "invalid_value", "reasoning_effort"),
    (body(reasoning={"exclude": True}), "unsupported_parameter", "reasoning.exclude"),
    (body(reasoning={"summary": "auto"}), "unsupported_parameter", "reasoning.summary"),
    (body(verbosity="chatty"), "invalid_value", "verbosity"),
    (body(repetition_penalty=1.1, repeat_penalty=1.2), "invalid_value", "repeat_penalty"),
    (body(logprobs=True, top_logprobs=-1), "invalid_value", "top_logprobs"),
    (body(truncate_prompt_tokens=0), "invalid_value", "truncate_prompt_tokens"),
    (body(mirostat=3), "invalid_value", "mirostat"),
    (body(dry_sequence_breakers=["x" * 41]), "invalid_value", "dry_sequence_breakers[0]"),
    (body(allowed_token_ids=[]), "invalid_value", "allowed_token_ids"),
    (body(bad_words=["a"], guided_regex="b"), "invalid_value", "bad_words"),
    (body(use_beam_search=True), "unsupported_parameter", "use_beam_search"),
    (body(continue_final_message=True), "invalid_value", "continue_final_message"),
    (
        body(continue_final_message=True, add_generation_prompt=True),
        "invalid_value",
        "add_generation_prompt",
    ),
    (body(add_generation_prompt=False), "unsupported_parameter", "add_generation_prompt"),
    (body(prompt_logprobs=1, stream=True), "invalid_value", "prompt_logprobs"),
    (body(prompt_logprobs=-1), "invalid_value", "prompt_logprobs"),
    (body(min_tokens=5, max_tokens=4), "invalid_value", "min_tokens"),
    (
        body(messages=[{"role": "tool", "content": "x"}]),
        "missing_required_parameter",
        "messages[0].tool_call_id",
    ),
    (body(model=""), "invalid_value", "model"),
    (body(model="x" * 1025), "invalid_value", "model"),
    (body(model=3), "invalid_value", "model"),
    (body(stream="yes"), "invalid_value", "stream"),
    (body(stream_options={"include_usage": True}), "invalid_value", "stream_options"),
    (body(top_logprobs=2), "invalid_value", "top_logprobs"),
    (body(max_tokens=1, max_completion_tokens=2), "invalid_value", "max_tokens"),
    (body(stop=""), "invalid_value", "stop"),
    (body(stop=["a", ""]), "invalid_value", "stop[1]"),
    (body(stop=["a"] * 17), "invalid_value", "stop"),
    (body(stop="x" * 513), "invalid_value", "stop"),
    (body(logit_bias={"a": 1}), "invalid_value", "logit_bias"),
    (body(logit_bias={"-1": 1}), "invalid_value", "logit_bias"),
    (body(logit_bias={"1": 101}), "invalid_value", "logit_bias"),
    (body(logit_bias={str(token): 1 for token in range(1025)}), "invalid_value", "logit_bias"),
    (body(stop_token_ids=[-1]), "invalid_value", "stop_token_ids[0]"),
    (body(reasoning_effort="lots"), "invalid_value", "reasoning_effort"),
    (body(chat_template_kwargs={"a": "x" * 2**18}), "invalid_value", "chat_template_kwargs"),
    (body(tools=[{"x": "x" * 2**20}]), "invalid_value", "tools"),
    (body(response_format={"x": "x" * 2**18}), "invalid_value", "response_format"),
    (body(functions=[{"x": "x" * 2**20}]), "invalid_value", "functions"),
    (body(documents=[{"x": "x" * 2**18}]), "unsupported_parameter", "documents"),
    (body(**{f"field{number}": 1 for number in range(512)}), "invalid_value", None),
    (body(chat_template_kwargs=[]), "invalid_value", "chat_template_kwargs"),
    (body(ignore_eos=1), "invalid_value", "ignore_eos"),
]


@pytest.mark.parametrize(("raw", "code", "param"), SHAPES)
def test_what_is_wrong_is_named(raw: str | bytes, code: str, param: str | None) -> None:
    error = refusal(raw)
    assert (error.code, error.param, error.status) == (code, param, 400)
    assert len(error.message) < 500


NUMBERS = [
    "n",
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "top_logprobs",
    "prompt_logprobs",
    "min_tokens",
    "priority",
    "repeat_last_n",
    "typical_p",
    "top_n_sigma",
    "xtc_probability",
    "xtc_threshold",
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "mirostat",
    "mirostat_tau",
    "mirostat_eta",
    "dynatemp_range",
    "dynatemp_exponent",
    "repeat_penalty",
    "truncate_prompt_tokens",
]
EXTREMES = [
    "1e999",
    "-1e999",
    "1e308",
    "-1e308",
    "1" + "0" * 30,
    "-1" + "0" * 30,
    "1" + "0" * 5000,
    '"1"',
    "true",
    "[]",
    "{}",
    '"\\u0000"',
]
NOT_JSON = ["NaN", "Infinity", "-Infinity", "0x10", "+1", "01", ".5", "1."]


@pytest.mark.parametrize("value", EXTREMES)
@pytest.mark.parametrize("name", NUMBERS)
def test_extremes_of_every_number_are_refused_by_name_and_at_once(name: str, value: str) -> None:
    began_s = time.process_time()
    error = refusal(f'{{"model":"tiny","messages":[{json.dumps(HELLO)}],"logprobs":true,"{name}":{value}}}')
    assert (error.code, error.param) == ("invalid_value", name)
    assert time.process_time() - began_s < 0.05


@pytest.mark.parametrize("value", NOT_JSON)
def test_numbers_that_json_lacks_are_not_json(value: str) -> None:
    assert refusal(f'{{"model":"tiny","messages":[],"temperature":{value}}}').code == "invalid_json"


@pytest.mark.parametrize("name", UNHONOURED)
def test_a_field_we_do_not_honour_is_refused_by_name_and_its_neutral_values_are_not(name: str) -> None:
    error = refusal(body(**{name: "something else"}))
    assert isinstance(error, UnsupportedParameter)
    assert error.param == name
    for neutral in (None, *UNHONOURED[name]):
        assert read(ParseContext("a", 1, is_strict=True), **{name: neutral}).requests


def test_unknown_fields_are_collected_or_refused_when_strict() -> None:
    harmless = dict.fromkeys(IGNORED, "x")
    assert read(zebra=1, **harmless, apple=None).unknown_fields == ("zebra", "apple")
    error = refusal(body(zebra=1, **harmless), ParseContext("a", 1, is_strict=True))
    assert isinstance(error, UnknownParameter)
    assert error.param == "zebra"


def test_a_value_that_looks_like_a_path_does_not_mislead() -> None:
    error = refusal(body(messages=[{"role": "x' - at `$.model`", "content": ""}]))
    assert error.param == "messages[0].role"


def test_a_megabyte_of_text_is_read() -> None:
    text = "x" * 2**20
    prompt = read(messages=[{"role": "user", "content": text}]).requests[0].prompt
    assert prompt == ChatPrompt((Message("user", text),))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(
        st.sampled_from([*NUMBERS, *UNHONOURED, "model", "messages", "stop", "stream", "logit_bias"])
        | st.text(),
        json_values,
        max_size=6,
    )
)
def test_any_object_is_read_or_refused(fields: dict[str, object]) -> None:
    try:
        assert read(**fields).requests
    except InvalidRequest as error:
        assert error.status == 400


@given(st.binary(max_size=64))
def test_any_bytes_are_refused(raw: bytes) -> None:
    assert refusal(raw).status == 400
