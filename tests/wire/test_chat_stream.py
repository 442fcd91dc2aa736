"""What chat clients read, frame by frame."""

import json
from dataclasses import replace

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
from ganglion.wire.chat import ChatReplyContext, body, chat_projection
from ganglion.wire.frame import Comment, Frame, sse
from support.golden import check_golden, check_grammar

PLAIN = ChatReplyContext("chatcmpl-1", 1700000000, "tiny", "ganglion-test")
FINISHED = Finished("stop", Usage(7, 3, 4, 1))
TOP = (Alternative(5, b"Hi", -0.25), Alternative(6, b"\xe2\x82", float("-inf")))

HELLO: list[Event] = [
    Progress("queued", 1, 2),
    Started(7, 4),
    Progress("prefilled", 4, 7),
    Opened(0, "text"),
    Delta(0, "Hel"),
    Delta(0, "lo \n“you”"),
    Closed(0),
    FINISHED,
]
THINKING: list[Event] = [
    Started(7, 4),
    Opened(0, "reasoning"),
    Delta(0, "hm"),
    Closed(0),
    Opened(1, "text"),
    Delta(1, "yes"),
    Closed(1),
    FINISHED,
]
CALLING: list[Event] = [
    Started(7),
    Opened(0, "tool_call", "call_1", "weather"),
    Delta(0, '{"city":'),
    Delta(0, '"Oslo"}'),
    Closed(0),
    Opened(1, "tool_call", "call_2", "time"),
    Delta(1, "{}"),
    Closed(1),
    Finished("tool_calls", Usage(7, 9)),
]
CUSTOM: list[Event] = [
    Started(7),
    Opened(0, "text"),
    Delta(0, "Let me look."),
    Closed(0),
    Opened(1, "tool_call", "call_1", "shell"),
    Delta(1, "ls"),
    Delta(1, ""),
    Delta(1, " -l"),
    Closed(1),
    Opened(2, "tool_call", "call_2", "weather"),
    Delta(2, "{}"),
    Closed(2),
    Finished("tool_calls", Usage(7, 9)),
]
SCORED: list[Event] = [
    Started(3),
    Scored((Token(1, b"<s>", 0), Token(5, b"Hi", 1, -0.25, TOP))),
    Scored((Token(9, b" you", 2, -4.0, (*TOP, Alternative(9, b" you", -4.0))),)),
    Opened(0, "text"),
    Delta(0, "yes"),
    Closed(0),
    FINISHED,
]
LIKELY: list[Event] = [
    Started(7),
    Opened(0, "reasoning"),
    Delta(0, "hm", (Token(1, b"hm", 7, -0.5),)),
    Closed(0),
    Opened(1, "text"),
    Delta(1, "Hi", (Token(5, b"Hi", 8, -0.25, TOP),)),
    Closed(1),
    FINISHED,
]
READ: list[Event] = [
    Started(7, 0, 2),
    Opened(0, "reasoning"),
    Delta(0, "hm", (Token(1, b"hm", 7, readout=(0.5, -1.0, 0.25, 2.0)),)),
    Closed(0),
    Opened(1, "text"),
    Delta(1, "", (Token(6, b"\xe2\x82", 8, readout=(0.0, 0.0, 1.0, 1.5)),)),
    Delta(1, "\u20ac", (Token(9, b"\xac", 9, readout=(1.0, 2.0, 3.0, 4.0)), Token(10, b"", 10))),
    Closed(1),
    Opened(2, "tool_call", "call_1", "weather"),
    Delta(2, "{}", (Token(11, b"{", 11, readout=(0.0,) * 4), Token(12, b"}", 12, readout=(1.0,) * 4))),
    Closed(2),
    Opened(3, "tool_call", "call_2", "shell"),
    Delta(3, "", (Token(13, b"\xe2", 13, readout=(2.0,) * 4),)),
    Closed(3),
    Finished("tool_calls", Usage(7, 8)),
]
BROKEN: list[Event] = [*HELLO[:5], Failed(EngineFailed("The engine died under this request."))]

