"""The wires as an ASGI app to mount in another one: over any engine, under any path.

Law: nothing here listens, opens or closes: the engine and the store are the caller's, before and after.
"""

from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from msgspec import structs
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import ASGIApp

from ganglion.core.engine import Engine, ModelState
from ganglion.core.errors import EngineUnavailable
from ganglion.core.events import Event, Failed
from ganglion.core.request import Request
from ganglion.core.sampling import Sampling, merge
from ganglion.server.app import with_middleware
from ganglion.server.capabilities import capabilities_of
from ganglion.server.gate import Gate
from ganglion.server.images.fetching_reader import with_images_fetched
from ganglion.server.images.image_engine import ImageEngine
from ganglion.server.images.image_fetcher import ImageFetcher
from ganglion.server.images.outbound import outbound_of
from ganglion.server.middleware.auth import Auth, identity_by_key
from ganglion.server.middleware.model_lookup import DefaultModel
from ganglion.server.middleware.principal import key_ring, presented_key
from ganglion.server.middleware.scope import header
from ganglion.server.observed import ObservedEngine
from ganglion.server.prometheus import Metrics
from ganglion.server.routes import build_routes
from ganglion.server.settings import ServerSettings
from ganglion.server.state import AppState

_DEFAULT_PATHS: Final = ("/v1", "/api", "/tokenize", "/detokenize", "/tokenizer_info", "/apply_template")
"""The default: every wire, and none of a node's own routes."""


@dataclass(frozen=True, slots=True)
class Defaults:
    """Values for what a request leaves out."""

    sampling: Sampling = Sampling()
    max_tokens: int | None = None


def build_app(
    engine: Engine | None = None,
    *,
    paths: Collection[str] | None = None,
    strict: bool = False,
    defaults: Defaults | None = None,
    api_keys: Collection[str] = (),
    state: AppState | None = None,
    settings: ServerSettings | None = None,
) -> ASGIApp:
    """An ASGI app that speaks the wires over an engine; without one, every answer is a 503.

    `paths` chooses routes: each names one, or all below it. `strict` refuses fields that nobody knows.
    `state` is where responses are kept; left out, none are. `settings` bounds bodies, streams and deadlines.
    """
    chosen = structs.replace(settings or ServerSettings(), is_strict=strict, api_keys=tuple(api_keys))
    inner = _DefaultsEngine(engine or _NoEngine(), defaults or Defaults())
    gate, metrics = Gate(chosen.max_in_flight), Metrics()
    fetcher = ImageFetcher(outbound_of(chosen.images))
    measured = ObservedEngine(ImageEngine(inner, fetcher), metrics, chosen.deadlines)
    capabilities = with_images_fetched(capabilities_of(engine or _NoEngine(), measured), fetcher)
    routes = build_routes(capabilities, chosen, gate, metrics, state=state)
    keys = key_ring(chosen)
    return with_middleware(
        [route for route in routes if _is_served(route, paths or _DEFAULT_PATHS)],
        gate,
        identity=lambda router: Auth(DefaultModel(router, measured.models), identity_by_key(keys)),
        max_body_bytes=chosen.max_body_bytes,
        may_set_request_id=lambda scope: keys.may_set_request_id(presented_key(partial(header, scope))),
    )


class _NoEngine:
    """The engine of an app that was given none."""

    def models(self) -> tuple[ModelState, ...]:
        """None."""
        return ()

    async def generate(self, request: Request) -> AsyncGenerator[Event, None]:
        """Fail: there is no engine."""
        yield Failed(EngineUnavailable("No engine is configured behind this server."))


class _DefaultsEngine:
    """An engine that fills in what requests leave out."""

    def __init__(self, inner: Engine, defaults: Defaults) -> None:
        self._inner = inner
        self._defaults = defaults

    def models(self) -> tuple[ModelState, ...]:
        """The inner engine's, with these defaults before their own."""
        sampling = self._defaults.sampling
        return tuple(
            replace(model, sampling=merge(sampling, model.sampling)) for model in self._inner.models()
        )

    async def generate(self, request: Request) -> AsyncGenerator[Event, None]:
        """The inner engine's answer to the filled-in request."""
        defaults = self._defaults
        filled = replace(
            request,
            sampling=merge(request.sampling, defaults.sampling),
            max_tokens=defaults.max_tokens if request.max_tokens is None else request.max_tokens,
        )
        async with aclosing(self._inner.generate(filled)) as events:
            async for event in events:
                yield event


def _is_served(route: BaseRoute, paths: Collection[str]) -> bool:
    assert isinstance(route, Route | WebSocketRoute)
    return any(route.path == path or route.path.startswith(f"{path.rstrip('/')}/") for path in paths)
