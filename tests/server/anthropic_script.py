"""What the SDK test runs, once for each major version of the SDK."""

import sys

import anthropic

url = sys.argv[1]
client = anthropic.Anthropic(
    base_url=url, api_key="none", max_retries=0, timeout=20, _strict_response_validation=True
)
print(anthropic.__version__)
TOOLS = [
    {
        "name": "weather",
        "description": "Say the weather.",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
    }
]
hello = [{"role": "user", "content": "What is the weather in Oslo?"}]
ask = {"model": "echo", "max_tokens": 400, "tools": TOOLS}

# The played model thinks, speaks and calls on its first turn, and answers on its second.
whole = client.messages.create(**ask, messages=hello, thinking={"type": "adaptive"})
assert [block.type for block in whole.content] == ["thinking", "text", "tool_use"]
thinking, text, call = whole.content
assert (thinking.thinking, text.text, call.input) == ("Oslo it is.", "I look.", {"city": "Oslo"})
assert call.id.startswith("toolu_")
assert (whole.stop_reason, whole.stop_sequence) == ("tool_use", None)
assert whole.usage.input_tokens + whole.usage.cache_read_input_tokens == 6
assert whole.usage.cache_read_input_tokens == 2
assert whole._request_id

with client.messages.stream(**ask, messages=hello) as stream:
    kinds = [event.type for event in stream]
    streamed = stream.get_final_message()
assert [(block.type, getattr(block, "signature", None)) for block in streamed.content] == [
    (block.type, getattr(block, "signature", None)) for block in whole.content
]
assert streamed.content[2].input == call.input
assert streamed.usage.output_tokens == whole.usage.output_tokens
assert kinds[0] == "message_start"
assert kinds[-1] == "message_stop"

for event in client.messages.create(**ask, messages=hello, stream=True):
    last = event
assert last.type == "message_stop"

again = [
    *hello,
    {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in whole.content]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "rain"}]},
]
answer = client.messages.create(**ask, messages=again)
assert [block.text for block in answer.content] == ["It rains."]
assert answer.stop_reason == "end_turn"

stopped = client.messages.create(**ask, messages=again, stop_sequences=[" rains"])
assert (stopped.content[0].text, stopped.stop_reason, stopped.stop_sequence) == (
    "It",
    "stop_sequence",
    " rains",
)
cut = client.messages.create(**{**ask, "max_tokens": 1}, messages=again)
assert (cut.content[0].text, cut.stop_reason) == ("It", "max_tokens")
warmed = client.messages.create(**{**ask, "max_tokens": 0}, messages=again)
assert (warmed.content, warmed.stop_reason) == ([], "max_tokens")

beta = client.beta.messages.create(**ask, messages=again, betas=["context-management-2025-06-27"])
assert beta.content[0].text == "It rains."
assert client.messages.count_tokens(model="echo", messages=hello, tools=TOOLS).input_tokens == 6
assert client.beta.messages.count_tokens(model="echo", messages=hello).input_tokens == 6

assert [model.id for model in client.models.list()] == ["echo"]
assert client.models.retrieve("echo").type == "model"

for wrong, status in (
    ({"model": "nobody"}, 404),
    ({"max_tokens": -1}, 400),
    ({"messages": [{"role": "user", "content": [{"type": "novelty"}]}]}, 400),
    ({"messages": [{"role": "user", "content": "word " * 5000}]}, 400),
):
    for is_streamed in (False, True):
        try:
            client.messages.create(**{**ask, "messages": hello, **wrong, "stream": is_streamed})
        except anthropic.APIStatusError as error:
            assert error.status_code == status, (wrong, error)
            assert error.body["type"] == "error"
            assert error.body["request_id"] == error.request_id
        else:
            raise AssertionError(f"{wrong} was accepted")
print("all accepted")
