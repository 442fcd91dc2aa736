"""What a completion body means, and what is said of one that means nothing."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganglion.core.errors import InvalidRequest, UnknownParameter, UnsupportedParameter
from ganglion.core.request import Score, TextPrompt, TokenPrompt
from ganglion.wire.answer_format import ParseContext, ParsedCall
from ganglion.wire.completions import CompletionReplyContext, parse
from ganglion.wire.field_policy import IGNORED, UNSUPPORTED_IN_COMPLETIONS

ARRIVAL = ParseContext("cmpl-1", 1700000000, "fp", "tenant")
ALL = ((0, None),)


def read(arrival: ParseContext = ARRIVAL, **fields: object) -> ParsedCall[CompletionReplyContext]:
    return parse(json.dumps({"model": "tiny", "prompt": "Once"} | fields).encode(), arrival)


def test_a_plain_body_is_one_request_of_sixteen_tokens() -> None:
    call = read()
    (request,) = call.requests
    assert (request.id, request.model, request.tenant, request.max_tokens) == ("cmpl-1", "tiny", "tenant", 16)
    assert request.prompt == TextPrompt("Once")
    assert (request.score, request.top_logprobs, request.keep_markers) == (None, None, True)
    assert not call.is_streamed
    assert not call.reply.is_echoed


def test_every_field_reaches_the_request() -> None:
    call = read(
        suffix=" end",
        temperature=0,
        top_p=0.5,
        top_k=4,
        min_p=0.1,
        presence_penalty=1,
        frequency_penalty=-2,
        repetition_penalty=1.1,
        seed=7,
        logit_bias={"5": -100},
        logprobs=3,
        stop=["END"],
        stop_token_ids=[2],
        ignore_eos=True,
        priority=-5,
        max_tokens=9,
        min_tokens=2,
        best_of=1,
        user="me",
        stream=True,
        stream_options={"include_usage": True},
    )
    (request,) = call.requests
    assert request.prompt == TextPrompt("Once", " end")
    assert (request.sampling.temperature, request.sampling.top_k, request.sampling.seed) == (0, 4, 7)
    assert (request.stop.strings, request.stop.token_ids, request.stop.ignore_eos) == (("END",), (2,), True)
    assert (request.top_logprobs, request.priority, request.max_tokens, request.min_tokens) == (3, -5, 9, 2)
    assert call.is_streamed
    assert call.reply.usage_reporting == "last"
    assert call.unknown_fields == ()


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("", [TextPrompt("")]),
        (["a", "b"], [TextPrompt("a"), TextPrompt("b")]),
        ([1, 2, 3], [TokenPrompt((1, 2, 3))]),
        ([[1, 2], [3]], [TokenPrompt((1, 2)), TokenPrompt((3,))]),
        (list(range(2000)), [TokenPrompt(tuple(range(2000)))]),
    ],
)
def test_every_kind_of_prompt_is_read(prompt: object, expected: list[object]) -> None:
    assert [request.prompt for request in read(prompt=prompt).requests] == expected


def test_choices_of_a_prompt_stand_together_and_differ_in_seed() -> None:
    requests = read(prompt=["a", "b"], n=2, seed=5, best_of=2).requests
    assert [(request.id, request.prompt, request.sampling.seed) for request in requests] == [
        ("cmpl-1-0", TextPrompt("a"), 5),
        ("cmpl-1-1", TextPrompt("a"), 6),
        ("cmpl-1-2", TextPrompt("b"), 5),
        ("cmpl-1-3", TextPrompt("b"), 6),
    ]


@pytest.mark.parametrize(
    ("fields", "scores", "echoes"),
    [
        ({"echo": True}, [None], ("Once",)),
        ({"echo": True, "logprobs": 2}, [Score(ALL, 2)], ("Once",)),
        ({"echo": True, "logprobs": 0, "max_tokens": 0}, [Score(ALL, 0)], ("Once",)),
        ({"echo": True, "prompt": [[7], [8]]}, [Score(ALL, 0)] * 2, (None, None)),
        ({"logprobs": 2}, [None], ()),
        ({"prompt_logprobs": 4, "n": 2}, [Score(ALL, 4), None], ()),
        (
            {"prompt_logprobs": 4, "echo": True, "logprobs": 1, "n": 2},
            [Score(ALL, 4), Score(ALL, 1)],
            ("Once", "Once"),
        ),
        ({"prompt_logprobs": 1, "echo": True, "logprobs": 5}, [Score(ALL, 5)], ("Once",)),
    ],
)
def test_a_prompt_is_scored_only_where_its_logprobs_are_shown(
    fields: dict[str, object], scores: list[Score | None], echoes: tuple[str | None, ...]
) -> None:
    call = read(**fields)
    assert [request.score for request in call.requests] == scores
    assert call.reply.echoes == echoes


WRONG = [
    ({"prompt": None}, "invalid_value", "prompt"),
    ({"prompt": 3}, "invalid_value", "prompt"),
    ({"prompt": []}, "invalid_value", "prompt"),
    ({"prompt": [[]]}, "invalid_value", "prompt[0]"),
    ({"prompt": ["a", 1]}, "invalid_value", "prompt"),
    ({"prompt": [1, [2]]}, "invalid_value", "prompt"),
    ({"prompt": [["a"]]}, "invalid_value", "prompt[0][0]"),
    ({"prompt": [-1]}, "invalid_value", "prompt[0]"),
    ({"prompt": [True]}, "invalid_value", "prompt[0]"),
    ({"prompt": ["a"] * 1025}, "invalid_value", "prompt"),
    ({"prompt": ["a"] * 600, "n": 2}, "invalid_value", "prompt"),
    ({"suffix": "x", "prompt": [1]}, "invalid_value", "suffix"),
    ({"suffix": "x", "echo": True}, "invalid_value", "suffix"),
    ({"best_of": 2}, "unsupported_parameter", "best_of"),
    ({"best_of": 2, "n": 3}, "unsupported_parameter", "best_of"),
    ({"logprobs": 21}, "invalid_value", "logprobs"),
    ({"logprobs": True}, "invalid_value", "logprobs"),
    ({"max_tokens": -1}, "invalid_value", "max_tokens"),
    ({"min_tokens": 17}, "invalid_value", "min_tokens"),
    ({"n": 0}, "invalid_value", "n"),
    ({"stream_options": {}}, "invalid_value", "stream_options"),
    ({"prompt_logprobs": 1, "stream": True}, "invalid_value", "prompt_logprobs"),
    ({"max_completion_tokens": 5}, "unsupported_parameter", "max_completion_tokens"),
    ({"tools": [{"type": "function"}]}, "unsupported_parameter", "tools"),
    ({"logprobs": -1}, "invalid_value", "logprobs"),
    ({"reasoning": {"effort": "low"}}, "unsupported_parameter", "reasoning"),
]


@pytest.mark.parametrize(("fields", "code", "param"), WRONG)
def test_what_is_wrong_is_named(fields: dict[str, object], code: str, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(**fields)
    assert (caught.value.status, caught.value.code, caught.value.param) == (400, code, param)


def test_a_prompt_is_required() -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(b'{"model":"tiny"}', ARRIVAL)
    assert (caught.value.code, caught.value.param) == ("missing_required_parameter", "prompt")


@pytest.mark.parametrize("name", UNSUPPORTED_IN_COMPLETIONS)
def test_a_field_we_do_not_honour_is_refused_by_name_and_its_neutral_values_are_not(name: str) -> None:
    with pytest.raises(UnsupportedParameter) as caught:
        read(**{name: "something else"})
    assert caught.value.param == name
    for neutral in (None, *UNSUPPORTED_IN_COMPLETIONS[name]):
        assert read(ParseContext("a", 1, is_strict=True), **{name: neutral}).requests


def test_unknown_fields_are_collected_or_refused_when_strict() -> None:
    harmless = dict.fromkeys(IGNORED, "x")
    assert read(zebra=1, **harmless).unknown_fields == ("zebra",)
    with pytest.raises(UnknownParameter):
        read(ParseContext("a", 1, is_strict=True), zebra=1, **harmless)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(
        st.sampled_from(["prompt", "suffix", "echo", "logprobs", "best_of", "n", "max_tokens", "stop"]),
        json_values,
        max_size=5,
    )
)
def test_any_object_is_read_or_refused(fields: dict[str, object]) -> None:
    try:
        assert read(**fields).requests
    except InvalidRequest as error:
        assert error.status == 400