TRANSCRIPTS: dict[str, tuple[ChatReplyContext, list[Event]]] = {
    "plain": (PLAIN, HELLO),
    "usage": (ChatReplyContext("chatcmpl-1", 1700000000, "tiny", usage_reporting="last"), HELLO),
    "reasoning": (PLAIN, THINKING),
    "thought": (ChatReplyContext("chatcmpl-1", 1700000000, "tiny", shows_thought=True), THINKING),
    "tool_calls": (PLAIN, CALLING),
    "custom_calls": (
        ChatReplyContext(
            "chatcmpl-1", 1700000000, "tiny", "ganglion-test", custom_tools=frozenset({"shell"})
        ),
        CUSTOM,
    ),
    "function_call": (
        ChatReplyContext("chatcmpl-1", 1700000000, "tiny", is_legacy=True),
        [*CALLING[:5], Finished("tool_calls", Usage(7, 9))],
    ),
    "running_usage": (ChatReplyContext("chatcmpl-1", 1700000000, "tiny", usage_reporting="always"), LIKELY),
    "token_ids": (
        ChatReplyContext("chatcmpl-1", 1700000000, "tiny", has_token_ids=True),
        [Started(3, prompt_token_ids=(1, 5, 9)), *LIKELY[1:-1], replace(FINISHED, token_ids=(1, 5, 2))],
    ),
    "prompt_logprobs": (ChatReplyContext("chatcmpl-1", 1700000000, "tiny", prompt_logprobs=2), SCORED),
    "logprobs": (ChatReplyContext("chatcmpl-1", 1700000000, "tiny", has_logprobs=True), LIKELY),
    "readout": (
        ChatReplyContext(
            "chatcmpl-1", 1700000000, "tiny", has_readout=True, custom_tools=frozenset({"shell"})
        ),
        READ,
    ),
    "empty": (PLAIN, [Started(7), FINISHED]),
    "failed": (PLAIN, BROKEN),
}


def transcript(reply: ChatReplyContext, events: list[Event]) -> bytes:
    projection = chat_projection(reply)
    return b"".join(sse(frame) for event in events for frame in projection.feed(event))


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_a_stream_is_exactly_its_golden_transcript(name: str) -> None:
    reply, events = TRANSCRIPTS[name]
    check_grammar(events)
    check_golden(f"chat/{name}.sse", transcript(reply, events))


@pytest.mark.parametrize("name", [name for name in TRANSCRIPTS if name != "failed"])
def test_a_whole_answer_is_exactly_its_golden_body(name: str) -> None:
    reply, events = TRANSCRIPTS[name]
    check_golden(f"chat/{name}.json", body([fold(events)], reply) + b"\n")


def test_readouts_that_nobody_asked_for_are_not_told() -> None:
    reply = ChatReplyContext("chatcmpl-1", 1700000000, "tiny")
    assert b"readout" not in transcript(reply, READ) + body([fold(READ)], reply)


def test_a_stream_and_its_whole_tell_the_same_readouts() -> None:
    reply = ChatReplyContext("chatcmpl-1", 1700000000, "tiny", has_readout=True)
    chunks = [json.loads(line[6:]) for line in transcript(reply, READ).split(b"\n\n") if b'"readout"' in line]
    streamed = [each for chunk in chunks for each in chunk["choices"][0]["readout"]]
    [whole] = json.loads(body([fold(READ)], reply))["choices"]
    assert streamed == whole["readout"]
    assert [each["position"] for each in streamed] == [7, 8, 9, 11, 12, 13]
    assert streamed[0]["values"] == [[0.5, -1.0], [0.25, 2.0]]


def test_silence_is_filled_with_the_role_and_then_with_comments() -> None:
    projection = chat_projection(PLAIN, choices=2)
    first = projection.tick()
    assert [json.loads(frame.data)["choices"][0]["index"] for frame in first if isinstance(frame, Frame)] == [
        0,
        1,
    ]
    assert projection.tick() == [Comment()]
    assert sse(Comment()) == b": keep-alive\n\n"
    opened = projection.feed(Opened(0, "text"), 1)
    assert opened == []  # its role is already out


