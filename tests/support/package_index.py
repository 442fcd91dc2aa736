"""A package index on this machine: real sockets, wheels made here, and files that are held back on demand.

with LocalIndex() as index:
    pin = index.add("tiny", "1.0", {"tiny.py": "x = 1"})     # a line for a lock file, with its hash
    index.hold("tiny")                                       # its wheel is not sent before release()
    ...                                                      # pip --index-url {index.url}
"""

import hashlib
import io
import threading
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self
from urllib.parse import unquote

HELD_S = 60.0


def wheel(name: str, version: str, files: Mapping[str, str]) -> bytes:
    """A wheel of pure Python, as small as pip takes one."""
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    texts = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in [*texts, f"{info}/RECORD"])
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for path, text in {**texts, f"{info}/RECORD": record}.items():
            archive.writestr(path, text)
    return packed.getvalue()


class LocalIndex:
    """Serves the simple API for what was added; `sent` names each wheel that was asked for, in order."""

    def __init__(self) -> None:
        self._files: dict[str, dict[str, bytes]] = {}
        self.sent: list[str] = []
        self._held: set[str] = set()
        self._released = threading.Event()
        self.asked_for_held = threading.Event()
        index = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                parts = unquote(self.path).strip("/").split("/")
                body = index._page(parts[1]) if parts[0] == "simple" else index._file(*parts[1:])
                self.send_response(404 if body is None else 200)
                self.send_header("Content-Length", str(len(body or b"")))
                self.send_header("Content-Type", "text/html" if parts[0] == "simple" else "application/zip")
                self.end_headers()
                with suppress(BrokenPipeError):  # whoever waited was killed
                    self.wfile.write(body or b"")

            def log_message(self, *_: object) -> None:
                """Nothing is said."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/simple"

    def add(self, name: str, version: str, files: Mapping[str, str]) -> str:
        """Offer a package; gives its line of a lock file."""
        content = wheel(name, version, files)
        self._files.setdefault(name, {})[f"{name.replace('-', '_')}-{version}-py3-none-any.whl"] = content
        return f"{name}=={version} \\\n    --hash=sha256:{hashlib.sha256(content).hexdigest()}"

    def hold(self, name: str) -> None:
        """Send nothing of this package's wheel before `release`."""
        self._held.add(name)

    def release(self) -> None:
        """Send what was held back."""
        self._released.set()

    def _page(self, name: str) -> bytes | None:
        if name not in self._files:
            return None
        links = "".join(f'<a href="/files/{name}/{file}">{file}</a>' for file in self._files[name])
        return f"<!DOCTYPE html><html><body>{links}</body></html>".encode()

    def _file(self, name: str, file: str) -> bytes | None:
        self.sent.append(name)
        if name in self._held and not self._released.is_set():
            self.asked_for_held.set()
            self._released.wait(HELD_S)
        return self._files[name].get(file)

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
        self._server.shutdown()
        self._server.server_close()
