"""Another server's events, read at any split and with any of the three ways in which a line may end."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ganglion.wire.upstream.stream_decoder import SseReader

EVENTS = b': a comment\ndata: {"a":1}\n\nevent: x\ndata: one\ndata: two\n\n\ndata:[DONE]\n\n'
READ = [b'{"a":1}', b"one\ntwo", b"[DONE]"]


@given(st.lists(st.integers(0, 200), max_size=12), st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_lines_may_end_in_any_way_at_any_split(places: list[int], line_end: bytes) -> None:
    data = EVENTS.replace(b"\n", line_end)
    cuts = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    reader = SseReader()
    found = [event for start, end in pairwise(cuts) for event in reader.feed(data[start:end])]
    assert found + reader.end() == READ
