"""The endpoints that describe the server itself: pages, OpenAPI, probes, version, and the list of models."""

import base64
import hashlib
import platform
from collections.abc import Callable, Sequence
from html import escape

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ganglion.core.engine import Engine, ModelState, find_model
from ganglion.core.errors import ModelNotFound
from ganglion.server.endpoints.http import json_response
from ganglion.server.gate import Gate
from ganglion.server.middleware.scope import is_anthropic, principal
from ganglion.server.settings import ServerSettings
from ganglion.wire import health, models, openapi
from ganglion.wire.headers import RETRY_AFTER
from ganglion.wire.messages import anthropic_models
from ganglion.wire.operation import Json, Operation

# Law: nothing on them comes from another origin, and nothing on them runs.

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 3rem auto; padding: 0 1rem; }
pre, code { font: 14px/1.45 ui-monospace, monospace; }
pre { overflow-x: auto; padding: .75rem 1rem; border: 1px solid #8886; border-radius: .4rem; }
h2 { margin-top: 2.5rem; }
summary { cursor: pointer; }
.method { display: inline-block; min-width: 3.5rem; font-weight: 600; text-transform: uppercase; }
.note { opacity: .7; }
"""
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_HEADERS = {
    "content-security-policy": (
        f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


def start_page(greeting: str, models: Sequence[ModelState], url: str, *, needs_key: bool) -> Response:
    """What this is and what to try; names models only where everybody may ask for them."""
    shown = () if needs_key else models
    name = next((model.id for model in shown), "MODEL")
    key = ' \\\n  -H "authorization: Bearer $KEY"' if needs_key else ""
    body = f'{{"model": "{name}", "messages": [{{"role": "user", "content": "Hello"}}]}}'
    curl = f"curl {url}/v1/chat/completions{key} \\\n  -H 'content-type: application/json' \\\n  -d '{body}'"
    rows = "".join(
        f"<li><code>{escape(model.id)}</code> <span class=note>{escape(model.status)}, "
        f"{model.context_length} tokens</span></li>"
        for model in shown
    )
    return _page(
        "Ganglion",
        f"<p>{escape(greeting)}</p>"
        f"{f'<h2>Models</h2><ul>{rows}</ul>' if rows else ''}"
        f"<h2>Try it</h2><pre>{escape(curl)}</pre>"
        '<p><a href="/docs">All routes</a></p>',
    )


def docs_page(document: Json, described: Sequence[Operation]) -> Response:
    """The OpenAPI document, readable without a script."""
    operations = "".join(map(_operation, described))
    components = document["components"]
    assert isinstance(components, dict)
    schemas = components["schemas"]
    assert isinstance(schemas, dict)
    shapes = "".join(
        f"<details id={escape(name)}><summary><code>{escape(name)}</code></summary>"
        f"<pre>{escape(_pretty(schema))}</pre></details>"
        for name, schema in schemas.items()
    )
    return _page(
        "Ganglion routes",
        '<p>The same as <a href="/openapi.json">/openapi.json</a>, to read.</p>'
        f"<h2>Routes</h2>{operations}<h2>Shapes</h2>{shapes}",
    )


def _operation(operation: Operation) -> str:
    body = f" Takes <a href=#{operation.body}>{operation.body}</a>." if operation.body else ""
    public = " <span class=note>No key needed.</span>" if operation.is_public else ""
    return (
        f"<p><code><span class=method>{operation.method}</span> {escape(operation.path)}</code><br>"
        f"{escape(operation.summary)}{body}{public}</p>"
    )


def _pretty(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def _page(title: str, content: str) -> Response:
    html = (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title>"
        f'<meta name=viewport content="width=device-width"><style>{_STYLE}</style>'
        f"<h1>{title}</h1>{content}</html>"
    )
    return Response(html, headers=_HEADERS, media_type="text/html")


class InfoRoutes:
    """Answers from memory alone, on nodes and gateways alike."""

    def __init__(
        self,
        engine: Engine,
        settings: ServerSettings,
        gate: Gate,
        surface: openapi.Surface = openapi.NODE,
        needs_key: Callable[[], bool] | None = None,
    ) -> None:
        """`needs_key` is for a server that knows other keys than those in its settings."""
        self._engine = engine
        self._settings = settings
        self._gate = gate
        self._needs_key = needs_key or (lambda: settings.has_keys)
        self._greeting = surface.greeting
        document = openapi.document(settings.build.version, surface)
        self._openapi = openapi.encode(document)
        self._docs = docs_page(document, surface.operations)
        build = settings.build
        python = platform.python_version()
        self._version = health.version(
            health.Version(build.version, build.git_sha, python, dict(build.libraries))
        )

    def routes(self) -> list[BaseRoute]:
        """The routes that nodes and gateways share."""
        return [
            Route("/", self.start),
            Route("/docs", self.docs),
            Route("/openapi.json", self.openapi),
            Route("/health/live", self.live),
            Route("/ping", self.live),
            Route("/version", self.version),
            Route("/v1/models", self.models),
            Route("/v1/models/{model:path}", self.model),
        ]

    async def start(self, _: Request) -> Response:
        url = f"{self._settings.scheme}://{self._settings.host}:{self._settings.port}"
        return start_page(self._greeting, self._engine.models(), url, needs_key=self._needs_key())

    async def docs(self, _: Request) -> Response:
        return self._docs

    async def openapi(self, _: Request) -> Response:
        return json_response(self._openapi)

    async def live(self, _: Request) -> Response:
        return json_response(health.probe("ok"))

    async def ready(self, _: Request) -> Response:
        status = health.node_status(self._engine.models(), is_draining=self._gate.is_draining)
        if status in ("ok", "degraded"):
            return json_response(health.probe(status))
        return Response(health.probe(status), 503, {RETRY_AFTER: "2"}, "application/json")

    async def version(self, _: Request) -> Response:
        return json_response(self._version)

    async def models(self, request: Request) -> Response:
        wire = anthropic_models if is_anthropic(request.scope) else models
        return json_response(wire.every(principal(request.scope).visible(self._engine.models())))

    async def model(self, request: Request) -> Response:
        name: str = request.path_params["model"]
        model = find_model(principal(request.scope).visible(self._engine.models()), name)
        if model is None:
            raise ModelNotFound(name[:200])
        return json_response((anthropic_models if is_anthropic(request.scope) else models).one(model))
