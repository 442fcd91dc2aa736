"""What Ollama's clients read, line by line."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganglion.core.errors import EngineFailed, InvalidValue, ModelNotFound
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
    Timing,
    Token,
    Usage,
)
from ganglion.core.fold import fold
from ganglion.wire.frame import Comment
from ganglion.wire.ollama import NDJSON, OllamaProjection, OllamaReplyContext, body, empty_reply
from ganglion.wire.ollama.errors import encode_error
from support.golden import check_golden, check_grammar

CREATED = "2023-11-14T22:13:20.000000Z"
CHAT = OllamaReplyContext("chat", "tiny:latest", CREATED)
GENERATE = OllamaReplyContext("generate", "tiny", CREATED)
FINISHED = Finished("stop", Usage(7, 3, 4, 1), Timing(0.5, 0.25, 1.0))
TOP = (Alternative(5, b"Hi", -0.25), Alternative(6, b"\xe2\x82", float("-inf")))

HELLO: list[Event] = [
    Progress("queued", 1, 2),
    Started(7, 4),
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
    Finished("length", Usage(7, 3)),
]
CALLING: list[Event] = [
    Started(7),
    Opened(0, "text"),
    Delta(0, "Looking."),
    Closed(0),
    Opened(1, "tool_call", "call_1", "weather"),
    Delta(1, '{"city":'),
    Delta(1, '\n "Oslo"}'),
    Closed(1),
    Opened(2, "tool_call", "call_2", "time"),
    Closed(2),
    Finished("tool_calls", Usage(7, 9)),
]
CUT_CALL: list[Event] = [
    Started(7),
    Opened(0, "tool_call", "call_1", "weather"),
    Delta(0, '{"city":"Os'),
    Closed(0),
    Finished("length", Usage(7, 4)),
]
LIKELY: list[Event] = [
    Started(7),
    Opened(0, "text"),
    Delta(0, "Hi", (Token(5, b"Hi", 8, -0.25, TOP),)),
    Delta(0, "", (Token(6, b"\xe2\x82", 9, float("-inf")),)),
    Closed(0),
    FINISHED,
]
BROKEN: list[Event] = [*HELLO[:4], Failed(EngineFailed("The engine died under this request."))]

TRANSCRIPTS: dict[str, tuple[OllamaReplyContext, list[Event]]] = {
    "chat": (CHAT, HELLO),
    "generate": (GENERATE, HELLO),
    "thinking": (CHAT, THINKING),
    "generate_thinking": (GENERATE, THINKING),
    "tool_calls": (CHAT, CALLING),
    "cut_call": (CHAT, CUT_CALL),
    "logprobs": (OllamaReplyContext("chat", "tiny", CREATED, has_logprobs=True), LIKELY),
    "empty": (CHAT, [Started(7), FINISHED]),
    "failed": (CHAT, BROKEN),
}


def transcript(reply: OllamaReplyContext, events: list[Event]) -> bytes:
    projection = OllamaProjection(reply)
    lines = b"".join(NDJSON.encode(frame) for event in events for frame in projection.feed(event))
    assert projection.is_done
    assert projection.feed(HELLO[3]) == []
    return lines


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_a_stream_is_exactly_its_golden_lines(name: str) -> None:
    reply, events = TRANSCRIPTS[name]
    check_grammar(events)
    check_golden(f"ollama/{name}.ndjson", transcript(reply, events))


@pytest.mark.parametrize("name", [name for name in TRANSCRIPTS if name != "failed"])
def test_a_whole_answer_is_exactly_its_golden_body(name: str) -> None:
    reply, events = TRANSCRIPTS[name]
    check_golden(f"ollama/{name}.json", body(fold(events), reply) + b"\n")


def test_silence_is_filled_with_a_line_that_adds_nothing() -> None:
    for reply in (CHAT, GENERATE):
        projection = OllamaProjection(reply)
        (frame,) = projection.tick()
        said = json.loads(frame.data)
        assert said["done"] is False
        assert (said["message"]["content"] if reply.route == "chat" else said["response"]) == ""
        assert not projection.is_done
    assert NDJSON.encode(Comment()) == b""


def test_a_load_and_an_unload_say_nothing_else() -> None:
    assert json.loads(empty_reply(CHAT, "load")) == {
        "model": "tiny:latest",
        "created_at": CREATED,
        "message": {"role": "assistant", "content": ""},
        "done_reason": "load",
        "done": True,
    }
    assert json.loads(empty_reply(GENERATE, "unload"))["response"] == ""


def test_an_error_is_one_string() -> None:
    assert json.loads(encode_error(ModelNotFound("x", hint="Here: y."))) == {"error": "model 'x' not found"}
    assert json.loads(encode_error(InvalidValue("Wrong.", hint="Do right."))) == {"error": "Wrong. Do right."}


arguments = st.one_of(
    st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=3), max_size=3).map(
        lambda value: json.dumps(value, indent=1)
    ),
    st.text(max_size=8),
)
blocks = st.lists(
    st.tuples(
        st.sampled_from(["text", "reasoning"]), st.text(max_size=12) | st.text("a\n\r\x0b\x85\u2028\u2029")
    )
    | st.tuples(st.just("tool_call"), arguments),
    max_size=5,
)


def split(text: str, random) -> list[str]:
    parts = []
    while text:
        size = random.randint(0, len(text))
        parts.append(text[:size])
        text = text[size:]
    return parts


def stream_of(parts: list[tuple[str, str]], random) -> list[Event]:
    events: list[Event] = [Started(3)]
    for index, (kind, text) in enumerate(parts):
        is_call = kind == "tool_call"
        events.append(Opened(index, kind, f"call_{index}" if is_call else None, "f" if is_call else None))
        events += [Delta(index, piece) for piece in split(text, random)]
        events.append(Closed(index))
    return [*events, Finished("stop", Usage(3, 2), Timing(0.1, 0.2, 0.3))]


@given(blocks, st.sampled_from([CHAT, GENERATE]), st.randoms(use_true_random=False))
def test_no_text_is_lost_at_any_split_and_the_whole_is_the_stream_added_up(parts, reply, random) -> None:
    events = stream_of(parts, random)
    sent = transcript(reply, events)
    lines = [json.loads(line) for line in sent.decode().splitlines()]
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    whole = json.loads(body(fold(events), reply))
    key = "message" if reply.route == "chat" else None
    said = [line[key] if key else line for line in lines]
    field = "content" if key else "response"
    total = whole[key] if key else whole
    assert "".join(part[field] for part in said) == total[field]
    assert "".join(part.get("thinking", "") for part in said) == total.get("thinking", "")
    assert [call for part in said for call in part.get("tool_calls", ())] == total.get("tool_calls", [])
    texts = "".join(text for kind, text in parts if kind == "text")
    assert all(character in total[field] for character in texts)
    assert total.get("thinking", "") == "".join(text for kind, text in parts if kind == "reasoning")
    if not any(kind == "tool_call" for kind, _ in parts):
        assert total[field] == texts
    ending = ("done_reason", "total_duration", "prompt_eval_count", "eval_count", "eval_duration")
    assert {name: lines[-1][name] for name in ending} == {name: whole[name] for name in ending}
