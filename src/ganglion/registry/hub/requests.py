"""Requests to a hub: the token goes to no other host, errors are told apart, retries are bounded."""

import email.utils
import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from http.client import HTTPMessage, HTTPResponse
from typing import IO, Final
from urllib.parse import SplitResult, urljoin, urlsplit

from ganglion.core.errors import GanglionError, HubUnreachable, LoadFailed, ModelNotFound
from ganglion.registry.hub.flights import StopSignal

_REDIRECTS: Final = 8
_HINT: Final = "Set HF_TOKEN to a token of an account that may read it"


@dataclass(frozen=True, slots=True)
class HubRetryLimits:
    """How long a hub may be slow or unreachable before a request fails."""

    silence_s: float = 20.0
    slow_bytes: int = 4096
    """Fewer than these in `silence_s` is a stall too, whatever trickles in."""
    attempts: int = 6
    reset_bytes: int = 1 << 20
    """So many new bytes, and the attempts are counted anew: a long download may be cut often."""
    first_wait_s: float = 0.5
    longest_wait_s: float = 60.0
    """Also of what a Retry-After may ask for."""


class TransientHubError(Exception):
    """A failure that is worth another attempt, after `wait_s` where the hub said so."""

    def __init__(self, reason: str, wait_s: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.wait_s = wait_s


class HubRetries:
    """Counts failed attempts, and waits between them."""

    def __init__(self, endpoint: str, patience: HubRetryLimits, stop: StopSignal) -> None:
        self._endpoint = endpoint
        self._patience = patience
        self._stop = stop
        self._failed = 0

    def reset(self) -> None:
        """Start counting again, after progress."""
        self._failed = 0

    def back_off(self, error: TransientHubError) -> None:
        """Wait before the next attempt; raises HubUnreachable when this was the last."""
        self._failed += 1
        if self._failed >= self._patience.attempts:
            raise unreachable(self._endpoint, error.reason) from error
        backoff_s = self._patience.first_wait_s * 2 ** (self._failed - 1)
        self._stop.sleep(min(error.wait_s or backoff_s, self._patience.longest_wait_s))


class HubRequests:
    """Sends single requests to one hub."""

    def __init__(self, endpoint: str, token: str | None, patience: HubRetryLimits) -> None:
        self.endpoint = endpoint.rstrip("/")
        self._token = token
        self._patience = patience
        self._opener = urllib.request.build_opener(_NoRedirects)

    @contextmanager
    def get(self, path: str, repo: str, *, offset: int = 0) -> Generator[HTTPResponse]:
        """The answer to a GET from `offset` on; raises Transient, or the error that says why not."""
        url = f"{self.endpoint}/{path}"
        for _ in range(_REDIRECTS):
            response = self._answer(url, offset, repo)
            with response:
                if not 300 <= response.status < 400:
                    yield response
                    return
                url = urljoin(url, response.headers.get("Location", ""))
        raise TransientHubError(f"it redirected more than {_REDIRECTS} times")

    def _answer(self, url: str, offset: int, repo: str) -> HTTPResponse:
        if urlsplit(url).scheme not in ("http", "https"):
            raise LoadFailed(f"The hub named {url[:200]!r}, which is not an http or https address.")
        headers = {"User-Agent": "ganglion", "Accept-Encoding": "identity"}
        if offset:
            headers["Range"] = f"bytes={offset}-"
        # A token is for the hub alone: it redirects to storage hosts that must not see it.
        is_hub = _origin(urlsplit(url)) == _origin(urlsplit(self.endpoint))
        if self._token and is_hub:
            # Else the library's complaint about the header would carry the token into a message.
            if not (self._token.isascii() and self._token.isprintable()):
                raise LoadFailed("The token in HF_TOKEN holds what no token has.", hint=f"{_HINT}.")
            headers["Authorization"] = f"Bearer {self._token}"
        try:
            request = urllib.request.Request(url, headers=headers)  # noqa: S310 (scheme checked above)
            response: HTTPResponse = self._opener.open(request, timeout=self._patience.silence_s)
        except urllib.error.HTTPError as error:
            with error:
                raise (self._refusal(error, repo) if is_hub else _storage_refusal(error)) from error
        except urllib.error.URLError as error:
            raise TransientHubError(str(error.reason)) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise TransientHubError(f"the connection broke: {error or type(error).__name__}") from error
        return response

    def _refusal(self, error: urllib.error.HTTPError, repo: str) -> GanglionError | TransientHubError:
        code = error.headers.get("X-Error-Code", "")
        if error.code in (408, 416, 429) or error.code >= 500:
            return TransientHubError(f"it answered {error.code} {error.reason}", _wait_s(error.headers))
        if code == "GatedRepo":
            return LoadFailed(
                f"{repo} is gated: the hub gives it only to accounts that accepted its terms.",
                hint=f"Accept them at {self.endpoint}/{repo}. {_HINT}.",
            )
        if error.code == 403 or (error.code == 401 and self._token):
            sent = "the token in HF_TOKEN" if self._token else "a request without a token"
            return LoadFailed(
                f"The hub refuses {repo} to {sent} ({error.code}).",
                hint=f"{_HINT}; this one may be wrong or expired, or lack the right.",
            )
        # Without a token the hub answers 401 for what does not exist as for what is private.
        if error.code in (401, 404):
            return ModelNotFound(repo, hint=_absence(code, self.endpoint, is_token_sent=bool(self._token)))
        return LoadFailed(f"The hub answered {error.code} {error.reason} for {repo}.")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Hands redirects over as they are: the library's own would carry the token along."""

    def _as_is(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage
    ) -> IO[bytes]:
        return fp

    http_error_301 = http_error_302 = http_error_303 = http_error_307 = http_error_308 = _as_is


def unreachable(endpoint: str, reason: str) -> HubUnreachable:
    """The error for a hub whose retries are used up."""
    return HubUnreachable(
        f"The hub at {endpoint} could not be reached: {reason}.",
        hint="Check the network and HF_ENDPOINT; what was fetched so far is kept. "
        "HF_HUB_OFFLINE=1 uses only what is already here.",
    )


def _storage_refusal(error: urllib.error.HTTPError) -> TransientHubError:
    # Links to storage are signed for a while only; the next attempt asks the hub for a fresh one.
    return TransientHubError(f"its storage answered {error.code} {error.reason}", _wait_s(error.headers))


def _absence(code: str, endpoint: str, *, is_token_sent: bool) -> str:
    if code == "RevisionNotFound":
        return f"The repository at {endpoint} has no such revision."
    if code == "EntryNotFound":
        return f"The repository at {endpoint} no longer has the file; ask again."
    hint = f"The hub at {endpoint} has no such repository"
    return f"{hint}." if is_token_sent else f"{hint}, or it is private. {_HINT}."


def _origin(url: SplitResult) -> tuple[str, str | None, int | None]:
    return url.scheme, url.hostname, url.port or {"http": 80, "https": 443}.get(url.scheme)


def _wait_s(headers: Message) -> float | None:
    text = headers.get("Retry-After", "").strip()
    if text.isdecimal():
        return float(text)
    try:
        return max(email.utils.parsedate_to_datetime(text).timestamp() - time.time(), 0.0)
    except ValueError:
        return None
