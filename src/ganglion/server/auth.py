"""Who may come in: the whole app behind keys, deny by default.

Law: only what PUBLIC lists answers without a key once there is one, and the path judged is `scope["path"]`,
the one the router sees; a URL rebuilt from headers is the client's to forge.
"""

from starlette.types import ASGIApp, Receive, Scope, Send

from ganglion.server.keys import KeyRing, bearer_key, key_refusal
from ganglion.server.refusals import error_response
from ganglion.server.scope import header, route_path, set_tenant

PUBLIC = frozenset(
    {
        ("GET", "/"),
        ("HEAD", "/"),
        ("GET", "/docs"),
        ("HEAD", "/docs"),
        ("GET", "/health/live"),
        ("HEAD", "/health/live"),
        ("GET", "/health/ready"),
        ("HEAD", "/health/ready"),
    }
)


class Auth:
    """Lets a request through when it brings one of the keys."""

    def __init__(self, app: ASGIApp, keys: KeyRing) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or self._keys.is_empty:
            await self._app(scope, receive, send)
            return
        key = _presented_key(scope)
        tenant = self._keys.tenant_of(key)
        if tenant is not None:
            set_tenant(scope, tenant)
            await self._app(scope, receive, send)
        elif scope["type"] == "http" and (scope["method"], route_path(scope)) in PUBLIC:
            await self._app(scope, receive, send)
        else:
            await error_response(key_refusal(key), scope, {"www-authenticate": "Bearer"})(
                scope, receive, send
            )


def _presented_key(scope: Scope) -> bytes | None:
    key = bearer_key(header(scope, b"authorization"))
    return header(scope, b"x-api-key") if key is None else key
