"""What Messages clients read, event by event."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganglion.core.errors import (
    BodyTooLarge,
    ContextLengthExceeded,
    DeadlineExceeded,
    EngineFailed,
    GanglionError,
    InvalidApiKey,
    InvalidValue,
    ModelLoading,
    ModelNotFound,
    NotAllowed,
    Overloaded,
    RateLimited,
    RequestQuarantined,
    StorageFull,
)
from ganglion.core.events import (
    Closed,
    Delta,
    Event,
    Failed,
    Finished,
    Opened,
    Progress,
    Started,
    Usage,
)
from ganglion.core.fold import fold
from ganglion.wire.frame import Frame, sse
from ganglion.wire.messages import MessagesProjection, MessagesReplyContext, body
from ganglion.wire.messages.errors import encode_error, status_of
from ganglion.wire.messages.messages_tools import call_id, tool_use_id
from ganglion.wire.seal import HmacSeal
from support.golden import check_golden, check_grammar

SEAL = HmacSeal(bytes(range(32)))
PLAIN = MessagesReplyContext("msg_1", "tiny", "req_1", "tenant", SEAL)
OMITTED = MessagesReplyContext("msg_1", "tiny", "req_1", "tenant", SEAL, is_thinking_omitted=True)
FINISHED = Finished("stop", Usage(7, 3, 4, 1))

HELLO: list[Event] = [
    Progress("queued", 1, 2),
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
    Delta(0, "hm "),
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
    Closed(0),
    Opened(1, "tool_call", "call_1", "weather"),
    Delta(1, '{"city":'),
    Delta(1, '"Oslo"}'),
    Closed(1),
    Opened(2, "tool_call", "call_2", "time"),
    Closed(2),
    Finished("tool_calls", Usage(7, 9)),
]
CUT: list[Event] = [
    Started(7),
    Opened(0, "tool_call", "call_1", "weather"),
    Delta(0, '{"city":'),
    Closed(0),
    Finished("length", Usage(7, 9)),
]
STOPPED: list[Event] = [*HELLO[1:-1], Finished("stop", Usage(7, 3, 4), stop_sequence="\n\n")]
BROKEN: list[Event] = [*HELLO[:5], Failed(EngineFailed("The engine died under this request."))]

TRANSCRIPTS: dict[str, tuple[MessagesReplyContext, list[Event]]] = {
    "plain": (PLAIN, HELLO),
    "thinking": (PLAIN, THINKING),
    "omitted": (OMITTED, THINKING),
    "tool_use": (PLAIN, CALLING),
    "cut": (PLAIN, CUT),
    "stop_sequence": (PLAIN, STOPPED),
    "empty": (PLAIN, [Started(7), Finished("length", Usage(7, 0))]),
    "failed": (PLAIN, BROKEN),
}


def frames_of(reply: MessagesReplyContext, events: list[Event]) -> list[Frame]:
    projection = MessagesProjection(reply)
    frames = [frame for event in events for frame in projection.feed(event)]
    assert projection.is_done
    assert projection.feed(events[-1]) == []
    return frames


def folded(frames: list[Frame]) -> dict[str, Any]:
    """Put a stream together as an SDK does, checking the order of its events on the way."""
    message: dict[str, Any] = {}
    partial: list[str] = []
    is_open = is_ended = False
    for frame in frames:
        event = json.loads(frame.data)
        assert event["type"] == frame.event
        assert not is_ended
        match event["type"]:
            case "message_start":
                assert not message
                message = event["message"]
            case "content_block_start":
                assert not is_open
                assert event["index"] == len(message["content"])
                message["content"].append(event["content_block"])
                is_open, partial = True, []
            case "content_block_delta":
                assert is_open
                block = message["content"][event["index"]]
                match event["delta"]:
                    case {"type": "text_delta", "text": text}:
                        block["text"] += text
                    case {"type": "thinking_delta", "thinking": text}:
                        assert not block["signature"]
                        block["thinking"] += text
                    case {"type": "signature_delta", "signature": signature}:
                        block["signature"] = signature
                    case {"type": "input_json_delta", "partial_json": text}:
                        partial.append(text)
            case "content_block_stop":
                assert is_open
                block = message["content"][event["index"]]
                if partial:
                    block["input"] = json.loads("".join(partial))
                is_open = False
            case "message_delta":
                assert not is_open
                message |= event["delta"]
                message["usage"] |= event["usage"]
            case "message_stop":
                is_ended = True
            case "ping":
                pass
    assert is_ended
    return message


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_a_stream_is_exactly_its_golden_transcript(name: str) -> None:
    reply, events = TRANSCRIPTS[name]
    check_grammar(events)
    check_golden(f"messages/{name}.sse", b"".join(map(sse, frames_of(reply, events))))


@pytest.mark.parametrize("name", [name for name in TRANSCRIPTS if name != "failed"])
def test_a_whole_answer_is_exactly_its_golden_body(name: str) -> None:
    reply, events = TRANSCRIPTS[name]
    check_golden(f"messages/{name}.json", body(fold(events), reply) + b"\n")


def test_silence_is_filled_with_pings_and_the_message_starts_once_its_usage_is_known() -> None:
    projection = MessagesProjection(PLAIN)
    assert [frame.event for frame in projection.tick()] == ["ping"]
    assert [frame.event for frame in projection.feed(Started(5, 2))] == ["message_start", "ping"]
    assert sse(projection.tick()[0]) == b'event: ping\ndata: {"type":"ping"}\n\n'


json_objects = st.dictionaries(st.text(max_size=4), st.integers() | st.text(max_size=4), max_size=3)
split_at = st.lists(st.integers(0, 40), max_size=5)
blocks = st.lists(
    st.tuples(st.sampled_from(["text", "reasoning"]), st.lists(st.text(max_size=5), max_size=5))
    | st.tuples(st.just("tool_call"), st.tuples(json_objects, split_at)),
    max_size=4,
)


def test_a_prompt_that_is_counted_only_at_the_end_is_told_at_the_end() -> None:
    events = [Started(0), Opened(0, "text"), Delta(0, "Hi"), Closed(0), FINISHED]
    told = {frame.event: json.loads(frame.data) for frame in frames_of(PLAIN, events)}
    assert told["message_start"]["message"]["usage"]["input_tokens"] == 0
    usage = told["message_delta"]["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"], usage["output_tokens"]) == (3, 4, 3)


def pieces(text: str, places: list[int]) -> list[str]:
    borders = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[start:end] for start, end in pairwise(borders)]


@given(blocks, st.sampled_from([PLAIN, OMITTED]), st.sampled_from(["stop", "length"]))
def test_no_text_is_lost_and_the_whole_answer_is_the_stream_put_together(parts, reply, reason) -> None:
    events: list[Event] = [Started(3, 1)]
    for index, (kind, texts) in enumerate(parts):
        is_call = kind == "tool_call"
        events.append(Opened(index, kind, f"call_{index}" if is_call else None, "f" if is_call else None))
        said = pieces(json.dumps(texts[0]), texts[1]) if is_call else texts
        events += [Delta(index, text) for text in said]
        events.append(Closed(index))
    events.append(Finished(reason, Usage(3, 2, 1)))
    message = folded(frames_of(reply, events))
    answer = fold(events)
    whole = json.loads(body(answer, reply))
    assert message == whole
    shown = [block for block in whole["content"] if block["type"] == "thinking"]
    assert all(SEAL.verify("tenant", block["thinking"], block["signature"]) for block in shown)
    texts = "".join(block["text"] for block in whole["content"] if block["type"] == "text")
    assert texts == answer.text("text")
    if reply is PLAIN:
        assert "".join(block["thinking"] for block in shown) == answer.text("reasoning")
    inputs = [block["input"] for block in whole["content"] if block["type"] == "tool_use"]
    assert inputs == [texts[0] for kind, texts in parts if kind == "tool_call"]
    assert all(block.get("text") != "" for block in whole["content"])


@given(st.text(alphabet="abc_0", max_size=10))
def test_call_ids_come_back_as_they_were(rest: str) -> None:
    assert tool_use_id(f"call_{rest}") == f"toolu_{rest}"
    assert call_id(tool_use_id(f"call_{rest}")) == f"call_{rest}"
    assert call_id(tool_use_id(f"x{rest}")) == f"x{rest}"


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (InvalidValue("no", param="x"), 400, "invalid_request_error"),
        (ContextLengthExceeded(9, 8), 400, "invalid_request_error"),
        (InvalidApiKey("no"), 401, "authentication_error"),
        (NotAllowed("no"), 403, "permission_error"),
        (ModelNotFound("m"), 404, "not_found_error"),
        (BodyTooLarge(8), 413, "request_too_large"),
        (RequestQuarantined("no"), 422, "invalid_request_error"),
        (RateLimited("no"), 429, "rate_limit_error"),
        (EngineFailed("no"), 500, "api_error"),
        (ModelLoading("no"), 503, "api_error"),
        (DeadlineExceeded("queue", 1), 504, "timeout_error"),
        (StorageFull("no"), 507, "api_error"),
        (Overloaded("no"), 529, "overloaded_error"),
    ],
)
def test_every_failure_has_a_status_and_a_type_of_this_wire(
    error: GanglionError, status: int, kind: str
) -> None:
    assert status_of(error) == status
    envelope = json.loads(encode_error(error, "req_1"))
    assert envelope == {
        "type": "error",
        "error": {"type": kind, "message": envelope["error"]["message"]},
        "request_id": "req_1",
    }


def test_an_overflow_is_told_in_the_words_that_clients_look_for() -> None:
    message = json.loads(encode_error(ContextLengthExceeded(9000, 8192), ""))["error"]["message"]
    assert message == "prompt is too long: 9000 tokens > 8192 maximum"


def test_a_field_is_named_the_way_this_api_names_it() -> None:
    named = InvalidValue(
        "Invalid value for 'messages[3].content[0].type'.", param="messages[3].content[0].type"
    )
    assert "'messages.3.content.0.type'" in json.loads(encode_error(named, ""))["error"]["message"]
    unnamed = InvalidValue("It is wrong.", param="tools[0]")
    assert json.loads(encode_error(unnamed, ""))["error"]["message"] == "tools.0: It is wrong."
