"""Nodes that are slow, hang, half-close and lie, behind a proxy: made good, or told."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

from asking_fleets import PATHS, WIRES, Said, asking, is_told_broken, is_whole, text_of
from fault_proxy import Fault, FaultProxy, Passage, fault_proxy
from fleets import Fleet, declaration, fleet_of

from support.waiting import until

SETTINGS = "[gateway]\npoll_s = 0.2\nfirst_byte_s = 1.0\nidle_s = 1.0\n"
numbers = count()
TEXT = "as it was said so it comes back in the end"


@asynccontextmanager
async def spoilt_fleet(folder: Path) -> AsyncIterator[tuple[Fleet, FaultProxy]]:
    """Two nodes, the first behind a proxy."""
    async with fleet_of(folder, 0) as fleet:
        first, second = fleet.node("a"), fleet.node("b")
        await asyncio.gather(first.start(), second.start())
        async with fault_proxy(first.port) as proxy:
            settings = SETTINGS + declaration(first, port=proxy.port) + declaration(second)
            (folder / "fleet.toml").write_text(settings)
            await fleet.gateway.start()
            await fleet.until_healthy()
            yield fleet, proxy


async def met(fleet: Fleet, proxy: FaultProxy, *, is_stream: bool = False) -> Said:
    """The answer to the first conversation of many that the router sends through the proxy."""
    proxy.spoilt = 0
    for _ in range(64):
        key = f"conversation {next(numbers)}"
        asked = asking("chat", TEXT, is_stream=is_stream, prompt_cache_key=key)
        said = await fleet.ask(PATHS["chat"], asked, timeout_s=8)
        if proxy.spoilt:
            assert proxy.spoilt == 1
            return said
        assert text_of("chat", said, is_stream=is_stream) == TEXT
    raise AssertionError("nothing was sent through the proxy")


# What a node does instead of answering.


async def hang(passage: Passage) -> None:
    await passage.until_cut()


async def reset_at_once(passage: Passage) -> None:
    passage.reset()


async def reset_in_head(passage: Passage) -> None:
    await passage.say(b"HTTP/1.1 200 OK\r\ncontent-ty")
    await asyncio.sleep(0.02)
    passage.reset()


async def close_in_head(passage: Passage) -> None:
    await passage.say(b"HTTP/1.1 200 OK\r\ncontent-type: applic")


async def garbage(passage: Passage) -> None:
    await passage.say(b"\x16\x03\x01\x02\x00\x01 what is this \r\n\r\n")
    await passage.until_cut()


async def endless_head(passage: Passage) -> None:
    await passage.say(b"HTTP/1.1 200 OK\r\n")
    for number in range(100_000):
        if passage.writer.is_closing():
            return
        await passage.say(b"x-%d: %b\r\n" % (number, b"y" * 500))


async def endless_line(passage: Passage) -> None:
    await passage.say(b"HTTP/1.1 200 OK\r\nx-long: ")
    while not passage.writer.is_closing():
        await passage.say(b"y" * 4096)


async def too_short(passage: Passage) -> None:
    answer = await passage.answer()
    await passage.say(_with_length(answer, 1000))


async def too_long(passage: Passage) -> None:
    answer = await passage.answer()
    await passage.say(_with_length(answer, -20))
    await passage.until_cut()


def _with_length(answer: bytes, more: int) -> bytes:
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"content-length")]
    return b"\r\n".join((*lines, b"content-length: %d" % (len(body) + more), b"", body))


async def two_lengths(passage: Passage) -> None:
    body = b'{"choices": []}'
    await passage.say(
        b"HTTP/1.1 200 OK\r\ncontent-length: 15\r\ncontent-length: 3\r\n"
        b"content-type: application/json\r\n\r\n" + body
    )
    await passage.until_cut()


async def half_closed(passage: Passage) -> None:
    await passage.say(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n{")
    passage.writer.write_eof()
    await passage.until_cut()


async def bad_chunk(passage: Passage) -> None:
    await passage.say(
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"
    )
    await passage.until_cut()


async def continued(passage: Passage) -> None:
    await passage.say(b"HTTP/1.1 100 Continue\r\n\r\n")
    await passage.say(await passage.answer())


async def slowly(passage: Passage) -> None:
    answer = await passage.answer()
    for start in range(0, len(answer), 97):
        await passage.say(answer[start : start + 97])
        await asyncio.sleep(0.01)


def stream_cut(ending: str) -> Fault:
    """A stream of which some events come, and then what `ending` says."""

    async def fault(passage: Passage) -> None:
        answer = await passage.answer()
        head, _, body = answer.partition(b"\r\n\r\n")
        chunks = body.split(b"\r\n")
        some = b"\r\n".join(chunks[: len(chunks) // 2 // 2 * 2])
        if ending == "unframed":
            lines = [
                line for line in head.split(b"\r\n") if not line.lower().startswith(b"transfer-encoding")
            ]
            payload = b"".join(chunks[1 : len(chunks) // 2 // 2 * 2 : 2])
            await passage.say(b"\r\n".join((*lines, b"connection: close", b"", payload)))
            return
        await passage.say(head + b"\r\n\r\n" + some + b"\r\n")
        match ending:
            case "reset":
                await asyncio.sleep(0.02)
                passage.reset()
            case "unfinished":
                await passage.say(b"0\r\n\r\n")
            case "in a chunk":
                await passage.say(b'40\r\ndata: {"id"')
            case "in an event":
                await passage.say(b'e\r\ndata: {"id":"c\r\n0\r\n\r\n')
            case "garbage":
                await asyncio.sleep(0.02)
                await passage.say(b"not a size\r\n")
                await passage.until_cut()
            case "silence":
                await passage.until_cut()

    return fault


async def neighbours(fleet: Fleet, done: asyncio.Event) -> int:
    """Others who ask meanwhile, of any node, and are all answered."""
    count = 0
    while not done.is_set():
        said = await fleet.ask("/v1/embeddings", {"model": "echo", "input": f"{count} others"})
        assert said.status == 200, said.body
        count += 1
        await asyncio.sleep(0.02)
    return count


async def test_what_a_node_does_before_the_first_byte_is_made_good_elsewhere(tmp_path: Path) -> None:
    faults: list[Fault] = [
        *(reset_at_once, reset_in_head, close_in_head, garbage, endless_head, endless_line),
        *(too_short, two_lengths, half_closed, bad_chunk, continued, slowly),
    ]
    async with spoilt_fleet(tmp_path) as (fleet, proxy):
        await settled(fleet)
        baseline = await counts(fleet)
        for fault in faults:
            for is_stream in (False, True):
                proxy.fault = fault
                said = await met(fleet, proxy, is_stream=is_stream)
                if fault is too_short and is_stream:
                    continue  # a stream has no length, and this is another fault then
                assert said.status == 200, (fault.__name__, said.body)
                assert text_of("chat", said, is_stream=is_stream) == TEXT, fault.__name__
                assert not is_stream or is_whole("chat", said), fault.__name__
                proxy.fault = None
                await fleet.until_healthy("a")
        await back_to(fleet, baseline)


async def test_a_node_that_hangs_is_given_up_for_another_and_nobody_else_waits(tmp_path: Path) -> None:
    async with spoilt_fleet(tmp_path) as (fleet, proxy):
        proxy.fault = hang
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        hanging = asyncio.create_task(met(fleet, proxy))
        while not proxy.spoilt:
            began_s = loop.time()
            await asyncio.sleep(0.01)
        proxy.fault = None
        done = asyncio.Event()
        others = asyncio.create_task(neighbours(fleet, done))
        said = await hanging
        assert text_of("chat", said, is_stream=False) == TEXT, said.body
        assert 1.0 <= loop.time() - began_s < 4
        done.set()
        assert await others > 10
        await fleet.until_idle()


async def test_a_stream_that_breaks_ends_in_its_wires_own_error(tmp_path: Path) -> None:
    endings = ("reset", "unfinished", "unframed", "in a chunk", "in an event", "garbage", "silence")
    async with spoilt_fleet(tmp_path) as (fleet, proxy):
        drained = await fleet.ask("/fleet/drain", {"node": "b"})
        assert drained.status == 200
        await settled(fleet)
        baseline = await counts(fleet)
        for ending in endings:
            proxy.fault, proxy.spoilt = stream_cut(ending), 0
            asked = [asking(wire, f"!echo delay=0.005\n{TEXT}") for wire in WIRES]
            answers = await asyncio.gather(
                *(fleet.ask(PATHS[wire], body) for wire, body in zip(WIRES, asked, strict=True))
            )
            assert proxy.spoilt == len(WIRES), (ending, proxy.spoilt, [said.body[-200:] for said in answers])
            for wire, said in zip(WIRES, answers, strict=True):
                assert is_told_broken(wire, said), (ending, wire, said.is_ended, said.body[-300:])
                heard = text_of(wire, said)
                assert heard and TEXT.startswith(heard), (ending, wire)
            proxy.fault = None
            await fleet.until_healthy("a")
        await back_to(fleet, baseline)


async def test_an_answer_longer_than_it_says_is_not_passed_on_as_another_ones(tmp_path: Path) -> None:
    async with spoilt_fleet(tmp_path) as (fleet, proxy):
        proxy.fault = too_long
        said = await met(fleet, proxy)
        assert said.is_ended  # its bytes are the node's own; what matters is who hears the rest
        proxy.fault = None
        for number in range(16):
            asked = asking("chat", TEXT, is_stream=False, prompt_cache_key=f"next {number}")
            next_one = await fleet.ask(PATHS["chat"], asked)
            assert text_of("chat", next_one, is_stream=False) == TEXT


async def counts(fleet: Fleet) -> tuple[float, float]:
    tasks = await fleet.gateway.gauge("ganglion_asyncio_tasks", None)
    return tasks, await fleet.gateway.gauge("ganglion_open_fds", None)


async def settled(fleet: Fleet) -> None:
    """Wait until two readings are alike: connections to nodes come and go with the poller's."""
    seen = [await counts(fleet)]

    async def is_still() -> bool:
        seen.append(await counts(fleet))
        return seen[-1] == seen[-2]

    await until(is_still, pause_s=0.3)


async def back_to(fleet: Fleet, baseline: tuple[float, float]) -> None:
    await fleet.until_idle()
    seen: list[tuple[float, float]] = []

    async def is_back() -> bool:
        seen.append(await counts(fleet))
        tasks, fds = seen[-1]
        return tasks <= baseline[0] + 1 and fds <= baseline[1] + 4  # a kept connection more or less

    try:
        await until(is_back, 5.0, pause_s=0.1)
    except AssertionError:
        raise AssertionError(f"{baseline} before, {seen[-1]} after") from None
