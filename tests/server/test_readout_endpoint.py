"""Readouts and steering over a real socket: the official SDK, raw requests, and the manifest's route."""

import json

import openai
import pytest

from ganglion.core.request import Steer
from ganglion.engines.echo.answer import EchoScript, ScriptedCall
from ganglion.engines.echo.engine import EchoEngine, EchoSettings
from ganglion.engines.echo.vocabulary import fake_readout
from ganglion.registry.loading.candidate import Candidate, build_without_options
from ganglion.registry.loading.residency import Residency
from support.played_engine import PlayedEngine
from support.served import Serving

SETTINGS = EchoSettings(aliases=("parrot",), concepts=("calm", "formal", "glad"), readout_layers=(4, 9))
HELLO = [{"role": "user", "content": "one two three"}]


def reading(script: EchoScript | None = None) -> EchoEngine:
    return EchoEngine(SETTINGS, script)


def sdk(served) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=f"{served.url}/v1", api_key="none", max_retries=0, _strict_response_validation=True
    )


def values(token_id: int, moved: float = 0.0) -> list[list[float]]:
    """What an echo reads of a token whose second concept was moved."""
    return [
        [fake_readout(token_id, layer, place) + moved * (place == 1) for place in range(3)]
        for layer in (4, 9)
    ]


def streamed(text: str) -> list[dict]:
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


async def test_the_sdk_gets_readouts_of_streams_and_whole_answers_strictly(serving: Serving) -> None:
    script = EchoScript(reasoning="let me see", calls=(ScriptedCall("look", "{} ok"),))
    async with serving(reading(script)) as served, sdk(served) as client:
        whole = await client.chat.completions.create(
            model="echo", messages=HELLO, n=2, extra_body={"readout": True}
        )
        stream = await client.chat.completions.create(
            model="echo", messages=HELLO, stream=True, extra_body={"readout": True}
        )
        chunks = [chunk async for chunk in stream]
    told = [entry for chunk in chunks for entry in getattr(chunk.choices[0], "readout", [])]
    assert [entry["position"] for entry in told] == list(range(3, 11))
    assert all(entry["values"] == values(entry["id"]) for entry in told)
    assert [choice.readout for choice in whole.choices] == [told, told]
    assert not hasattr(chunks[0].choices[0], "readout"), "the role chunk holds no token"


async def test_completions_carry_them_too(serving: Serving) -> None:
    async with serving(reading()) as served, sdk(served) as client:
        asked = {"model": "echo", "prompt": ["one two", "three"]}
        whole = await client.completions.create(**asked, extra_body={"readout": True})
        body = asked | {"readout": True, "stream": True}
        stream = await served.http.post("/v1/completions", json=body)
        plain = await served.http.post("/v1/completions", json=asked | {"stream": True})
    by_choice: dict[int, list] = {0: [], 1: []}
    for chunk in streamed(stream.text):
        by_choice[chunk["choices"][0]["index"]] += chunk["choices"][0].get("readout", [])
    assert [choice.readout for choice in whole.choices] == [by_choice[0], by_choice[1]]
    assert [len(each) for each in by_choice.values()] == [2, 1]
    assert "readout" not in plain.text


async def test_steering_is_seen_in_what_is_read(serving: Serving) -> None:
    steering = [{"concept": "formal", "strength": 1.5}]
    async with serving(reading()) as served, sdk(served) as client:
        answer = await client.chat.completions.create(
            model="echo", messages=HELLO, extra_body={"readout": True, "steering": steering}
        )
        told = answer.choices[0].readout
        assert all(entry["values"] == values(entry["id"], 1.5) for entry in told)
        for path, fields in (
            ("/v1/chat/completions", {"messages": HELLO}),
            ("/v1/completions", {"prompt": "x"}),
            ("/v1/score", {"prompt": "x y", "score_ranges": [[0, None]]}),
        ):
            wrong = [{"concept": "angry", "strength": 1}]
            refused = await served.http.post(path, json={"model": "echo", "steering": wrong} | fields)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "steering")
            fine = await served.http.post(path, json={"model": "echo", "steering": steering} | fields)
            assert fine.status_code == 200


