"""What is reserved for a request is an upper bound: of every prompt, every choice, and all that it hides."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganglion.core.errors import InvalidValue
from ganglion.core.request import ChatPrompt, Message, Request, TextPrompt, TokenPrompt, Tool, ToolUse
from ganglion.gateway.proxy import authorize
from ganglion.gateway.proxy.peek import with_fields
from ganglion.gateway.proxy.routes import route_of
from ganglion.wire.dialect import Wire
from ganglion.wire.dialects import DIALECTS
from ganglion.wire.token_bound import (
    MEDIA_TOKENS,
    PAIR_TOKENS,
    TEMPLATE_TOKENS,
    TokenBound,
    bound_of_request,
)

PROXIES = {dialect.name: dialect.proxy for dialect in DIALECTS if dialect.routes}
TALK = [{"role": "user", "content": "one"}]
PICTURE = {"type": "image_url", "image_url": {"url": "http://there/p.png"}}


def bound_of(wire: Wire, body: bytes) -> TokenBound:
    route = next(route for dialect in DIALECTS if dialect.name == wire for route in dialect.routes)
    return authorize.bound_of(route_of(b"POST", route.path.encode()), body)


def body_of(**fields: object) -> bytes:
    return json.dumps({"model": "m", **fields}).encode()


@pytest.mark.parametrize(
    ("wire", "fields", "beside_the_body", "open_answers"),
    [
        ("chat", {"messages": TALK, "max_tokens": 7}, TEMPLATE_TOKENS + 7, 0),
        ("chat", {"messages": TALK, "max_completion_tokens": 9, "n": 3}, TEMPLATE_TOKENS + 27, 0),
        ("chat", {"messages": TALK, "max_tokens": 7, "max_completion_tokens": 9}, TEMPLATE_TOKENS + 9, 0),
        ("chat", {"messages": TALK, "max_tokens": 1, "n_predict": 99}, TEMPLATE_TOKENS + 99, 0),
        ("chat", {"messages": TALK, "n": 4}, TEMPLATE_TOKENS, 4),
        ("chat", {"messages": TALK, "max_tokens": -1}, TEMPLATE_TOKENS, 1),
        ("chat", {"messages": TALK, "max_tokens": 5, "n_predict": -1}, TEMPLATE_TOKENS, 1),
        ("chat", {"messages": TALK, "max_tokens": 0}, TEMPLATE_TOKENS, 0),
        ("chat", {"messages": [{"role": "user", "content": [PICTURE, PICTURE]}], "max_tokens": 1},
         TEMPLATE_TOKENS + 1 + 2 * MEDIA_TOKENS, 0),
        ("messages", {"messages": [{"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image"}]}]}], "max_tokens": 5},
         TEMPLATE_TOKENS + 5 + MEDIA_TOKENS, 0),
        ("responses", {"input": "one", "max_output_tokens": 5}, TEMPLATE_TOKENS + 5, 0),
        ("responses", {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
         TEMPLATE_TOKENS + MEDIA_TOKENS, 1),
        ("ollama", {"messages": TALK, "options": {"num_predict": 5}}, TEMPLATE_TOKENS + 5, 0),
        ("ollama", {"prompt": "x", "images": ["aaaa"], "options": {"num_predict": 0}},
         TEMPLATE_TOKENS + MEDIA_TOKENS, 1),
        ("completions", {"prompt": "one", "max_tokens": 5, "n": 2, "best_of": 4}, 20, 0),
        ("completions", {"prompt": ["one"] * 600, "max_tokens": 100}, 60_000, 0),
        ("completions", {"prompt": ["one"] * 600}, 0, 600),
        ("embeddings", {"input": ["one", "two"]}, 0, 0),
        ("rerank", {"query": "four", "documents": ["a", {"text": "b"}, "c"]}, 3 * (4 + PAIR_TOKENS), 0),
        ("score", {"prompt": "one"}, 0, 0),
    ],
)  # fmt: skip
def test_every_prompt_and_every_choice_is_counted(
    wire: Wire, fields: dict[str, object], beside_the_body: int, open_answers: int
) -> None:
    body = body_of(**fields)
    bound = bound_of(wire, body)
    assert (bound.tokens, bound.open_answers) == (len(body) + beside_the_body, open_answers)


@pytest.mark.parametrize(
    ("wire", "fields", "tokens"),
    [
        ("completions", {"prompt": [1, 22, 333], "max_tokens": 2}, 5),
        ("completions", {"prompt": [[1, 22, 333], [4]], "max_tokens": 2, "n": 3}, 4 + 12),
        ("embeddings", {"input": [50256] * 9}, 9),
        ("embeddings", {"input": [[1], [2, 3]]}, 3),
        ("score", {"prompt": [1, 2, 3]}, 3),
    ],
)
def test_token_ids_count_as_they_are(wire: Wire, fields: dict[str, object], tokens: int) -> None:
    assert bound_of(wire, body_of(**fields)) == TokenBound(tokens)


def test_counting_and_tokenizing_take_nothing() -> None:
    assert bound_of("prompt", body_of(prompt="a long text")) == TokenBound(0)
    counting = route_of(b"POST", b"/v1/responses/input_tokens")
    assert authorize.bound_of(counting, body_of(input="a long text")) == TokenBound(0)


def test_tools_count_twice_since_templates_write_them_anew() -> None:
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    plain, with_tools = body_of(max_tokens=1), body_of(max_tokens=1, tools=tools)
    more = bound_of("chat", with_tools).tokens - bound_of("chat", plain).tokens
    assert more == len(with_tools) - len(plain) + len(json.dumps(tools))


@pytest.mark.parametrize(
    "fields",
    [{"n": "600"}, {"max_tokens": "9"}, {"max_tokens": 9.5}, {"n": [2]}, {"best_of": {}}, {"n_predict": "9"}],
)
def test_a_number_that_cannot_be_read_is_refused_and_not_guessed(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidValue, match="cannot be read"):
        bound_of("completions", body_of(prompt="x", **fields))


def test_a_field_under_an_escaped_name_or_said_twice_counts_as_servers_read_it() -> None:
    plain = bound_of("chat", b'{"max_tokens":5}')
    hidden = bound_of("chat", b'{"max_\\u0074okens":5}')
    assert hidden.tokens - plain.tokens == 5 and not hidden.open_answers
    assert bound_of("chat", b'{"max_tokens":5,"max_tokens":900}').tokens > 900


@given(st.lists(st.text(), min_size=1, max_size=5), st.integers(0, 50), st.integers(1, 4))
def test_no_text_has_more_bytes_than_are_reserved_for_it(texts: list[str], most: int, n: int) -> None:
    """A token stands for a byte at least, so bytes bound any tokenizer that reads a text as it is."""
    said = sum(len(text.encode(errors="surrogatepass")) for text in texts)
    for is_ascii in (True, False):
        body = json.dumps({"prompt": texts, "max_tokens": most, "n": n}, ensure_ascii=is_ascii)
        encoded = body.encode(errors="replace")
        assert bound_of("completions", encoded).tokens >= said + most * n * len(texts)


def test_a_prompt_that_is_known_whole_is_bounded_by_all_of_it() -> None:
    tool = Tool("look", "finds things", {"type": "object"})
    messages = (Message("user", "one" * 100), Message("assistant", "", reasoning="hm" * 50))
    chat = Request("r", "m", ChatPrompt(messages, tool_use=ToolUse((tool,))), max_tokens=10)
    assert bound_of_request(chat).tokens > 300 + 100 + TEMPLATE_TOKENS + 10
    assert bound_of_request(Request("r", "m", TokenPrompt((1, 2, 3)))) == TokenBound(3, 1)
    assert bound_of_request(Request("r", "m", TextPrompt("é"), max_tokens=4)) == TokenBound(2 + 1 + 4)


@pytest.mark.parametrize(
    ("wire", "before", "after"),
    [
        ("chat", {"n_predict": -1, "max_completion_tokens": -1}, {"max_tokens": 50}),
        ("completions", {}, {"max_tokens": 50}),
        ("responses", {}, {"max_output_tokens": 50}),
        ("ollama", {"options": {"seed": 1}}, {"options": {"seed": 1, "num_predict": 50}}),
        ("ollama", {"options": None}, {"options": {"num_predict": 50}}),
    ],
)
def test_an_open_answer_is_bounded_in_the_words_of_its_wire(
    wire: Wire, before: dict[str, object], after: dict[str, object]
) -> None:
    body = with_fields(body_of(**before), PROXIES[wire], answer_tokens=50)
    assert json.loads(body) == {"model": "m", **after}
