"""Who may come in: the whole app behind keys, deny by default.

Law: only what PUBLIC lists answers without a key once there is one, and the path judged is `scope["path"]`,
the one the router sees; a URL rebuilt from headers is the client's to forge. What stands in our own headers
is believed of a gateway's key, and of anybody where only a gateway gets in; below this layer there are none.
"""

from collections.abc import Callable
from dataclasses import replace

from starlette.types import ASGIApp, Receive, Scope, Send

from ganglion.core.errors import GanglionError, NotAllowed
from ganglion.server.fleet_membership import Leases
from ganglion.server.middleware.errors import error_response
from ganglion.server.middleware.keys import KeyRing, bearer_key, invalid_key_error
from ganglion.server.middleware.principal import ANONYMOUS, Principal, principal_from_gateway, principal_of
from ganglion.server.middleware.scope import header, principal, route_path, with_principal
from ganglion.wire import headers
from ganglion.wire.dialects import PUBLIC_PATHS

# Law: a route that is neither read-only nor a question to a model is wrapped in `AdminOnly`;
# tests/golden/rights.txt names the right of each.


def require_admin(scope: Scope, deed: str) -> None:
    """Raise NotAllowed unless whoever asks may change the server; `deed` completes "may not"."""
    if not principal(scope).is_admin:
        raise NotAllowed(
            f"This key may not {deed}.", hint="It takes an admin's key: one of server.admin_keys."
        )


class AdminOnly:
    """An endpoint for admins; others are refused before their body is read."""

    def __init__(self, app: ASGIApp, deed: str) -> None:
        self._app = app
        self._deed = deed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        require_admin(scope, self._deed)
        await self._app(scope, receive, send)


Identify = Callable[[Scope], Principal]
"""Says whose a request is; raises why it may not come in."""

PUBLIC_ROUTES = frozenset((method, path) for method in ("GET", "HEAD") for path in PUBLIC_PATHS)


class Auth:
    """Lets a request through when it brings one of the keys, and no lease that is not held."""

    def __init__(self, app: ASGIApp, keys: KeyRing, leases: Leases | None = None) -> None:
        self._app = app
        self._keys = keys
        self._leases = leases or Leases()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await _authenticate(self._app, (self._judged, self._judged), scope, receive, send)

    def _judged(self, scope: Scope) -> Principal:
        key = presented_key(scope)
        holder = self._keys.holder_of(key)
        if holder is None:
            if scope["type"] == "http" and (scope["method"], route_path(scope)) in PUBLIC_ROUTES:
                return ANONYMOUS
            raise invalid_key_error(key)
        if scope["type"] == "websocket" or scope["method"] not in ("GET", "HEAD"):
            # Believed of anybody: all that it can do is to have its own request refused.
            self._leases.check(header(scope, headers.EPOCH))
        return principal_of(holder, lambda name: header(scope, name))


class TrustedIdentity:
    """Stands where only a gateway gets in, as behind its own socket: there is no key, and all is believed.

    `models_of` says which names a key may ask for, by its id; None for all. `check` raises InvalidApiKey for
    the id of a key that was revoked after it let a connection in.
    """

    def __init__(
        self,
        app: ASGIApp,
        models_of: Callable[[str], frozenset[str] | None] | None = None,
        check: Callable[[str], object] = lambda key_id: None,
    ) -> None:
        self._app = app
        self._models_of = models_of
        self._check = check

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await _authenticate(self._app, (self._judged, self._judged_again), scope, receive, send)

    def _judged_again(self, scope: Scope) -> Principal:
        visit = self._judged(scope)
        self._check(visit.key_id)
        return visit

    def _judged(self, scope: Scope) -> Principal:
        visit = principal_from_gateway(lambda name: header(scope, name), "")
        models = None if self._models_of is None else self._models_of(visit.key_id)
        return visit if models is None else replace(visit, models=models)


def presented_key(scope: Scope) -> bytes | None:
    """The key that a request brings."""
    key = bearer_key(header(scope, b"authorization"))
    return header(scope, headers.API_KEY) if key is None else key


async def _authenticate(
    app: ASGIApp, judges: tuple[Identify, Identify], scope: Scope, receive: Receive, send: Send
) -> None:
    """Hand a request on as the first judges it, or tell why it may not come in.

    The second judges it again, as often as somebody asks who is still connected.
    """
    judged, judged_again = judges
    if scope["type"] == "lifespan":
        await app(scope, receive, send)
        return
    try:
        visit = judged(scope)
    except GanglionError as error:
        await error_response(error, scope)(scope, receive, send)
        return
    await app(with_principal(scope, visit, lambda: judged_again(scope)), receive, send)
