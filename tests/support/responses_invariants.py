"""What holds in every stream of the Responses wire, checked over its bytes.

Import `check` and give it everything that came over the socket, or `Invariants` and feed it frame by frame.
"""

import json
import re
from dataclasses import dataclass, field
from typing import Any

from support.open_responses import check_event

Json = dict[str, Any]

TERMINAL = {
    "response.completed": "completed",
    "response.incomplete": "incomplete",
    "response.failed": "failed",
}
PREFIXES = {"message": "msg_", "function_call": "fc_", "custom_tool_call": "ctc_", "reasoning": "rs_"}
ENDING = b"data: [DONE]\n\n"
_FRAME = re.compile(rb"event: ([a-z_.]+)\ndata: ([^\n]+)\n\n")


@dataclass
class _Open:
    """The item that is being written."""

    added: Json
    text: str = ""
    logprobs: list[Json] = field(default_factory=list)
    has_part: bool = False
    is_text_done: bool = False
    is_part_done: bool = False


class Invariants:
    """Feed it every frame; `ended` gives the final response."""

    def __init__(self, *, after: int | None = None) -> None:
        """`after` is the number of the last event seen before, on a stream that was resumed."""
        self._next = 0 if after is None else after + 1
        self._is_resumed = after is not None
        self._stage = "resumed" if self._is_resumed else "unsaid"
        self._open: _Open | None = None
        self._items: list[Json] = []
        self._id: str | None = None
        self._final: Json | None = None

    def feed(self, name: str, event: Json) -> None:
        assert self._final is None, f"{name} after the end"
        assert event["type"] == name, "the event line is the type"
        assert event["sequence_number"] == self._next, (
            f"{name}: {event['sequence_number']} is not {self._next}"
        )
        self._next += 1
        check_event(event)
        if "response" in event:
            self._lifecycle(name, event["response"])
            return
        assert self._stage in ("running", "resumed"), f"{name} before response.in_progress"
        kind = name.removeprefix("response.")
        if kind == "output_item.added":
            self._added(event)
            return
        if self._open is None and self._is_resumed and not self._items:
            if kind == "output_item.done":
                self._items = [*({} for _ in range(event["output_index"])), event["item"]]
            return
        opened = self._open
        assert opened is not None, f"{name} outside an item"
        assert event["output_index"] == len(self._items)
        if kind == "output_item.done":
            self._done(opened, event["item"])
            return
        assert event["item_id"] == opened.added["id"], "ids are the same everywhere"
        self._inside(kind, opened, event)

    def ended(self) -> Json:
        assert self._final is not None, "the stream ended without saying how"
        return self._final

    def _lifecycle(self, name: str, response: Json) -> None:
        assert response["service_tier"] == "default"
        assert response["id"].startswith("resp_")
        assert self._id in (None, response["id"])
        self._id = response["id"]
        if name in TERMINAL:
            self._end(name, response)
            return
        assert response["usage"] is None
        assert response["error"] is None
        assert response["status"] in ("queued", "in_progress")
        before = {
            "response.created": ("unsaid",),
            "response.queued": ("created", "resumed"),
            "response.in_progress": ("created", "queued", "running", "resumed"),
        }
        assert self._stage in before[name], f"{name} while {self._stage}"
        self._stage = {"response.created": "created", "response.queued": "queued"}.get(name, "running")

    def _end(self, name: str, response: Json) -> None:
        assert self._stage in ("running", "resumed"), f"{name} while {self._stage}"
        is_cancelled = response["status"] == "cancelled" and name == "response.incomplete"
        assert is_cancelled or response["status"] == TERMINAL[name]
        output = response["output"]
        if name == "response.failed" and self._open is not None:
            self._cut(self._open, output)
        assert self._open is None, "an item is still open"
        assert len(output) >= len(self._items)
        for told, kept in zip(self._items, output, strict=False):
            assert not told or told == kept, "the output is what the items said"
        if not self._is_resumed:
            assert output == self._items
        statuses = [item["status"] for item in output]
        assert all(status == "completed" for status in statuses[:-1])
        if name == "response.completed":
            assert "incomplete" not in statuses
            assert response["completed_at"] >= response["created_at"]
        if name == "response.incomplete" and not is_cancelled:
            assert response["incomplete_details"] == {"reason": "max_output_tokens"}
            assert statuses[-1:] in ([], ["incomplete"])
        else:
            assert response["incomplete_details"] is None
        if name == "response.failed":
            assert response["error"]["code"]
            assert response["error"]["message"]
        elif is_cancelled:
            assert response["error"] is None
            assert response["usage"] is None
        else:
            assert response["error"] is None
            self._usage(response["usage"])
        self._final = response

    def _cut(self, opened: _Open, output: list[Json]) -> None:
        """An item that a failure cut off is told by the response alone, and is never done."""
        assert not opened.is_text_done
        item = output[len(self._items)]
        assert item["status"] == "incomplete"
        opened.is_text_done, opened.is_part_done = True, opened.has_part
        self._done(opened, item)

    def _usage(self, usage: Json) -> None:
        assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
        assert set(usage["input_tokens_details"]) == {"cached_tokens", "cache_write_tokens"}
        assert 0 <= usage["input_tokens_details"]["cached_tokens"] <= usage["input_tokens"]
        assert 0 <= usage["output_tokens_details"]["reasoning_tokens"] <= usage["output_tokens"]

    def _added(self, event: Json) -> None:
        assert self._open is None, "items are written one after the other"
        if self._is_resumed and not self._items:
            self._items = [{} for _ in range(event["output_index"])]
        assert event["output_index"] == len(self._items)
        item = event["item"]
        assert item["status"] == "in_progress"
        assert item["id"].startswith(PREFIXES[item["type"]])
        assert item["id"] not in {kept.get("id") for kept in self._items}
        match item["type"]:
            case "message":
                assert item["content"] == []
                assert item["role"] == "assistant"
            case "reasoning":
                assert item["content"] == []
                assert item["summary"] == []
                assert "encrypted_content" not in item
            case "function_call":
                assert item["arguments"] == ""
                assert item["call_id"]
            case "custom_tool_call":
                assert item["input"] == ""
                assert item["call_id"]
        self._open = _Open(item)

    def _inside(self, kind: str, opened: _Open, event: Json) -> None:
        expected = {
            "message": ("output_text.delta", "output_text.done", "text"),
            "reasoning": ("reasoning_text.delta", "reasoning_text.done", "text"),
            "function_call": ("function_call_arguments.delta", "function_call_arguments.done", "arguments"),
            "custom_tool_call": ("custom_tool_call_input.delta", "custom_tool_call_input.done", "input"),
        }
        item_type = opened.added["type"]
        delta, done, whole = expected[item_type]
        has_parts = item_type in ("message", "reasoning")
        if kind == "content_part.added":
            assert has_parts
            assert not opened.has_part
            assert event["content_index"] == 0
            assert event["part"]["text"] == ""
            opened.has_part = True
        elif kind == delta:
            assert opened.has_part is has_parts
            assert not opened.is_text_done
            opened.text += event["delta"]
            if item_type == "message":
                assert event["content_index"] == 0
                opened.logprobs += event["logprobs"]
        elif kind == done:
            assert opened.has_part is has_parts
            assert not opened.is_text_done
            assert event[whole] == opened.text, "deltas concatenate to the whole"
            if item_type == "message":
                assert event["logprobs"] == opened.logprobs
            opened.is_text_done = True
        elif kind == "content_part.done":
            assert opened.is_text_done
            assert not opened.is_part_done
            assert event["part"]["text"] == opened.text
            opened.is_part_done = True
        else:
            raise AssertionError(f"{kind} inside a {item_type}")

    def _done(self, opened: _Open, item: Json) -> None:
        assert opened.is_text_done
        assert opened.is_part_done is opened.has_part
        assert item["status"] in ("completed", "incomplete")
        for name in ("id", "type", "call_id", "name", "namespace", "role"):
            assert item.get(name) == opened.added.get(name)
        match item["type"]:
            case "message":
                (part,) = item["content"]
                assert part["type"] == "output_text"
                assert part["annotations"] == []
                assert part["logprobs"] == opened.logprobs
                assert part["text"] == opened.text
            case "reasoning":
                assert item["summary"] == [], "raw reasoning is never called a summary"
                assert item["content"] == [{"type": "reasoning_text", "text": opened.text}]
            case "function_call":
                assert item["arguments"] == opened.text
            case "custom_tool_call":
                assert item["input"] == opened.text
        self._items.append(item)
        self._open = None


def frames_of(stream: bytes) -> list[tuple[str, Json]]:
    """The events of a stream; raises when anything but frames, and `[DONE]` after them, is in it."""
    assert b"\r" not in stream, "LF only"
    stream = stream.removesuffix(ENDING)
    assert _FRAME.sub(b"", stream) == b"", "nothing but named events"
    return [(name.decode(), json.loads(data)) for name, data in _FRAME.findall(stream)]


def check(stream: bytes, *, after: int | None = None) -> Json:
    """Check a whole stream as it came over server-sent events; gives the final response."""
    assert stream.endswith(ENDING), "a stream ends with [DONE]"
    invariants = Invariants(after=after)
    for name, event in frames_of(stream):
        invariants.feed(name, event)
    return invariants.ended()
