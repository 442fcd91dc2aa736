"""What clients of the Responses wire read, frame by frame."""

import itertools
import json
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai._models import validate_type
from openai.types.responses import Response, ResponseStreamEvent

from ganglion.core.errors import ContextLengthExceeded, EngineFailed, RateLimited, StorageFull
from ganglion.core.events import (
    Alternative,
    Closed,
    Delta,
    Event,
    Failed,
    Finished,
    Opened,
    Progress,
    Started,
    Token,
    Usage,
)
from ganglion.core.fold import fold
from ganglion.wire.frame import Frame, sse
from ganglion.wire.responses import ENDING, ResponsesParseContext, ResponsesProjection, body, items_of, parse
from ganglion.wire.responses.response_object import ResponsesReplyContext
from ganglion.wire.responses.stored import output_of
from ganglion.wire.seal import HmacSeal
from support.golden import check_golden, check_grammar
from support.responses_invariants import Invariants, check, frames_of

SEAL = HmacSeal(bytes(32)).of("tenant")
TOOLS = [
    {"type": "function", "name": "weather", "parameters": {"type": "object"}},
    {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "regex", "definition": "a+"}},
    {
        "type": "namespace",
        "name": "mcp__files__",
        "description": "Files.",
        "tools": [{"type": "function", "name": "list"}],
    },
    {"type": "web_search"},
]
TOP = (Alternative(5, b"Hi", -0.25), Alternative(6, b"\xe2\x82", float("-inf")))
FINISHED = Finished("stop", Usage(7, 3, 4, 1))

