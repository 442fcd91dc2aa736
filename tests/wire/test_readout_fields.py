"""Readouts and steering as they are asked for: on the wires that have them, and refused by name elsewhere."""

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganglion.core.errors import GanglionError, InvalidRequest
from ganglion.core.request import Request, Steer
from ganglion.wire import chat, completions, messages, ollama, responses, score
from ganglion.wire.answer_format import ParseContext
from ganglion.wire.seal import HmacSeal

HELLO = [{"role": "user", "content": "hello"}]


def ask_chat(is_strict: bool = True, **fields: object) -> Request:
    body = json.dumps({"model": "tiny", "messages": HELLO} | fields).encode()
    return chat.parse(body, ParseContext("1", 1, is_strict=is_strict)).requests[0]


def ask_completion(is_strict: bool = True, **fields: object) -> Request:
    body = json.dumps({"model": "tiny", "prompt": ["a", "b"]} | fields).encode()
    return completions.parse(body, ParseContext("1", 1, is_strict=is_strict)).requests[-1]


def ask_score(is_strict: bool = True, **fields: object) -> Request:
    body = json.dumps({"model": "tiny", "prompt": "a", "score_ranges": [[0, None]]} | fields).encode()
    return score.parse(body, request_id="1", tenant="", is_strict=is_strict).request


def ask_messages(**fields: object) -> object:
    body = json.dumps({"model": "tiny", "messages": HELLO, "max_tokens": 1} | fields).encode()
    return messages.parse(body, ParseContext("1", request_id="1", seal=HmacSeal(b"k" * 32), is_strict=True))


def ask_responses(**fields: object) -> object:
    return responses.parse_body(
        json.dumps({"model": "tiny", "input": "hello"} | fields).encode(), is_strict=True
    )


def ask_ollama_chat(**fields: object) -> object:
    body = json.dumps({"model": "tiny", "messages": HELLO} | fields).encode()
    return ollama.parse_chat(body, ParseContext("1", 1.0, is_strict=True))


def ask_ollama_generate(**fields: object) -> object:
    body = json.dumps({"model": "tiny", "prompt": "hello"} | fields).encode()
    return ollama.parse_generate(body, ParseContext("1", 1.0, is_strict=True))


Ask = Callable[..., Request]
STEERABLE = [ask_chat, ask_completion, ask_score]


def refusal(ask: Callable[..., object], **fields: object) -> GanglionError:
    with pytest.raises(InvalidRequest) as caught:
        ask(**fields)
    return caught.value


@pytest.mark.parametrize("ask", STEERABLE)
def test_steering_reaches_the_request(ask: Ask) -> None:
    steering = [
        {"concept": "formal", "strength": -1.5, "layers": [9, 4]},
        {"concept": "calm", "strength": 2, "layers": None},
        {"concept": "calm", "strength": 0},
    ]
    assert ask(steering=steering).steering == (
        Steer("formal", -1.5, (9, 4)),
        Steer("calm", 2),
        Steer("calm", 0),
    )
    assert ask().steering == ask(steering=[]).steering == ask(steering=None).steering == ()


@pytest.mark.parametrize("ask", [ask_chat, ask_completion])
def test_readouts_are_asked_for(ask: Ask) -> None:
    assert ask(readout=True).wants_readout
    assert not any(request.wants_readout for request in (ask(), ask(readout=False), ask(readout=None)))
    assert refusal(ask, readout="yes").param == "readout"
    assert refusal(ask, readout=1).param == "readout"


CALM = {"concept": "calm", "strength": 1}


@pytest.mark.parametrize("ask", STEERABLE)
@pytest.mark.parametrize(
    ("steering", "param", "code"),
    [
        ({"concept": "calm"}, "steering", "invalid_value"),
        ("calm", "steering", "invalid_value"),
        ([CALM] * 17, "steering", "invalid_value"),
        ([CALM, "calm"], "steering[1]", "invalid_value"),
        ([{"strength": 1}], "steering[0].concept", "missing_required_parameter"),
        ([CALM, {"concept": "calm"}], "steering[1].strength", "missing_required_parameter"),
        ([{"concept": "", "strength": 1}], "steering[0].concept", "invalid_value"),
        ([{"concept": "x" * 257, "strength": 1}], "steering[0].concept", "invalid_value"),
        ([{"concept": "calm", "strength": 100.5}], "steering[0].strength", "invalid_value"),
        ([{"concept": "calm", "strength": -101}], "steering[0].strength", "invalid_value"),
        ([{"concept": "calm", "strength": "1"}], "steering[0].strength", "invalid_value"),
        ([{"concept": "calm", "strength": True}], "steering[0].strength", "invalid_value"),
        ([CALM | {"layers": []}], "steering[0].layers", "invalid_value"),
        ([CALM | {"layers": [3, 3]}], "steering[0].layers", "invalid_value"),
        ([CALM | {"layers": [-1]}], "steering[0].layers[0]", "invalid_value"),
        ([CALM | {"layers": [1, 2.5]}], "steering[0].layers[1]", "invalid_value"),
        ([CALM | {"layers": list(range(257))}], "steering[0].layers", "invalid_value"),
        ([CALM | {"layer": 3}], "steering[0]", "invalid_value"),
    ],
)
def test_what_is_wrong_with_steering_is_named(ask: Ask, steering: object, param: str, code: str) -> None:
    error = refusal(ask, steering=steering)
    assert (error.param, error.code) == (param, code)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
def test_a_strength_is_a_finite_number(number: str) -> None:
    steering = f'[{{"concept": "calm", "strength": {number}}}]'
    body = f'{{"model": "tiny", "messages": [{{"role": "user", "content": "x"}}], "steering": {steering}}}'
    with pytest.raises(InvalidRequest):
        chat.parse(body.encode(), ParseContext("1", 1))


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text() | st.integers(), st.lists))
def test_any_other_json_is_refused_or_asks_for_nothing(value: object) -> None:
    try:
        assert ask_chat(steering=value).steering == ()
    except InvalidRequest as error:
        assert error.status == 400


@pytest.mark.parametrize(
    "ask", [ask_messages, ask_responses, ask_ollama_chat, ask_ollama_generate], ids=lambda each: each.__name__
)
def test_wires_without_them_refuse_them_by_name(ask: Callable[..., object]) -> None:
    for name, wanted in (("readout", True), ("steering", [CALM])):
        error = refusal(ask, **{name: wanted})
        assert (error.param, error.code) == (name, "unsupported_parameter")
    ask(readout=False, steering=[])
    ask(readout=None, steering=None)
