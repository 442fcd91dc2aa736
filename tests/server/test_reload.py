"""A configuration that is read again while the server runs."""

import asyncio

import httpx

from ganglion.core.errors import InvalidValue
from ganglion.server.life.serve import Reloaded
from support.hangups import hang_up


class Operator:
    """Writes configurations, some of them wrong, and notes which came into force."""

    def __init__(self) -> None:
        self.api_keys: tuple[str, ...] = ("first",)
        self.is_wrong = False
        self.reads = 0
        self.applied = 0

    def read(self) -> Reloaded:
        self.reads += 1
        if self.is_wrong:
            raise InvalidValue("server.port in config.toml has the wrong value.")
        return Reloaded(self.api_keys, self._apply)

    def _apply(self) -> None:
        self.applied += 1

    async def reload(self) -> None:
        await hang_up(lambda: self.reads)


async def status(http: httpx.AsyncClient, key: str) -> int:
    return (await http.get("/v1/models", headers={"authorization": f"Bearer {key}"})).status_code


async def test_a_key_that_was_taken_away_is_refused_from_the_next_request_on(serving) -> None:
    operator = Operator()
    async with serving(reload=operator.read, api_keys=("first",)) as served:
        assert await status(served.http, "first") == 200
        operator.api_keys = ("second",)
        await operator.reload()
        assert (await status(served.http, "first"), await status(served.http, "second")) == (401, 200)


async def test_a_wrong_configuration_changes_nothing_and_says_why(serving, caplog) -> None:
    operator = Operator()
    async with serving(reload=operator.read, api_keys=("first",)) as served:
        operator.is_wrong, operator.api_keys = True, ("second",)
        await operator.reload()
        assert await status(served.http, "first") == 200
        assert operator.applied == 0
        assert "server.port in config.toml has the wrong value." in caplog.text


async def test_taking_the_last_key_from_a_bind_that_others_reach_is_refused(serving, caplog) -> None:
    operator = Operator()
    async with serving(reload=operator.read, api_keys=("first",), host="0.0.0.0") as served:
        operator.api_keys = ()
        await operator.reload()
        assert await status(served.http, "first") == 200
        assert (await served.http.get("/v1/models")).status_code == 401
        assert operator.applied == 0


async def test_a_hundred_reloads_under_load_drop_nothing(serving) -> None:
    operator = Operator()
    async with serving(reload=operator.read, api_keys=("first",)) as served:
        is_over = False
        statuses: list[int] = []

        async def keep_asking() -> None:
            while not is_over:
                answer = await served.http.post(
                    "/v1/chat/completions",
                    json=served.chat("one two three"),
                    headers={"authorization": "Bearer first"},
                )
                statuses.append(answer.status_code)

        clients = [asyncio.create_task(keep_asking()) for _ in range(4)]
        for number in range(100):
            operator.is_wrong = number % 5 == 0
            await operator.reload()
        is_over = True
        await asyncio.gather(*clients)
        assert operator.reads == 100
        assert operator.applied == 80
        assert len(statuses) > 20
        assert set(statuses) == {200}
