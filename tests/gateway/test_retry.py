"""The one law for retries: as a table, and as the proxy and the engine of a fleet both carry it out."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import accumulate, count, product
from typing import Any

import pytest
from fault_proxy import Fault as Spoil
from fault_proxy import FaultProxy, Passage, fault_proxy
from gateways import Running, gateway
from remote_nodes import echo, listening

from ganglion.gateway.fleet.fleet import Fleet
from ganglion.gateway.node import NodeKind, NodeSpec
from ganglion.gateway.placing.catalogue import CatalogueModel, FleetCatalogue
from ganglion.gateway.proxy import listener
from ganglion.gateway.routing.retry import (
    MAX_TRIED,
    RETRY_BUDGET,
    UNTRIED,
    ErrorAnswer,
    HealthMark,
    NodeFault,
    NodeOutcome,
    RetryStep,
    decide_retry,
    error_code_of,
)
from ganglion.server.gateway import gateway_process
from ganglion.server.gateway.gateway_process import FleetParts, build_fleet_parts
from ganglion.wire.dialects import ALL_WIRES, USUAL_WIRES
from support.waiting import until

KINDS: tuple[NodeKind, ...] = ("ganglion", "openai")
CODES = (None, "engine_failed", "interrupted", "model_not_found", "hub_unreachable", "overloaded", "x")

# Written out by hand, apart from the table: what a node may answer before anything was given out.
FREE = {"openai": {401, 402, 403, 404, 405, 407, 429, 501, 503, 529}, "ganglion": {401, 403, 503, 529}}
ONCE = {"openai": {408, 500, 502, 504, *range(520, 529)}, "ganglion": {502}}
FAILURES = {
    "openai": {401, 402, 403, 407, 408, 429, 500, 502, 503, 504, *range(520, 530)},
    "ganglion": {401, 403, 502},
}
BY_CODE = {
    (404, "model_not_found"): (RetryStep.ELSEWHERE, HealthMark.NOTHING),
    (500, "engine_failed"): (RetryStep.ONCE_MORE, HealthMark.NOTHING),
    (500, "interrupted"): (RetryStep.ONCE_MORE, HealthMark.NOTHING),
    (502, "hub_unreachable"): (RetryStep.ELSEWHERE, HealthMark.NOTHING),
}


def expected(kind: NodeKind, status: int, code: str | None) -> tuple[RetryStep, HealthMark]:
    if kind == "ganglion" and (status, code) in BY_CODE:
        return BY_CODE[status, code or ""]
    step = RetryStep.TELL
    if status in FREE[kind]:
        step = RetryStep.ELSEWHERE
    elif status in ONCE[kind]:
        step = RetryStep.ONCE_MORE
    if status in FAILURES[kind] or (kind == "openai" and status >= 500 and step is RetryStep.TELL):
        return step, HealthMark.FAILURE
    return step, HealthMark.SUCCESS if step is RetryStep.TELL and status < 500 else HealthMark.NOTHING


@pytest.mark.parametrize("kind", KINDS)
def test_every_status_and_code_of_every_kind_has_one_outcome(kind: NodeKind) -> None:
    for status, code in product(range(400, 600), CODES):
        decision = decide_retry(ErrorAnswer(status, code), kind=kind)
        assert (decision.step, decision.mark) == expected(kind, status, code), (status, code)
        is_crash = kind == "ganglion" and status == 500 and code in ("engine_failed", "interrupted")
        assert decision.is_crash == is_crash
        assert decision.is_key == (status in ((401, 403) if kind == "ganglion" else (401, 402, 403, 407)))


def test_a_wire_without_codes_is_judged_by_its_status() -> None:
    steps = {
        status: decide_retry(ErrorAnswer(status, has_codes=False), kind="ganglion").step
        for status in (400, 404, 500, 502, 503, 504, 529)
    }
    once, free, tell = RetryStep.ONCE_MORE, RetryStep.ELSEWHERE, RetryStep.TELL
    assert steps == {400: tell, 404: free, 500: once, 502: once, 503: free, 504: tell, 529: free}
    assert decide_retry(ErrorAnswer(500, has_codes=False), kind="ganglion").is_crash


@pytest.mark.parametrize("kind", KINDS)
def test_faults_cost_a_chance_unless_nothing_was_sent(kind: NodeKind) -> None:
    told = {fault: decide_retry(fault, kind=kind) for fault in NodeFault}
    assert {fault: (row.step, row.mark, row.is_crash) for fault, row in told.items()} == {
        NodeFault.UNREACHED: (RetryStep.ELSEWHERE, HealthMark.FAILURE, False),
        NodeFault.LOST: (RetryStep.ONCE_MORE, HealthMark.FAILURE, True),
        NodeFault.STALE: (RetryStep.ONCE_MORE, HealthMark.NOTHING, True),
        NodeFault.SILENT: (RetryStep.ONCE_MORE, HealthMark.FAILURE, False),
        NodeFault.WITHDRAWN: (RetryStep.ONCE_MORE, HealthMark.NOTHING, False),
    }


@pytest.mark.parametrize("kind", KINDS)
def test_once_anything_was_given_out_the_client_is_told_and_the_node_judged_alike(kind: NodeKind) -> None:
    outcomes: list[NodeOutcome] = [
        *NodeFault,
        *(ErrorAnswer(*row) for row in product(range(400, 600), CODES)),
    ]
    for outcome in outcomes:
        before, after = decide_retry(outcome, kind=kind), decide_retry(outcome, kind=kind, is_given_out=True)
        assert after.step is RetryStep.TELL
        assert (after.mark, after.is_crash) == (before.mark, before.is_crash)


def test_there_are_two_chances() -> None:
    once, free = decide_retry(NodeFault.LOST, kind="openai"), decide_retry(NodeFault.UNREACHED, kind="openai")
    assert RETRY_BUDGET == 2
    after_one = UNTRIED.after("a", once)
    assert after_one.may_retry(once) and not after_one.after("b", once).may_retry(once)
    assert after_one.after("b", free).may_retry(free)
    assert not UNTRIED.may_retry(decide_retry(ErrorAnswer(400), kind="openai"))


def test_no_more_nodes_are_tried_than_may_be() -> None:
    free = decide_retry(ErrorAnswer(503), kind="ganglion")
    states = list(accumulate(range(MAX_TRIED), lambda state, n: state.after(f"n{n}", free), initial=UNTRIED))
    assert [state.may_retry(free) for state in states] == [True] * MAX_TRIED + [False]


def test_a_stale_node_is_asked_again_and_a_load_opens_every_node_that_answers() -> None:
    stale, away = (decide_retry(fault, kind="ganglion") for fault in (NodeFault.STALE, NodeFault.UNREACHED))
    full = decide_retry(ErrorAnswer(503), kind="ganglion")
    state = UNTRIED.after("stale", stale).after("away", away).after("full", full)
    assert state.tried == {"stale", "away", "full"}
    assert state.readmitting_stale().tried == {"away", "full"} and not state.readmitting_stale().stale
    loaded = state.after_load()
    assert (loaded.tried, loaded.spent, loaded.may_load) == ({"away"}, 1, True)
    assert not loaded.after_load().may_load


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'{"error":{"code":"a"}}', "a"),
        (b'{"error":{"code":404}}', None),
        (b'{"error":"text"}', None),
        (b"<html>", None),
        (b"\xff", None),
    ],
)
def test_the_code_of_an_envelope(body: bytes, code: str | None) -> None:
    assert error_code_of(body) == code


# The same through a whole gateway: two nodes that fail as a row says, and a fallback that is well.

PATHS = {
    "chat": ("/v1/chat/completions", "messages"),
    "completions": ("/v1/completions", "prompt"),
    "messages": ("/v1/messages", "messages"),
    "responses": ("/v1/responses", "input"),
}
numbers = count()


def answering(status: int, code: str | None = None) -> Spoil:
    async def spoil(passage: Passage) -> None:
        body = b'{"error":{"message":"no"}}'
        if code is not None:
            body = b'{"error":{"message":"no","code":"%b"}}' % code.encode()
        head = b"HTTP/1.1 %d No\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: %d"
        await passage.say(head % (status, len(body)) + b"\r\n\r\n" + body)

    return spoil


async def breaks_off(passage: Passage) -> None:
    await passage.say(b"HTTP/1.1 200 OK\r\ncontent-")
    await asyncio.sleep(0.02)
    passage.reset()


async def hangs(passage: Passage) -> None:
    await passage.until_cut()


@dataclass
class Stage:
    """A gateway over two nodes behind proxies, which hold `m`, and one that holds its fallback."""

    running: Running
    fleet: Fleet
    """The gateway's own."""
    proxies: list[FaultProxy]

    async def outcome(self, path: str, spoil: Spoil) -> tuple[RetryStep, HealthMark]:
        """What the gateway did with one request whose nodes all do the same."""
        for proxy in self.proxies:
            proxy.fault, proxy.spoilt = spoil, 0
        target, name = PATHS[path]
        text = f"number {next(numbers)}"
        asked: object = [{"role": "user", "content": text}] if name == "messages" else text
        body = {"model": "m", name: asked, **({"max_tokens": 50} if path == "messages" else {})}
        answer = await self.running.http.post(target, json=body)
        spoilt = sum(proxy.spoilt for proxy in self.proxies)
        if answer.status_code == 200:
            assert text in answer.text
            step = RetryStep.ELSEWHERE
        else:
            step = RetryStep.ONCE_MORE if spoilt == 2 else RetryStep.TELL
        assert spoilt == (1 if step is RetryStep.TELL else 2)
        failed = [name for name in ("a", "b") if self.fleet.is_cooling(name)]
        for name in failed:
            self.fleet.succeeded(name)  # the next row begins anew
        return step, HealthMark.FAILURE if failed else HealthMark.NOTHING