HELLO: list[Event] = [
    Started(7, 4),
    Progress("prefilled", 4, 7),
    Opened(0, "text"),
    Delta(0, "Hel"),
    Delta(0, ""),
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
    Opened(0, "text"),
    Delta(0, "Let me see."),
    Closed(0),
    Opened(1, "tool_call", "call_1", "weather"),
    Delta(1, '{"city":'),
    Delta(1, '"Oslo"}'),
    Closed(1),
    Opened(2, "tool_call", "call_2", "patch"),
    Delta(2, "aa"),
    Delta(2, "a"),
    Closed(2),
    Opened(3, "tool_call", "call_3", "mcp__files__list"),
    Delta(3, "{}"),
    Closed(3),
    Finished("tool_calls", Usage(7, 9)),
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
CUT: list[Event] = [*THINKING[:-1], Finished("length", Usage(7, 3, 4, 1))]
BROKEN: list[Event] = [*HELLO[:4], Failed(EngineFailed("The engine died under this request."))]
QUEUED: list[Event] = [Progress("queued", 1, 2), Progress("queued", 0, 2), *HELLO]


class Source:
    """Ids that count, so that transcripts are the same each time."""

    def __init__(self) -> None:
        self._next = itertools.count(1)

    def __call__(self, prefix: str) -> str:
        return f"{prefix}_{next(self._next)}"


def reply_to(**fields: object) -> ResponsesReplyContext:
    asked = {"model": "tiny", "input": "hello", **fields}
    return parse(
        json.dumps(asked, indent=1).encode(), ResponsesParseContext("resp_1", 1700000000, Source(), seal=SEAL)
    ).reply


def projection_of(reply: ResponsesReplyContext) -> ResponsesProjection:
    return ResponsesProjection(reply, ids=Source(), clock_s=lambda: 1700000009, seal=SEAL)


def transcript(reply: ResponsesReplyContext, events: Iterable[Event]) -> bytes:
    projection = projection_of(reply)
    frames = [frame for event in events for frame in projection.feed(event)]
    return b"".join(map(sse, (*frames, *ENDING)))


TRANSCRIPTS: dict[str, tuple[ResponsesReplyContext, list[Event]]] = {
    "plain": (reply_to(instructions="Be brief.", metadata={"a": "b"}, temperature=0), HELLO),
    "queued": (reply_to(), QUEUED),
    "background": (reply_to(background=True), HELLO),
    "reasoning": (reply_to(reasoning={"effort": "low", "summary": "auto"}), THINKING),
    "sealed": (reply_to(include=["reasoning.encrypted_content"]), THINKING),
    "calling": (reply_to(tools=TOOLS, parallel_tool_calls=False, tool_choice="required"), CALLING),
    "logprobs": (reply_to(top_logprobs=2), LIKELY),
    "cut": (reply_to(max_output_tokens=3), CUT),
    "empty": (reply_to(), [Started(7), FINISHED]),
    "failed": (reply_to(), BROKEN),
}


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_a_stream_is_exactly_its_golden_transcript(name: str) -> None:
    reply, events = TRANSCRIPTS[name]
    check_grammar(events)
    produced = transcript(reply, events)
    check(produced)
    if name != "sealed":  # zlib's bytes are its implementation's to choose
        check_golden(f"responses/{name}.sse", produced)


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_the_sdk_reads_every_event_in_its_own_strict_types(name: str) -> None:
    for kind, event in frames_of(transcript(*TRANSCRIPTS[name])):
        parsed = validate_type(type_=ResponseStreamEvent, value=event)
        assert parsed.type == kind
        assert parsed.sequence_number == event["sequence_number"]


@pytest.mark.parametrize("name", [name for name in TRANSCRIPTS if name != "failed"])
def test_a_whole_answer_is_the_response_that_its_stream_ends_with(name: str) -> None:
    reply, events = TRANSCRIPTS[name]
    whole = body(fold(events), reply, ids=Source(), clock_s=lambda: 1700000009, seal=SEAL)
    assert json.loads(whole) == check(transcript(reply, events))
    validate_type(type_=Response, value=json.loads(whole))


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_the_final_response_is_there_with_the_last_frame_and_not_before(name: str) -> None:
    reply, events = TRANSCRIPTS[name]
    projection = projection_of(reply)
    for event in events:
        assert projection.final is None
        assert not projection.is_done
        frames = projection.feed(event)
    assert projection.is_done
    assert projection.final is not None
    assert json.loads(frames[-1].data)["response"] == json.loads(projection.final)
    assert projection.feed(FINISHED) == []
    assert projection.tick() == []
    assert projection.snapshot() == projection.final


def test_a_store_that_refuses_turns_the_last_frame_into_a_failure() -> None:
    projection = projection_of(reply_to())
    frames = [frame for event in HELLO for frame in projection.feed(event)]
    frames[-1] = projection.instead(StorageFull("The disk is full."))
    response = check(b"".join(map(sse, (*frames, *ENDING))))
    assert response["status"] == "failed"
    assert response["error"] == {
        "code": "server_error",
        "message": "The disk is full.",
        "reason": "storage_full",
    }
    assert len(response["output"]) == 1
    assert projection.final is not None
    assert json.loads(projection.final) == response


def test_silence_is_filled_with_in_progress_again_and_again() -> None:
    projection = projection_of(reply_to())
    sent: list[Frame] = [*projection.tick(), *projection.tick()]
    for event in HELLO:
        sent += projection.feed(event)
        sent += projection.tick()
    assert [frame.event for frame in sent[:4]] == [
        "response.created",
        "response.in_progress",
        "response.in_progress",
        "response.in_progress",
    ]
    invariants = Invariants()
    for frame in sent:
        assert frame.event is not None
        invariants.feed(frame.event, json.loads(frame.data))
    assert invariants.ended()["status"] == "completed"


def test_waiting_in_the_queue_moves_on_to_in_progress_when_it_takes_long() -> None:
    projection = projection_of(reply_to())
    sent = [*projection.feed(QUEUED[0]), *projection.tick(), *projection.feed(QUEUED[1])]
    assert [frame.event for frame in sent] == ["response.created", "response.queued", "response.in_progress"]


@pytest.mark.parametrize(
    ("error", "code", "reason"),
    [
        (EngineFailed("It died."), "server_error", "engine_failed"),
        (RateLimited("Too many."), "rate_limit_exceeded", "rate_limit_exceeded"),
        (ContextLengthExceeded(10, 5), "context_length_exceeded", "context_length_exceeded"),
    ],
)
def test_a_failure_before_anything_was_said_is_still_a_whole_stream(error, code: str, reason: str) -> None:
    produced = transcript(reply_to(), [Failed(error)])
    assert [name for name, _ in frames_of(produced)] == [
        "response.created",
        "response.in_progress",
        "response.failed",
    ]
    response = check(produced)
    assert (response["error"]["code"], response["error"]["reason"]) == (code, reason)


def test_an_item_that_a_failure_cuts_off_is_told_as_incomplete_and_is_never_done() -> None:
    produced = transcript(reply_to(), BROKEN)
    (item,) = check(produced)["output"]
    assert item["status"] == "incomplete"
    assert item["content"][0]["text"] == "Hel"
    assert [name for name, _ in frames_of(produced)][-2:] == ["response.output_text.delta", "response.failed"]


def test_an_item_that_was_whole_when_the_engine_failed_is_done() -> None:
    produced = transcript(reply_to(), [*HELLO[:-1], Failed(EngineFailed("It died."))])
    (item,) = check(produced)["output"]
    assert item["status"] == "completed"
    assert [name for name, _ in frames_of(produced)][-2:] == [
        "response.output_item.done",
        "response.failed",
    ]


def test_cancelling_keeps_what_was_said() -> None:
    projection = projection_of(reply_to(background=True))
    for event in HELLO[:4]:
        projection.feed(event)
    last = projection.cancel()[-1]
    assert last.event == "response.incomplete"
    assert projection.final is not None
    response = json.loads(projection.final)
    assert json.loads(last.data)["response"] == response
    assert response["status"] == "cancelled"
    assert response["output"][0]["content"][0]["text"] == "Hel"
    assert projection.is_done
    assert projection.feed(HELLO[-1]) == []
    validate_type(type_=Response, value=response)


def test_a_snapshot_holds_the_items_that_are_finished() -> None:
    projection = projection_of(reply_to(background=True))
    assert json.loads(projection.snapshot())["status"] == "queued"
    for event in THINKING[:5]:
        projection.feed(event)
    now = json.loads(projection.snapshot())
    assert now["status"] == "in_progress"
    assert [item["type"] for item in now["output"]] == ["reasoning"]


def test_a_call_of_a_namespaced_tool_goes_out_with_both_parts_of_its_name() -> None:
    output = check(transcript(*TRANSCRIPTS["calling"]))["output"]
    assert (output[3]["namespace"], output[3]["name"]) == ("mcp__files__", "list")
    assert output[2]["type"] == "custom_tool_call"
    assert "namespace" not in output[1]


def test_a_call_without_an_id_gets_one() -> None:
    events = [Started(1), Opened(0, "tool_call", None, "f"), Closed(0), Finished("tool_calls", Usage(1, 1))]
    (item,) = check(transcript(reply_to(), events))["output"]
    assert item["call_id"].startswith("call_")
    assert item["arguments"] == ""


def test_a_pretty_printed_request_is_echoed_without_line_breaks() -> None:
    for frame in projection_of(reply_to(tools=TOOLS)).tick():
        assert b"\n" not in frame.data


kinds = st.sampled_from(["text", "reasoning", "weather", "patch", "mcp__files__list"])
blocks = st.lists(st.tuples(kinds, st.lists(st.text(max_size=6), max_size=5)), max_size=4)
ends = st.sampled_from(["stop", "length", "tool_calls", "failed"])


@given(blocks, ends, st.booleans())
def test_no_text_is_lost_however_it_is_split(
    answer: list[tuple[str, list[str]]], end: str, is_sealed: bool
) -> None:
    reply = reply_to(tools=TOOLS, include=["reasoning.encrypted_content"] if is_sealed else [])
    events: list[Event] = [Started(3)]
    for index, (kind, pieces) in enumerate(answer):
        is_call = kind not in ("text", "reasoning")
        events.append(Opened(index, "tool_call", f"call_{index}", kind) if is_call else Opened(index, kind))
        events += [Delta(index, piece) for piece in pieces]
        events.append(Closed(index))
    events.append(Failed(EngineFailed("no")) if end == "failed" else Finished(end, Usage(3, 5)))
    final = check(transcript(reply, events))
    assert [_text(item) for item in final["output"]] == ["".join(pieces) for _, pieces in answer]
    if end != "failed":
        whole = body(fold(events), reply, ids=Source(), clock_s=lambda: 1700000009, seal=SEAL)
        assert json.loads(whole) == final


def _text(item) -> str:
    if item["type"] in ("message", "reasoning"):
        return item["content"][0]["text"]
    return item.get("arguments", item.get("input"))


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_what_went_out_is_read_back_as_history(name: str) -> None:
    reply, events = TRANSCRIPTS[name]
    projection = projection_of(reply)
    for event in events:
        projection.feed(event)
    assert projection.final is not None
    history = items_of(output_of(projection.final))
    assert [item.id for item in history] == [item["id"] for item in json.loads(projection.final)["output"]]
    again = parse(
        b'{"model": "tiny", "input": "and?"}',
        ResponsesParseContext("resp_2", 1, Source(), seal=SEAL),
        history=history,
    )
    said = [message for message in again.request.prompt.messages if message.role == "assistant"]
    answered = fold([event for event in events if not isinstance(event, Failed)] + [FINISHED])
    if name != "failed":
        assert "".join(message.content for message in said) == answered.text("text")
        assert "".join(message.reasoning or "" for message in said) == answered.text("reasoning")
        assert [call.arguments for message in said for call in message.tool_calls] == [
            block.text for block in answered.blocks if block.kind == "tool_call"
        ]


@pytest.mark.parametrize(
    ("there", "instead"),
    [
        (b'"sequence_number":3', b'"sequence_number":4'),
        (b"event: response.output_text.delta\n", b"event: response.output_text.done\n"),
        (b'"delta":"Hel"', b'"delta":"Hal"'),
        (b'"logprobs":[],"content_index":0', b'"content_index":0'),
        (b'"status":"completed","role"', b'"status":"in_progress","role"'),
        (b'"total_tokens":10', b'"total_tokens":11'),
        (
            b'"item_id":"msg_1","output_index":0,"delta":"Hel"',
            b'"item_id":"msg_2","output_index":0,"delta":"Hel"',
        ),
        (b'"truncation":"disabled",', b""),
        (b"\n\n", b"\r\n\r\n"),
        (b"event: response.created\n", b"\n"),
    ],
)
def test_the_checker_notices_what_is_wrong(there: bytes, instead: bytes) -> None:
    stream = transcript(*TRANSCRIPTS["plain"])
    check(stream)
    assert there in stream
    with pytest.raises((AssertionError, KeyError)):
        check(stream.replace(there, instead))


def test_the_checker_wants_an_end_and_only_one() -> None:
    *frames, done = transcript(*TRANSCRIPTS["plain"]).split(b"\n\n")[:-1]
    with pytest.raises(AssertionError, match="without saying how"):
        check(b"".join(frame + b"\n\n" for frame in [*frames[:-1], done]))
    with pytest.raises(AssertionError, match="after the end"):
        check(b"".join(frame + b"\n\n" for frame in [*frames, frames[-1], done]))
    with pytest.raises(AssertionError, match="DONE"):
        check(b"".join(frame + b"\n\n" for frame in frames))


def test_the_checker_follows_a_stream_that_was_resumed() -> None:
    frames = transcript(*TRANSCRIPTS["calling"]).split(b"\n\n")[:-1]
    for seen in range(len(frames) - 2):
        rest = b"".join(frame + b"\n\n" for frame in frames[seen + 1 :])
        assert check(rest, after=seen)["status"] == "completed"
