"""Authentication: the whole app behind keys, deny by default.

Law: only what the OpenAPI document calls public answers without a key once there is one, and the path judged
is `scope["path"]`, the one the router sees; a URL rebuilt from headers is the client's to forge. Our own
headers are believed with a gateway's key, and of anybody where only a gateway gets in; below this layer there
are none.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from starlette.types import ASGIApp, Receive, Scope, Send

from ganglion.core.errors import GanglionError, NotAllowed
from ganglion.server.fleet_membership import Leases
from ganglion.server.middleware.errors import error_response
from ganglion.server.middleware.principal import (
    KeyRing,
    Principal,
    identify,
    principal_from_gateway,
)
from ganglion.server.middleware.scope import IDENTIFY, PRINCIPAL, header, principal, route_path
from ganglion.wire.dialects import PUBLIC_PATHS
from ganglion.wire.headers import INTERNAL_PREFIX

# Law: a route that is neither read-only nor a question to a model is wrapped in `AdminOnly`;
# tests/golden/rights.txt names the right of each.


def require_admin(scope: Scope, action: str) -> None:
    """Raise NotAllowed unless the request's principal is an admin; `action` completes "may not"."""
    if not principal(scope).is_admin:
        raise NotAllowed(
            f"This key may not {action}.", hint="It takes an admin's key: one of server.admin_keys."
        )


class AdminOnly:
    """An endpoint for admins only; others are refused before their body is read."""

    def __init__(self, app: ASGIApp, action: str) -> None:
        self._app = app
        self._action = action

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        require_admin(scope, self._action)
        await self._app(scope, receive, send)


_Identify = Callable[[Scope], Principal]
"""Gives the principal of a request; raises why it is refused."""

PUBLIC_ROUTES = frozenset((method, path) for method in ("GET", "HEAD") for path in PUBLIC_PATHS)


class Auth:
    """Calls the app with a request's principal in its scope, and without our own headers, or answers why not.

    `identify_again` is for connections that outlive their first request; left out, it is the same.
    """

    def __init__(self, app: ASGIApp, identify: _Identify, identify_again: _Identify | None = None) -> None:
        self._app = app
        self._identify = identify
        self._identify_again = identify_again or identify

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        try:
            found = self._identify(scope)
        except GanglionError as error:
            await error_response(error, scope)(scope, receive, send)
            return
        headers = scope["headers"]
        if any(name.startswith(INTERNAL_PREFIX) for name, _ in headers):
            headers = [(name, value) for name, value in headers if not name.startswith(INTERNAL_PREFIX)]
        again = partial(self._identify_again, scope)
        await self._app({**scope, "headers": headers, PRINCIPAL: found, IDENTIFY: again}, receive, send)


def identity_by_key(keys: KeyRing, leases: Leases | None = None) -> _Identify:
    """Lets a request in with a valid key, or to a public route, and never under a lease that is lost."""
    leases = leases or Leases()

    def identified(scope: Scope) -> Principal:
        is_http = scope["type"] == "http"
        return identify(
            keys,
            leases,
            partial(header, scope),
            is_public=is_http and (scope["method"], route_path(scope)) in PUBLIC_ROUTES,
            is_work=not is_http or scope["method"] not in ("GET", "HEAD"),
        )

    return identified


def trusted_auth(
    app: ASGIApp,
    models_of: Callable[[str], frozenset[str] | None] | None = None,
    check: Callable[[str], object] = lambda key_id: None,
) -> Auth:
    """Authenticates for an app that only a gateway reaches: what a request says of itself is believed.

    `models_of` gives the names that a key may ask for, by its id; None for all. `check` raises InvalidApiKey
    for the id of a key that was revoked after it let a connection in.
    """

    def identified(scope: Scope) -> Principal:
        found = principal_from_gateway(partial(header, scope), "")
        models = None if models_of is None else models_of(found.key_id)
        return found if models is None else replace(found, models=models)

    def identified_again(scope: Scope) -> Principal:
        found = identified(scope)
        check(found.key_id)
        return found

    return Auth(app, identified, identified_again)
