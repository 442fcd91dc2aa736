"""Fields of vLLM's, llama-server's and Ollama's users on the embedded model: each does what it says."""

import json
import urllib.request
from collections.abc import Callable
from typing import Any

import openai
import pytest

from support.real_node import MODEL, Node

pytestmark = pytest.mark.model

STORY = "Once upon a time there was a"
LIST = "the cat sat on the mat and " * 5 + "the cat"

Ask = Callable[..., dict[str, Any]]


@pytest.fixture(params=["completions", "chat"])
def ask(node: Node, request: pytest.FixtureRequest) -> Ask:
    """Asks either wire for an answer's first choice, with the text under `text`."""

    def completions(prompt: str, **fields: object) -> dict[str, Any]:
        return post(node, "/v1/completions", prompt=prompt, **fields)["choices"][0]

    def chat(prompt: str, **fields: object) -> dict[str, Any]:
        messages = [{"role": "user", "content": "Go on."}, {"role": "assistant", "content": prompt}]
        said = post(
            node,
            "/v1/chat/completions",
            messages=messages,
            continue_final_message=True,
            add_generation_prompt=False,
            **fields,
        )
        choice = said["choices"][0]
        return choice | {"text": choice["message"]["content"]} | said

    return completions if request.param == "completions" else chat


