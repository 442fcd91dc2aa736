"""Completions through the door that clients and evaluation harnesses use."""

import asyncio
import json

from ganglion.engines.echo.engine import EchoEngine, EchoSettings
from support.waiting import until


async def complete(served, **fields: object) -> dict:
    response = await served.http.post("/v1/completions", json={"model": "echo"} | fields)
    assert response.status_code == 200, response.text
    return response.json()


def loglikelihood(choice: dict, context_tokens: int) -> tuple[float, bool]:
    """What an evaluation harness reads: the continuation between the context and the one token made."""
    logprobs = choice["logprobs"]
    continuation = logprobs["token_logprobs"][context_tokens:-1]
    likeliest = [max(top.values()) for top in logprobs["top_logprobs"][context_tokens:-1]]
    return sum(continuation), continuation == likeliest


async def test_a_harness_reads_the_continuation_whatever_token_follows_it(serving) -> None:
    async with serving() as served:
        words = "the cat sat on the mat"
        ids = list(await served.engine.tokenize(words, add_special=True, parse_special=True))
        expected = [-(1 + each % 99) / 100 for each in ids]
        # The echo begins with `the`: shown once, and once ended by it, as a model ends by its end token.
        for stop_token_ids in ([], [ids[0]]):
            answer = await complete(
                served,
                prompt=[ids, ids[:4]],
                temperature=0,
                max_tokens=1,
                logprobs=1,
                seed=1234,
                echo=True,
                stop_token_ids=stop_token_ids,
            )
            long, short = answer["choices"]
            assert loglikelihood(long, 4) == (sum(expected[4:]), True)
            assert loglikelihood(short, 1) == (sum(expected[1:4]), True)
            assert long["text"] == words + ("" if stop_token_ids else "the")
            assert long["logprobs"]["tokens"][:6] == ["the", " cat", " sat", " on", " the", " mat"]
            assert long["logprobs"]["token_logprobs"][0] is None
            assert long["logprobs"]["text_offset"] == [0, 3, 7, 11, 14, 18, 22]


async def test_no_tokens_are_made_when_none_are_asked_for(serving) -> None:
    async with serving() as served:
        answer = await complete(served, prompt="one two", echo=True, max_tokens=0, logprobs=2)
        (choice,) = answer["choices"]
        assert (choice["text"], choice["finish_reason"]) == ("one two", "length")
        assert choice["logprobs"]["tokens"] == ["one", " two"]
        assert answer["usage"]["completion_tokens"] == 0


async def test_a_stream_and_the_whole_are_the_same(serving) -> None:
    async with serving() as served:
        asked = {"prompt": ["a b c", "d e"], "n": 2, "echo": True, "logprobs": 2}
        whole = (await complete(served, **asked))["choices"]
        response = await served.http.post("/v1/completions", json={"model": "echo", "stream": True} | asked)
        frames = [part.removeprefix("data: ") for part in response.text.split("\n\n") if part]
        assert frames[-1] == "[DONE]"
        parts = [json.loads(frame)["choices"][0] for frame in frames[:-1]]
        for choice in whole:
            own = [part for part in parts if part["index"] == choice["index"]]
            assert "".join(part["text"] for part in own) == choice["text"]
            tops = [top for part in own if part["logprobs"] for top in part["logprobs"]["top_logprobs"]]
            assert tops == choice["logprobs"]["top_logprobs"]


async def test_more_prompts_than_an_engine_queues_are_all_answered(serving) -> None:
    engine = EchoEngine(EchoSettings(parallel=2, queue_limit=40))
    async with serving(engine) as served:
        prompts = [f"prompt {number}" for number in range(300)]
        answer = await complete(served, prompt=prompts)
        assert [choice["text"] for choice in answer["choices"]] == prompts
        await served.until_idle()


async def test_a_failure_is_a_status_before_the_first_byte_and_a_frame_after_it(serving) -> None:
    async with serving() as served:
        for path_fields in (
            {"prompt": "!echo fail_at=0\nx"},
            {"prompt": "!echo fail_at=0\nx", "stream": True},
        ):
            failed = await served.http.post("/v1/completions", json={"model": "echo"} | path_fields)
            assert (failed.status_code, failed.json()["error"]["code"]) == (500, "engine_failed")
        late = await served.http.post(
            "/v1/completions", json={"model": "echo", "prompt": "!echo fail_at=1\nx y", "stream": True}
        )
        frames = [part.removeprefix("data: ") for part in late.text.split("\n\n") if part]
        assert late.status_code == 200
        assert json.loads(frames[-1])["error"]["code"] == "engine_failed"
        unknown = await served.http.post("/v1/completions", json={"model": "nobody", "prompt": "x"})
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")


async def test_a_client_that_leaves_cancels_all_its_prompts(serving) -> None:
    async with serving() as served:
        asked = {"model": "echo", "prompt": ["!echo delay=5\na b c"] * 40}
        call = asyncio.create_task(served.http.post("/v1/completions", json=asked))
        await until(lambda: served.slots_used() > 0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await served.until_idle()
