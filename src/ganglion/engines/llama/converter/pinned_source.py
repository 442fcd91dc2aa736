"""llama.cpp's converter, out of the source of the very version that we run.

The source distribution of the package that brings the library holds it: 2 MB of 37. pip cannot be asked for
that: it builds what it downloads, to learn the name that was just asked for.

Law: nothing is unpacked before the SHA-256 of the archive was right, and no name in it leads elsewhere.
"""

import base64
import hashlib
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from html import unescape
from http.client import HTTPException
from pathlib import Path
from typing import IO, Final
from urllib.parse import SplitResult, unquote, urljoin, urlsplit, urlunsplit

from ganglion.core.errors import EngineUnavailable, StorageFull

DISTRIBUTION: Final = "xllamacpp"
VERSION: Final = "2026.10.11549"
_SHA256: Final = "c17ee1163006f70726abb9f72137830818f3d8cb60bfc34cb232d08428eaa22b"
_SIZE_BYTES: Final = 37_722_765
_PARTS: Final = ("convert_hf_to_gguf.py", "conversion/", "gguf-py/gguf/")
_INSIDE: Final = "/thirdparty/llama.cpp/"
_INDEX: Final = "https://pypi.org/simple"
_PAGE_LIMIT: Final = 8 << 20
_CHUNK_BYTES: Final = 1 << 18
_TIMEOUT_S: Final = 60.0
_HINT: Final = "It is fetched from the package index that pip is configured with; check the network."

Report = Callable[[int, int], None]


def converter_script(cache: Path, report: Report, check: Callable[[], None]) -> Path:
    """The converter, fetched the first time; `check` is asked meanwhile and may raise to stop it.

    Raises EngineUnavailable, StorageFull.
    """
    place = cache / f"converter-{VERSION}"
    script = place / _PARTS[0]
    if script.is_file():
        return script
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix=".converter-") as folder:
        archive = Path(folder) / "source.tar.gz"
        _download(archive, report, check)
        unpacked = Path(folder) / "source"
        _unpack(archive, unpacked)
        try:
            unpacked.replace(place)
        except OSError:
            if not script.is_file():  # another process was faster
                raise
    return script


def _download(archive: Path, report: Report, check: Callable[[], None]) -> None:
    digest, done = hashlib.sha256(), 0
    try:
        with _opened(_address()) as response, archive.open("wb") as file:
            while done <= _SIZE_BYTES and (chunk := response.read(_CHUNK_BYTES)):
                check()
                digest.update(chunk)
                done += len(chunk)
                file.write(chunk)
                report(done, _SIZE_BYTES)
    except (urllib.error.URLError, HTTPException, TimeoutError) as error:
        raise _unreachable(str(getattr(error, "reason", error))) from error
    except OSError as error:
        reason = error.strerror or error
        raise StorageFull(f"The converter could not be kept in {archive.parent}: {reason}.") from error
    if digest.hexdigest() != _SHA256:
        raise _unreachable(f"its source has SHA-256 {digest.hexdigest()}, expected {_SHA256}")


def _unpack(archive: Path, target: Path) -> None:
    """The converter's own files alone."""
    with tarfile.open(archive, "r:gz") as tar:
        for member in tar:
            _, _, name = member.name.partition(_INSIDE)
            if member.isfile() and name.startswith(_PARTS) and ".." not in Path(name).parts:
                content = tar.extractfile(member)
                assert content is not None
                file = target / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content.read())


def _address() -> str:
    """Where the archive lies, as the index says."""
    page = f"{_index().rstrip('/')}/{DISTRIBUTION}/"
    with _opened(page) as response:
        text = response.read(_PAGE_LIMIT).decode("utf-8", "replace")
    name = f"{DISTRIBUTION}-{VERSION}.tar.gz"
    for link in re.findall(r"""href=["']([^"']+)["']""", text):
        address = urljoin(page, unescape(link)).partition("#")[0]
        if address.rpartition("/")[2] == name:
            return _with_login(address, page)
    raise _unreachable(f"the index has no {name}")


def _index() -> str:
    """The package index, as pip is configured."""
    named = os.environ.get("PIP_INDEX_URL")
    if named:
        return named
    command = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    found = subprocess.run(command, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return found.stdout.strip() or _INDEX


def _with_login(address: str, page: str) -> str:
    """An address on the index's own host with the index's login: a page does not repeat it in its links."""
    there, login = urlsplit(address), urlsplit(page)
    if there.hostname != login.hostname or login.username is None or there.username is not None:
        return address
    return urlunsplit(there._replace(netloc=login.netloc))


def _opened(address: str) -> IO[bytes]:
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https"):
        raise _unreachable("the index is no http or https address")
    host = parts.netloc.rpartition("@")[2]
    bare = urlunsplit(parts._replace(netloc=host))
    headers = {"User-Agent": "ganglion", "Accept": "text/html, */*"}
    request = urllib.request.Request(bare, headers=headers)  # noqa: S310 (scheme checked above)
    if parts.username is not None:
        request.add_unredirected_header("Authorization", f"Basic {_login(parts)}")
    try:
        response: IO[bytes] = urllib.request.urlopen(request, timeout=_TIMEOUT_S)  # noqa: S310
    except urllib.error.HTTPError as error:
        with error:
            raise _unreachable(f"{host} answered {error.code}") from error
    return response


def _login(parts: SplitResult) -> str:
    text = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
    return base64.b64encode(text.encode()).decode()


def _unreachable(reason: str) -> EngineUnavailable:
    return EngineUnavailable(f"llama.cpp's converter could not be fetched: {reason}.", hint=_HINT)
