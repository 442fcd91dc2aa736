"""Embeddings, rankings, scores and the tokenizer's routes, asked over a real socket of an echo."""

import base64
import struct

import pytest
from openai import AsyncOpenAI

from ganglion.registry.loading.candidate import Candidate, build_without_options
from ganglion.registry.loading.residency import Residency
from support.served import Serving, echo

WORDS = "one two three four"


def approx(values: list[float]) -> object:
    return pytest.approx(values, abs=1e-6)


async def test_the_sdk_gets_vectors_as_numbers_as_base64_and_of_tokens(serving: Serving) -> None:
    async with serving() as served, AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none") as client:
        plain = await client.embeddings.create(model="echo", input=[WORDS, "five"], encoding_format="float")
        assert [item.index for item in plain.data] == [0, 1]
        assert plain.usage.prompt_tokens == plain.usage.total_tokens == 5
        default = await client.embeddings.create(model="echo", input=WORDS)  # the SDK asks for base64
        assert default.data[0].embedding == approx(plain.data[0].embedding)
        tokens = (await served.http.post("/tokenize", json={"prompt": WORDS})).json()["tokens"]
        by_tokens = await client.embeddings.create(model="echo", input=tokens)
        assert by_tokens.data[0].embedding == approx(plain.data[0].embedding)
        several = await client.embeddings.create(model="echo", input=[tokens, tokens[:1]])
        assert len(several.data) == 2


async def test_base64_is_little_endian_float32(serving: Serving) -> None:
    async with serving() as served:
        asked = {"model": "echo", "input": WORDS}
        plain = (await served.http.post("/v1/embeddings", json=asked)).json()["data"][0]["embedding"]
        coded = await served.http.post("/v1/embeddings", json=asked | {"encoding_format": "base64"})
        data = base64.b64decode(coded.json()["data"][0]["embedding"])
        assert list(struct.unpack(f"<{len(data) // 4}f", data)) == approx(plain)


async def test_fewer_dimensions_are_a_shorter_unit_vector_and_more_are_refused(serving: Serving) -> None:
    async with serving() as served:
        asked = {"model": "echo", "input": WORDS}
        whole = (await served.http.post("/v1/embeddings", json=asked)).json()["data"][0]["embedding"]
        size = len(whole) // 2
        cut = await served.http.post("/v1/embeddings", json=asked | {"dimensions": size})
        kept = cut.json()["data"][0]["embedding"]
        length = sum(value * value for value in whole[:size]) ** 0.5
        assert kept == approx([value / length for value in whole[:size]])
        refused = await served.http.post("/v1/embeddings", json=asked | {"dimensions": len(whole) + 1})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "dimensions")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/embeddings", {"input": "x", "model": " "}, "model"),
        ("/v1/embeddings", {"model": "echo", "input": []}, "input"),
        ("/v1/embeddings", {"model": "echo", "input": ["a", 1]}, "input"),
        ("/v1/embeddings", {"model": "echo", "input": "x", "encoding_format": "hex"}, "encoding_format"),
        ("/v1/rerank", {"model": "echo", "query": "a", "documents": []}, "documents"),
        (
            "/v1/rerank",
            {"model": "echo", "query": "a", "documents": ["b"], "rank_fields": ["c"]},
            "rank_fields",
        ),
        ("/v1/score", {"model": "echo", "prompt": "a b"}, "score_ranges"),
        ("/v1/score", {"model": "echo", "prompt": "a b", "score_ranges": [[3, 1]]}, "score_ranges[0]"),
        (
            "/v1/score",
            {"model": "echo", "prompt": "a b", "score_ranges": [[0, 1], [0, 3]]},
            "score_ranges[1]",
        ),
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "content": "b"}, "content"),
        ("/tokenize", {"content": "b", "parse_special": False}, "parse_special"),
        ("/tokenize", {"messages": [{"role": "nobody", "content": "x"}]}, "messages[0].role"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/apply_template", {"messages": []}, "messages"),
    ],
)
async def test_what_is_wrong_is_named(
    serving: Serving, path: str, body: dict[str, object], param: str
) -> None:
    async with serving() as served:
        response = await served.http.post(path, json=body)
        assert response.status_code == 400, response.text
        assert response.json()["error"]["param"].startswith(param)


