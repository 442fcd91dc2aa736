"""The load client's reading of responses, and what is made of its records; no sockets."""

import itertools
import json
from random import Random

import pytest
from benchmarks.load import Answer, ChatRequest, Endpoint, Message, Record, request_bytes
from benchmarks.measure import decode_rate, full_windows, percentile, summarise, worst_gap
from benchmarks.prompts import WORDS, words
from benchmarks.report import Run, at_least, at_most, row, within, workload_rows
from benchmarks.workloads import WORKLOADS, shrunk
from hypothesis import given
from hypothesis import strategies as st


def chunk(content: str | None = None, **more: object) -> bytes:
    choices = [] if content is None else [{"index": 0, "delta": {"content": content}}]
    return b"data: " + json.dumps({"choices": choices, **more}).encode() + b"\n\n"


EVENTS = [
    b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":null}}]}\n\n',
    b": still here\n\n",
    chunk("Hel", usage=None),
    chunk("", usage=None),
    chunk("lo ü"),
    chunk(usage={"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}),
    b"data: [DONE]\n\n",
]
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nKeep-Alive: timeout=5\r\n\r\n"


def chunked(events: list[bytes]) -> bytes:
    return CHUNKED + b"".join(b"%x\r\n%s\r\n" % (len(event), event) for event in events) + b"0\r\n\r\n"


def read(*pieces: bytes, expected_tokens: int = 2) -> Record:
    answer = Answer(sent_s=0.0, expected_tokens=expected_tokens)
    for now_s, piece in enumerate(pieces, start=1):
        answer.feed(piece, float(now_s))
    answer.end()
    return answer.record(100.0)


def record(*delta_s: float, sent_s: float = 0.0, error: str | None = None, tokens: int = 0) -> Record:
    return Record(
        sent_s=sent_s,
        ended_s=delta_s[-1] if delta_s else sent_s,
        delta_s=delta_s,
        text="",
        prompt_tokens=10,
        cached_tokens=1,
        completion_tokens=tokens,
        error=error,
    )


@given(st.lists(st.integers(0, len(chunked(EVENTS))), max_size=12))
def test_an_answer_reads_the_same_at_any_split(cuts: list[int]) -> None:
    whole = chunked(EVENTS)
    edges = [0, *sorted(cuts), len(whole)]
    found = read(*(whole[start:end] for start, end in itertools.pairwise(edges)))
    assert found.error is None
    assert found.text == "Hello ü"
    assert len(found.delta_s) == 2
    assert (found.prompt_tokens, found.cached_tokens, found.completion_tokens) == (9, 4, 2)


def test_the_first_text_is_what_ends_the_wait_not_the_role() -> None:
    found = read(CHUNKED, *(b"%x\r\n%s\r\n" % (len(event), event) for event in EVENTS), b"0\r\n\r\n")
    assert found.ttft_s == 4.0
    assert found.gaps == [(4.0, 6.0)]
    assert found.error is None


def test_an_answer_is_complete_at_its_last_chunk_and_not_before() -> None:
    answer = Answer(0.0, 2)
    answer.feed(chunked(EVENTS)[:-2], 1.0)
    assert not answer.is_complete
    answer.feed(b"\r\n", 2.0)
    assert answer.is_complete


@pytest.mark.parametrize(
    "head", [b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"]
)
def test_a_body_may_end_with_its_length_or_its_connection(head: bytes) -> None:
    body = b"".join(EVENTS)
    found = read((head % len(body) if b"%" in head else head) + body)
    assert (found.error, found.text) == (None, "Hello ü")


def test_lines_may_end_in_carriage_returns() -> None:
    found = read(chunked([event.replace(b"\n", b"\r\n") for event in EVENTS]))
    assert (found.error, found.text) == (None, "Hello ü")


def test_a_refusal_is_kept_with_its_status_and_words() -> None:
    body = b'{"error":{"message":"prompt is too long"}}'
    found = read(b"HTTP/1.1 400 Bad Request\r\nContent-Length: %d\r\n\r\n" % len(body), body[:9], body[9:])
    assert found.error == f"HTTP 400: {body.decode()}"
    assert found.ttft_s is None


def test_an_error_frame_fails_the_request() -> None:
    found = read(chunked([*EVENTS[:3], b'data: {"error":{"code":"engine_failed"}}\n\n']))
    assert found.error == '{"code":"engine_failed"}'


@pytest.mark.parametrize("cut", [1, 4, 30])
def test_a_stream_cut_short_is_a_failure(cut: int) -> None:
    assert read(chunked(EVENTS)[:-cut]).error == "the stream ended without [DONE]"


def test_silence_is_a_failure() -> None:
    assert read().error == "no response before the connection ended"


def test_fewer_tokens_than_asked_for_are_a_failure() -> None:
    assert read(chunked(EVENTS), expected_tokens=3).error == "expected 3 tokens, got 2"


def test_two_servers_get_the_same_bytes_but_for_the_port() -> None:
    chat_request = ChatRequest((Message("user", "time way"),), max_tokens=3, seed=7)
    one, other = (request_bytes(Endpoint("127.0.0.1", port, "m"), chat_request) for port in (8001, 8002))
    assert one.replace(b":8001", b":8002") == other
    head, _, body = one.partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}".encode() in head
    assert json.loads(body) == {
        "model": "m",
        "messages": [{"role": "user", "content": "time way"}],
        "max_tokens": 3,
        "temperature": 0,
        "seed": 7,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_prompts_come_again_from_their_seed_and_from_no_other() -> None:
    assert words(Random("a"), 50) == words(Random("a"), 50) != words(Random("b"), 50)
    assert len(words(Random(0), 1000).split()) == 1000
    assert len(set(WORDS)) == len(WORDS) == 300


def test_a_percentile_is_one_of_the_values() -> None:
    values = [float(value) for value in range(1, 101)]
    assert percentile(values, 0.5) == 50.0
    assert percentile(values, 0.99) == 99.0
    assert percentile([3.0], 0.99) == 3.0
    assert percentile([], 0.5) is None


def test_the_worst_gap_counts_a_silence_that_began_before_the_moment() -> None:
    streams = [record(0.0, 5.0, 6.0, 9.0), record(0.0, 1.0)]
    assert worst_gap(streams) == 5.0
    assert worst_gap(streams, since_s=5.5) == 3.0
    assert worst_gap(streams, since_s=8.0) == 3.0
    assert worst_gap([record(1.0)]) is None


def test_the_decode_rate_counts_only_while_all_streams_decode() -> None:
    streams = [record(0.0, 4.0, 5.0, 6.0, 7.0), record(3.5, 4.5, 5.5, 6.5, 12.0)]
    assert full_windows(streams, 2) == [(3.5, 7.0)]
    assert decode_rate(streams, 2) == 2.0
    assert decode_rate(streams, 3) is None


def test_a_summary_counts_failures_and_no_tokens_of_theirs() -> None:
    found = summarise([record(1.0, 2.0, tokens=20), record(2.0, tokens=5, error="no")], streams=1)
    assert (found.tok_s, found.wall_s, found.failures, found.errors) == (10.0, 2.0, 1, ("no",))
    assert found.ttft_p50_s == 1.0


def test_the_long_prompt_is_measured_apart_from_the_streams_it_disturbs() -> None:
    intruder = record(9.0, sent_s=3.0, tokens=8)
    found = summarise([record(1.0, 2.5, 4.0, 8.0, tokens=4)], streams=1, intruder=intruder)
    assert (found.worst_gap_s, found.long_ttft_s, found.ttft_p50_s) == (4.0, 6.0, 1.0)
    assert found.completion_tokens == 12


def test_a_ratio_near_its_target_is_noise_and_an_absolute_bound_has_none() -> None:
    assert [at_least(1.0).verdict(ratio) for ratio in (1.0, 0.96, 0.9)] == ["ok", "within noise", "MISS"]
    assert [at_most(0.2).verdict(ratio) for ratio in (0.2, 0.209, 0.3)] == ["ok", "within noise", "MISS"]
    assert [within(0.6).verdict(value) for value in (0.6, 0.61)] == ["ok", "MISS"]
    assert at_least(1.0).verdict(None) == ""


def test_a_ratio_is_the_median_of_the_rounds_own_ratios() -> None:
    found = row("W1", "throughput", "tok/s", [10.0, 40.0, 90.0], [10.0, 20.0, 100.0], at_least(1.0))
    assert (found.ours, found.peer, found.ratio, found.verdict) == (40.0, 20.0, 1.0, "ok")


def test_the_table_needs_no_peer() -> None:
    run = Run(
        0,
        "ganglion",
        "W5",
        summarise([record(1.0, 2.0, tokens=2)], streams=1, intruder=record(3.0, sent_s=1.5)),
    )
    verdicts = {found.measure: (found.ratio, found.verdict) for found in workload_rows([run], ["W5"])}
    assert verdicts["worst gap"] == (None, "MISS")
    assert verdicts["throughput"] == (None, "")


def test_a_run_with_failures_is_no_measure_of_either_side() -> None:
    good = summarise([record(1.0, 2.0, tokens=20)], streams=1)
    bad = summarise([record(1.0, 2.0, tokens=20), record(9.0, error="no")], streams=1)
    rows = workload_rows([Run(0, "ganglion", "W1", good), Run(0, "peer", "W1", bad)], ["W1"])
    assert [(found.measure, found.ours, found.peer, found.verdict) for found in rows[:2]] == [
        ("failures", 0.0, 1.0, ""),
        ("throughput", 10.0, None, ""),
    ]


def test_only_long_prompts_outgrow_a_slot_of_the_peer() -> None:
    assert [name for name, found in WORKLOADS.items() if found.shape.longest_tokens > 2048] == ["W5", "W7"]
    assert all(shrunk(found).shape.longest_tokens < 2048 for found in WORKLOADS.values())
