"""The two pages for people: where to start, and the OpenAPI document as text.

Law: nothing on them comes from another origin, and nothing on them runs.
"""

import base64
import hashlib
from collections.abc import Sequence
from html import escape

import msgspec
from starlette.responses import Response

from ganglion.core.engine import ModelState
from ganglion.wire.openapi import Json, Operation

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
