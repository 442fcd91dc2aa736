"""Messages through the door that clients use: the official SDK, and raw requests where it hides too much."""

import asyncio
import json
import logging
import sys
from pathlib import Path

import anthropic
import pytest

from ganglion.core.errors import GanglionError, ModelLoading, Overloaded, RateLimited
from ganglion.core.request import Message
from ganglion.engines.echo.answer import EchoScript, ScriptedCall
from ganglion.engines.echo.engine import EchoEngine, EchoSettings
from support.golden import GOLDEN
from support.played_engine import PlayedEngine
from support.raw_http import request_bytes
from support.waiting import until

SCRIPT = Path(__file__).with_name("anthropic_script.py")
RUNNER = Path(__file__).with_name("tool_runner_script.py")
OLDER = Path(sys.prefix) / "anthropic-1"
"""Where `make setup` puts the SDK's previous major."""
CLAUDE_CODE = GOLDEN / "messages" / "claude_code.json"
HELLO = [{"role": "user", "content": "hello there you"}]

WEATHER = (
    EchoScript(
        reasoning="Oslo it is.",
        reply="I look.",
        calls=(ScriptedCall("weather", '{"city": "Oslo"}'),),
        cached_tokens=2,
    ),
    EchoScript(reply="It rains."),
)


def ask(content: str = "hello there you", **fields: object) -> dict[str, object]:
    return {"model": "echo", "max_tokens": 500, "messages": [{"role": "user", "content": content}]} | fields


def events(text: str) -> list[tuple[str, dict[str, object]]]:
    found = []
    for part in text.split("\n\n")[:-1]:
        name, data = part.split("\n")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


@pytest.mark.parametrize("script", [SCRIPT, RUNNER], ids=["answers", "tool runner"])
@pytest.mark.parametrize("major", ["2", "1"])
async def test_both_majors_of_the_sdk_accept_every_answer_with_strict_validation(
    serving, major: str, script: Path
) -> None:
    older = [str(OLDER)] if major == "1" else []
    async with serving(PlayedEngine(WEATHER, EchoSettings(context=1000))) as served:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(script), served.url),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={"PYTHONPATH": ":".join(older), "PATH": ""},
        )
        said, _ = await asyncio.wait_for(process.communicate(), 60)
    lines = said.decode().splitlines()
    assert process.returncode == 0, said.decode()
    assert lines[0].startswith(f"{major}.")
    assert lines[-1] == "all accepted"


async def test_a_conversation_comes_back_to_the_model_as_it_left(serving) -> None:
    engine = PlayedEngine(WEATHER)
    async with serving(engine) as served:
        client = anthropic.AsyncAnthropic(base_url=served.url, api_key="none", max_retries=0)
        async with client:
            first = await client.messages.create(model="echo", max_tokens=99, messages=HELLO)
            result = {"type": "tool_result", "tool_use_id": first.content[2].id, "content": "rain"}
            await client.messages.create(
                model="echo",
                max_tokens=99,
                messages=[
                    *HELLO,
                    {"role": "assistant", "content": first.content},
                    {"role": "user", "content": [result]},
                ],
            )
    _, spoken, told = engine.requests[1].prompt.messages
    assert (spoken.role, spoken.content, spoken.reasoning) == ("assistant", "I look.", "Oslo it is.")
    (call,) = spoken.tool_calls
    assert (call.name, call.arguments) == ("weather", '{"city":"Oslo"}')
    assert call.call_id.startswith("call_")
    assert told == Message("tool", "rain", name="weather", tool_call_id=call.call_id)


async def test_another_tenants_thoughts_are_not_believed(serving, caplog) -> None:
    engine = PlayedEngine(WEATHER)
    caplog.set_level(logging.DEBUG, "ganglion.server")
    async with serving(engine, api_keys=("one", "two")) as served:
        first = await served.http.post("/v1/messages", json=ask(), headers={"x-api-key": "one"})
        turns = [*HELLO, {"role": "assistant", "content": first.json()["content"][:2]}, *HELLO]
        for key in ("one", "two"):
            again = ask(messages=turns)
            answered = await served.http.post("/v1/messages", json=again, headers={"x-api-key": key})
            assert answered.status_code == 200
    believed = [request.prompt.messages[1].reasoning for request in engine.requests[1:]]
    assert believed == ["Oslo it is.", None]
    assert "1 thinking blocks without our seal were left out" in caplog.text
    assert "Oslo" not in caplog.text


