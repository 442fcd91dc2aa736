"""What takes more than a key that may ask: whatever changes which models a server holds takes an admin's.

Law: a route that is neither read-only nor a question to a model is wrapped in `AdminOnly`;
tests/golden/rights.txt names the right of each.
"""

from starlette.types import ASGIApp, Receive, Scope, Send

from ganglion.core.errors import NotAllowed
from ganglion.server.scope import visit


def require_admin(scope: Scope, deed: str) -> None:
    """Raise NotAllowed unless whoever asks may change the server; `deed` completes "may not"."""
    if not visit(scope).is_admin:
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
