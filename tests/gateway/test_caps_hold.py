"""No mix of calls passes a cap: over real gateways, before a server that takes all that it is allowed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from gates import Clock, key, secret_of
from gateways import Running, fleet, gateway
from greedy_server import Greedy, greedy_node
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_gateway_access import keyed, shown
from test_key_meter import early_in_a_minute

from ganglion.core.errors import GanglionError
from ganglion.core.events import Usage
from ganglion.gateway.access.admission import AdmissionRequest
from ganglion.gateway.access.gatekeeper import KeyGatekeeper
from ganglion.gateway.access.price import TokenPrice
from ganglion.gateway.placing.catalogue import parse_catalogue
from ganglion.store.opening import open_access
from support.examples import examples

CHAT = {"messages": [{"role": "user", "content": "hello"}]}
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", CHAT),
    ("/v1/chat/completions", CHAT | {"n": 3}),
    ("/v1/chat/completions", CHAT | {"max_tokens": 50, "n": 4}),
    ("/v1/chat/completions", CHAT | {"max_completion_tokens": 30}),
    ("/v1/chat/completions", CHAT | {"max_tokens": 1, "n_predict": 700}),
    ("/v1/chat/completions", CHAT | {"max_tokens": 9, "n_predict": -1}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "é" * 900}], "max_tokens": 5}),
    ("/v1/completions", {"prompt": "hello"}),
    ("/v1/completions", {"prompt": ["a"] * 30, "max_tokens": 20, "n": 2}),
    ("/v1/completions", {"prompt": [[1, 2, 3]] * 20, "max_tokens": 10}),
    ("/v1/completions", {"prompt": [5] * 400, "max_tokens": 1, "best_of": 8}),
    ("/v1/embeddings", {"input": ["some words"] * 40}),
    ("/v1/embeddings", {"input": [[7] * 30] * 9}),
    ("/v1/messages", CHAT | {"max_tokens": 60}),
    ("/v1/responses", {"input": "hello", "store": False}),
    ("/v1/responses", {"input": "hello", "max_output_tokens": 80, "store": False}),
    ("/api/chat", CHAT | {"stream": False}),
    ("/api/chat", CHAT | {"stream": False, "options": {"num_predict": 40}}),
]


@asynccontextmanager
async def greedy_gateway(
    folder: Path, greedy: Greedy, catalogue: str = "", **limits: Any
) -> AsyncIterator[Running]:
    """A gateway before a greedy server, with one key."""
    storage = await keyed(folder, few=limits)
    node, spec = await greedy_node(greedy)
    try:
        made = parse_catalogue(catalogue) if catalogue else None
        async with gateway([spec], storage=storage, catalogue=made, is_strict=False) as running:
            yield running
    finally:
        await node.close()


async def ask(running: Running, path: str, body: dict[str, Any]) -> Any:
    return await running.http.post(path, json={"model": "m", **body}, headers=shown("few"))


@pytest.mark.timeout(120)
async def test_a_call_that_could_pass_its_cap_is_refused_by_name_and_not_told_to_wait(tmp_path: Path) -> None:
    greedy = Greedy()
    async with greedy_gateway(tmp_path, greedy, tokens_per_minute=1000) as running:
        body = {"prompt": ["a word"] * 600, "max_tokens": 100}
        refused = await ask(running, "/v1/completions", body)
        error = refused.json()["error"]
        assert (refused.status_code, error["code"]) == (400, "request_exceeds_limit")
        assert "retry-after" not in refused.headers and "max_tokens" in error["message"]
        assert error["needed"] > 60_000 and error["limit"] == 1000
        assert not greedy.took


@pytest.mark.timeout(120)
async def test_no_mix_of_calls_takes_more_than_the_cap(tmp_path: Path) -> None:
    """Every call, again and again and several at once, until all are refused: the sum stays within."""
    cap = 20_000
    for number, order in enumerate((CALLS, CALLS[::-1])):
        folder = tmp_path / str(number)
        folder.mkdir()
        greedy = Greedy()
        await early_in_a_minute()
        async with greedy_gateway(folder, greedy, tokens_per_minute=cap) as running:
            statuses: set[int] = set()
            for at in range(0, len(order) * 4, 6):
                some = (order * 4)[at : at + 6]
                answers = await asyncio.gather(*(ask(running, *call) for call in some))
                statuses |= {each.status_code for each in answers}
            assert statuses == {200, 429}
            assert 0 < sum(greedy.took) <= cap


@pytest.mark.timeout(120)
async def test_a_small_cap_is_of_use_to_those_who_bound_nothing(tmp_path: Path) -> None:
    """999 tokens a minute: what is reserved is held to the cap, and what was not said is given back."""
    storage = await keyed(tmp_path, few={"tokens_per_minute": 999})
    await early_in_a_minute()
    async with fleet(storage=storage) as running:
        for path, body in (
            ("/v1/chat/completions", CHAT),
            ("/v1/responses", {"input": "hello"}),
            ("/api/chat", CHAT | {"stream": False}),
            ("/v1/completions", {"prompt": "hello"}),
        ):
            for _ in range(3):
                answered = await running.http.post(path, json={"model": "echo", **body}, headers=shown("few"))
                assert answered.status_code == 200, answered.text
                if path == "/v1/responses":
                    assert answered.json()["max_output_tokens"] is None  # as its client left it
        long = {"messages": [{"role": "user", "content": "x" * 600}]}
        refused = await running.http.post(
            "/v1/chat/completions", json={"model": "echo", **long}, headers=shown("few")
        )
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "request_exceeds_limit")


@pytest.mark.timeout(120)
async def test_an_open_answer_is_held_to_what_was_reserved_for_it(tmp_path: Path) -> None:
    greedy = Greedy()
    async with greedy_gateway(tmp_path, greedy, tokens_per_minute=100_000) as running:
        assert (await ask(running, "/v1/chat/completions", CHAT)).status_code == 200
        assert (await ask(running, "/v1/responses", {"input": "hello"})).status_code == 200
        assert (await ask(running, "/v1/completions", {"prompt": "x"})).status_code == 200
        assert [body["max_tokens"] for body in greedy.bodies] == [4096, 4096, 16]
    for name, limits in (("free", {"requests_per_minute": 9}), ("unpriced", {"budget": 1})):
        greedy = Greedy()
        folder = tmp_path / name
        folder.mkdir()
        async with greedy_gateway(folder, greedy, **limits) as running:
            assert (await ask(running, "/v1/chat/completions", CHAT)).status_code == 200
            assert "max_tokens" not in greedy.bodies[0]


@pytest.mark.timeout(120)
async def test_what_a_response_continues_counts_although_it_is_not_in_the_body(tmp_path: Path) -> None:
    cap = 12_000
    greedy = Greedy()
    await early_in_a_minute()
    async with greedy_gateway(tmp_path, greedy, tokens_per_minute=cap) as running:
        first = await ask(running, "/v1/responses", {"input": "x" * 5000, "max_output_tokens": 10})
        assert first.status_code == 200
        tiny = {"input": "y", "max_output_tokens": 10, "previous_response_id": first.json()["id"]}
        answers = [await ask(running, "/v1/responses", tiny) for _ in range(3)]
        assert {each.status_code for each in answers} <= {200, 429}
        assert 429 in {each.status_code for each in answers}
        assert sum(greedy.took) <= cap
        endless = {"input": "z" * 12_000, "previous_response_id": first.json()["id"]}
        assert (await ask(running, "/v1/responses", endless)).status_code == 400


PRICED = """
[[models]]
id = "cheap"
loadable = false
served_as = "gone"
fallbacks = ["dear"]
cost = { prompt = 1.0, completion = 1.0 }

