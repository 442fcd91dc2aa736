"""Streams of other servers become our events, at any split; and an end is never made up."""

import json
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganglion.core.errors import (
    ContextLengthExceeded,
    DeadlineExceeded,
    EngineFailed,
    GanglionError,
    InsufficientMemory,
    InvalidValue,
    LeaseLost,
    ModelLoading,
    ModelNotFound,
    Overloaded,
    UnsupportedParameter,
    UpstreamRefused,
    UpstreamUnavailable,
)
from ganglion.core.events import Closed, Delta, Event, Failed, Finished, Opened, Started, Token, Usage
from ganglion.core.fold import fold
from ganglion.core.grammar import Grammar
from ganglion.wire.chat import ChatReplyContext, chat_projection
from ganglion.wire.frame import Frame
from ganglion.wire.openai_errors import encode_error
from ganglion.wire.upstream.stream_decoder import MAX_EVENT_BYTES, ChatStreamDecoder
from ganglion.wire.upstream.upstream_errors import decode_error_response


def sse(*frames: object, done: bool = True, end: str = "\n") -> bytes:
    told = [frame if isinstance(frame, str) else json.dumps(frame) for frame in frames]
    told += ["[DONE]"] if done else []
    return "".join(f"data: {frame}{end}{end}" for frame in told).encode()


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish}
    choice |= {name: more.pop(name) for name in ("logprobs", "readout", "stop_reason") if name in more}
    return {
        "id": "c",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [choice],
        **more,
    }


def call(
    index: int | None, arguments: str, name: str | None = None, call_id: str | None = None
) -> dict[str, Any]:
    told: dict[str, Any] = {"function": {"arguments": arguments}}
    if index is not None:
        told["index"] = index
    if name is not None:
        told["function"]["name"] = name
    if call_id is not None:
        told |= {"id": call_id, "type": "function"}
    return {"tool_calls": [told]}


def hear(stream: bytes, size: int | None = None, **options: Any) -> list[Event]:
    """All events of a stream that comes in parts of this size, each checked against the grammar."""
    numbers = count()
    hearing = ChatStreamDecoder(new_call_id=lambda: f"made_{next(numbers)}", **options)
    size = size or len(stream) or 1
    events: list[Event] = []
    for start in range(0, len(stream), size):
        events += hearing.feed(stream[start : start + size])
    events += hearing.end()
    grammar = Grammar()
    for event in events:
        grammar.feed(event)
    grammar.check_ended()
    assert hearing.is_done
    assert hearing.feed(b"data: {}\n\n") == hearing.end() == []
    return events


def failure(stream: bytes) -> GanglionError:
    last = hear(stream)[-1]
    assert isinstance(last, Failed)
    return last.error


USAGE = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}

