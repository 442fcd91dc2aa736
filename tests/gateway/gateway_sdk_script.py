"""What the test of OpenAI's SDK runs, once for each of its major versions, through a gateway."""

import sys
import time

import openai

url = sys.argv[1]
client = openai.OpenAI(
    base_url=url + "/v1", api_key="none", max_retries=0, timeout=20, _strict_response_validation=True
)
print(openai.__version__)
ask = {"model": "echo", "messages": [{"role": "user", "content": "one two three"}]}

whole = client.chat.completions.create(**ask)
assert whole.choices[0].message.content == "one two three"
assert whole.usage.completion_tokens == 3
chunks = list(client.chat.completions.create(**ask, stream=True))
assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "one two three"
assert all(chunk.usage is None for chunk in chunks), "usage was not asked for"
counted = list(client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
assert (counted[-1].choices, counted[-1].usage.completion_tokens) == ([], 3)

weather = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
for is_streamed in (False, True):
    asked = {"model": "caller", "messages": ask["messages"], "tools": [weather]}
    if is_streamed:
        with client.chat.completions.stream(**asked) as stream:
            (choice,) = stream.get_final_completion().choices
    else:
        (choice,) = client.chat.completions.create(**asked).choices
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    assert (call.function.name, call.function.arguments) == ("weather", '{"city":"Oslo"}')

assert client.completions.create(model="echo", prompt="a b").choices[0].text == "a b"
lenient = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0)
parts = [part.choices[0].text for part in lenient.completions.create(model="echo", prompt="a b", stream=True)]
assert "".join(parts) == "a b"
vectors = lenient.embeddings.create(model="echo", input=["north", "south"]).data
assert [vector.index for vector in vectors] == [0, 1]
assert len(vectors[0].embedding) == len(vectors[1].embedding)
assert sorted(model.id for model in client.models.list()) == ["caller", "echo"]
assert client.models.retrieve("echo").id == "echo"

first = client.responses.create(model="echo", input="remember figs")
assert first.output_text == "remember figs"
assert client.responses.retrieve(first.id) == first
with client.responses.stream(model="echo", input="and then", previous_response_id=first.id) as stream:
    second = stream.get_final_response()
assert (second.output_text, second.previous_response_id) == ("and then", first.id)
assert second.usage.input_tokens > first.usage.input_tokens, "the history was sent along"
items = client.responses.input_items.list(second.id, order="asc")
assert [item.content[0].text for item in items] == ["and then"]
tool = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": False}
called = client.responses.create(model="caller", input="Oslo?", tools=[tool])
assert called.output[-1].type == "function_call"
output = {"type": "function_call_output", "call_id": called.output[-1].call_id, "output": "wet"}
client.responses.create(model="echo", input=[output], tools=[tool], previous_response_id=called.id)

talk = client.conversations.create(items=[{"role": "user", "content": "hello"}])
told = client.responses.create(model="echo", input="and you?", conversation=talk.id)
assert told.conversation.id == talk.id
texts = [item.content[0].text for item in client.conversations.items.list(talk.id, order="asc")]
assert texts == ["hello", "and you?", "and you?"]
assert client.conversations.delete(talk.id).deleted

begun = client.responses.create(model="echo", input="in the background", background=True)
assert begun.status == "queued"
deadline_s = time.monotonic() + 10
while client.responses.retrieve(begun.id).status in ("queued", "in_progress"):
    assert time.monotonic() < deadline_s
    time.sleep(0.02)
events = list(client.responses.retrieve(begun.id, stream=True))
assert [event.sequence_number for event in events] == list(range(len(events)))
assert events[-1].response.output_text == "in the background"
endless = "!echo unbounded=1 delay=0.005\nla "
stream = client.responses.create(model="echo", input=endless, background=True, stream=True)
cancelled = client.responses.cancel(next(iter(stream)).response.id)
assert list(stream)[-1].response.status == cancelled.status == "cancelled"
client.responses.delete(first.id)

for call, code, status in (
    (lambda: client.responses.retrieve(first.id), "response_not_found", 404),
    (lambda: client.chat.completions.create(**ask | {"model": "nobody"}), "model_not_found", 404),
    (lambda: client.chat.completions.create(**ask, temperature=-1), "invalid_value", 400),
    (lambda: client.responses.create(model="nobody", input="hi"), "model_not_found", 404),
):
    try:
        call()
    except openai.APIStatusError as error:
        assert (error.status_code, error.code) == (status, code), error
    else:
        raise AssertionError(f"{code} did not come")
print("all accepted")
