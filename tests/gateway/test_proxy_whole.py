"""The front before a real node, as people's own clients see it."""

import asyncio
import json

import anthropic
import httpx
import openai
from proxy_stage import staged

from ganglion.engines.echo.engine import EchoEngine, EchoSettings
from ganglion.gateway.node import NodeSpec
from ganglion.server.life.serve import Shutdown, serve
from ganglion.server.settings import ServerSettings
from support.waiting import until


async def test_people_s_own_clients_talk_through_the_front_to_a_real_node() -> None:
    shutdown, listening = Shutdown(), asyncio.get_running_loop().create_future()
    engine = EchoEngine(EchoSettings(allow_directives=True))
    settings = ServerSettings(port=0, has_grpc=False, api_keys=("ours",))
    node = asyncio.create_task(serve(engine, settings, shutdown=shutdown, on_listening=listening.set_result))
    url = await asyncio.wait_for(listening, 10)
    async with staged() as stage:
        stage.fleet.add(NodeSpec("echo", url, api_key="ours"))
        base = f"http://127.0.0.1:{stage.port}"
        async with httpx.AsyncClient(base_url=base) as http:
            await _chat(openai.AsyncOpenAI(base_url=f"{base}/v1", api_key="x", max_retries=0))
            await _messages(anthropic.AsyncAnthropic(base_url=base, api_key="x", max_retries=0))
            asked = {"model": "echo", "messages": [{"role": "user", "content": "hello there"}]}
            lines = (await http.post("/api/chat", json=asked)).text.splitlines()
            assert json.loads(lines[-1])["done"] is True
            # The same bytes as without the front, but for the id and the time of an answer.
            body = {"model": "echo", "prompt": "a b c"}
            here = await http.post("/v1/embeddings", json={"model": "echo", "input": "a b"})
            there = await http.post(
                f"{url}/v1/embeddings",
                json={"model": "echo", "input": "a b"},
                headers={"authorization": "Bearer ours"},
            )
            assert (here.status_code, here.content) == (there.status_code, there.content)
            assert (await http.post("/tokenize", json=body)).status_code == 200
        await until(lambda: stage.is_settled)
        usages = [place.settled[0] for place in stage.keeper.places]
        assert all(usage is not None for usage in usages[:4])
    shutdown.ask()
    await asyncio.wait_for(node, 10)


async def _chat(client: openai.AsyncOpenAI) -> None:
    async with client:
        message: list[openai.types.chat.ChatCompletionMessageParam] = [
            {"role": "user", "content": "hello there you"}
        ]
        whole = await client.chat.completions.create(model="echo", messages=message)
        assert whole.choices[0].message.content == "hello there you"
        stream = await client.chat.completions.create(model="echo", messages=message, stream=True)
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        assert text == "hello there you"


async def _messages(client: anthropic.AsyncAnthropic) -> None:
    async with client:
        whole = await client.messages.create(
            model="echo", max_tokens=50, messages=[{"role": "user", "content": "hello there you"}]
        )
        assert whole.content[0].type == "text" and whole.content[0].text == "hello there you"