LLAMA_SERVER = sse(
    chunk({"role": "assistant", "content": None}),
    chunk({"reasoning_content": "Let me"}),
    chunk({"reasoning_content": " see."}),
    chunk({"content": "Hello"}),
    chunk({"content": " there."}),
    chunk(finish="stop"),
    {
        "choices": [],
        "object": "chat.completion.chunk",
        "usage": {**USAGE, "prompt_tokens_details": {"cached_tokens": 3}},
        "timings": {"prompt_n": 4, "cache_n": 3},
    },
)
VLLM = b": ping\r\n\r\n" + sse(
    chunk({"role": "assistant", "content": ""}, prompt_token_ids=None),
    chunk({"reasoning": "Let me"}),
    chunk({"reasoning": " see."}),
    chunk({"content": "Hello"}),
    chunk({"content": " there."}, "stop", stop_reason="END"),
    {"choices": [], "usage": {**USAGE, "prompt_tokens_details": None}},
    end="\r\n",
)
OLLAMA = sse(
    chunk({"role": "assistant", "content": "", "reasoning": "Let me see."}),
    chunk({"role": "assistant", "content": "Hello there."}),
    chunk({"role": "assistant", "content": ""}, "stop", usage=USAGE),
)
OPENAI = sse(
    chunk({"role": "assistant", "content": "", "refusal": None}, usage=None, service_tier="default"),
    chunk({"content": "Hello"}, usage=None, obfuscation="xx"),
    chunk({"content": " there."}, usage=None),
    chunk(finish="stop", usage=None),
    {"choices": [], "usage": {**USAGE, "completion_tokens_details": {"reasoning_tokens": 2}}},
)
OPENAI_CALLS = sse(
    chunk({"role": "assistant", "content": None}),
    chunk(call(0, "", "weather", "call_a")),
    chunk(call(0, '{"city":')),
    chunk(call(0, ' "Oslo"}')),
    chunk(call(1, "", "time", "call_b")),
    chunk(call(1, "{}")),
    chunk(finish="tool_calls"),
    {"choices": [], "usage": USAGE},
)
STREAMS = {
    "llama-server": LLAMA_SERVER,
    "vllm": VLLM,
    "ollama": OLLAMA,
    "openai": OPENAI,
    "calls": OPENAI_CALLS,
    "broken": OPENAI[: len(OPENAI) // 2],
    "error": sse(chunk({"content": "He"}), {"error": {"message": "no", "code": 500}}, done=False),
}


@pytest.mark.parametrize(
    "stream", [LLAMA_SERVER, VLLM, OLLAMA, OPENAI], ids=["llama", "vllm", "ollama", "openai"]
)
def test_an_answer_is_the_same_from_whichever_server(stream: bytes) -> None:
    answer = fold(hear(stream))
    assert answer.text("text") == "Hello there."
    assert answer.text("reasoning") == ("" if stream is OPENAI else "Let me see.")
    assert answer.finished.reason == "stop"
    usage = answer.finished.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (7, 5)
    assert usage.cached_tokens == (3 if stream is LLAMA_SERVER else 0)
    assert usage.reasoning_tokens == (2 if stream is OPENAI else 0)
    assert answer.finished.stop_sequence == ("END" if stream is VLLM else None)


@given(st.sampled_from(sorted(STREAMS)), st.integers(1, 60))
def test_any_split_hears_the_same(name: str, size: int) -> None:
    whole, parts = hear(STREAMS[name]), hear(STREAMS[name], size)
    assert list(map(repr, parts)) == list(map(repr, whole))


def test_calls_come_one_after_another_with_their_ids_and_names() -> None:
    assert hear(OPENAI_CALLS) == [
        Started(0),
        Opened(0, "tool_call", "call_a", "weather"),
        Delta(0, '{"city":'),
        Delta(0, ' "Oslo"}'),
        Closed(0),
        Opened(1, "tool_call", "call_b", "time"),
        Delta(1, "{}"),
        Closed(1),
        Finished("tool_calls", Usage(7, 5)),
    ]


WHOLE = '{"city":"Oslo"}'


@pytest.mark.parametrize(
    ("deltas", "ids"),
    [
        ([call(0, WHOLE, "weather", "a"), call(1, WHOLE, "weather", "b")], ["a", "b"]),
        # Every call is number 0 (Ollama was so for a long time).
        ([call(0, WHOLE, "weather", "a"), call(0, WHOLE, "weather", "b")], ["a", "b"]),
        # No numbers at all.
        ([call(None, WHOLE, "weather", "a"), call(None, WHOLE, "weather", "b")], ["a", "b"]),
        ([call(None, WHOLE, "weather"), call(None, WHOLE, "weather")], ["made_0", "made_1"]),
        # Id and name on every part.
        (
            [
                call(0, '{"city":', "weather", "a"),
                call(0, '"Oslo"}', "weather", "a"),
                call(1, WHOLE, "weather", "b"),
            ],
            ["a", "b"],
        ),
        # The name comes after the first of the arguments.
        (
            [call(0, '{"city":', None, "a"), call(0, '"Oslo"}', "weather"), call(1, WHOLE, "weather")],
            ["a", "made_0"],
        ),
        # Both in one chunk, and the first again at the end, empty.
        (
            [
                {
                    "tool_calls": [
                        *call(0, WHOLE, "weather", "a")["tool_calls"],
                        *call(1, "", "weather", "b")["tool_calls"],
                    ]
                },
                call(1, WHOLE),
                call(0, ""),
            ],
            ["a", "b"],
        ),
    ],
)
def test_two_calls_are_told_apart_however_a_server_numbers_them(
    deltas: list[dict[str, Any]], ids: list[str]
) -> None:
    events = hear(sse(*map(chunk, deltas), chunk(finish="stop")))
    answer = fold(events)
    assert [(block.name, block.text, block.call_id) for block in answer.blocks] == [
        ("weather", WHOLE, each) for each in ids
    ]
    assert answer.finished.reason == "tool_calls"


def test_arguments_as_an_object_become_text_and_the_oldest_form_is_heard_too() -> None:
    told = {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": {"a": 1}}}]}
    assert fold(hear(sse(chunk(told), chunk(finish="stop")))).blocks[0].text == '{"a":1}'
    oldest = [{"function_call": {"name": "f", "arguments": "{"}}, {"function_call": {"arguments": "}"}}]
    answer = fold(hear(sse(*map(chunk, oldest), chunk(finish="function_call"))))
    assert (answer.blocks[0].text, answer.finished.reason) == ("{}", "tool_calls")


@pytest.mark.parametrize(
    "stream",
    [
        b"",
        b": hello\n\n",
        sse(chunk({"content": "Hel"}), done=False),
        sse(chunk({"content": "Hel"}), done=False)[:-5],
        sse(chunk({"content": "Hel"}), "not json"),
        sse(chunk({"content": "Hel"}), '{"choices": 5}'),
        sse(chunk(call(0, "{}")), chunk(finish="stop")),
        sse(chunk(call(0, "{", "f")), chunk(call(1, "{}", "g")), chunk(call(0, "}")), chunk(finish="stop")),
    ],
    ids=["nothing", "a comment", "cut", "cut in a frame", "no JSON", "no chunk", "no name", "interleaved"],
)
def test_what_does_not_end_well_fails(stream: bytes) -> None:
    assert type(failure(stream)) is UpstreamUnavailable


def test_a_stream_ends_well_with_a_reason_or_with_done() -> None:
    without_done = fold(hear(sse(chunk({"content": "Hi"}), chunk(finish="length"), done=False)))
    assert (without_done.finished.reason, without_done.finished.usage) == ("length", Usage(0, 1))
    assert fold(hear(sse(chunk({"content": "Hi"})))).finished.reason == "stop"
    for reason in ("content_filter", "eos_token"):
        assert fold(hear(sse(chunk({"content": "Hi"}, reason)))).finished.reason == "stop"


def test_without_a_count_what_was_heard_is_counted() -> None:
    stream = sse(
        *(chunk({"reasoning": "a"}) for _ in range(3)), chunk({"content": "b"}), chunk(finish="stop")
    )
    assert fold(hear(stream, prompt_tokens=4)).finished.usage == Usage(4, 4, 0, 3)


def test_a_whole_answer_to_a_request_for_a_stream_is_heard() -> None:
    message = {"role": "assistant", "content": "Hi", "reasoning_content": "Hm", **call(0, "{}", "f", "a")}
    body = {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}], "usage": USAGE}
    hearing = ChatStreamDecoder(new_call_id=str)
    answer = fold(hearing.whole(json.dumps(body).encode()))
    assert [block.kind for block in answer.blocks] == ["reasoning", "text", "tool_call"]
    assert answer.finished == Finished("tool_calls", Usage(7, 5))