async def test_score_hands_steering_to_its_request(serving: Serving) -> None:
    engine = PlayedEngine([EchoScript()], SETTINGS)
    async with serving(engine) as served:
        body = {"model": "echo", "prompt": "x y", "score_ranges": [[0, None]]}
        steering = [{"concept": "calm", "strength": -2, "layers": [9]}]
        assert (await served.http.post("/v1/score", json=body | {"steering": steering})).status_code == 200
    assert engine.requests[-1].steering == (Steer("calm", -2, (9,)),)


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_a_model_without_concepts_says_so_before_the_first_byte(
    serving: Serving, is_streamed: bool
) -> None:
    async with serving() as served:
        for path, fields in (
            ("/v1/chat/completions", {"messages": HELLO}),
            ("/v1/completions", {"prompt": "x"}),
        ):
            body = {"model": "echo", "readout": True, "stream": is_streamed} | fields
            refused = await served.http.post(path, json=body)
            assert refused.status_code == 400
            assert refused.json()["error"]["code"] == "readout_unavailable"
            assert refused.json()["error"]["param"] == "readout"
            assert refused.headers["content-type"] == "application/json"


async def test_strict_nodes_know_the_fields(serving: Serving) -> None:
    async with serving(reading(), is_strict=True) as served:
        fields = {"readout": True, "steering": [{"concept": "calm", "strength": 1}]}
        assert (await served.post("hello", **fields)).status_code == 200
        completion = {"model": "echo", "prompt": "x"} | fields
        assert (await served.http.post("/v1/completions", json=completion)).status_code == 200


async def test_the_manifest_is_told_by_id_by_alias_and_of_the_only_model(serving: Serving) -> None:
    async with serving(reading()) as served:
        expected = {"model": "echo", "concepts": ["calm", "formal", "glad"], "layers": [4, 9]}
        for query in ("", "?model=echo", "?model=Parrot", "?model="):
            answer = await served.http.get(f"/v1/readout/manifest{query}")
            assert (answer.status_code, answer.json()) == (200, expected)
        unknown = await served.http.get("/v1/readout/manifest?model=nobody")
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
        [held] = (await served.http.get("/models")).json()
        [listed] = (await served.http.get("/v1/models")).json()["data"]
        capable = (await served.http.get("/models/echo/capabilities")).json()
        assert all("readout" in each["capabilities"] for each in (held, listed, capable))
    async with serving() as served:
        for query in ("", "?model=echo"):
            missing = await served.http.get(f"/v1/readout/manifest{query}")
            assert (missing.status_code, missing.json()["error"]["code"]) == (404, "readout_not_found")


async def test_the_manifest_of_one_of_several_models_must_be_asked_for_by_name(serving: Serving) -> None:
    made = {
        "read": EchoEngine(EchoSettings("read", concepts=("calm",), readout_layers=(7,))),
        "mute": EchoEngine(EchoSettings("mute")),
    }
    warm = [
        Candidate(name, build_without_options(lambda engine=engine: engine)) for name, engine in made.items()
    ]
    cold = [
        Candidate("cold", build_without_options(lambda: EchoEngine(EchoSettings("cold", concepts=("calm",)))))
    ]
    async with serving(Residency(warm, cold, free_bytes=lambda: 0)) as served:
        unnamed = await served.http.get("/v1/readout/manifest")
        assert (unnamed.status_code, unnamed.json()["error"]["code"]) == (400, "missing_required_parameter")
        assert unnamed.json()["error"]["param"] == "model"
        told = await served.http.get("/v1/readout/manifest?model=read")
        assert told.json() == {"model": "read", "concepts": ["calm"], "layers": [7]}
        for name, why in (("mute", "no concepts"), ("cold", "it is not loaded")):
            missing = await served.http.get(f"/v1/readout/manifest?model={name}")
            assert (missing.status_code, missing.json()["error"]["code"]) == (404, "readout_not_found")
            assert why in missing.json()["error"]["message"]
        body = {"model": "read", "messages": HELLO, "readout": True}
        answer = (await served.http.post("/v1/chat/completions", json=body)).json()
        assert [len(row) for row in answer["choices"][0]["readout"][0]["values"]] == [1]


async def test_the_document_describes_them(serving: Serving) -> None:
    async with serving() as served:
        document = (await served.http.get("/openapi.json")).json()
    schemas = document["components"]["schemas"]
    for body in ("ChatBody", "CompletionBody"):
        assert {"readout", "steering"} <= schemas[body]["properties"].keys()
    assert "steering" in schemas["ScoreBody"]["properties"]
    for choice in ("ChatChoice", "ChunkChoice", "CompletionChoice"):
        assert "readout" in schemas[choice]["properties"]
    assert set(schemas["TokenReadout"]["required"]) == {"id", "position", "values"}
    assert "/v1/readout/manifest" in document["paths"]
