"""Streams at any split: whole events, the upstream's bytes, and the counts that were in them."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganglion.core.errors import UpstreamUnavailable
from ganglion.core.events import Usage
from ganglion.gateway.proxy.streams import (
    MAX_EVENT_BYTES,
    ForeignEventStream,
    JsonLineStream,
    NodeEventStream,
    OpaqueBody,
    StreamFilter,
)
from ganglion.wire.chat.proxy import PROXY as CHAT
from ganglion.wire.messages.proxy import PROXY as MESSAGES
from ganglion.wire.ollama.proxy import PROXY as OLLAMA
from ganglion.wire.proxy_dialect import ProxyDialect
from ganglion.wire.proxy_usage import usage_of_body

OURS = (
    b'data: {"a":"x\\n\\n: x-ganglion-usage {\\"prompt_tokens\\":1}"}\n\n: keep-alive\n\n'
    b'data: {"b":1}\n\ndata: [DONE]\n\n'
)
COMMENT = b': x-ganglion-usage {"prompt_tokens":5,"completion_tokens":2,"cached_tokens":3}\n\n'
CONTENT = b'data: {"choices":[{"delta":{"content":"\\"usage\\":{"}}],"usage":null}\n\n'
COUNTS = (
    b'data: {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 9, "total_tokens": 16}}\n\n'
)
DONE = b"data: [DONE]\n\n"
ANTHROPIC = (
    b'event: message_start\ndata: {"message":{"usage":{"input_tokens":4,"cache_read_input_tokens":6}}}\n\n'
    b'event: message_delta\ndata: {"usage":{"output_tokens":8}}\n\n'
    b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
)


def split(data: bytes, places: list[int]) -> list[bytes]:
    cuts = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in pairwise(cuts)]


def passed(stream: StreamFilter, pieces: list[bytes]) -> bytes:
    out = []
    for piece in pieces:
        told = stream.feed(piece)
        assert not told or told.endswith((b"\n\n", b"\n\r\n", b"\r\r"))
        out.append(told)
    return b"".join(out) + stream.end()


PLACES = st.lists(st.integers(0, 10_000), max_size=12)


@given(PLACES)
def test_our_count_is_taken_out_at_any_split(places: list[int]) -> None:
    stream = NodeEventStream(CHAT.marks)
    assert passed(stream, split(OURS + COMMENT, places)) == OURS
    assert stream.usage == Usage(5, 2, 3)
    assert stream.events == 3
    assert stream.said == 1


@given(PLACES, st.booleans(), st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_a_strangers_count_is_taken_out_only_where_nobody_asked(
    places: list[int], takes_usage: bool, line_end: bytes
) -> None:
    data = CONTENT + COUNTS + DONE
    kept = CONTENT + DONE if takes_usage else data
    data, kept = data.replace(b"\n", line_end), kept.replace(b"\n", line_end)
    stream = ForeignEventStream(CHAT, takes_usage=takes_usage)
    assert passed(stream, split(data, places)) == kept
    assert stream.usage == Usage(7, 9)
    assert stream.is_finished


@given(PLACES)
def test_a_strangers_messages_are_counted_at_any_split(places: list[int]) -> None:
    stream = ForeignEventStream(MESSAGES, takes_usage=False)
    assert passed(stream, split(ANTHROPIC, places)) == ANTHROPIC
    assert stream.usage == Usage(10, 8, 6) and stream.is_finished and stream.events == 3


@given(PLACES)
def test_lines_are_counted_at_any_split(places: list[int]) -> None:
    data = b'{"done":false}\n{"done":true,"prompt_eval_count":3,"eval_count":4}\n'
    stream = JsonLineStream(OLLAMA)
    out = [stream.feed(piece) for piece in split(data, places)]
    assert all(not told or told.endswith(b"\n") for told in out)
    assert b"".join(out) == data and stream.usage == Usage(3, 4) and stream.events == 2


@given(PLACES)
def test_the_last_part_of_a_large_body_has_its_count(places: list[int]) -> None:
    data = b'{"data":[' + b"1," * 3000 + b'1],"usage":{"prompt_tokens":3,"total_tokens":3}}'
    stream = OpaqueBody(CHAT)
    assert b"".join(stream.feed(piece) for piece in split(data, places)) + stream.end() == data
    assert stream.usage == Usage(3, 0)


@pytest.mark.parametrize(
    ("data", "is_finished"),
    [
        (CONTENT, False),
        (CONTENT + DONE, True),
        (b"data: [DONE]", True),
        (CONTENT + b'data: {"error":{"message":"x"}}\n\n', True),
        (b'data: {"text":"data: [DONE]"}\n\n', False),
        (CONTENT + DONE + b": bye\n\n", True),
    ],
)
def test_only_a_last_event_finishes_a_strangers_stream(data: bytes, is_finished: bool) -> None:
    stream = ForeignEventStream(CHAT, takes_usage=True)
    stream.feed(data)
    stream.end()
    assert stream.is_finished is is_finished


def test_an_event_without_an_end_is_not_held_for_ever() -> None:
    stream = NodeEventStream(CHAT.marks)
    with pytest.raises(UpstreamUnavailable):
        for _ in range(MAX_EVENT_BYTES // 2**20 + 1):
            stream.feed(b"x" * 2**20)


@pytest.mark.parametrize(
    ("dialect", "body", "usage"),
    [
        (CHAT, b'{"usage":{"prompt_tokens":3,"completion_tokens":4},"z":1}', Usage(3, 4)),
        (CHAT, b'{"z":1,"usage":{"prompt_tokens":3,"completion_tokens_details":null}}', Usage(3, 0)),
        (
            MESSAGES,
            b'{"usage":{"input_tokens":3,"output_tokens":4,"cache_creation_input_tokens":2}}',
            Usage(5, 4),
        ),
        (
            CHAT,
            b'{"usage":{"input_tokens":3,"input_tokens_details":{"cached_tokens":2},"output_tokens":4}}',
            Usage(3, 4, 2),
        ),
        (OLLAMA, b'{"message":{"content":"a"},"prompt_eval_count":3,"eval_count":4}', Usage(3, 4)),
        (CHAT, b'{"a":{"usage":{"prompt_tokens":3}}}', None),
        (CHAT, b'{"usage":{"prompt_tokens":-3}}', None),
        (CHAT, b'{"usage":null}', None),
        (CHAT, b"not json", None),
        (CHAT, b"", None),
    ],
)
def test_whole_bodies_are_counted_in_every_wires_words(
    dialect: ProxyDialect, body: bytes, usage: Usage | None
) -> None:
    assert usage_of_body(body, dialect.read_usage) == usage


@pytest.mark.parametrize(
    ("stream", "data", "is_finished"),
    [
        (NodeEventStream(CHAT.marks), CONTENT + DONE, True),
        (NodeEventStream(CHAT.marks), CONTENT + DONE + COMMENT, True),
        (NodeEventStream(CHAT.marks), CONTENT + COMMENT, True),
        (NodeEventStream(CHAT.marks), CONTENT, False),
        (NodeEventStream(CHAT.marks), b"", False),
        (
            NodeEventStream(CHAT.marks),
            CONTENT + b'data: {"error":{"message":"%b"}}\n\n' % (b"x" * 2000),
            True,
        ),
        (NodeEventStream(CHAT.marks, is_control_app=True), CONTENT, True),
        (NodeEventStream(MESSAGES.marks), ANTHROPIC, True),
        (NodeEventStream(MESSAGES.marks), ANTHROPIC.rpartition(b"event:")[0], False),
        (NodeEventStream(MESSAGES.marks), b'event: error\ndata: {"type":"error","error":{}}\n\n', True),
        (JsonLineStream(OLLAMA), b'{"message":{"content":"a"},"done":false}\n', False),
        (
            JsonLineStream(OLLAMA),
            b'{"message":{"content":"a"},"done":false}\n{"done":true,"eval_count":1}\n',
            True,
        ),
        (JsonLineStream(OLLAMA), b'{"message":{"content":"a"},"done":false}\n{"error":"It broke."}\n', True),
        (JsonLineStream(OLLAMA, is_control_app=True), b'{"status":"pulling"}\n', True),
    ],
)
def test_our_own_stream_is_over_when_its_last_event_was_there(
    stream: StreamFilter, data: bytes, is_finished: bool
) -> None:
    stream.feed(data)
    assert stream.is_finished is is_finished
