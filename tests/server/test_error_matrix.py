"""Every way a request can fail, on every wire, in that wire's own words: before the first byte and after."""

import json
from collections.abc import AsyncGenerator

import httpx
import pytest

from ganglion.core.engine import ModelState
from ganglion.core.errors import (
    ContextLengthExceeded,
    EngineFailed,
    GanglionError,
    ModelNotFound,
    Overloaded,
    StorageFull,
    error_classes,
    rebuild,
)
from ganglion.core.events import Delta, Event, Failed, Opened, Started
from ganglion.core.request import Request

IN_OWN_WORDS: tuple[GanglionError, ...] = (ContextLengthExceeded(9000, 8192), ModelNotFound("m"))
ERRORS = [
    next((own for own in IN_OWN_WORDS if type(own) is kind), None)
    or rebuild(kind, "It failed.", param="x", extras={"some": 3})
    for kind in error_classes()
    if kind.__module__ == GanglionError.__module__
]
ASKED = [{"role": "user", "content": "hi"}]
WIRES: dict[str, dict[str, object]] = {
    "/v1/chat/completions": {"model": "m", "messages": ASKED},
    "/v1/completions": {"model": "m", "prompt": "hi"},
    "/v1/responses": {"model": "m", "input": "hi"},
    "/v1/messages": {"model": "m", "messages": ASKED, "max_tokens": 9},
    "/api/chat": {"model": "m", "messages": ASKED, "stream": False},
    "/api/generate": {"model": "m", "prompt": "hi", "stream": False},
}


class Failing:
    """An engine that fails with one error, at once or after a word."""

    def __init__(self, error: GanglionError, *, is_late: bool) -> None:
        self._error = error
        self._is_late = is_late

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    def models(self) -> tuple[ModelState, ...]:
        return (ModelState(id="m", engine="failing", status="loaded", context_length=99, created_s=0),)

    async def generate(self, request: Request) -> AsyncGenerator[Event, None]:
        if self._is_late:
            yield Started(1)
            yield Opened(0, "text")
            yield Delta(0, "word")
        yield Failed(self._error)


def told(path: str, body: dict) -> str:
    """The message inside a wire's envelope, whose shape this checks."""
    if path.startswith("/api/"):
        assert body.keys() == {"error"}
        return body["error"]
    error = body["error"]
    if path == "/v1/messages":
        assert body["type"] == "error"
        assert body["request_id"]
        assert error["type"].endswith("_error") or error["type"] == "request_too_large"
    else:
        assert error.keys() >= {"message", "type", "param", "code"}
    return error["message"]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_a_failure_before_the_first_byte_is_a_status_in_the_wires_envelope(
    serving, error: GanglionError
) -> None:
    async with serving(Failing(error, is_late=False)) as server:
        for path, body in WIRES.items():
            for is_streamed in (False, True):
                check(path, error, await server.http.post(path, json=body | {"stream": is_streamed}))


def check(path: str, error: GanglionError, answer: httpx.Response) -> None:
    is_crowded = isinstance(error, Overloaded) and path == "/v1/messages"
    assert answer.status_code == (529 if is_crowded else error.status)
    message = told(path, answer.json())
    if type(error) is ModelNotFound:
        assert "'m'" in message
    if error.retry_after_s is not None:
        assert int(answer.headers["retry-after"]) == error.retry_after_s
    if isinstance(error, ContextLengthExceeded):
        assert "prompt is too long" in message
    elif not isinstance(error, ModelNotFound):
        assert error.message in message
    if path in ("/v1/chat/completions", "/v1/completions", "/v1/responses"):
        assert (answer.json()["error"]["code"], answer.json()["error"]["type"]) == (error.code, error.type)


@pytest.mark.parametrize("error", [EngineFailed("It died."), Overloaded("Full."), StorageFull("Full.")])
@pytest.mark.parametrize("path", WIRES)
async def test_a_failure_after_the_first_byte_is_the_wires_own_event_and_the_end(
    serving, path: str, error: GanglionError
) -> None:
    async with serving(Failing(error, is_late=True)) as server:
        answer = await server.http.post(path, json=WIRES[path] | {"stream": True})
    assert answer.status_code == 200
    assert "word" in answer.text
    said = answer.text
    if path == "/v1/responses":
        assert said.endswith("\n\ndata: [DONE]\n\n"), "which ends every stream here, also one that failed"
        said = said.removesuffix("data: [DONE]\n\n")
    assert "[DONE]" not in said
    last = said.strip().splitlines()
    data = json.loads(last[-1].removeprefix("data: "))
    match path:
        case "/v1/responses":
            assert last[-2] == "event: response.failed"
            assert data["response"]["error"]["message"].startswith(error.message)
        case "/v1/messages":
            assert last[-2] == "event: error"
            told(path, data | {"request_id": "-"})
        case _:
            assert told(path, data).startswith(error.message)
