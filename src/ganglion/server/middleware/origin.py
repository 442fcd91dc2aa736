"""Protection from web pages: the Host header against DNS rebinding, Origin and CORS for foreign pages.

Law: on a loopback bind the Host header names a loopback address; and whatever a browser sends, a GET too, to
anything but a public page comes from our own pages or a configured origin, or was typed by its user.
"""

from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ganglion.core.errors import NotAllowed
from ganglion.server.bind import is_loopback
from ganglion.server.middleware.auth import PUBLIC_ROUTES
from ganglion.server.middleware.errors import error_response
from ganglion.server.middleware.scope import header, route_path

_OURS = frozenset({b"same-origin", b"none"})
"""Values of Sec-Fetch-Site: our own page, and what a user typed or chose."""
_LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")
"""Most requests name one of these, and are spared the parsing of an address."""
_EXPOSED = b"x-request-id, request-id, retry-after"
_PREFLIGHT_MAX_AGE_S = "600"


class OriginRules:
    """Checks the Host, the Origin and the Sec-Fetch-Site of a request."""

    def __init__(
        self,
        *,
        is_loopback_bind: bool,
        allowed_hosts: Sequence[str] = (),
        cors_origins: Sequence[str] = (),
    ) -> None:
        self._is_loopback_bind = is_loopback_bind
        self._allowed_hosts = frozenset((*_LOOPBACK_HOSTS, *(host.lower() for host in allowed_hosts)))
        self.cors_origins = frozenset(origin.lower().rstrip("/") for origin in cors_origins)

    def refusal(
        self, hosts: list[bytes], origins: list[bytes], sites: list[bytes], *, is_public: bool
    ) -> NotAllowed | None:
        """Why a request is refused; `sites` are its values of Sec-Fetch-Site.

        `is_public` says that it reads a page which anybody may see, and which any page may link to.
        """
        if self._is_loopback_bind and not (len(hosts) == 1 and self._is_known_host(hosts[0])):
            return NotAllowed("The Host header does not name this machine.", hint="Call it by 127.0.0.1.")
        if is_public or self._is_from_our_page(hosts, origins, sites):
            return None
        return NotAllowed(
            "Pages of this origin may not call this server.", hint="Add it to the configured CORS origins."
        )

    def _is_from_our_page(self, hosts: list[bytes], origins: list[bytes], sites: list[bytes]) -> bool:
        """Whether no other page sent it, as far as a browser says; other clients say nothing."""
        if "*" in self.cors_origins or (len(origins) == 1 and self.is_configured(origins[0])):
            return True
        # An image or a link brings no Origin. Another port of this machine is `same-site`, and foreign too.
        if any(site.lower() not in _OURS for site in sites):
            return False
        return not origins or (len(origins) == 1 and _is_same(origins[0], hosts))

    def is_configured(self, origin: bytes) -> bool:
        """Whether pages of this origin may read answers."""
        return "*" in self.cors_origins or origin.decode("latin-1").lower() in self.cors_origins

    def _is_known_host(self, value: bytes) -> bool:
        host = _host_of(f"//{value.decode('latin-1')}")
        return host is not None and (host in self._allowed_hosts or is_loopback(host))


class OriginGuard:
    """Refuses foreign hosts and pages, and answers configured origins with CORS headers."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        is_loopback_bind: bool,
        allowed_hosts: Sequence[str] = (),
        cors_origins: Sequence[str] = (),
    ) -> None:
        self._app = app
        self._rules = OriginRules(
            is_loopback_bind=is_loopback_bind, allowed_hosts=allowed_hosts, cors_origins=cors_origins
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        is_public = scope["type"] == "http" and (scope["method"], route_path(scope)) in PUBLIC_ROUTES
        refusal = self._rules.refusal(
            _header_values(scope, b"host"),
            _header_values(scope, b"origin"),
            _header_values(scope, b"sec-fetch-site"),
            is_public=is_public,
        )
        if refusal is not None:
            await error_response(refusal, scope)(scope, receive, send)
            return
        origin = header(scope, b"origin")
        if scope["type"] == "websocket" or origin is None or not self._rules.is_configured(origin):
            await self._app(scope, receive, send)
        elif scope["method"] == "OPTIONS" and header(scope, b"access-control-request-method"):
            await _preflight(scope, origin)(scope, receive, send)
        else:
            await self._app(scope, receive, _with_cors(send, origin))


def _header_values(scope: Scope, name: bytes) -> list[bytes]:
    return [value for key, value in scope["headers"] if key == name]


def _host_of(url: str) -> str | None:
    """The host of a URL that holds only a host and maybe a port; None for any other."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return None
    is_bare = not (parts.path or parts.query or parts.fragment or "@" in parts.netloc)
    return parts.hostname if is_bare else None


def _is_same(origin: bytes, hosts: list[bytes]) -> bool:
    scheme, _, authority = origin.lower().partition(b"://")
    return scheme in (b"http", b"https") and len(hosts) == 1 and authority == hosts[0].lower()


def _preflight(scope: Scope, origin: bytes) -> Response:
    requested = header(scope, b"access-control-request-headers") or b""
    headers = {
        "access-control-allow-origin": origin.decode("latin-1"),
        "access-control-allow-methods": "GET, HEAD, POST, DELETE",
        "access-control-allow-headers": requested.decode("latin-1"),
        "access-control-max-age": _PREFLIGHT_MAX_AGE_S,
        "vary": "origin, access-control-request-headers",
    }
    return Response(status_code=204, headers=headers)


def _with_cors(send: Send, origin: bytes) -> Send:
    async def with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            cors = [
                (b"access-control-allow-origin", origin),
                (b"access-control-expose-headers", _EXPOSED),
                (b"vary", b"origin"),
            ]
            message = {**message, "headers": [*message.get("headers", ()), *cors]}
        await send(message)

    return with_headers
