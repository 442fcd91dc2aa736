"""A route answers alike under each of its names, and an unknown one names the right one."""

import re

import openai
import pytest

from ganglion.wire.route_aliases import ALIASES

BODIES = {
    "/v1/chat/completions": {"model": "echo", "messages": [{"role": "user", "content": "a b"}]},
    "/v1/chat/completions/input_tokens": {"model": "echo", "messages": [{"role": "user", "content": "a b"}]},
    "/v1/completions": {"model": "echo", "prompt": "a b"},
    "/v1/embeddings": {"model": "echo", "input": "a b"},
    "/v1/rerank": {"model": "echo", "query": "a", "documents": ["a b", "c"]},
    "/apply_template": {"model": "echo", "messages": [{"role": "user", "content": "a b"}]},
    "/v1/responses": {"model": "echo", "input": "a b"},
    "/v1/responses/input_tokens": {"model": "echo", "input": "a b"},
    "/v1/messages": {"model": "echo", "messages": [{"role": "user", "content": "a b"}], "max_tokens": 9},
}
MADE_UP = re.compile(r'"(id|created|created_at|completed_at)":("[^"]*"|\d+)')


@pytest.mark.parametrize(
    ("alias", "path"), [*ALIASES.items(), *((f"/{path[4:]}", path) for path in list(BODIES)[-3:])]
)
async def test_a_route_answers_alike_under_each_of_its_names(serving, alias: str, path: str) -> None:
    async with serving() as served:
        answers = [await served.http.post(name, json=BODIES[path]) for name in (alias, path)]
        assert [answer.status_code for answer in answers] == [200, 200]
        first, second = (MADE_UP.sub("", answer.text) for answer in answers)
        assert first == second
        wrong = [await served.http.post(name, json={"model": 1}) for name in (alias, path)]
        assert [answer.status_code for answer in wrong] == [400, 400]
        assert wrong[0].json().keys() == wrong[1].json().keys(), "errors are told in the wire's own words"


async def test_a_chat_is_counted_as_it_would_be_read(serving) -> None:
    async with serving() as served:
        counted = (await served.http.post("/v1/chat/completions/input_tokens", json=served.chat())).json()
        answered = (await served.post()).json()
    assert counted == {
        "object": "response.input_tokens",
        "input_tokens": answered["usage"]["prompt_tokens"],
    }


async def test_the_sdk_works_without_the_version_in_its_base_url(serving) -> None:
    async with serving() as served, openai.AsyncOpenAI(base_url=served.url, api_key="none") as client:
        chat = await client.chat.completions.create(**BODIES["/v1/chat/completions"])
        assert chat.choices[0].message.content == "a b"
        response = await client.responses.create(model="echo", input="a b")
        assert response.output_text == "a b"
        with pytest.raises(openai.NotFoundError, match="keeps no responses"):
            await client.responses.retrieve(response.id)


async def test_an_alias_needs_the_key_that_its_route_needs(serving) -> None:
    async with serving(api_keys=("secret",)) as served:
        for alias in (*ALIASES, "/responses", "/messages", "/ping"):
            method = "GET" if alias == "/ping" else "POST"
            assert (await served.http.request(method, alias)).status_code == 401
        assert (await served.http.get("/ping", headers={"x-api-key": "secret"})).status_code == 200


async def test_an_unknown_route_names_the_right_one(serving) -> None:
    async with serving() as served:
        for path, right in (
            ("/v1/chat/completion", "/v1/chat/completions"),
            ("/v1/v1/chat/completions", "/v1/chat/completions"),
            ("/completion", "/v1/completions"),
        ):
            missing = await served.http.post(path, json={})
            assert missing.status_code == 404
            assert missing.json()["error"]["message"].endswith(f"Did you mean {right}?")
        assert "Did you mean" not in (await served.http.get("/nowhere")).text
