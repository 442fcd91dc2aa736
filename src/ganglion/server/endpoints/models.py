"""The endpoints of models that come and go: list, load, unload, readouts.

Law: a load goes on when its client leaves; others may wait for it.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ganglion.core.engine import (
    Engine,
    LoadProgress,
    ModelHolder,
    ModelState,
    find_model,
)
from ganglion.core.errors import (
    EngineUnavailable,
    GanglionError,
    ModelNotFound,
    ModelNotLoaded,
    ReadoutNotFound,
)
from ganglion.server.endpoints.http import json_response, read_json, stream_headers, while_connected
from ganglion.server.middleware.model_lookup import loaded_model
from ganglion.server.middleware.scope import header, principal
from ganglion.server.settings import ServerSettings
from ganglion.wire import management, readout
from ganglion.wire.frame import SERVER_SENT_EVENTS, Comment, Frame, Framing


class ReadoutEndpoint:
    """The readouts of a model, answered from memory alone: asking loads nothing."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def manifest(self, request: Request) -> Response:
        """`GET /v1/readout/manifest`."""
        try:
            model = loaded_model(request, principal(request.scope).visible(self._engine.models()))
        except ModelNotLoaded as error:
            raise ReadoutNotFound(
                f"The model {error.model!r} has no readouts: it is not loaded.", param="model"
            ) from None
        if model.readout is None:
            raise ReadoutNotFound(
                f"The model {model.id!r} has no readouts: no concepts are loaded for it.", param="model"
            )
        return json_response(readout.manifest(model.id, model.readout))


_PROGRESS_S = 0.25
"""How often a download's progress is sent at most: bytes arrive faster than anybody reads."""


class ModelEndpoints:
    """Answers about models from memory alone."""

    def __init__(self, engine: Engine, settings: ServerSettings) -> None:
        self._engine = engine
        self._scheme = settings.scheme

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
        """`GET /models/{id}/capabilities`; 404 means that they are not known yet."""
        model = self._known(request.path_params["model"])
        if not model.capabilities:
            raise ModelNotFound(model.id, hint="What it can do is not known before it is loaded.")
        return json_response(management.capabilities(model))

    def _known(self, name: str) -> ModelState:
        found = find_model(self._engine.models(), name)
        if found is None:
            raise ModelNotFound(name[:200])
        return found


class LoadModelEndpoint:
    """`POST /models/load`: answers when the model is resident, or streams how it gets there."""

    def __init__(self, holder: ModelHolder | None, settings: ServerSettings) -> None:
        self._holder = holder
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_json(scope, receive, self._settings)
        await while_connected(scope, receive, self._answer(body, scope, receive, send))

    async def _answer(self, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        name, options = management.parse_load(body)
        async with aclosing(require_holder(self._holder).load(name, options)) as steps:
            step = await anext(steps)
            if b"wait=false" in scope["query_string"].split(b"&"):
                await json_response(management.loaded(step), 202)(scope, receive, send)
            elif b"text/event-stream" in (header(scope, b"accept") or b""):
                await stream_progress(step, steps, _LOAD_PROGRESS, send, self._settings.keep_alive_s)
            else:
                async for step in steps:  # noqa: B007 - the last one is the answer
                    pass
                await json_response(management.loaded(step))(scope, receive, send)


class UnloadModelEndpoint:
    """`POST /models/unload`: answers when the model is gone."""

    def __init__(self, holder: ModelHolder | None, settings: ServerSettings) -> None:
        self._holder = holder
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name, is_forced = management.parse_unload(await read_json(scope, receive, self._settings))
        await require_holder(self._holder).unload(name, is_forced=is_forced)
        await json_response(management.unloaded(name))(scope, receive, send)


@dataclass(frozen=True, slots=True)
class ProgressFormat:
    """How a wire streams the progress of a load."""

    framing: Framing
    begun: Callable[[LoadProgress], Sequence[Frame]]
    progress: Callable[[LoadProgress], Frame]
    silence: Callable[[LoadProgress], Frame | Comment]
    """Sent when nothing has changed for a while; its argument is the last step."""
    done: Callable[[LoadProgress], Frame]
    failed: Callable[[GanglionError], Frame]


_LOAD_PROGRESS = ProgressFormat(
    SERVER_SENT_EVENTS,
    begun=lambda step: [management.progress_frame(step)],
    progress=management.progress_frame,
    silence=lambda step: Comment(),
    done=management.loaded_frame,
    failed=management.error_frame,
)


async def stream_progress(
    step: LoadProgress,
    steps: AsyncGenerator[LoadProgress, None],
    progress: ProgressFormat,
    send: Send,
    keep_alive_s: float,
) -> None:
    """Stream how a load goes on after its first step, to its end or its failure."""

    async def write(*frames: Frame | Comment, is_last: bool = False) -> None:
        body = b"".join(map(progress.framing.encode, frames))
        await send({"type": "http.response.body", "body": body, "more_body": not is_last})

    headers = stream_headers(progress.framing)
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await write(*progress.begun(step))
    try:
        async with aclosing(_throttled(step, steps, keep_alive_s)) as changes:
            async for change in changes:
                step = change or step
                await write(progress.silence(step) if change is None else progress.progress(step))
        await write(progress.done(step), is_last=True)
    except GanglionError as error:
        await write(progress.failed(error), is_last=True)


async def _throttled(
    step: LoadProgress, steps: AsyncGenerator[LoadProgress, None], keep_alive_s: float
) -> AsyncGenerator[LoadProgress | None, None]:
    """The steps after a first one: a new status at once, bytes now and then, None after so much silence."""
    loop = asyncio.get_running_loop()
    sent_status, sent_s = step.status, loop.time()
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
            if following.status != sent_status or loop.time() - sent_s >= _PROGRESS_S:
                yield following
                sent_status, sent_s = following.status, loop.time()
            coming = asyncio.ensure_future(anext(steps, None))
    finally:
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)


def require_holder(holder: ModelHolder | None) -> ModelHolder:
    """The holder; raises EngineUnavailable where there is none."""
    if holder is None:
        raise EngineUnavailable("The models of this engine are fixed; none can be loaded or unloaded.")
    return holder