[[models]]
id = "dear"
loadable = false
served_as = "m"
aliases = ["*"]
cost = { prompt = 10.0, completion = 10.0 }
"""


@pytest.mark.timeout(120)
async def test_a_fallbacks_answer_is_booked_and_priced_as_the_fallback(tmp_path: Path) -> None:
    greedy = Greedy()
    storage = await keyed(tmp_path, few={"budget": 100_000})
    node, spec = await greedy_node(greedy)
    async with gateway(
        [spec], storage=storage, catalogue=parse_catalogue(PRICED), is_strict=False
    ) as running:
        calls = [
            ("/v1/chat/completions", CHAT | {"max_tokens": 50}),
            ("/v1/responses", {"input": "hello", "max_output_tokens": 50}),
            ("/v1/messages", CHAT | {"max_tokens": 50}),
        ]
        for path, body in calls:
            answered = await running.http.post(path, json={"model": "cheap", **body}, headers=shown("few"))
            assert answered.status_code == 200, answered.text
        made_up = await running.http.post(
            "/v1/chat/completions", json={"model": "anything", **CHAT, "max_tokens": 5}, headers=shown("few")
        )
        assert made_up.status_code == 200
        # Whatever may answer must be paid for: ten for each token, of which 100,000 buy 10,000.
        large = {"model": "cheap", **CHAT, "max_tokens": 9000}
        refused = await running.http.post("/v1/chat/completions", json=large, headers=shown("few"))
        assert refused.json()["error"]["code"] == "insufficient_quota"
    await node.close()
    access = await open_access(tmp_path / "gateway.db")
    lines = await access.usage(0, 2**40, by=("model",))
    await access.close()
    assert {line.model: line.sums.requests for line in lines} == {"dear": 4}
    assert sum(line.sums.cost for line in lines) == 10 * sum(greedy.took)


@pytest.mark.timeout(120)
async def test_a_whole_answer_that_tells_no_usage_is_not_free(tmp_path: Path) -> None:
    greedy = Greedy(tells_usage=False)
    storage = await keyed(tmp_path, few={"tokens_per_minute": 50_000})
    node, spec = await greedy_node(greedy)
    async with gateway([spec], storage=storage) as running:
        assert (await ask(running, "/v1/chat/completions", CHAT)).status_code == 200
        assert (await ask(running, "/v1/embeddings", {"input": "some words to embed"})).status_code == 200
    await node.close()
    access = await open_access(tmp_path / "gateway.db")
    (line,) = await access.usage(0, 2**40, by=("model",))
    await access.close()
    assert line.sums.requests == 2
    assert line.sums.prompt_tokens > 10 and line.sums.completion_tokens == 1


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.integers(0, 600), st.integers(0, 3), st.integers(0, 100)),
        st.tuples(st.just("end"), st.integers(0, 9), st.integers(0, 100), st.booleans()),
        st.tuples(st.just("wait"), st.sampled_from([1, 20, 59]), st.just(0), st.just(0)),
        st.tuples(st.just("cover"), st.integers(0, 9), st.integers(0, 600), st.just(0)),
    ),
    max_size=40,
)


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(OPERATIONS, st.sampled_from([0, 10, 999, 1000, 5000]), st.sampled_from([None, 700, 40_000]))
def test_what_is_booked_in_a_window_never_exceeds_its_cap(
    operations: list[tuple[Any, ...]], cap: int, budget: int | None
) -> None:
    asyncio.run(_play(operations, cap, budget))


async def _play(operations: list[tuple[Any, ...]], cap: int, budget: int | None) -> None:
    clock = Clock()
    access = await open_access(":memory:")
    await access.add_key(key(tokens_per_minute=cap, budget=budget, budget_period="total"))
    price = TokenPrice(3_000_000, 7_000_000)
    gatekeeper = KeyGatekeeper(access, (), lambda model: price, clock)
    await gatekeeper.start()
    identity = gatekeeper.identify(secret_of("app"))
    open_admissions: list[Any] = []
    booked: dict[int, int] = {}
    spent = 0
    for kind, first, second, third in operations:
        if kind == "wait":
            clock.now_s += first
        elif kind == "ask":
            wanted = AdmissionRequest("m", first, open_answers=second, answer_tokens=third or None)
            try:
                place = await gatekeeper.admit(identity, wanted)
            except GanglionError:
                continue
            window = int(clock.now_s) // 60
            most = first + second * (place.answer_tokens or 0)
            open_admissions.append([place, window, most])
        elif open_admissions:
            entry = open_admissions[first % len(open_admissions)]
            place, window, most = entry
            if kind == "cover" and window == int(clock.now_s) // 60:
                try:
                    await place.reserve_more(AdmissionRequest("m", second))
                    entry[2] = max(most, second)
                except GanglionError:
                    pass
            elif kind == "end":
                open_admissions.remove(entry)
                used = most * second // 100
                place.settle(Usage(used // 2, used - used // 2) if third else None)
                if third:
                    booked[window] = booked.get(window, 0) + used
                    spent += price.of(Usage(used // 2, used - used // 2))
    await gatekeeper.close()
    await access.close()
    assert all(tokens <= cap for tokens in booked.values()), booked
    assert budget is None or spent <= budget


async def test_what_was_used_beyond_a_bound_is_owed_also_in_the_next_minute() -> None:
    """A server that counts more than anybody could know: its key pays before it gets anything else."""
    clock = Clock()
    access = await open_access(":memory:")
    await access.add_key(key(tokens_per_minute=100))
    gatekeeper = KeyGatekeeper(access, (), clock=clock)
    await gatekeeper.start()
    identity = gatekeeper.identify(secret_of("app"))
    (await gatekeeper.admit(identity, AdmissionRequest("m", 50))).settle(Usage(120, 0))
    clock.now_s += 60
    with pytest.raises(GanglionError):
        await gatekeeper.admit(identity, AdmissionRequest("m", 31))
    (await gatekeeper.admit(identity, AdmissionRequest("m", 30))).settle(None)
    await gatekeeper.close()
    await access.close()
