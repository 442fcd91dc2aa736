"""What the SDK test runs, once for each major version of the SDK."""

import sys

import openai

url, model = sys.argv[1:]
client = openai.OpenAI(
    base_url=url + "/v1", api_key="none", max_retries=0, timeout=60, _strict_response_validation=True
)
ask = {"model": model, "messages": [{"role": "user", "content": "Name three colours."}], "max_tokens": 16}
print(openai.__version__)

whole = client.chat.completions.create(**ask, temperature=0)
assert whole.choices[0].message.content
assert whole.choices[0].finish_reason in ("stop", "length")
assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens

chunks = list(client.chat.completions.create(**ask, temperature=0, stream=True))
assert chunks[0].choices[0].delta.role == "assistant"
assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
assert text == whole.choices[0].message.content, (text, whole.choices[0].message.content)

chunks = list(
    client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}, seed=1)
)
assert chunks[-1].choices == []
assert chunks[-1].usage.completion_tokens > 0

many = client.chat.completions.create(**ask, n=3, seed=7, temperature=1.2)
assert [choice.index for choice in many.choices] == [0, 1, 2]
again = client.chat.completions.create(**ask, n=3, seed=7, temperature=1.2)
assert [choice.message.content for choice in many.choices] == [
    choice.message.content for choice in again.choices
]

scored = client.chat.completions.create(**ask, logprobs=True, top_logprobs=4, temperature=0)
tokens = scored.choices[0].logprobs.content
assert "".join(token.token for token in tokens) == scored.choices[0].message.content
assert all(len(token.top_logprobs) == 4 for token in tokens)
assert all(token.logprob == token.top_logprobs[0].logprob for token in tokens), "greedy takes the likeliest"
assert all(token.logprob <= 0.0 for token in tokens)

stopped = client.chat.completions.create(
    model=model,
    messages=[{"role": "user", "content": "Count: one, two, three, four, five, six, seven"}],
    stop=[","],
    temperature=0,
    max_tokens=60,
)
assert "," not in stopped.choices[0].message.content

biased = client.chat.completions.create(**{**ask, "max_tokens": 3}, logit_bias={"504": 100}, temperature=0)
assert biased.choices[0].message.content == "TheTheThe"

penalised = client.chat.completions.create(
    **ask,
    frequency_penalty=1.5,
    presence_penalty=1.0,
    extra_body={"top_k": 5, "min_p": 0.05, "repetition_penalty": 1.1, "ignore_eos": True, "priority": 1},
)
assert penalised.usage.completion_tokens == 16

assert model in [each.id for each in client.models.list()]
assert client.models.retrieve(model).id == model

story = {"model": model, "prompt": "Once upon a time, there was a", "max_tokens": 8, "temperature": 0}
told = client.completions.create(**story, logprobs=3)
assert told.choices[0].text
assert "".join(told.choices[0].logprobs.tokens) == told.choices[0].text
assert told.choices[0].logprobs.text_offset[0] == 0
shown = told.choices[0].logprobs
assert shown.token_logprobs == [max(top.values()) for top in shown.top_logprobs], "greedy takes the likeliest"
batch = client.completions.create(**{**story, "prompt": [[504, 28], [504]]}, n=2)
assert [choice.index for choice in batch.choices] == [0, 1, 2, 3]
assert batch.usage.prompt_tokens == 3
echoed = client.completions.create(**story, echo=True)
assert echoed.choices[0].text == story["prompt"] + told.choices[0].text
chunks = list(openai.OpenAI(base_url=url + "/v1", api_key="none").completions.create(**story, stream=True))
assert "".join(chunk.choices[0].text for chunk in chunks) == told.choices[0].text
assert chunks[-1].choices[0].finish_reason == "length"

for wrong, code, status in (
    ({"model": "nobody"}, "model_not_found", 404),
    ({"temperature": -1}, "invalid_value", 400),
    ({"messages": []}, "invalid_value", 400),
    ({"messages": [{"role": "user", "content": "word " * 5000}]}, "context_length_exceeded", 400),
    ({"functions": [{"name": ""}]}, "invalid_value", 400),
    ({"tool_choice": "required"}, "invalid_value", 400),
    ({"logit_bias": {"9999999": 1}}, "invalid_value", 400),
):
    for stream in (False, True):
        try:
            client.chat.completions.create(**{**ask, **wrong, "stream": stream})
        except openai.APIStatusError as error:
            assert (error.status_code, error.code) == (status, code), (wrong, error.status_code, error.code)
        else:
            raise AssertionError(f"{wrong} was accepted")
print("all accepted")
