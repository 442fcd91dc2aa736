"""A hub on this machine: real sockets, the protocol that huggingface_hub speaks, and faults on demand.

    with HubServer() as hub:
        commit = hub.add("org/repo", {"model-Q4_K_M.gguf": content})
        hub.fail(Fault("cdn", cut_after=1000))
        ...                                     # HF_ENDPOINT=hub.url

Large files are answered with a redirect to a second server, the CDN, as the real hub does; `hub.seen` holds
every request that came.
"""

import hashlib
import json
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Literal, Self
from urllib.parse import parse_qs, quote, unquote, urlsplit

Part = Literal["api", "resolve", "cdn"]
PIECE_BYTES = 1 << 16


@dataclass(frozen=True)
class Fault:
    """What goes wrong with one answer of a part of the hub, or with the next `times` ones."""

    on: Part
    times: int = 1
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    cut_after: int | None = None
    """Body bytes after which the connection ends."""
    stall_after: int | None = None
    """Body bytes after which nothing comes, while the connection stays."""
    flip: int | None = None
    """Which byte of the file is sent wrong."""
    pause_s: float = 0.0
    """Before each piece of the body."""
    piece_bytes: int = PIECE_BYTES
    ignores_range: bool = False


@dataclass(frozen=True)
class Seen:
    """One request that came."""

    part: Part
    method: str
    path: str
    range_from: int
    authorization: str | None


@dataclass
class Repo:
    """A repository at its one commit."""

    files: dict[str, bytes]
    commit: str
    is_lfs: bool
    token: str | None = None
    is_gated: bool = False
    sizes: dict[str, int] = field(default_factory=dict)
    """What the listing claims instead of the truth."""


class HubServer:
    """The hub and its CDN, from `with` to its end."""

    def __init__(self) -> None:
        self._repos: dict[str, Repo] = {}
        self._blobs: dict[str, bytes] = {}
        self._faults: list[tuple[Fault, list[int]]] = []
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self.seen: list[Seen] = []
        self.sent: dict[str, int] = {}
        """Body bytes that left the CDN, by digest."""

    def __enter__(self) -> Self:
        self._servers = [_Server(self, is_cdn=False), _Server(self, is_cdn=True)]
        self._threads = [
            threading.Thread(target=server.serve_forever, args=(0.02,)) for server in self._servers
        ]
        for thread in self._threads:
            thread.start()
        # Another host by name as well as by port.
        self.url = f"http://127.0.0.1:{self._servers[0].server_port}"
        self.cdn = f"http://localhost:{self._servers[1].server_port}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        for server, thread in zip(self._servers, self._threads, strict=True):
            server.shutdown()
            thread.join()
            server.server_close()

    def add(
        self,
        repo: str,
        files: dict[str, bytes],
        *,
        is_lfs: bool = True,
        token: str | None = None,
        is_gated: bool = False,
        sizes: dict[str, int] | None = None,
    ) -> str:
        """Publish files under `main` and give the commit."""
        commit = hashlib.sha1(
            repr(sorted((path, digest(data, True)) for path, data in files.items())).encode()
        )
        self._repos[repo] = Repo(files, commit.hexdigest(), is_lfs, token, is_gated, sizes or {})
        self._blobs |= {digest(data, is_lfs): data for data in files.values()}
        return commit.hexdigest()

    def fail(self, *faults: Fault) -> None:
        """Let the next answers go wrong, in this order for each part."""
        with self._lock:
            self._faults += [(fault, [fault.times]) for fault in faults]

    def heal(self) -> None:
        """Forget all faults that have not come yet."""
        with self._lock:
            self._faults.clear()

    def gets(self, part: Part) -> list[Seen]:
        return [seen for seen in self.seen if seen.part == part and seen.method == "GET"]

    def take_fault(self, part: Part) -> Fault:
        with self._lock:
            for entry in self._faults:
                fault, left = entry
                if fault.on == part:
                    left[0] -= 1
                    if left[0] == 0:
                        self._faults.remove(entry)
                    return fault
        return Fault(part)

    def note(self, seen: Seen) -> None:
        with self._lock:
            self.seen.append(seen)

    def note_sent(self, name: str, count: int) -> None:
        with self._lock:
            self.sent[name] = self.sent.get(name, 0) + count

    def repo_at(self, path: str) -> tuple[Repo, str] | None:
        """The repository that a path begins with, and the rest of the path."""
        name = "/".join(path.split("/")[:2])
        return (self._repos[name], path[len(name) + 1 :]) if name in self._repos else None

    def blob(self, name: str) -> bytes | None:
        return self._blobs.get(name)

    def wait_closing(self, duration_s: float) -> None:
        self._closing.wait(duration_s)


def digest(data: bytes, is_lfs: bool) -> str:
    """What the hub calls a file by: SHA-256, or git's name for what is not in LFS."""
    return (
        hashlib.sha256(data).hexdigest()
        if is_lfs
        else hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    )