def test_data_of_several_lines_is_one_frame_and_other_fields_are_passed_over() -> None:
    told = b'id: 5\nevent: x\ndata: {"choices":\ndata:[{"delta":{"content":"Hi"}}]}\n\nretry: 9\n\n' + sse()
    assert fold(hear(told)).text("text") == "Hi"


def test_an_event_that_never_ends_is_given_up() -> None:
    hearing = ChatStreamDecoder(new_call_id=str)
    hearing.feed(b"data: " + b"x" * (MAX_EVENT_BYTES // 2))
    (failed,) = hearing.feed(b"x" * MAX_EVENT_BYTES)
    assert isinstance(failed, Failed)


def test_logprobs_and_readouts_become_tokens() -> None:
    told = {
        "content": [
            {
                "token": "Hi",
                "logprob": -0.5,
                "bytes": [72, 105],
                "top_logprobs": [{"token": "Ho", "logprob": -1.5, "bytes": None}],
            }
        ]
    }
    readout = [{"id": 9, "position": 4, "values": [[1.0, 2.0], [3.0, 4.0]]}]
    stream = sse(
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": "Hi"}, logprobs=told, readout=readout),
        chunk({"content": " you"}, readout=[{"id": 8, "position": 5, "values": [[0.0, 0.0], [0.0, 1.0]]}]),
        chunk(finish="stop"),
    )
    started, _, first, second, *_ = hear(stream, has_readout=True)
    assert started == Started(0, readout_concepts=2)
    assert isinstance(first, Delta)
    assert isinstance(second, Delta)
    (token,) = first.tokens
    assert (token.id, token.piece, token.position, token.logprob) == (9, b"Hi", 4, -0.5)
    assert [(each.piece, each.logprob) for each in token.top] == [(b"Ho", -1.5)]
    assert token.readout == (1.0, 2.0, 3.0, 4.0)
    assert second.tokens == (Token(8, b"", 5, readout=(0.0, 0.0, 0.0, 1.0)),)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["text", "reasoning", "tool_call"]), st.lists(st.text("abc", min_size=1), min_size=1)
    ),
    max_size=4,
)


