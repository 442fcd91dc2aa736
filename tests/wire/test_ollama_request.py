"""What Ollama's clients may ask for, and what each of it means."""

import json
from array import array

import pytest

from ganglion.core.engine import Embedded, ModelState
from ganglion.core.errors import (
    GanglionError,
    InvalidValue,
    MissingParameter,
    UnknownParameter,
    UnsupportedParameter,
)
from ganglion.core.request import ChatPrompt, JsonSchema, Message, TextPrompt, Thinking, Tool, ToolCall
from ganglion.core.sampling import PLAIN, Samplers
from ganglion.wire.answer_format import ParseContext, ParsedCall
from ganglion.wire.fields import MAX_TOKENS
from ganglion.wire.ollama import (
    OllamaReplyContext,
    embed_body,
    parse_chat,
    parse_embed,
    parse_generate,
)
from ganglion.wire.ollama.ollama_models import meant, parse_pull, parse_show

ARRIVAL = ParseContext("ollama-1", 1700000000.5, tenant="tenant")
HI = [{"role": "user", "content": "hi"}]
CALLED_WITH_TEXT = [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}]


def chat(is_strict: bool = False, **fields: object) -> ParsedCall[OllamaReplyContext]:
    body = json.dumps({"model": "m", "messages": HI} | fields).encode()
    return parse_chat(body, ParseContext("ollama-1", 1700000000.5, tenant="tenant", is_strict=is_strict))


def generate(**fields: object) -> ParsedCall[OllamaReplyContext]:
    return parse_generate(json.dumps({"model": "m", "prompt": "hi"} | fields).encode(), ARRIVAL)


def test_the_least_body_streams_with_every_default_left_open() -> None:
    call = chat()
    assert call.is_streamed
    assert call.purpose == "answer"
    assert call.reply.created_at == "2023-11-14T22:13:20.500000Z"
    assert call.request.prompt == ChatPrompt((Message("user", "hi"),))
    assert call.request.max_tokens is None
    assert (call.request.id, call.request.tenant) == ("ollama-1", "tenant")
    assert not chat(stream=False).is_streamed
    assert chat(stream=None).is_streamed


def test_options_become_sampling_stops_and_length() -> None:
    request = chat(
        options={
            "temperature": 0,
            "top_k": -1,
            "top_p": 0.5,
            "min_p": 0.1,
            "repeat_penalty": 1.2,
            "presence_penalty": 0.5,
            "frequency_penalty": -1,
            "seed": 2**32 + 6,
            "num_predict": 9,
            "stop": ["a", "b"],
        }
    ).request
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0, 0, 0.5, 0.1)
    assert (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) == (
        1.2,
        0.5,
        -1,
    )
    assert sampling.seed == 7
    assert request.stop.strings == ("a", "b")
    assert request.max_tokens == 9


@pytest.mark.parametrize("num_predict", [-1, -2, 0])
def test_a_length_below_one_is_all_the_room_there_is(num_predict: int) -> None:
    assert chat(options={"num_predict": num_predict}).request.max_tokens == MAX_TOKENS


def test_a_seed_of_minus_one_is_any_seed() -> None:
    assert chat(options={"seed": -1}).request.sampling.seed is None
    assert chat(options={"seed": 0}).request.sampling.seed == 0


def test_a_window_of_penalties_is_theirs_and_asks_for_nothing_without_them() -> None:
    assert chat(options={"repeat_last_n": 64, "repeat_penalty": 1.0}).request.sampling.samplers == PLAIN
    sampling = chat(options={"repeat_last_n": 64, "repeat_penalty": 1.1}).request.sampling
    assert (sampling.repetition_penalty, sampling.samplers.repeat_last_n) == (1.1, 64)
    assert chat(options={"repeat_last_n": 0, "presence_penalty": 1}).request.sampling.samplers == Samplers(
        repeat_last_n=0
    )


def test_ollamas_own_samplers_are_honoured() -> None:
    options = {"mirostat": 2, "mirostat_tau": 4.0, "mirostat_eta": 0.2, "typical_p": 0.7}
    assert chat(options=options).request.sampling.samplers == Samplers(**options)


def test_a_prompt_may_be_cut_rather_than_refused() -> None:
    assert chat(truncate=True).may_truncate
    assert chat(truncate=True).request.truncate_prompt is None, "turns are left out, not tokens"
    assert generate(truncate=True, raw=True).request.truncate_prompt == -1
    assert not chat().may_truncate
    assert not chat(truncate=False).may_truncate