class _Server(ThreadingHTTPServer):
    request_queue_size = 128

    def __init__(self, hub: HubServer, *, is_cdn: bool) -> None:
        self.hub = hub
        self.is_cdn = is_cdn
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # clients that are killed are what the tests are about


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._handle()

    def do_GET(self) -> None:
        self._handle()

    def _handle(self) -> None:
        self.close_connection = True
        path = unquote(urlsplit(self.path).path).strip("/")
        part: Part = "cdn" if self.server.is_cdn else "api" if path.startswith("api/models/") else "resolve"
        start = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").split("-")[0]
        seen = Seen(part, self.command, path, int(start), self.headers.get("Authorization"))
        self.server.hub.note(seen)
        fault = self.server.hub.take_fault(part)
        if fault.status is not None:
            return self._answer(fault.status, dict(fault.headers), b"")
        if part == "cdn":
            data = self.server.hub.blob(path)
            return (
                self._send_file(path, data, seen, fault, {})
                if data is not None
                else self._answer(404, {}, b"")
            )
        return self._hub(part, path, seen, fault)

    def _hub(self, part: Part, path: str, seen: Seen, fault: Fault) -> None:
        found = self.server.hub.repo_at(path.removeprefix("api/models/"))
        if found is None:
            is_known = seen.authorization is not None
            return self._answer(404 if is_known else 401, {"X-Error-Code": "RepoNotFound"}, b"")
        repo, rest = found
        if repo.token and seen.authorization is None:
            return self._answer(401, {"X-Error-Code": "RepoNotFound"}, b"")
        if repo.token and seen.authorization != f"Bearer {repo.token}":
            message = "Invalid credentials in Authorization header"
            return self._answer(401, {"X-Error-Message": message}, b"")
        if part == "api":
            return self._api(repo, rest, fault)
        if repo.is_gated:
            status = 403 if seen.authorization else 401
            return self._answer(status, {"X-Error-Code": "GatedRepo"}, b"")
        return self._resolve(repo, rest, seen, fault)

    def _api(self, repo: Repo, rest: str, fault: Fault) -> None:
        has_blobs = parse_qs(urlsplit(self.path).query).get("blobs", ["false"])[0].lower() == "true"
        kind, _, revision = rest.partition("/")
        if kind == "tree":
            return self._json([_tree(repo, path) for path in repo.files], fault)
        if kind == "revision" and revision not in ("main", repo.commit):
            return self._answer(404, {"X-Error-Code": "RevisionNotFound"}, b"")
        siblings = [_sibling(repo, path, has_blobs) for path in repo.files]
        return self._json({"id": "org/repo", "sha": repo.commit, "siblings": siblings}, fault)

    def _resolve(self, repo: Repo, rest: str, seen: Seen, fault: Fault) -> None:
        _, _, tail = rest.partition("/")
        revision, _, name = tail.partition("/")
        if revision not in ("main", repo.commit):
            return self._answer(404, {"X-Error-Code": "RevisionNotFound"}, b"")
        if name not in repo.files:
            return self._answer(404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": repo.commit}, b"")
        data = repo.files[name]
        etag = digest(data, repo.is_lfs)
        headers = {"X-Repo-Commit": repo.commit, "ETag": f'"{etag}"'}
        if not repo.is_lfs:
            return self._send_file(etag, data, seen, fault, headers)
        headers |= {"X-Linked-Etag": f'"{etag}"', "X-Linked-Size": str(len(data))}
        return self._answer(302, {**headers, "Location": f"{self.server.hub.cdn}/{quote(etag)}"}, b"")

    def _json(self, value: object, fault: Fault) -> None:
        body = json.dumps(value).encode()
        self._answer(200, {"Content-Type": "application/json"}, body, fault)

    def _send_file(self, name: str, data: bytes, seen: Seen, fault: Fault, headers: dict[str, str]) -> None:
        if fault.flip is not None:
            data = data[: fault.flip] + bytes([data[fault.flip] ^ 1]) + data[fault.flip + 1 :]
        start = 0 if fault.ignores_range else seen.range_from
        if start and start >= len(data):
            return self._answer(416, {}, b"")
        headers = {"ETag": f'"{name}"', "Accept-Ranges": "bytes", **headers}
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        self._answer(206 if start else 200, headers, data[start:], fault, name)
        return None

    def _answer(
        self,
        status: int,
        headers: dict[str, str],
        body: bytes,
        fault: Fault | None = None,
        name: str | None = None,
    ) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        with suppress(OSError):
            self._send(memoryview(body), fault or Fault("api"), name)

    def _send(self, body: memoryview, fault: Fault, name: str | None) -> None:
        last = min(
            len(body),
            *(limit for limit in (fault.cut_after, fault.stall_after) if limit is not None),
            1 << 62,
        )
        for at in range(0, last, fault.piece_bytes):
            if fault.pause_s:
                time.sleep(fault.pause_s)
            piece = body[at : min(at + fault.piece_bytes, last)]
            self.wfile.write(piece)
            if name is not None:
                self.server.hub.note_sent(name, len(piece))
        if fault.stall_after is not None:
            self.server.hub.wait_closing(30)


def _sibling(repo: Repo, path: str, has_blobs: bool) -> dict[str, object]:
    if not has_blobs:
        return {"rfilename": path}
    data = repo.files[path]
    size = repo.sizes.get(path, len(data))
    sibling: dict[str, object] = {"rfilename": path, "size": size, "blobId": digest(data, False)}
    if repo.is_lfs:
        sibling["lfs"] = {"sha256": digest(data, True), "size": size, "pointerSize": 134}
    return sibling


def _tree(repo: Repo, path: str) -> dict[str, object]:
    data = repo.files[path]
    entry: dict[str, object] = {"type": "file", "path": path, "size": len(data), "oid": digest(data, False)}
    if repo.is_lfs:
        entry["lfs"] = {"oid": digest(data, True), "size": len(data), "pointerSize": 134}
    return entry