def post(node: Node, path: str, **body: object) -> dict[str, Any]:
    sent = json.dumps({"model": MODEL, "max_tokens": 10, "temperature": 0} | body).encode()
    headers = {"content-type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(node.url + path, sent, headers), timeout=60) as answer:
        told: dict[str, Any] = json.loads(answer.read())
    return told


def tokens_of(node: Node, text: str) -> list[int]:
    found: list[int] = post(node, "/tokenize", prompt=text, add_special_tokens=False)["tokens"]
    return found


def test_bad_words_never_appear(ask: Ask) -> None:
    prompt = "The capital of France is"
    assert "Paris" in ask(prompt)["text"]
    assert "Paris" not in ask(prompt, bad_words=["Paris", "paris"])["text"]


def test_only_allowed_tokens_are_written_and_all_ids_are_told(node: Node, ask: Ask) -> None:
    allowed = tokens_of(node, " yes no")
    choice = ask("Yes or no?", allowed_token_ids=allowed, temperature=1, return_token_ids=True)
    assert len(choice["token_ids"]) == 10
    assert set(choice["token_ids"]) <= set(allowed)
    told = post(node, "/detokenize", tokens=choice["token_ids"])["prompt"]
    assert told.strip() == choice["text"].strip()
    assert choice["prompt_token_ids"][-3:] == tokens_of(node, "Yes or no?")[-3:]


def test_control_tokens_are_shown_where_they_are_not_skipped(node: Node, ask: Ask) -> None:
    (start,) = tokens_of(node, "<|im_start|>")
    fields = {"allowed_token_ids": [start], "max_tokens": 3}
    assert ask(STORY, **fields)["text"] == ""
    assert ask(STORY, skip_special_tokens=False, **fields)["text"] == "<|im_start|>" * 3


def test_a_stop_string_stands_at_the_end_where_it_is_included(ask: Ask) -> None:
    word = ask(STORY)["text"].split()[2]
    plain = ask(STORY, stop=[word, "never"])
    shown = ask(STORY, stop=[word, "never"], include_stop_str_in_output=True)
    assert plain["finish_reason"] == shown["finish_reason"] == "stop"
    assert shown["text"] == plain["text"] + word


def test_a_truncated_prompt_is_its_last_tokens(node: Node) -> None:
    tokens = tokens_of(node, STORY)
    cut = post(node, "/v1/completions", prompt=STORY, truncate_prompt_tokens=4)
    assert cut["usage"]["prompt_tokens"] == 4
    assert (
        cut["choices"][0]["text"] == post(node, "/v1/completions", prompt=tokens[-4:])["choices"][0]["text"]
    )
    long = post(node, "/v1/completions", prompt=STORY * 4000, truncate_prompt_tokens=4, max_tokens=1)
    assert long["usage"]["prompt_tokens"] == 4, "however far it is beyond the context"


def longest_repeat(text: str) -> int:
    """How many words at the end of a text were said before in the same order."""
    words = text.split()
    return max(
        length
        for length in range(1, len(words))
        if length == 1 or any(words[at : at + length] == words[-length:] for at in range(len(words) - length))
    )


def test_dry_breaks_a_repetition(ask: Ask) -> None:
    plain = LIST + ask(LIST)["text"]
    dried = LIST + ask(LIST, dry_multiplier=5.0, dry_sequence_breakers=["#"])["text"]
    assert longest_repeat(plain) > 8
    assert longest_repeat(dried) < longest_repeat(plain)
    broken = ask(LIST, dry_multiplier=5.0, dry_sequence_breakers=["a", "t", "e"])["text"]
    assert LIST + broken == plain, "across a breaker nothing repeats"


def test_penalties_see_as_far_back_as_they_are_told(ask: Ask) -> None:
    plain = ask(LIST)["text"]
    assert ask(LIST, repeat_penalty=2.0, repeat_last_n=0)["text"] == plain
    # What the model wants to say next it said seven tokens ago.
    assert ask(LIST, repetition_penalty=2.0, repeat_last_n=2)["text"] == plain
    everything = ask(LIST, repeat_penalty=2.0, repeat_last_n=-1)["text"]
    assert everything == ask(LIST, repetition_penalty=2.0)["text"]
    assert everything != plain


@pytest.mark.parametrize("version", [1, 2])
def test_mirostat_is_another_choice_and_its_seed_decides(ask: Ask, version: int) -> None:
    fields = {"mirostat": version, "temperature": 1, "mirostat_tau": 6.0}
    first = ask(STORY, seed=1, **fields)["text"]
    assert ask(STORY, seed=1, **fields)["text"] == first
    assert ask(STORY, seed=2, **fields)["text"] != first
    assert ask(STORY, seed=1, temperature=1)["text"] != first


def test_cuts_to_the_likeliest_leave_nothing_to_chance(ask: Ask) -> None:
    likeliest = ask(STORY)["text"]
    assert ask(STORY, temperature=2, seed=1)["text"] != likeliest
    assert ask(STORY, temperature=2, seed=1, top_n_sigma=0.001)["text"] == likeliest
    typical = [ask(STORY, temperature=2, seed=seed, typical_p=0.001)["text"] for seed in (1, 2)]
    assert typical[0] == typical[1]


def test_xtc_and_a_moving_temperature_leave_the_likeliest(ask: Ask) -> None:
    likeliest = ask(STORY)["text"]
    assert ask(STORY, seed=1, xtc_probability=1.0, xtc_threshold=0.02)["text"] != likeliest
    assert ask(STORY, seed=1, xtc_probability=1.0, xtc_threshold=0.6)["text"] == likeliest
    moved = [ask(STORY, seed=seed, dynatemp_range=2.0, dynatemp_exponent=0.5)["text"] for seed in (1, 2)]
    assert moved[0] != moved[1]


def test_what_would_tell_the_whole_vocabulary_or_search_beams_is_refused_by_name(node: Node) -> None:
    with openai.OpenAI(base_url=f"{node.url}/v1", api_key="none", max_retries=0) as client:
        for fields, param in (
            ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
            ({"use_beam_search": True}, "use_beam_search"),
        ):
            with pytest.raises(openai.BadRequestError) as caught:
                client.chat.completions.create(
                    model=MODEL, messages=[{"role": "user", "content": "hi"}], extra_body=fields
                )
            assert caught.value.param == param


def test_a_stream_tells_its_usage_all_along(node: Node) -> None:
    with openai.OpenAI(base_url=f"{node.url}/v1", api_key="none", max_retries=0) as client:
        chunks = list(
            client.chat.completions.create(
                model=MODEL,
                messages=[{"role": "user", "content": "Count to five."}],
                max_tokens=12,
                stream=True,
                stream_options={"include_usage": True, "continuous_usage_stats": True},
                extra_body={"ignore_eos": True},
            )
        )
    made = [chunk.usage.completion_tokens for chunk in chunks]
    assert made == sorted(made)
    assert len(set(made)) > 5
    assert made[-1] == made[-2]
    assert {chunk.usage.prompt_tokens for chunk in chunks} == {chunks[-1].usage.prompt_tokens}


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_function_of_the_older_words_is_called_and_answered_in_them(node: Node, is_streamed: bool) -> None:
    functions = [
        {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"enum": ["Paris", "Oslo"]}},
                "required": ["city"],
            },
        }
    ]
    messages: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
    asked: dict[str, Any] = {"functions": functions, "function_call": {"name": "weather"}, "max_tokens": 64}
    with openai.OpenAI(base_url=f"{node.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        if is_streamed:
            chunks = list(
                client.chat.completions.create(model=MODEL, messages=messages, stream=True, **asked)
            )
            parts = [chunk.choices[0].delta.function_call for chunk in chunks if chunk.choices]
            named = [part.name for part in parts if part is not None and part.name]
            arguments = "".join(part.arguments or "" for part in parts if part is not None)
            assert chunks[-1].choices[0].finish_reason == "function_call"
            assert named == ["weather"]
        else:
            choice = client.chat.completions.create(model=MODEL, messages=messages, **asked).choices[0]
            assert (choice.finish_reason, choice.message.tool_calls) == ("function_call", None)
            assert choice.message.function_call.name == "weather"
            arguments = choice.message.function_call.arguments
        assert json.loads(arguments)["city"] in ("Paris", "Oslo")
        messages += [
            {
                "role": "assistant",
                "content": None,
                "function_call": {"name": "weather", "arguments": arguments},
            },
            {"role": "function", "name": "weather", "content": "Sunny."},
        ]
        answer = client.chat.completions.create(
            model=MODEL, messages=messages, functions=functions, function_call="none", max_tokens=8
        )
        assert answer.choices[0].message.content


def test_ollamas_options_do_what_they_say(node: Node) -> None:
    def generate(**options: object) -> str:
        body = {"prompt": LIST, "raw": True, "stream": False, "options": {"num_predict": 10} | options}
        text: str = post(node, "/api/generate", **body)["response"]
        return text

    plain = generate(temperature=0)
    assert generate(temperature=0, repeat_last_n=64, repeat_penalty=1.0) == plain
    assert generate(temperature=0, repeat_last_n=64, repeat_penalty=2.0) != plain
    assert generate(temperature=0, repeat_last_n=0, repeat_penalty=2.0) == plain
    mirostat = {"temperature": 1.0, "mirostat": 2, "mirostat_tau": 6.0, "mirostat_eta": 0.1, "seed": 3}
    assert generate(**mirostat) == generate(**mirostat)
    assert generate(**mirostat) != plain
