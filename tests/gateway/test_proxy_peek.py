"""What is read out of a body: its model, and what names its conversation."""

import json

import pytest

from ganglion.core.errors import InvalidJson
from ganglion.gateway.proxy import peek as peeking
from ganglion.gateway.proxy.peek import peek_query, with_fields
from ganglion.wire.dialect import Wire
from ganglion.wire.dialects import DIALECTS
from ganglion.wire.proxy_dialect import Peeked

PROXIES = {dialect.name: dialect.proxy for dialect in DIALECTS if dialect.routes}
SYSTEM = {"role": "system", "content": "be brief"}
FIRST = {"role": "user", "content": "one"}
REST = [{"role": "assistant", "content": "1"}, {"role": "user", "content": "two"}]


def peek(wire: Wire, body: bytes) -> Peeked:
    return peeking.peek(PROXIES[wire], body)


@pytest.mark.parametrize("prelude", [[], [SYSTEM]])
def test_every_turn_of_a_conversation_has_the_same_name_and_another_one_has_not(
    prelude: list[dict[str, str]],
) -> None:
    def parts(wire: Wire, *messages: object) -> tuple[bytes | str, ...]:
        return peek(wire, json.dumps({"model": "m", "messages": messages}).encode()).parts

    for wire in ("chat", "messages", "ollama"):
        first = parts(wire, *prelude, FIRST)
        assert first and first == parts(wire, *prelude, FIRST, *REST)
        assert first != parts(wire, *prelude, {"role": "user", "content": "other"})


@pytest.mark.parametrize(
    ("wire", "more", "parts"),
    [
        ("chat", {"prompt_cache_key": "k", "messages": [FIRST]}, ("k",)),
        ("responses", {"prompt_cache_key": "k", "input": "a"}, ("k",)),
        ("responses", {"conversation": "conv_1", "input": "a"}, (b'"conv_1"',)),
        ("responses", {"previous_response_id": "resp_1", "input": "a"}, ()),
        ("responses", {"instructions": "i", "input": "a"}, (b'"i"', "a")),
        ("messages", {"metadata": {"user_id": "u_session_1"}, "messages": [FIRST]}, ("u_session_1",)),
        ("embeddings", {"input": "a"}, ()),
    ],
)
def test_what_names_a_conversation(wire: Wire, more: dict[str, object], parts: tuple[object, ...]) -> None:
    assert peek(wire, json.dumps({"model": "m", **more}).encode()).parts == parts


def test_a_body_with_a_wrong_field_still_names_its_model() -> None:
    assert peek("chat", b'{"model":"m","stream":"yes","messages":5}').model == "m"
    assert peek("chat", b'{"model":5}').model == ""
    assert peek("chat", b"[]").model == ""
    for body in (b"", b"{", b'{"model":"\xff"}'):
        with pytest.raises(InvalidJson):
            peek("chat", body)


def test_a_query_names_its_model() -> None:
    assert peek_query(b"x=1&model=a%2Fb").model == "a/b"
    assert peek_query(b"").model == ""
    assert peek_query(b"&".join([b"a=1"] * 1000)).model == ""


def test_asking_for_usage_leaves_everything_else_as_it_was() -> None:
    body = b'{"stream_options":{"other":1.50},"n":1e3,"model":"m"}'
    assert with_fields(body, PROXIES["chat"], asks_usage=True) == (
        b'{"stream_options":{"other":1.50,"include_usage":true},"n":1e3,"model":"m"}'
    )
    assert with_fields(b"[]", PROXIES["chat"], model="x", asks_usage=True) == b"[]"
