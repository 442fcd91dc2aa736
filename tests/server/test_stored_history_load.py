"""A stored conversation that fits no context costs its own request an error, and the others nothing."""

import asyncio
import gc
import time

import psutil
import pytest
from responding import MEMORY

from ganglion.engines.llama.engine import LlamaEngine
from ganglion.engines.settings import EngineSettings
from ganglion.registry.files.gguf import read_facts
from support.embedded_model import embedded_model
from support.waiting import until

pytestmark = pytest.mark.model

ITEMS = 9_000
TEXT = "Sphinx of black quartz, judge my vow; pack my box with five dozen jugs. " * 10
CONTEXT = 512


def engine() -> LlamaEngine:
    found = embedded_model()
    settings = EngineSettings("m", context=CONTEXT, kv_tokens=2 * CONTEXT, parallel=2)
    return LlamaEngine(read_facts(found.path), settings)


class Watch:
    """The longest that the event loop's thread computed between two looks of it."""

    longest_s = 0.0

    async def run(self) -> None:
        while True:
            began_s = time.thread_time()
            await asyncio.sleep(0.002)
            self.longest_s = max(self.longest_s, time.thread_time() - began_s)


def item(number: int) -> dict[str, object]:
    role = "user" if number % 2 else "assistant"
    return {"type": "message", "role": role, "content": f"{number} {TEXT}"}


async def test_nine_thousand_stored_items_are_refused_untokenized_and_forgotten_in_one_pass(serving) -> None:
    served_engine = engine()
    async with serving(served_engine, storage=MEMORY) as served:
        await until(lambda: served_engine.models()[0].status == "loaded", 60)
        conversation = (await served.http.post("/v1/conversations", json={})).json()["id"]
        for start in range(0, ITEMS, 3_000):
            items = [item(start + number) for number in range(3_000)]
            path = f"/v1/conversations/{conversation}/items"
            assert (await served.http.post(path, json={"items": items})).status_code == 200
        asked = {"model": "m", "input": "hi", "conversation": conversation, "max_output_tokens": 1}
        process_id = served_engine.tokens.supervisor.process_id
        assert process_id is not None
        worker = psutil.Process(process_id)
        before_s = sum(worker.cpu_times()[:2])
        gc.collect()
        gc.freeze()  # what other tests left behind is not for this one to look through
        watch = Watch()
        watching = asyncio.create_task(watch.run())

        refused = await served.http.post("/v1/responses", json=asked, timeout=100)
        assert refused.status_code == 400
        assert refused.json()["error"]["code"] == "context_length_exceeded"
        assert sum(worker.cpu_times()[:2]) - before_s < 1.0, "nobody tokenized seven megabytes"

        # Without as many turns as must go, which took a minute of everybody's time.
        answered = await served.http.post("/v1/responses", json=asked | {"truncation": "auto"}, timeout=100)
        assert answered.status_code == 200
        watching.cancel()
        gc.unfreeze()
        assert watch.longest_s < 0.5