async def test_unknown_fields_are_refused_where_the_operator_wants_that(serving: Serving) -> None:
    bodies = {
        "/v1/embeddings": {"model": "echo", "input": "x"},
        "/v1/rerank": {"model": "echo", "query": "a", "documents": ["b"]},
        "/v1/score": {"model": "echo", "prompt": "a", "score_ranges": [[0, None]]},
        "/tokenize": {"prompt": "a"},
        "/detokenize": {"tokens": []},
        "/apply_template": {"messages": [{"role": "user", "content": "x"}]},
    }
    async with serving() as lenient, serving(is_strict=True) as strict:
        for path, body in bodies.items():
            assert (await lenient.http.post(path, json=body | {"colour": "red"})).status_code == 200
            assert (await strict.http.post(path, json=body)).status_code == 200
            refused = await strict.http.post(path, json=body | {"colour": "red"})
            assert refused.json()["error"]["code"] == "unknown_parameter"
            assert refused.json()["error"]["param"] == "colour"


async def test_documents_come_back_best_first(serving: Serving) -> None:
    asked = {
        "model": "echo",
        "query": "red green",
        "documents": ["blue", {"text": "red green"}, "red"],
        "top_n": 2,
        "return_documents": True,
    }
    async with serving() as served:
        answer = (await served.http.post("/v1/rerank", json=asked)).json()
    assert [(each["index"], each["relevance_score"]) for each in answer["results"]] == [(1, 1.0), (2, 0.5)]
    assert answer["results"][0]["document"] == {"text": "red green"}
    assert answer["usage"]["total_tokens"] > 0


async def test_scores_are_told_by_range(serving: Serving) -> None:
    asked = {
        "model": "echo",
        "prompt": WORDS,
        "score_ranges": [[0, 2], [1, None], [2, 2**32 - 1], [3, 3]],
        "top_k": 2,
    }
    async with serving() as served:
        answer = (await served.http.post("/v1/score", json=asked)).json()
        sums = (await served.http.post("/v1/score", json=asked | {"return_tokens": False})).json()
    positions = [[token["position"] for token in each["tokens"]] for each in answer["scores"]]
    assert positions == [[0, 1], [1, 2, 3], [2, 3], []]
    first = answer["scores"][0]["tokens"][0]
    assert (first["token"], first["logprob"]) == ("one", None)
    for place, each in enumerate(answer["scores"]):
        told = [token["logprob"] for token in each["tokens"] if token["logprob"] is not None]
        assert each["range_index"] == place
        assert each["total_logprob"] == pytest.approx(sum(told))
        assert all(len(token["top"]) == 2 for token in each["tokens"] if token["position"])
    assert [each["total_logprob"] for each in sums["scores"]] == [
        each["total_logprob"] for each in answer["scores"]
    ]
    assert all("tokens" not in each for each in sums["scores"])
    assert answer["usage"] == {
        "prompt_tokens": 4,
        "completion_tokens": 0,
        "total_tokens": 4,
        "cached_tokens": 0,
    }


async def test_tokens_of_a_prompt_go_forth_and_back_in_both_dialects(serving: Serving) -> None:
    async with serving() as served:
        asked = {"model": "echo", "prompt": WORDS, "return_token_strs": True}
        ours = (await served.http.post("/tokenize", json=asked)).json()
        assert (ours["count"], len(ours["tokens"])) == (4, 4)
        assert "".join(ours["token_strs"]) == WORDS
        assert ours["max_model_len"] > 0
        theirs = (await served.http.post("/tokenize", json={"content": WORDS})).json()
        assert theirs == {"tokens": ours["tokens"]}
        pieces = (await served.http.post("/tokenize", json={"content": WORDS, "with_pieces": True})).json()
        assert "".join(each["piece"] for each in pieces["tokens"]) == WORDS
        back = (await served.http.post("/detokenize", json={"tokens": ours["tokens"]})).json()
        assert back == {"prompt": WORDS, "content": WORDS}
        messages = [{"role": "user", "content": "hi you"}]
        chat = (await served.http.post("/tokenize", json={"messages": messages})).json()
        assert chat["count"] == 2
        shown = (await served.http.post("/apply_template", json={"messages": messages})).json()
        assert shown == {"prompt": "hi you"}


async def test_a_model_may_be_left_out_only_where_there_is_one(serving: Serving) -> None:
    async with serving() as served:
        info = (await served.http.get("/tokenizer_info")).json()
        assert info["model"] == "echo"
        assert info == (await served.http.get("/tokenizer_info?model=echo")).json()
        assert (await served.http.get("/tokenizer_info?model=nobody")).status_code == 404
    two = Residency(
        [
            Candidate(name, build_without_options(lambda name=name: echo(model_id=name)))
            for name in ("a", "b")
        ],
        free_bytes=lambda: 0,
    )
    async with serving(two) as served:
        for refused in (
            await served.http.get("/tokenizer_info"),
            await served.http.post("/tokenize", json={"prompt": "x"}),
        ):
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "model")
        named = await served.http.post("/tokenize", json={"model": "b", "prompt": "x"})
        assert named.json()["count"] == 1