@asynccontextmanager
async def staged(kind: NodeKind, monkeypatch: pytest.MonkeyPatch, **settings: float) -> AsyncIterator[Stage]:
    built: list[FleetParts] = []

    def remembered(*given: Any) -> FleetParts:
        built.append(build_fleet_parts(*given))
        return built[-1]

    monkeypatch.setattr(gateway_process, "build_fleet_parts", remembered)
    wires = ALL_WIRES if kind == "ganglion" else USUAL_WIRES
    failing = {"kind": kind, "wires": wires, "cool_down_after": 1, "cool_down_s": 600.0}
    async with AsyncExitStack() as stack:
        proxies, specs = [], []
        for name in ("a", "b"):
            url = await stack.enter_async_context(listening(echo(model_id="m")))
            proxy = await stack.enter_async_context(fault_proxy(int(url.rsplit(":", 1)[1])))
            proxies.append(proxy)
            specs.append(NodeSpec(name, f"http://127.0.0.1:{proxy.port}", **failing))  # type: ignore[arg-type]
        spare = await stack.enter_async_context(listening(echo(model_id="spare")))
        specs.append(NodeSpec("c", spare))
        catalogue = FleetCatalogue((CatalogueModel(id="m", loadable=False, fallbacks=("spare",)),))
        running = await stack.enter_async_context(
            gateway(specs, catalogue=catalogue, **settings)  # type: ignore[arg-type]
        )
        stage = Stage(running, built[0].fleet, proxies)
        await until(lambda: all(view.is_healthy for view in stage.fleet.nodes.values()), 10)
        yield stage


