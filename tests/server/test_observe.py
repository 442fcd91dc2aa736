"""What is measured, and that clients cannot make it grow."""

import logging

import psutil

from ganglion.core.request import Request, TextPrompt
from ganglion.engines.echo.engine import EchoEngine, EchoSettings
from ganglion.server.observed import ObservedEngine
from ganglion.server.prometheus import Metrics
from ganglion.server.settings import AnswerDeadlines


async def test_answers_are_counted_by_outcome(serving) -> None:
    async with serving() as served:
        await served.post("one two three")
        await served.post("one two three", max_tokens=1, stream=True)
        await served.post("!echo fail_at=1\none two")
        await served.post("!echo cached_tokens=2\none two three")
        page = (await served.http.get("/metrics")).text
        for line in (
            'ganglion_requests_total{model="echo",outcome="stop"} 2.0',
            'ganglion_requests_total{model="echo",outcome="length"} 1.0',
            'ganglion_requests_total{model="echo",outcome="engine_failed"} 1.0',
            'ganglion_completion_tokens_total{model="echo"} 7.0',
            'ganglion_cached_tokens_total{model="echo"} 2.0',
            'ganglion_time_to_first_token_seconds_count{model="echo"} 4.0',
            'ganglion_requests_in_flight{model="echo"} 0.0',
            'ganglion_slots_total{model="echo"} 16.0',
            'ganglion_kv_cells_used{model="echo"} 0.0',
            'ganglion_worker_restarts_total{model="echo"} 0.0',
            f"ganglion_child_processes {len(psutil.Process().children(recursive=True))}.0",
        ):
            assert line in page, line
        for name in ("asyncio_tasks", "open_fds", "threads", "resident_bytes", "queue_depth"):
            assert f"ganglion_{name}" in page


async def test_made_up_model_names_share_one_label() -> None:
    metrics = Metrics()
    engine = EchoEngine(EchoSettings(aliases=("parrot",)))
    await engine.open()
    observed = ObservedEngine(engine, metrics, AnswerDeadlines())
    for name in ("parrot", "PARROT", "echo", *(f"made-up-{number}" for number in range(50))):
        async for _ in observed.generate(Request("r", name, TextPrompt("hello"))):
            pass
    page = (await metrics.page(engine.models())).decode()
    assert 'ganglion_requests_total{model="echo",outcome="stop"} 3.0' in page
    assert 'ganglion_requests_total{model="unknown",outcome="model_not_found"} 50.0' in page
    assert "made-up" not in page


async def test_an_abandoned_stream_is_counted_as_cancelled() -> None:
    metrics = Metrics()
    engine = EchoEngine()
    await engine.open()
    events = ObservedEngine(engine, metrics, AnswerDeadlines()).generate(
        Request("r", "echo", TextPrompt("a b c"))
    )
    await anext(events)
    await events.aclose()
    page = (await metrics.page(())).decode()
    assert 'ganglion_requests_total{model="echo",outcome="cancelled"} 1.0' in page
    assert 'ganglion_requests_in_flight{model="echo"} 0.0' in page


async def test_the_log_names_requests_and_holds_no_prompt_and_no_key(serving, caplog) -> None:
    caplog.set_level(logging.DEBUG)
    async with serving(api_keys=("key-canary",)) as served:
        served.http.headers["authorization"] = "Bearer key-canary"
        response = await served.post("prompt-canary", **{"field\\n-canary": 1})
        await served.http.get("/a%0Ab", headers={"authorization": "Bearer wrong-canary"})
        request_id = response.headers["x-request-id"]
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("ganglion")]
    assert any("status=200 duration_ms=" in line and request_id in line for line in ours)
    assert any("path=/a%0Ab status=401" in line for line in ours)
    everything = "\n".join(record.getMessage() for record in caplog.records)
    assert "prompt-canary" not in everything
    assert "key-canary" not in everything
    assert "wrong-canary" not in everything
    assert "the unknown field" in everything