@given(EVENTS, st.integers(1, 200))
def test_what_our_own_wire_tells_is_heard_as_it_was(blocks: list[tuple[Any, list[str]]], size: int) -> None:
    events: list[Event] = [Started(5)]
    for index, (kind, texts) in enumerate(blocks):
        is_call = kind == "tool_call"
        events.append(Opened(index, kind, f"call_{index}" if is_call else None, "f" if is_call else None))
        events += [Delta(index, text) for text in texts]
        events.append(Closed(index))
    has_calls = any(kind == "tool_call" for kind, _ in blocks)
    events.append(Finished("tool_calls" if has_calls else "stop", Usage(5, 9, 2, 1)))
    projection = chat_projection(ChatReplyContext("c", 1, "m", usage_reporting="last"))
    frames = [frame for event in events for frame in projection.feed(event)]
    stream = b"".join(b"data: %b\n\n" % frame.data for frame in frames if isinstance(frame, Frame))
    before, after = fold(events), fold(hear(stream, size))
    assert after.finished == before.finished
    assert [(each.kind, each.text, each.name) for each in _joined(after.blocks)] == [
        (each.kind, each.text, each.name) for each in _joined(before.blocks)
    ]


def _joined(blocks: Any) -> list[Any]:
    """Neighbours of one kind as one: this wire does not tell where one text ends and the next begins."""
    told: list[Any] = []
    for block in blocks:
        if told and block.kind == told[-1].kind != "tool_call":
            told[-1] = replace(told[-1], text=told[-1].text + block.text)
        else:
            told.append(block)
    return told


@pytest.mark.parametrize(
    ("frame", "kind"),
    [
        ({"error": {"message": "died", "type": "server_error", "code": "engine_failed"}}, EngineFailed),
        ({"error": {"message": "busy", "code": 503, "type": "unavailable_error"}}, Overloaded),
        ({"error": {"message": "oops", "type": "BadRequestError", "param": None, "code": 400}}, InvalidValue),
        (
            {"object": "error", "message": "oops", "type": "InternalServerError", "code": 500},
            UpstreamUnavailable,
        ),
        ({"error": "an unexpected error"}, UpstreamUnavailable),
        ({"error": {"message": "x", "code": "lease_lost"}}, LeaseLost),
    ],
)
def test_an_error_in_a_stream_is_ours_by_its_code(frame: dict[str, Any], kind: type[GanglionError]) -> None:
    assert type(failure(sse(chunk({"content": "He"}), frame, done=False))) is kind


def refused(status: int, body: object, **headers: str) -> GanglionError:
    data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    told = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return decode_error_response(status, told, data, model="m")


LLAMA_OVERFLOW = {
    "error": {
        "code": 400,
        "message": "request (5000 tokens) exceeds the available context size (4096 tokens)",
        "type": "exceed_context_size_error",
        "n_prompt_tokens": 5000,
        "n_ctx": 4096,
    }
}
VLLM_OVERFLOW = {
    "error": {
        "message": "This model's maximum context length is 4096 tokens. However, your request has 5000 input "
        "tokens. Please reduce the length of the input messages.",
        "type": "BadRequestError",
        "code": 400,
    }
}
OLDER_VLLM_OVERFLOW = {
    "object": "error",
    "message": "This model's maximum context length is 4096 tokens. However, you requested 5100 tokens "
    "(5000 in the messages, 100 in the completion). Please reduce the length of the messages or completion.",
    "type": "BadRequestError",
    "param": None,
    "code": 400,
}
OPENAI_OVERFLOW = {
    "error": {
        "message": "This model's maximum context length is 4096 tokens. However, your messages resulted in "
        "5000 tokens. Please reduce the length of the messages.",
        "type": "invalid_request_error",
        "param": "messages",
        "code": "context_length_exceeded",
    }
}


