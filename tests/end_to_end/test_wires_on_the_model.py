"""Tools, formats and state on the embedded model: what a grammar promises, a small model keeps."""

import json
from collections.abc import Iterator

import anthropic
import jsonschema_rs
import openai
import pytest

from support.real_node import MODEL, Node

pytestmark = pytest.mark.model

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["c", "f"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
CLOCK = {
    "type": "object",
    "properties": {"hours": {"type": "integer", "minimum": 0, "maximum": 23}},
    "required": ["hours"],
    "additionalProperties": False,
}
SCHEMAS = {"get_weather": WEATHER, "set_clock": CLOCK}
ASKED = [{"role": "user", "content": "What is the weather in Paris?"}]


def functions() -> list:
    return [{"type": "function", "function": {"name": name, "parameters": SCHEMAS[name]}} for name in SCHEMAS]


@pytest.fixture
def client(node: Node) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{node.url}/v1", api_key="none", max_retries=0, timeout=90) as client:
        yield client


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "set_clock"}}], ids=["required", "named"]
)
def test_a_call_that_is_required_is_made_and_fits_its_schema(
    client: openai.OpenAI, choice: object, seed: int
) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=ASKED,
        tools=functions(),
        tool_choice=choice,
        parallel_tool_calls=False,
        max_tokens=200,
        seed=seed,
    )
    assert answer.choices[0].finish_reason == "tool_calls"
    (call,) = answer.choices[0].message.tool_calls
    assert choice == "required" or call.function.name == "set_clock"
    jsonschema_rs.validate(SCHEMAS[call.function.name], json.loads(call.function.arguments))


def test_messages_and_responses_require_calls_too(node: Node, client: openai.OpenAI) -> None:
    anthropics = anthropic.Anthropic(base_url=node.url, api_key="none", max_retries=0, timeout=90)
    message = anthropics.messages.create(
        model=MODEL,
        max_tokens=200,
        messages=ASKED,
        tools=[{"name": name, "input_schema": SCHEMAS[name]} for name in SCHEMAS],
        tool_choice={"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True},
    )
    (block,) = message.content
    assert (message.stop_reason, block.type, block.name) == ("tool_use", "tool_use", "get_weather")
    jsonschema_rs.validate(WEATHER, block.input)
    anthropics.close()

    tools = [{"type": "function", "name": name, "parameters": SCHEMAS[name]} for name in SCHEMAS]
    with client.responses.stream(
        model=MODEL, input=ASKED[0]["content"], tools=tools, tool_choice="required", parallel_tool_calls=False
    ) as stream:
        response = stream.get_final_response()
    (item,) = response.output
    assert item.type == "function_call"
    jsonschema_rs.validate(SCHEMAS[item.name], json.loads(item.arguments))


def test_a_format_holds_on_every_wire_that_has_one(node: Node, client: openai.OpenAI) -> None:
    form = {"name": "clock", "schema": CLOCK, "strict": True}
    chat = client.chat.completions.create(
        model=MODEL,
        messages=ASKED,
        max_tokens=60,
        response_format={"type": "json_schema", "json_schema": form},
    )
    jsonschema_rs.validate(CLOCK, json.loads(chat.choices[0].message.content))
    response = client.responses.create(
        model=MODEL, input="What time is it?", text={"format": {"type": "json_schema", **form}}
    )
    jsonschema_rs.validate(CLOCK, json.loads(response.output_text))
    chosen = client.completions.create(
        model=MODEL, prompt="Yes or no?", max_tokens=5, extra_body={"guided_choice": ["yes", "no"]}
    )
    assert chosen.choices[0].text in ("yes", "no")


def test_a_share_of_zero_takes_the_likeliest_token_whatever_the_temperature(client: openai.OpenAI) -> None:
    ask = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 12}
    greedy = client.completions.create(**ask, temperature=0).choices[0].text
    for seed in range(3):
        assert client.completions.create(**ask, temperature=2, top_p=0, seed=seed).choices[0].text == greedy


def test_a_length_of_zero_reads_the_prompt_and_says_nothing(node: Node, client: openai.OpenAI) -> None:
    chat = client.chat.completions.create(model=MODEL, messages=ASKED, max_tokens=0)
    assert (chat.choices[0].message.content or "", chat.choices[0].finish_reason) == ("", "length")
    assert (chat.usage.completion_tokens, chat.usage.prompt_tokens > 0) == (0, True)
    response = client.responses.create(model=MODEL, input=ASKED, max_output_tokens=0)
    assert (response.status, response.output_text, response.usage.output_tokens) == ("incomplete", "", 0)
    assert response.usage.input_tokens == chat.usage.prompt_tokens
    with anthropic.Anthropic(base_url=node.url, api_key="none", max_retries=0, timeout=90) as anthropics:
        message = anthropics.messages.create(model=MODEL, max_tokens=0, messages=ASKED)
    assert (message.content, message.stop_reason, message.usage.output_tokens) == ([], "max_tokens", 0)
    text = client.completions.create(model=MODEL, prompt="Once", max_tokens=0)
    assert (text.choices[0].text, text.choices[0].finish_reason) == ("", "length")


def test_a_response_tells_the_values_that_the_model_samples_by(client: openai.OpenAI) -> None:
    (listed,) = (model for model in client.models.list() if model.id == MODEL)
    assert listed.context_length > 0
    response = client.responses.create(model=MODEL, input="Hi.", max_output_tokens=4)
    assert (response.temperature, response.top_p) == (1.0, 0.95), "its file names no defaults of its own"


def test_a_prompts_token_has_its_rank_also_where_it_is_not_among_the_likeliest(
    client: openai.OpenAI,
) -> None:
    body = {"prompt_logprobs": 0}
    answer = client.completions.create(
        model=MODEL, prompt="Once upon a zebra, quietly", max_tokens=1, extra_body=body
    )
    told = [next(iter(each.values())) for each in answer.choices[0].prompt_logprobs if each]
    assert all(each["rank"] >= 1 for each in told)
    assert max(each["rank"] for each in told) > 20


def test_a_conversation_goes_on_from_what_was_kept(client: openai.OpenAI) -> None:
    first = client.responses.create(model=MODEL, input="My name is Ada.", max_output_tokens=16, temperature=0)
    second = client.responses.create(
        model=MODEL,
        input="What is my name?",
        previous_response_id=first.id,
        max_output_tokens=16,
        temperature=0,
    )
    assert second.usage.input_tokens > first.usage.input_tokens + first.usage.output_tokens
    assert second.usage.input_tokens_details.cached_tokens > 0
    assert client.responses.retrieve(second.id).output_text == second.output_text