def test_num_ctx_is_a_wish_and_the_machines_options_are_the_operators() -> None:
    call = chat(options={"num_ctx": 131072, "num_gpu": 99, "num_thread": 8, "use_mmap": True, "num_keep": 4})
    assert call.context_tokens == 131072
    assert call.unknown_fields == ()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"options": {"tfs_z": 0.5}}, "options.tfs_z"),
        ({"options": {"penalize_newline": False}}, "options.penalize_newline"),
        ({"template": "{{ .Prompt }}"}, "template"),
        ({"context": list(range(1000))}, "context"),
        ({"shift": True}, "shift"),
        ({"width": 512}, "width"),
    ],
)
def test_what_is_not_honoured_is_refused_by_name(fields: dict[str, object], param: str) -> None:
    with pytest.raises(UnsupportedParameter) as caught:
        generate(**fields)
    assert caught.value.param == param


def test_values_that_ask_for_nothing_pass() -> None:
    generate(template="", context=[], truncate=None, width=0, images=[], system="")
    generate(options={"mirostat": 0, "mirostat_tau": 5.0, "tfs_z": 1, "typical_p": 1.0})
    generate(options=None, format="", think=None, keep_alive=None, suffix="")


@pytest.mark.parametrize(
    ("fields", "error", "param"),
    [
        ({"model": ""}, InvalidValue, "model"),
        ({"messages": [{"content": "x"}]}, MissingParameter, "messages[0].role"),
        ({"messages": [{"role": "robot", "content": "x"}]}, InvalidValue, "messages[0].role"),
        ({"messages": [{"role": "user", "images": ["aGk="]}]}, InvalidValue, "messages[0].images[0]"),
        ({"tools": [{"type": "web_search", "function": {"name": "f"}}]}, InvalidValue, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, MissingParameter, "tools[0].function"),
        ({"messages": CALLED_WITH_TEXT}, InvalidValue, "messages[0].tool_calls[0].function.arguments"),
        ({"format": "xml"}, InvalidValue, "format"),
        ({"format": {"x": "y" * 2**18}}, InvalidValue, "format"),
        ({"think": "loud"}, InvalidValue, "think"),
        ({"keep_alive": "soon"}, InvalidValue, "keep_alive"),
        ({"keep_alive": "5m3"}, InvalidValue, "keep_alive"),
        ({"options": {"temperature": -1}}, InvalidValue, "options.temperature"),
        ({"options": {"num_predict": -3}}, InvalidValue, "options.num_predict"),
        ({"options": {"num_ctx": 0}}, InvalidValue, "options.num_ctx"),
        ({"options": []}, InvalidValue, "options"),
        ({"top_logprobs": 3}, InvalidValue, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, InvalidValue, "top_logprobs"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, object], error: type[GanglionError], param: str) -> None:
    with pytest.raises(error) as caught:
        chat(**fields)
    assert caught.value.param == param


def test_unknown_fields_are_noted_and_strictly_refused() -> None:
    call = chat(novel=1, options={"novel": 2, "num_ctx": 5})
    assert call.unknown_fields == ("novel", "options.novel")
    with pytest.raises(UnknownParameter):
        chat(is_strict=True, options={"novel": 2})


@pytest.mark.parametrize(
    ("think", "meaning"),
    [
        (None, Thinking()),
        (True, Thinking(is_enabled=True)),
        (False, Thinking(is_enabled=False)),
        ("low", Thinking(is_enabled=True, effort="low")),
        ("high", Thinking(is_enabled=True, effort="high")),
        ("none", Thinking(is_enabled=False, effort="none")),
    ],
)
def test_thinking_is_asked_for(think: object, meaning: Thinking) -> None:
    for call in (chat(think=think), generate(think=think)):
        assert isinstance(call.request.prompt, ChatPrompt)
        assert call.request.prompt.thinking == meaning


def test_a_format_constrains_the_answer() -> None:
    assert chat(format="json").request.constraint == JsonSchema({"type": "object"})
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert generate(format=schema).request.constraint == JsonSchema(schema)
    assert chat(format="").request.constraint is None


def test_tools_calls_and_their_answers_find_each_other() -> None:
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
    function = {"name": "weather", "description": "d", "parameters": parameters}
    messages = [
        *HI,
        {
            "role": "assistant",
            "thinking": "hm",
            "tool_calls": [
                {"function": {"name": "weather", "arguments": {"city": "Oslo"}}},
                {"function": {"name": "time", "arguments": {}}},
                {"id": "mine", "function": {"name": "time"}},
            ],
        },
        {"role": "tool", "tool_name": "time", "content": "noon"},
        {"role": "tool", "content": "rain"},
        {"role": "tool", "tool_call_id": "mine", "content": "one"},
    ]
    prompt = chat(messages=messages, tools=[{"type": "function", "function": function}]).request.prompt
    assert isinstance(prompt, ChatPrompt)
    assert prompt.tool_use.tools == (Tool("weather", "d", parameters),)
    assert prompt.messages[1] == Message(
        "assistant",
        "",
        reasoning="hm",
        tool_calls=(
            ToolCall("call_1_0", "weather", '{"city": "Oslo"}'),
            ToolCall("call_1_1", "time", "{}"),
            ToolCall("mine", "time", "{}"),
        ),
    )
    assert [message.tool_call_id for message in prompt.messages[2:]] == ["call_1_1", "call_1_0", "mine"]
    assert prompt.messages[2].name == "time"


def test_a_prompt_is_a_turn_unless_it_is_raw_or_has_a_suffix() -> None:
    assert generate(system="be brief").request.prompt == ChatPrompt(
        (Message("system", "be brief"), Message("user", "hi"))
    )
    assert generate(raw=True).request.prompt == TextPrompt("hi")
    assert generate(suffix="end").request.prompt == TextPrompt("hi", "end")
    for refused in ({"system": "s"}, {"think": True}):
        with pytest.raises(InvalidValue):
            generate(raw=True, **refused)
    with pytest.raises(InvalidValue):
        generate(images=["aGk="])


@pytest.mark.parametrize("zero", [0, 0.0, "0", "0s", "0m", "-0h"])
def test_nothing_to_answer_loads_a_model_and_no_time_to_stay_unloads_it(zero: object) -> None:
    assert chat(messages=[]).purpose == "load"
    assert chat(messages=None, keep_alive="1h30m").purpose == "load"
    assert generate(prompt="", keep_alive=-1).purpose == "load"
    assert chat(messages=[], keep_alive=zero).purpose == "unload"
    assert generate(prompt=None, keep_alive=zero).purpose == "unload"
    assert chat(keep_alive=zero).purpose == "answer"
    assert chat(messages=[]).request.max_tokens == 0


def test_vectors_are_cut_to_the_dimensions_and_made_unit_again() -> None:
    body = json.dumps({"model": "m", "input": ["a", "b"], "dimensions": 2}).encode()
    call = parse_embed(body, ARRIVAL)
    assert call.request.inputs == (TextPrompt("a"), TextPrompt("b"))
    assert call.may_truncate
    vectors = (array("f", [3.0, 4.0, 12.0]).tobytes(), array("f", [0.0, 0.0, 1.0]).tobytes())
    told = json.loads(embed_body(call, Embedded(vectors, 5), 0.25))
    assert told["embeddings"][0] == pytest.approx([0.6, 0.8])
    assert told["embeddings"][1] == [0.0, 0.0]
    assert (told["total_duration"], told["prompt_eval_count"]) == (250_000_000, 5)
    with pytest.raises(InvalidValue, match="3"):
        embed_body(
            parse_embed(b'{"model":"m","input":"a","dimensions":9}', ARRIVAL), Embedded(vectors[:1], 1), 0.0
        )


def test_names_are_found_with_the_tag_that_clients_add() -> None:
    models = [
        ModelState("org/Repo:Q4", "llama", "loaded", 1, 1, aliases=("Small",)),
        ModelState("kept:latest", "llama", "loaded", 1, 1),
    ]
    for name, found in {
        "org/Repo:Q4": "org/Repo:Q4",
        "small:latest": "Small",
        "SMALL": "Small",
        "hf.co/org/Repo:Q4": "org/Repo:Q4",
        "huggingface.co/new/repo:latest": "new/repo",
        "kept:latest": "kept:latest",
        "other:latest": "other",
        "other:7b": "other:7b",
        ":latest": ":latest",
    }.items():
        assert meant(name, models) == found


def test_older_clients_say_name() -> None:
    assert parse_show(b'{"name":"m"}') == "m"
    assert parse_pull(b'{"name":"m"}') == ("m", True)
    assert parse_pull(b'{"model":"m","stream":false,"insecure":true}') == ("m", False)
    for parse in (parse_show, parse_pull):
        with pytest.raises(MissingParameter):
            parse(b"{}")