def test_choices_interleave_and_the_prompt_counts_once() -> None:
    reply = ChatReplyContext("chatcmpl-1", 1700000000, "tiny", usage_reporting="last")
    projection = chat_projection(reply, choices=2)
    sent = [frame for event in HELLO for choice in (1, 0) for frame in projection.feed(event, choice)]
    assert [frame.data for frame in sent].count(b"[DONE]") == 1
    chunks = [json.loads(frame.data) for frame in sent[:-1]]
    assert [chunk["choices"][0]["index"] for chunk in chunks if chunk["choices"]] == [1, 0] * 4
    assert chunks[-1]["usage"] == {
        "prompt_tokens": 7,
        "completion_tokens": 6,
        "total_tokens": 13,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }


blocks = st.lists(
    st.tuples(st.sampled_from(["text", "reasoning", "tool_call"]), st.lists(st.text(max_size=5), max_size=5)),
    max_size=4,
)


def stream_of(parts: list[tuple[str, list[str]]]) -> list[Event]:
    events: list[Event] = [Started(3)]
    for index, (kind, texts) in enumerate(parts):
        is_call = kind == "tool_call"
        name = ("function", "custom")[len(texts) % 2] if is_call else None
        events.append(Opened(index, kind, f"call_{index}" if is_call else None, name))
        events += [Delta(index, text) for text in texts]
        events.append(Closed(index))
    return [*events, Finished("stop", Usage(3, 2))]


@given(st.lists(blocks, min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_no_text_is_lost_whatever_the_splits_and_the_interleaving(parts, random) -> None:
    streams = [stream_of(of_choice) for of_choice in parts]
    answers = [fold(stream) for stream in streams]
    reply = replace(PLAIN, custom_tools=frozenset({"custom"}))
    whole = json.loads(body(answers, reply))
    projection = chat_projection(reply, len(streams))
    waiting = {choice: list(stream) for choice, stream in enumerate(streams)}
    sent: list[Frame] = []
    while waiting:
        choice = random.choice(sorted(waiting))
        sent += projection.feed(waiting[choice].pop(0), choice)
        if not waiting[choice]:
            del waiting[choice]
    assert projection.is_done
    assert sent[-1].data == b"[DONE]"
    chunks = [json.loads(frame.data) for frame in sent[:-1]]
    assert {(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks} == {
        ("chatcmpl-1", 1700000000, "tiny")
    }
    for choice, answer in enumerate(answers):
        own = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == choice]
        assert own[0]["delta"] == {"role": "assistant", "content": ""}
        assert own[-1]["delta"] == {}
        assert [part["finish_reason"] for part in own] == [None] * (len(own) - 1) + ["stop"]
        deltas = [part["delta"] for part in own]
        assert "".join(delta.get("content", "") for delta in deltas) == answer.text("text")
        assert "".join(delta.get("reasoning", "") for delta in deltas) == answer.text("reasoning")
        assert "".join(delta.get("reasoning_content", "") for delta in deltas) == answer.text("reasoning")
        assert calls_of(deltas) == whole["choices"][choice]["message"].get("tool_calls", [])


def test_the_prompts_ids_are_told_with_the_end_where_the_role_went_out_before_they_were_known() -> None:
    projection = chat_projection(ChatReplyContext("chatcmpl-1", 1700000000, "tiny", has_token_ids=True))
    projection.tick()
    frames = [frame for event in TRANSCRIPTS["token_ids"][1] for frame in projection.feed(event)]
    told = [json.loads(frame.data).get("prompt_token_ids") for frame in frames[:-1]]
    assert told == [None, None, [1, 5, 9]]


def calls_of(deltas: list[dict]) -> list[dict]:
    """Put the calls of a stream together as a client does."""
    calls: dict[int, dict] = {}
    for delta in deltas:
        for part in delta.get("tool_calls", ()):
            index = part.pop("index")
            if index not in calls:
                assert part[part["type"]].pop("name") == part["type"]
                assert list(part[part["type"]].values()) == [""]
                part[part["type"]]["name"] = part["type"]
                calls[index] = part
                continue
            ((kind, more),) = part.items()
            ((field, text),) = more.items()
            assert text
            calls[index][kind][field] += text
    assert list(calls) == list(range(len(calls)))
    return list(calls.values())
