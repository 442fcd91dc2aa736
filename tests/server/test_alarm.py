"""A timeout that is moved often and rings once."""

import asyncio
from contextlib import closing, suppress

import pytest

from ganglion.server.deadlines import Alarm


async def test_it_rings_when_the_wait_outlasts_it() -> None:
    with closing(Alarm()) as alarm:
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(TimeoutError), alarm.after(0.05):
            await asyncio.sleep(5)
        assert 0.04 < asyncio.get_running_loop().time() - began_s < 0.2
        assert asyncio.current_task().cancelling() == 0
        with alarm.after(0.05):
            await asyncio.sleep(0)


async def test_moving_it_puts_it_off_and_brings_it_forward() -> None:
    with closing(Alarm()) as alarm:
        for _ in range(10):
            with alarm.after(0.05):
                await asyncio.sleep(0.02)
        with alarm.after(5):
            await asyncio.sleep(0)
        with pytest.raises(TimeoutError), alarm.after(0.02):
            await asyncio.sleep(1)


async def test_it_does_not_ring_between_waits() -> None:
    with closing(Alarm()) as alarm:
        with alarm.after(0.01):
            pass
        await asyncio.sleep(0.05)
        with alarm.after(0.05):
            await asyncio.sleep(0.01)


async def test_a_wait_that_swallows_the_cancellation_is_late_all_the_same() -> None:
    with closing(Alarm()) as alarm:
        with pytest.raises(TimeoutError), alarm.after(0.01), suppress(asyncio.CancelledError):
            await asyncio.sleep(1)
        await asyncio.sleep(0)


async def test_somebody_elses_cancellation_stays_one() -> None:
    async def wait() -> None:
        with closing(Alarm()) as alarm, alarm.after(5):
            await asyncio.sleep(10)

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