Row = tuple[NodeOutcome, Spoil]
STATUSES: dict[NodeKind, list[tuple[int, str | None]]] = {
    "openai": [(status, None) for status in (400, 401, 404, 408, 429, 500, 501, 502, 503, 504, 522, 529)],
    "ganglion": [
        *((400, "invalid_value"), (404, "model_not_found"), (404, "x"), (500, "engine_failed")),
        *((500, "internal_error"), (502, "upstream_unavailable"), (503, "overloaded"), (504, "x")),
    ],
}


@pytest.mark.parametrize("kind", KINDS)
async def test_the_proxy_and_the_engine_decide_alike_and_as_the_table_says(
    kind: NodeKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[Row] = [(ErrorAnswer(*row), answering(*row)) for row in STATUSES[kind]]
    rows.append((NodeFault.LOST, breaks_off))
    paths = ["chat", "completions", "responses"] if kind == "ganglion" else list(PATHS)
    async with staged(kind, monkeypatch) as stage:
        for outcome, spoil in rows:
            decision = decide_retry(outcome, kind=kind)
            mark = decision.mark if decision.mark is HealthMark.FAILURE else HealthMark.NOTHING
            for path in paths:
                assert await stage.outcome(path, spoil) == (decision.step, mark), (path, outcome)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_node_that_says_nothing_in_time_costs_a_chance_on_every_path(
    kind: NodeKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "TICK_S", 0.05)
    async with staged(kind, monkeypatch, first_byte_s=0.3) as stage:
        for path in ("chat", "responses"):
            assert await stage.outcome(path, hangs) == (RetryStep.ONCE_MORE, HealthMark.FAILURE), path
