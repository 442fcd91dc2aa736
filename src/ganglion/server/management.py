"""The doors of models that come and go: list, load, unload.

Law: a load goes on when whoever asked for it leaves; others may wait for it.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ganglion.core.engine import Engine, LoadProgress, ModelHolder, ModelState
from ganglion.core.errors import EngineUnavailable, GanglionError, ModelNotFound
from ganglion.server.http import json_response, read_json, stream_headers, while_connected
from ganglion.server.scope import header
from ganglion.server.settings import ServerSettings
from ganglion.wire import management
from ganglion.wire.frame import Comment, Frame, sse

PROGRESS_S = 0.25
"""At most so often is a download's progress told: bytes arrive faster than anybody reads."""


class ModelViews:
    """What is answered from memory alone."""

    def __init__(self, engine: Engine, settings: ServerSettings) -> None:
        self._engine = engine
        self._scheme = "https" if settings.tls_cert else "http"

    async def every(self, _: Request) -> Response:
        """`GET /models`."""
        return json_response(management.every(self._engine.models()))

    async def endpoint(self, request: Request) -> Response:
        """`GET /models/{id}/endpoint`: the address under which this connection reached the node."""
        model = self._known(request.path_params["model"])
        if model.status not in ("loaded", "recovering"):
            raise ModelNotFound(model.id, hint="It is not loaded.")
        host, port = request.scope["server"]
        address = f"[{host}]" if ":" in host else host
        return json_response(management.endpoint(f"{self._scheme}://{address}:{port}/v1"))

    async def capabilities(self, request: Request) -> Response:
        """`GET /models/{id}/capabilities`; 404 means that nobody can say yet."""
        model = self._known(request.path_params["model"])
        if not model.capabilities:
            raise ModelNotFound(model.id, hint="What it can do is not known before it is loaded.")
        return json_response(management.capabilities(model))

    def _known(self, name: str) -> ModelState:
        for model in self._engine.models():
            if name == model.id or name in model.aliases:
                return model
        raise ModelNotFound(name[:200])


class LoadDoor:
    """`POST /models/load`: answers when the model is resident, or streams how it gets there."""

    def __init__(self, holder: ModelHolder | None, settings: ServerSettings) -> None:
        self._holder = holder
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_json(scope, receive, self._settings)
        await while_connected(scope, receive, self._answer(body, scope, receive, send))

    async def _answer(self, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        name, options = management.parse_load(body)
        async with aclosing(held_by(self._holder).load(name, options)) as steps:
            step = await anext(steps)
            if b"wait=false" in scope["query_string"].split(b"&"):
                await json_response(management.loaded(step), 202)(scope, receive, send)
            elif b"text/event-stream" in (header(scope, b"accept") or b""):
                await _stream(step, steps, send, self._settings.keep_alive_s)
            else:
                async for step in steps:  # noqa: B007 - the last one is the answer
                    pass
                await json_response(management.loaded(step))(scope, receive, send)


class UnloadDoor:
    """`POST /models/unload`: answers when the model is gone."""

    def __init__(self, holder: ModelHolder | None, settings: ServerSettings) -> None:
        self._holder = holder
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name, is_forced = management.parse_unload(await read_json(scope, receive, self._settings))
        await held_by(self._holder).unload(name, is_forced=is_forced)
        await json_response(management.unloaded(name))(scope, receive, send)


async def _stream(
    step: LoadProgress, steps: AsyncGenerator[LoadProgress, None], send: Send, keep_alive_s: float
) -> None:
    async def tell(frame: Frame | Comment, *, is_last: bool = False) -> None:
        await send({"type": "http.response.body", "body": sse(frame), "more_body": not is_last})

    await send({"type": "http.response.start", "status": 200, "headers": stream_headers()})
    await tell(management.progress_frame(step))
    try:
        async with aclosing(worth_telling(step, steps, keep_alive_s)) as told:
            async for news in told:
                await tell(Comment() if news is None else management.progress_frame(news))
                step = news or step
        await tell(management.loaded_frame(step), is_last=True)
    except GanglionError as error:
        await tell(management.error_frame(error), is_last=True)


async def worth_telling(
    step: LoadProgress, steps: AsyncGenerator[LoadProgress, None], keep_alive_s: float
) -> AsyncGenerator[LoadProgress | None, None]:
    """What follows a first step: each change at once, bytes now and then, None after so much silence."""
    loop = asyncio.get_running_loop()
    told, told_s = step.status, loop.time()
    coming = asyncio.ensure_future(anext(steps, None))
    try:
        while True:
            done, _ = await asyncio.wait((coming,), timeout=keep_alive_s)
            if not done:
                yield None
                continue
            following = coming.result()
            if following is None:
                return
            if following.status != told or loop.time() - told_s >= PROGRESS_S:
                yield following
                told, told_s = following.status, loop.time()
            coming = asyncio.ensure_future(anext(steps, None))
    finally:
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)


def held_by(holder: ModelHolder | None) -> ModelHolder:
    """The holder, or the error that says that there is none."""
    if holder is None:
        raise EngineUnavailable("The models of this engine are fixed; none can be loaded or unloaded.")
    return holder