@pytest.mark.parametrize(
    "body",
    [LLAMA_OVERFLOW, VLLM_OVERFLOW, OLDER_VLLM_OVERFLOW, OPENAI_OVERFLOW],
    ids=["llama", "vllm", "older", "openai"],
)
def test_a_prompt_that_is_too_long_is_so_in_everybodys_words(body: object) -> None:
    error = refused(400, body)
    assert isinstance(error, ContextLengthExceeded)
    assert (error.extras["prompt_len"], error.extras["max"]) == (5000, 4096)


def test_an_answer_that_would_be_too_long_is_no_prompt_that_is() -> None:
    message = OLDER_VLLM_OVERFLOW["message"]
    assert isinstance(message, str)
    told = {
        **OLDER_VLLM_OVERFLOW,
        "message": message.replace("(5000", "(100").replace("100 in the c", "5000 in the c"),
    }
    assert type(refused(400, told)) is InvalidValue


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (
            401,
            {"error": {"message": "Incorrect API key: sk-se***", "code": "invalid_api_key"}},
            UpstreamRefused,
        ),
        (403, "Forbidden", UpstreamRefused),
        (402, {"error": "pay"}, UpstreamRefused),
        (
            404,
            {"error": {"message": "The model `m` does not exist.", "type": "NotFoundError", "code": 404}},
            ModelNotFound,
        ),
        (
            404,
            {"error": {"message": 'model "m" not found, try pulling it first', "code": None}},
            ModelNotFound,
        ),
        (404, "page not found", ModelNotFound),
        (400, {"error": {"code": 400, "message": "model 'm' not found"}}, ModelNotFound),
        (
            400,
            {"error": {"message": "no", "code": "unsupported_parameter", "param": "n"}},
            UnsupportedParameter,
        ),
        (400, {"error": {"message": "no", "type": "invalid_request_error"}}, InvalidValue),
        (422, {"detail": [{"loc": ["body"]}]}, InvalidValue),
        (429, {"error": {"message": "slow down", "code": "rate_limit_exceeded"}}, Overloaded),
        (
            503,
            {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}},
            ModelLoading,
        ),
        (503, "", Overloaded),
        (529, "", Overloaded),
        (500, "<html>", UpstreamUnavailable),
        (502, b"\xff".decode("latin-1"), UpstreamUnavailable),
        (302, "", UpstreamRefused),
    ],
)
def test_a_refusal_of_another_server_is_ours(status: int, body: object, kind: type[GanglionError]) -> None:
    error = refused(status, body)
    assert type(error) is kind
    assert error.status not in (401, 403)
    assert "sk-" not in error.message


def test_a_limit_of_the_upstream_says_when_to_come_back() -> None:
    assert refused(429, "", retry_after="17").retry_after_s == 17
    assert refused(429, "", retry_after="99999").retry_after_s == 300
    assert refused(429, "", retry_after="Wed, 21 Oct").retry_after_s == 1
    assert refused(400, "", retry_after="17").retry_after_s is None


@pytest.mark.parametrize(
    "error",
    [
        EngineFailed("It died."),
        LeaseLost("Another epoch."),
        UnsupportedParameter("Not so.", param="readout"),
        ContextLengthExceeded(9, 8),
        ModelNotFound("m"),
        DeadlineExceeded("queue", 5.0),
        InsufficientMemory("Too little.", free_mb=1, required_mb=2),
    ],
    ids=lambda error: error.code,
)
def test_an_error_of_our_own_node_comes_back_as_it_was(error: GanglionError) -> None:
    heard = decode_error_response(error.status, [], encode_error(error), model="m")
    assert type(heard) is type(error)
    assert encode_error(heard) == encode_error(error)
