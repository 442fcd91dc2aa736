"""The one law for retries: as a table, and as the proxy and the engine of a fleet both carry it out."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import count, product
from typing import Any

import pytest
from gateways import Running, gateway
from remote_nodes import echo, listening
from tests.gateway.fault_proxy import Fault as Spoil
from tests.gateway.fault_proxy import FaultProxy, Passage, fault_proxy

from ganglion.gateway import front
from ganglion.gateway.catalogue import Catalogue, CatalogueModel
from ganglion.gateway.fleet import Fleet
from ganglion.gateway.node import FOREIGN, OURS, NodeKind, NodeSpec
from ganglion.gateway.retry import (
    CHANCES,
    Answered,
    Fault,
    Mark,
    Outcome,
    Step,
    code_of,
    decide,
    may_go_on,
)
from ganglion.server.gateway import house
from ganglion.server.gateway.assembly import Assembly, assembled

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
    (404, "model_not_found"): (Step.ELSEWHERE, Mark.NOTHING),
    (500, "engine_failed"): (Step.ONCE_MORE, Mark.NOTHING),
    (500, "interrupted"): (Step.ONCE_MORE, Mark.NOTHING),
    (502, "hub_unreachable"): (Step.ELSEWHERE, Mark.NOTHING),
}


def expected(kind: NodeKind, status: int, code: str | None) -> tuple[Step, Mark]:
    if kind == "ganglion" and (status, code) in BY_CODE:
        return BY_CODE[status, code or ""]
    step = Step.TELL
    if status in FREE[kind]:
        step = Step.ELSEWHERE
    elif status in ONCE[kind]:
        step = Step.ONCE_MORE
    if status in FAILURES[kind] or (kind == "openai" and status >= 500 and step is Step.TELL):
        return step, Mark.FAILURE
    return step, Mark.SUCCESS if step is Step.TELL and status < 500 else Mark.NOTHING


@pytest.mark.parametrize("kind", KINDS)
def test_every_status_and_code_of_every_kind_has_one_outcome(kind: NodeKind) -> None:
    for status, code in product(range(400, 600), CODES):
        decision = decide(Answered(status, code), kind=kind)
        assert (decision.step, decision.mark) == expected(kind, status, code), (status, code)
        is_crash = kind == "ganglion" and status == 500 and code in ("engine_failed", "interrupted")
        assert decision.is_crash == is_crash
        assert decision.is_key == (status in ((401, 403) if kind == "ganglion" else (401, 402, 403, 407)))


def test_a_wire_without_codes_is_judged_by_its_status() -> None:
    steps = {
        status: decide(Answered(status, has_codes=False), kind="ganglion").step
        for status in (400, 404, 500, 502, 503, 504, 529)
    }
    once, free, tell = Step.ONCE_MORE, Step.ELSEWHERE, Step.TELL
    assert steps == {400: tell, 404: free, 500: once, 502: once, 503: free, 504: tell, 529: free}
    assert decide(Answered(500, has_codes=False), kind="ganglion").is_crash


@pytest.mark.parametrize("kind", KINDS)
def test_faults_cost_a_chance_unless_nothing_was_sent(kind: NodeKind) -> None:
    told = {fault: decide(fault, kind=kind) for fault in Fault}
    assert {fault: (row.step, row.mark, row.is_crash) for fault, row in told.items()} == {
        Fault.UNREACHED: (Step.ELSEWHERE, Mark.FAILURE, False),
        Fault.LOST: (Step.ONCE_MORE, Mark.FAILURE, True),
        Fault.STALE: (Step.ONCE_MORE, Mark.NOTHING, True),
        Fault.SILENT: (Step.ONCE_MORE, Mark.FAILURE, False),
        Fault.WITHDRAWN: (Step.ONCE_MORE, Mark.NOTHING, False),
    }


@pytest.mark.parametrize("kind", KINDS)
def test_once_anything_was_given_out_the_client_is_told_and_the_node_judged_alike(kind: NodeKind) -> None:
    outcomes: list[Outcome] = [*Fault, *(Answered(*row) for row in product(range(400, 600), CODES))]
    for outcome in outcomes:
        before, after = decide(outcome, kind=kind), decide(outcome, kind=kind, is_given_out=True)
        assert after.step is Step.TELL
        assert (after.mark, after.is_crash) == (before.mark, before.is_crash)


def test_there_are_two_chances() -> None:
    once, free = decide(Fault.LOST, kind="openai"), decide(Fault.UNREACHED, kind="openai")
    assert CHANCES == 2
    assert [may_go_on(once, spent) for spent in (1, 2)] == [True, False]
    assert may_go_on(free, 0) and may_go_on(free, 1)
    assert not may_go_on(decide(Answered(400), kind="openai"), 0)


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
    assert code_of(body) == code


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

    async def outcome(self, path: str, spoil: Spoil) -> tuple[Step, Mark]:
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
            step = Step.ELSEWHERE
        else:
            step = Step.ONCE_MORE if spoilt == 2 else Step.TELL
        assert spoilt == (1 if step is Step.TELL else 2)
        failed = [name for name in ("a", "b") if self.fleet.is_cooling(name)]
        for name in failed:
            self.fleet.succeeded(name)  # the next row begins anew
        return step, Mark.FAILURE if failed else Mark.NOTHING


@asynccontextmanager
async def staged(kind: NodeKind, monkeypatch: pytest.MonkeyPatch, **settings: float) -> AsyncIterator[Stage]:
    built: list[Assembly] = []

    def remembered(*given: Any) -> Assembly:
        built.append(assembled(*given))
        return built[-1]

    monkeypatch.setattr(house, "assembled", remembered)
    wires = OURS if kind == "ganglion" else FOREIGN
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
        catalogue = Catalogue((CatalogueModel(id="m", loadable=False, fallbacks=("spare",)),))
        running = await stack.enter_async_context(
            gateway(specs, catalogue=catalogue, **settings)  # type: ignore[arg-type]
        )
        stage = Stage(running, built[0].fleet, proxies)
        async with asyncio.timeout(10):
            while not all(view.is_healthy for view in stage.fleet.nodes.values()):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        yield stage


Row = tuple[Outcome, Spoil]
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
    rows: list[Row] = [(Answered(*row), answering(*row)) for row in STATUSES[kind]]
    rows.append((Fault.LOST, breaks_off))
    paths = ["chat", "completions", "responses"] if kind == "ganglion" else list(PATHS)
    async with staged(kind, monkeypatch) as stage:
        for outcome, spoil in rows:
            decision = decide(outcome, kind=kind)
            mark = decision.mark if decision.mark is Mark.FAILURE else Mark.NOTHING
            for path in paths:
                assert await stage.outcome(path, spoil) == (decision.step, mark), (path, outcome)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_node_that_says_nothing_in_time_costs_a_chance_on_every_path(
    kind: NodeKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front, "TICK_S", 0.05)
    async with staged(kind, monkeypatch, first_byte_s=0.3) as stage:
        for path in ("chat", "responses"):
            assert await stage.outcome(path, hangs) == (Step.ONCE_MORE, Mark.FAILURE), path
