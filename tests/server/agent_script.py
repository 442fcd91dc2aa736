"""What the test of tools and completions runs against an echo, once for each major version of the SDK."""

import json
import sys

import openai

url = sys.argv[1]
options = {"base_url": url + "/v1", "api_key": "none", "max_retries": 0, "timeout": 20}
client = openai.OpenAI(**options, _strict_response_validation=True)
lenient = openai.OpenAI(**options)
"""For what the service sends and its SDK's own types do not allow."""
print(openai.__version__)

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": SCHEMA, "strict": True}},
    {"type": "custom", "custom": {"name": "shell", "format": {"type": "text"}}},
]
ask = {
    "model": "echo",
    "messages": [
        {"role": "user", "content": '!echo reply=Hm. call=weather:{"city":"Oslo"} call=weather:{}\n'}
    ],
    "tools": TOOLS,
}

whole = client.chat.completions.create(**ask, tool_choice="required")
message = whole.choices[0].message
assert whole.choices[0].finish_reason == "tool_calls"
assert message.content == "Hm."
assert [call.function.arguments for call in message.tool_calls] == ['{"city":"Oslo"}', "{}"]
assert len({call.id for call in message.tool_calls}) == 2

named = {"type": "function", "function": {"name": "weather"}}
chunks = list(client.chat.completions.create(**ask, stream=True, tool_choice=named))
assert chunks[-1].choices[0].finish_reason == "tool_calls"
parts = [part for chunk in chunks for part in chunk.choices[0].delta.tool_calls or ()]
firsts = [part for part in parts if part.id]
assert [(part.index, part.type, part.function.name, part.function.arguments) for part in firsts] == [
    (0, "function", "weather", ""),
    (1, "function", "weather", ""),
]
assert all(part.type is None and part.function.name is None for part in parts if not part.id)
for index, call in enumerate(message.tool_calls):
    assert call.function.arguments == "".join(p.function.arguments for p in parts if p.index == index)

with client.chat.completions.stream(**{**ask, "tools": TOOLS[:1]}) as helped:
    final = helped.get_final_completion()
assert final.choices[0].message.tool_calls[0].function.parsed_arguments == {"city": "Oslo"}

turn = [*ask["messages"], message.to_dict()]
turn += [{"role": "tool", "tool_call_id": call.id, "content": "rain"} for call in message.tool_calls]
turn += [{"role": "user", "content": "and now?"}]
again = client.chat.completions.create(**{**ask, "messages": turn}, parallel_tool_calls=False)
assert again.choices[0].message.content == "and now?"

custom = {**ask, "messages": [{"role": "user", "content": "!echo reply= call=shell:ls call=weather:{}\n"}]}
whole = client.chat.completions.create(**custom)
message = whole.choices[0].message
assert message.content is None
assert [call.type for call in message.tool_calls] == ["custom", "function"]
assert (message.tool_calls[0].custom.name, message.tool_calls[0].custom.input) == ("shell", "ls")
chunks = list(lenient.chat.completions.create(**custom, stream=True))
parts = [part.to_dict() for chunk in chunks for part in chunk.choices[0].delta.tool_calls or ()]
assert [part["custom"]["input"] for part in parts if "custom" in part] == ["", "ls"]
turn = [*custom["messages"], message.to_dict(), {"role": "tool", "tool_call_id": "x", "content": "a b"}]
client.chat.completions.create(**{**ask, "messages": turn})

said = [{"role": "user", "content": '{"city":"Oslo"}'}]
parsed = client.chat.completions.create(
    model="echo",
    messages=said,
    response_format={"type": "json_schema", "json_schema": {"name": "c", "schema": SCHEMA, "strict": True}},
)
assert json.loads(parsed.choices[0].message.content) == {"city": "Oslo"}
scored = client.chat.completions.create(
    model="echo", messages=[{"role": "user", "content": "one two"}], extra_body={"prompt_logprobs": 2}
)
assert scored.prompt_logprobs[0] is None
assert [entry["rank"] for entry in scored.prompt_logprobs[1].values()] == [1, 2]

whole = client.completions.create(
    model="echo", prompt=["one two three", "four"], n=2, max_tokens=2, logprobs=2
)
assert [choice.text for choice in whole.choices] == ["one two", "one two", "four", "four"]
assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
assert [choice.finish_reason for choice in whole.choices] == ["length", "length", "stop", "stop"]
assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (4, 6)
assert whole.choices[0].logprobs.tokens == ["one", " two"]
assert whole.choices[0].logprobs.text_offset == [0, 3]
assert [len(top) for top in whole.choices[0].logprobs.top_logprobs] == [2, 2]

echoed = client.completions.create(model="echo", prompt="one two", echo=True, max_tokens=1)
assert echoed.choices[0].text == "one twoone"
chunks = list(
    lenient.completions.create(
        model="echo", prompt="one two", stream=True, echo=True, stream_options={"include_usage": True}
    )
)
assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == "one twoone two"
assert [choice.finish_reason for chunk in chunks for choice in chunk.choices][-2:] == [None, "stop"]
assert chunks[-1].usage.total_tokens == 4
assert {chunk.object for chunk in chunks} == {"text_completion"}

for create, wrong, param in (
    (client.chat.completions.create, {**ask, "tool_choice": {"type": "function", "function": {"name": "f"}}},
     "tool_choice"),
    (client.chat.completions.create, {**ask, "functions": [{"name": "f"}]}, "functions"),
    (client.completions.create, {"model": "echo", "prompt": "x", "best_of": 3}, "best_of"),
    (client.completions.create, {"model": "echo", "prompt": [1], "suffix": "x"}, "suffix"),
):  # fmt: skip
    for stream in (False, True):
        try:
            create(**wrong, stream=stream)
        except openai.BadRequestError as error:
            assert error.param == param, (wrong, error.param)
        else:
            raise AssertionError(f"{wrong} was accepted")
print("all accepted")
