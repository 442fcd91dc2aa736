"""What completion clients read, frame by frame."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganglion.core.errors import EngineFailed
from ganglion.core.events import (
    Alternative,
    Closed,
    Delta,
    Event,
    Failed,
    Finished,
    Opened,
    Progress,
    Scored,
    Started,
    Token,
    Usage,
)
from ganglion.core.fold import fold
from ganglion.core.grammar import Grammar
from ganglion.wire.completions import CompletionReplyContext, body, completion_projection
from ganglion.wire.frame import Comment, sse
from support.golden import check_golden

TOP = (Alternative(6, b" time", -0.1), Alternative(5, b" upon", -0.25), Alternative(7, b"\xe2\x82", -9.0))


def reply(**fields: object) -> CompletionReplyContext:
    return CompletionReplyContext(**({"id": "cmpl-1", "created_s": 1700000000, "model": "tiny"} | fields))


STORY: list[Event] = [
    Progress("queued", 0, 1),
    Started(2),
    Opened(0, "text"),
    Delta(0, " upon"),
    Delta(0, ' a\n"time"'),
    Closed(0),
    Finished("length", Usage(2, 3)),
]
SCORED: list[Event] = [
    Started(3),
    Scored((Token(1, b"<s>", 0), Token(2, b"On", 1, -1.5, TOP, rank=17))),
    Scored((Token(3, b"ce", 2, -2.5, (Alternative(8, b"ce", -0.5), *TOP)),)),
    Opened(0, "text"),
    Delta(0, " upon", (Token(5, b" upon", 3, -0.25, TOP),)),
    Delta(0, "\u20ac", (Token(7, b"\xe2\x82", 4, -9.0, TOP), Token(9, b"\xac", 5, float("-inf")))),
    Closed(0),
    Finished("stop", Usage(3, 4)),
]
READ: list[Event] = [
    Started(2, 0, 2),
    Opened(0, "text"),
    Delta(0, " upon", (Token(5, b" upon", 2, readout=(0.5, -1.0, 0.25, 2.0)),)),
    Delta(0, "", (Token(7, b"\xe2\x82", 3, readout=(0.0, 0.0, 1.0, 1.5)),)),
    Delta(0, "\u20ac", (Token(9, b"\xac", 4, readout=(1.0, 2.0, 3.0, 4.0)),)),
    Closed(0),
    Finished("length", Usage(2, 3)),
]
SILENT: list[Event] = [*SCORED[:3], Finished("stop", Usage(3, 1))]

TRANSCRIPTS: dict[str, tuple[CompletionReplyContext, list[Event]]] = {
    "plain": (reply(fingerprint="ganglion-test"), STORY),
    "usage": (reply(usage_reporting="last"), STORY),
    "running_usage": (reply(usage_reporting="always"), SCORED),
    "token_ids": (
        reply(has_token_ids=True),
        [
            Started(2, prompt_token_ids=(3, 4)),
            Opened(0, "text"),
            Delta(0, " upon"),
            Closed(0),
            Finished("stop", Usage(2, 2), token_ids=(5, 6)),
        ],
    ),
    "echo": (reply(echoes=("Once",)), STORY),
    "logprobs": (reply(logprobs=2), SCORED),
    "readout": (reply(has_readout=True), READ),
    "echo_logprobs": (reply(echoes=("Once",), logprobs=1), SCORED),
    "echo_tokens": (reply(echoes=(None,), logprobs=0), SCORED),
    "echo_only": (reply(echoes=("Once",), logprobs=1), SILENT),
    "failed": (reply(), [*STORY[:4], Failed(EngineFailed("The engine died under this request."))]),
}


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_a_stream_is_exactly_its_golden_transcript(name: str) -> None:
    told, events = TRANSCRIPTS[name]
    grammar, projection = Grammar(), completion_projection(told)
    for event in events:
        grammar.feed(event)
    found = b"".join(sse(frame) for event in events for frame in projection.feed(event))
    assert projection.is_done
    check_golden(f"completions/{name}.sse", found)


@pytest.mark.parametrize("name", [name for name in TRANSCRIPTS if name != "failed"])
def test_a_whole_answer_is_exactly_its_golden_body(name: str) -> None:
    told, events = TRANSCRIPTS[name]
    check_golden(f"completions/{name}.json", body([fold(events)], told) + b"\n")


def test_silence_is_filled_with_comments() -> None:
    assert completion_projection(reply()).tick() == [Comment()]


def lists(events: list[Event], told: CompletionReplyContext) -> dict[str, list]:
    (choice,) = json.loads(body([fold(events)], told))["choices"]
    return choice["logprobs"]


def test_an_echo_has_an_entry_for_every_token_that_is_counted() -> None:
    for events, counted in ((SCORED, 7), (SILENT, 4)):
        found = lists(events, reply(echoes=("Once",), logprobs=1))
        assert {len(entries) for entries in found.values()} == {counted}
        assert found["token_logprobs"][0] is None
        assert found["token_logprobs"][-1] is None


def test_offsets_point_into_the_text_that_was_sent() -> None:
    found = lists(SCORED, reply(echoes=("Once",), logprobs=1))
    assert found["tokens"] == ["<s>", "On", "ce", " upon", "\ufffd", "\ufffd", ""]
    assert found["text_offset"] == [0, 0, 2, 4, 9, 9, 10]
    found = lists(SCORED, reply(echoes=(None,), logprobs=1))
    assert found["text_offset"] == [0, 3, 5, 7, 12, 12, 13]


def test_the_sampled_token_stands_among_the_likeliest_and_the_likelier_of_one_text_counts() -> None:
    found = lists(SCORED, reply(echoes=("Once",), logprobs=1))
    assert found["top_logprobs"][1] == {" time": -0.1, "On": -1.5}
    assert found["top_logprobs"][2] == {"ce": -0.5}  # another token with this text is likelier
    assert found["top_logprobs"][3] == {" time": -0.1, " upon": -0.25}
    assert found["top_logprobs"][5] == {"\ufffd": -9999.0}
    none = lists(SCORED, reply(logprobs=0))
    assert none["top_logprobs"][0] == {" upon": -0.25}


def test_prompts_count_once_each_whatever_n_is() -> None:
    streams = [[Started(p), Finished("stop", Usage(p, 2, cached_tokens=c))] for p, c in
               ((5, 1), (5, 4), (7, 0), (7, 6))]  # fmt: skip
    found = json.loads(body([fold(events) for events in streams], reply(per_prompt=2)))
    assert found["usage"]["prompt_tokens"] == 12
    assert found["usage"]["completion_tokens"] == 8
    assert found["usage"]["prompt_tokens_details"] == {"cached_tokens": 1}


def test_prompt_logprobs_are_those_of_the_prompts_first_choice() -> None:
    plain: list[Event] = [Started(3), Finished("stop", Usage(3, 1))]
    answers = [fold(SILENT), fold(plain)]
    found = json.loads(body(answers, reply(per_prompt=2, prompt_logprobs=1)))["choices"]
    assert found[0]["prompt_logprobs"] == found[1]["prompt_logprobs"]
    assert found[0]["prompt_logprobs"][0] is None
    assert found[0]["prompt_logprobs"][1] == {
        "2": {"logprob": -1.5, "rank": 17, "decoded_token": "On"},
        "6": {"logprob": -0.1, "rank": 1, "decoded_token": " time"},
    }


tokens = st.builds(
    lambda number, piece, logprob: Token(number, piece, 0, logprob, TOP[: number % 3]),
    st.integers(0, 9),
    st.binary(max_size=4),
    st.floats(-50, 0),
)


@st.composite
def answers(draw: st.DrawFn) -> list[Event]:
    events: list[Event] = [Started(3)]
    events += [Scored(tuple(draw(st.lists(tokens, max_size=3)))) for _ in range(draw(st.integers(0, 2)))]
    made = 0
    for index in range(draw(st.integers(0, 2))):
        events.append(Opened(index, "text"))
        for _ in range(draw(st.integers(0, 4))):
            carried = tuple(draw(st.lists(tokens, max_size=2)))
            made += len(carried)
            events.append(Delta(index, draw(st.text(max_size=4)), carried))
        events.append(Closed(index))
    return [*events, Finished("stop", Usage(3, made + draw(st.integers(0, 2))))]


@given(
    st.lists(answers(), min_size=1, max_size=3),
    st.sampled_from([None, 0, 2]),
    st.sampled_from(["no", "text", "tokens"]),
    st.randoms(use_true_random=False),
)
def test_a_stream_folds_to_the_whole_whatever_the_splits_and_the_interleaving(
    streams, logprobs, echo, random
) -> None:
    echoes = {"no": (), "text": ("Once",) * len(streams), "tokens": (None,) * len(streams)}[echo]
    told = reply(logprobs=logprobs, echoes=echoes)
    whole = json.loads(body([fold(stream) for stream in streams], told))["choices"]
    projection = completion_projection(told, len(streams))
    waiting = {choice: list(stream) for choice, stream in enumerate(streams)}
    sent = []
    while waiting:
        choice = random.choice(sorted(waiting))
        sent += projection.feed(waiting[choice].pop(0), choice)
        if not waiting[choice]:
            del waiting[choice]
    assert projection.is_done
    assert sent[-1].data == b"[DONE]"
    parts = [json.loads(frame.data)["choices"][0] for frame in sent[:-1]]
    for choice in whole:
        own = [part for part in parts if part["index"] == choice["index"]]
        assert "".join(part["text"] for part in own) == choice["text"]
        assert [part["finish_reason"] for part in own] == [None] * (len(own) - 1) + ["stop"]
        if logprobs is None:
            assert all(part["logprobs"] is None for part in own)
            continue
        for name, entries in choice["logprobs"].items():
            told_parts = [part["logprobs"][name] for part in own if part["logprobs"] is not None]
            assert [entry for entries_of_part in told_parts for entry in entries_of_part] == entries