async def test_what_claude_code_sends_is_answered(serving) -> None:
    engine = PlayedEngine([EchoScript(reply="Hello.")])
    async with serving(engine, is_strict=True) as served:
        answered = await served.http.post(
            "/v1/messages?beta=true",
            content=CLAUDE_CODE.read_bytes(),
            headers={
                "content-type": "application/json",
                "anthropic-version": "2023-06-01",
                "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14",
                "x-api-key": "x",
            },
        )
    assert answered.status_code == 200
    assert answered.headers["content-type"].startswith("text/event-stream")
    names = [name for name, _ in events(answered.text)]
    assert names == [
        "message_start",
        "ping",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert len(engine.requests[0].prompt.tool_use.tools) == 24


async def test_a_prompt_that_waits_is_filled_with_pings_and_its_usage_is_still_real(serving) -> None:
    engine = EchoEngine(EchoSettings(parallel=1, allow_directives=True))
    async with serving(engine, first_byte_s=0.02, keep_alive_s=0.02) as served:
        holding = asyncio.create_task(served.http.post("/v1/messages", json=ask("!echo delay=0.1\na b c")))
        await until(lambda: served.slots_used() == 1)
        waited = await served.http.post("/v1/messages", json=ask(stream=True))
        await holding
    names = [name for name, _ in events(waited.text)]
    assert names[:2] == ["ping", "ping"]
    start = next(data for name, data in events(waited.text) if name == "message_start")
    assert start["message"]["usage"]["input_tokens"] == 3


async def test_a_failure_after_the_first_byte_is_one_error_event_and_the_end(serving) -> None:
    async with serving() as served:
        body = ask("!echo fail_at=2 delay=0.01\none two three", stream=True)
        response = await served.http.post("/v1/messages", json=body)
    assert response.status_code == 200
    *_, (name, data) = events(response.text)
    assert name == "error"
    assert data["error"]["type"] == "api_error"
    assert data["request_id"] == response.headers["request-id"]
    assert "message_stop" not in response.text


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (Overloaded("Full."), 529, "overloaded_error"),
        (ModelLoading("Soon."), 503, "api_error"),
        (RateLimited("Slow down."), 429, "rate_limit_error"),
    ],
)
@pytest.mark.parametrize("is_streamed", [True, False])
async def test_a_failure_before_the_first_byte_is_a_status(
    serving, error: GanglionError, status: int, kind: str, is_streamed: bool
) -> None:
    engine = EchoEngine(EchoSettings(), EchoScript(fail_at=0, error=error))
    async with serving(engine) as served:
        refused = await served.http.post("/v1/messages", json=ask(stream=is_streamed))
    assert refused.status_code == status
    assert refused.json()["error"] == {"type": kind, "message": error.message}
    assert refused.headers["retry-after"] == str(error.retry_after_s)


async def test_every_refusal_is_told_in_this_wires_words(serving) -> None:
    async with serving(api_keys=("secret",), max_body_bytes=2000) as served:
        key = {"x-api-key": "secret"}
        post = served.http.post
        refusals = [
            (await post("/v1/messages", json=ask()), 401, "authentication_error"),
            (
                await post("/v1/messages", json=ask(), headers={**key, "host": "x.com"}),
                403,
                "permission_error",
            ),
            (await post("/v1/messages/nowhere", json=ask(), headers=key), 404, "not_found_error"),
            (await served.http.get("/v1/messages", headers=key), 405, "invalid_request_error"),
            (await post("/v1/messages", json=ask("x" * 2000), headers=key), 413, "request_too_large"),
            (await post("/v1/messages", content="{}", headers=key), 415, "invalid_request_error"),
            (await post("/v1/messages/count_tokens", json={}, headers=key), 400, "invalid_request_error"),
            (
                await post("/v1/messages/count_tokens", json=ask(model="x"), headers=key),
                404,
                "not_found_error",
            ),
        ]
        for refused, status, kind in refusals:
            assert refused.status_code == status
            envelope = refused.json()
            assert envelope["type"] == "error"
            assert envelope["error"]["type"] == kind
            assert envelope["request_id"] == refused.headers["request-id"]


async def test_an_overflow_says_that_the_prompt_is_too_long(serving) -> None:
    async with serving(EchoEngine(EchoSettings(context=5))) as served:
        refused = await served.http.post("/v1/messages", json=ask("a b c d e f"))
        assert refused.status_code == 400
        assert refused.json()["error"]["message"] == "prompt is too long: 6 tokens > 5 maximum"
        counted = await served.http.post("/v1/messages/count_tokens", json=ask("a b c d e f"))
        assert counted.json() == {"input_tokens": 6}


async def test_hosted_tools_are_dropped_with_a_warning(serving, caplog) -> None:
    caplog.set_level(logging.WARNING, "ganglion.server")
    async with serving() as served:
        tools = [{"type": "web_search_20250305", "name": "web_search"}]
        answered = await served.http.post("/v1/messages", json=ask(tools=tools))
    assert answered.status_code == 200
    assert "ignored: the tool 'web_search_20250305', which is not run here" in caplog.text


async def test_the_model_list_speaks_the_words_of_whoever_asks(serving) -> None:
    async with serving() as served:
        theirs = await served.http.get("/v1/models", headers={"anthropic-version": "2023-06-01"})
        page = theirs.json()
        assert (page["first_id"], page["last_id"], page["has_more"]) == ("echo", "echo", False)
        assert page["data"][0]["type"] == "model"
        assert (await served.http.get("/v1/models")).json()["object"] == "list"


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_a_client_that_leaves_cancels_its_answer(serving, is_streamed) -> None:
    async with serving() as served:
        tasks_before = len(asyncio.all_tasks())
        for moment_s in (0.0, 0.03):
            _, writer = await asyncio.open_connection("127.0.0.1", served.port)
            body = ask("!echo unbounded=1 delay=0.01\na b", stream=is_streamed)
            writer.write(request_bytes("/v1/messages", body))
            await writer.drain()
            await until(lambda: served.slots_used() == 1)
            await asyncio.sleep(moment_s)
            writer.transport.abort()
            await served.until_idle(0.5)
        await until(lambda: len(asyncio.all_tasks()) <= tasks_before)
