"""Models from a hub: found, fetched once, resumed, verified, and refused in words."""

import hashlib
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ganglion.core.errors import GanglionError, HubUnreachable, LoadFailed, ModelNotFound, StorageFull
from ganglion.registry.files.receipts import Receipts
from ganglion.registry.hub.client import Hub, split_name
from ganglion.registry.hub.environment import cache_folder
from ganglion.registry.hub.flights import FlightCancelled
from ganglion.registry.hub.listing import HubFiles
from ganglion.registry.hub.requests import HubRetryLimits
from support.hub_server import Fault, HubServer, digest
from support.waiting import wait_until

REPO = "org/tiny-GGUF"
FILE = "tiny-Q4_K_M.gguf"
CONTENT = random.Random(0).randbytes(600_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
QUICK = HubRetryLimits(silence_s=0.4, attempts=3, first_wait_s=0.01, longest_wait_s=0.3, reset_bytes=100_000)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    with HubServer() as hub:
        yield hub


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "hf" / "hub"


MakeHub = Callable[..., Hub]


@pytest.fixture
def make_hub(server: HubServer, cache: Path, tmp_path: Path) -> MakeHub:
    def make(
        token: str | None = None,
        is_offline: bool = False,
        endpoint: str | None = None,
        patience: HubRetryLimits = QUICK,
    ) -> Hub:
        receipts = Receipts(tmp_path / "home" / "cache" / "receipts.json")
        return Hub(endpoint or server.url, token, cache, is_offline, receipts=receipts, patience=patience)

    return make


@pytest.fixture
def hub(make_hub: MakeHub, server: HubServer) -> Hub:
    server.add(REPO, {FILE: CONTENT, "README.md": b"hello"})
    return make_hub()


def pull(hub: Hub, quant: str | None = None, repo: str = REPO) -> Path:
    return hub.fetch(hub.find(repo, quant), lambda done, total: None, lambda: False)


def bad_files(cache: Path) -> list[Path]:
    """Files under a final name whose bytes are not what the name promises."""
    blobs = [path for path in cache.glob("models--*/blobs/*") if not path.name.endswith(".incomplete")]
    wrong = [path for path in blobs if digest(path.read_bytes(), len(path.name) == 64) != path.name]
    return wrong + [path for path in cache.glob("models--*/snapshots/*/**/*") if not path.exists()]


def test_a_model_is_found_fetched_and_found_again(hub: Hub, server: HubServer, cache: Path) -> None:
    reports: list[tuple[int, int]] = []
    files = hub.find(REPO, None)
    assert (files.quant, files.size_bytes, files.is_cached) == ("Q4_K_M", len(CONTENT), False)
    assert [(file.path, file.sha256) for file in files.files] == [(FILE, SHA256)]
    path = hub.fetch(files, lambda done, total: reports.append((done, total)), lambda: False)
    folder = cache / "models--org--tiny-GGUF"
    assert path == folder / "snapshots" / files.commit / FILE
    assert path.read_bytes() == CONTENT
    assert path.readlink() == Path("../../blobs") / SHA256
    assert (folder / "refs" / "main").read_text() == files.commit
    assert [file.name for file in (folder / "blobs").iterdir()] == [SHA256]
    assert reports[-1] == (len(CONTENT), len(CONTENT))
    assert hub.find(REPO, "q4_k_m").is_cached
    assert pull(hub) == path
    assert len(server.gets("cdn")) == 1


def test_huggingface_hub_finds_what_was_fetched_and_its_downloads_are_found(
    hub: Hub, make_hub: MakeHub, server: HubServer, cache: Path
) -> None:
    from huggingface_hub import HfApi, close_session, scan_cache_dir

    api = HfApi(endpoint=server.url, token=False)
    try:
        path = pull(hub)
        assert api.hf_hub_download(REPO, FILE, cache_dir=cache, local_files_only=True) == str(path)
        assert [repo.repo_id for repo in scan_cache_dir(cache).repos] == [REPO]
        assert len(server.gets("cdn")) == 1

        server.add("org/other", {"other-Q8_0.gguf": CONTENT[:5000]})
        theirs = api.hf_hub_download("org/other", "other-Q8_0.gguf", cache_dir=cache)
        assert hub.find("org/other", None).is_cached
        assert str(pull(hub, repo="org/other")) == theirs
        assert str(pull(make_hub(is_offline=True), repo="org/other")) == theirs
        assert len(server.gets("cdn")) == 2
    finally:
        close_session()


def test_a_file_that_git_holds_itself_is_verified_too(
    make_hub: MakeHub, server: HubServer, cache: Path
) -> None:
    server.add(REPO, {FILE: CONTENT[:100_000]}, is_lfs=False)
    server.fail(Fault("resolve", flip=77))
    with pytest.raises(LoadFailed, match="git SHA-1"):
        pull(make_hub())
    assert not bad_files(cache)
    assert pull(make_hub()).read_bytes() == CONTENT[:100_000]


def test_parts_come_together_and_have_no_name_before_all_are_there(
    make_hub: MakeHub, server: HubServer, cache: Path
) -> None:
    parts = {f"big-Q4_0-0000{part}-of-00003.gguf": CONTENT[: part * 50_000] for part in (1, 2, 3)}
    server.add(REPO, {**parts, "imatrix.gguf": b"statistics"})
    hub = make_hub()
    files = hub.find(REPO, None)
    assert [file.path for file in files.files] == sorted(parts)
    server.fail(Fault("cdn"), Fault("cdn", times=QUICK.attempts, status=503))
    reports: list[tuple[int, int]] = []
    with pytest.raises(HubUnreachable, match="503"):
        hub.fetch(files, lambda done, total: reports.append((done, total)), lambda: False)
    assert not list(cache.glob("models--*/snapshots/*/*"))
    first = hub.fetch(files, lambda done, total: reports.append((done, total)), lambda: False)
    assert [(first.parent / name).read_bytes() for name in sorted(parts)] == list(parts.values())
    assert {total for _, total in reports} == {300_000}
    assert reports[-1] == (300_000, 300_000)


@pytest.mark.parametrize(
    "fault",
    [
        Fault("cdn", cut_after=0),
        Fault("cdn", cut_after=250_001),
        Fault("cdn", stall_after=123_456),
        Fault("cdn", pause_s=0.1, piece_bytes=100),
        Fault("cdn", status=500),
        Fault("cdn", status=200),
        Fault("cdn", status=403),
        Fault("cdn", status=302, headers={"Location": "/cdn/loop"}),
        Fault("resolve", status=503),
        Fault("resolve", status=429, headers={"Retry-After": "0"}),
        Fault("api", status=502),
        Fault("api", cut_after=20),
        Fault("api", stall_after=10),
    ],
    ids=lambda fault: f"{fault.on} {fault.status or ''}{fault.cut_after or ''}{fault.stall_after or ''}",
)
def test_a_fault_that_passes_costs_a_retry_and_not_the_file(
    fault: Fault, hub: Hub, server: HubServer, cache: Path
) -> None:
    server.fail(fault)
    assert pull(hub).read_bytes() == CONTENT
    assert not bad_files(cache)
    assert server.sent[SHA256] <= len(CONTENT) + (fault.on == "cdn") * 70_000


def test_a_download_that_is_cut_again_and_again_goes_on_where_it_was(hub: Hub, server: HubServer) -> None:
    server.fail(Fault("cdn", times=-1, cut_after=110_000))
    assert pull(hub).read_bytes() == CONTENT
    assert [seen.range_from for seen in server.gets("cdn")] == list(range(0, len(CONTENT), 110_000))
    assert server.sent[SHA256] == len(CONTENT)


@pytest.mark.parametrize(
    "fault",
    [
        Fault("api", times=-1, status=500),
        Fault("resolve", times=-1, status=429, headers={"Retry-After": "86400"}),
        Fault("cdn", times=-1, status=503),
        Fault("cdn", times=-1, cut_after=10),
        Fault("cdn", times=-1, stall_after=10),
        Fault("cdn", times=-1, ignores_range=True, cut_after=200_000),
    ],
    ids=lambda fault: f"{fault.on} {fault.status or ''}{fault.cut_after or ''}{fault.stall_after or ''}",
)
def test_a_fault_that_stays_is_an_unreachable_hub_after_a_few_attempts(
    fault: Fault, hub: Hub, server: HubServer, cache: Path
) -> None:
    server.fail(fault)
    started = time.monotonic()
    with pytest.raises(HubUnreachable) as raised:
        pull(hub)
    assert time.monotonic() - started < 10
    assert "HF_ENDPOINT" in (raised.value.hint or "")
    assert len(server.gets(fault.on)) <= 2 * QUICK.attempts
    assert not bad_files(cache)
    server.heal()
    assert pull(hub).read_bytes() == CONTENT


def test_a_repository_that_was_renamed_is_followed_and_a_circle_is_not(hub: Hub, server: HubServer) -> None:
    there = f"/api/models/{REPO}/revision/main?blobs=true"
    file = f"/{REPO}/resolve/main/{FILE}"
    server.fail(Fault("api", status=307, headers={"Location": there}))
    server.fail(Fault("resolve", status=307, headers={"Location": file}))
    assert pull(hub, repo="org/older-name").read_bytes() == CONTENT
    server.fail(Fault("api", times=-1, status=307, headers={"Location": there}))
    with pytest.raises(HubUnreachable, match="redirected"):
        pull(hub, repo="org/circle")
    server.heal()
    server.fail(Fault("api", status=302, headers={"Location": "file:///etc/passwd"}))
    with pytest.raises(LoadFailed, match="not an http"):
        pull(hub, repo="org/elsewhere")


@pytest.mark.parametrize("body", [b"", b"<html>log in</html>", b"[]", b'{"sha": 1}'])
def test_what_answers_but_is_no_hub_is_an_unreachable_one(body: bytes, tmp_path: Path) -> None:
    class Portal(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

    with ThreadingHTTPServer(("127.0.0.1", 0), Portal) as portal:
        thread = threading.Thread(target=portal.serve_forever, args=(0.02,))
        thread.start()
        url = f"http://127.0.0.1:{portal.server_port}"
        hub = Hub(url, None, tmp_path, False, receipts=Receipts(tmp_path / "receipts.json"), patience=QUICK)
        with pytest.raises(HubUnreachable, match="no repository's listing"):
            hub.find(REPO, None)
        portal.shutdown()
        thread.join()


def test_how_long_a_hub_asks_us_to_wait_is_honoured_up_to_a_limit(
    make_hub: MakeHub, server: HubServer
) -> None:
    server.add(REPO, {FILE: CONTENT})
    hub = make_hub(patience=HubRetryLimits(first_wait_s=0.0, longest_wait_s=1.2))
    server.fail(Fault("cdn", status=429, headers={"Retry-After": "1"}))
    started = time.monotonic()
    pull(hub)
    assert 1.0 <= time.monotonic() - started < 5
    server.add(REPO, {FILE: CONTENT[1:]})
    server.fail(Fault("cdn", status=429, headers={"Retry-After": "Wed, 01 Jan 2098 00:00:00 GMT"}))
    started = time.monotonic()
    pull(hub)
    assert 1.2 <= time.monotonic() - started < 5


def test_a_hub_that_is_not_there_is_unreachable_and_the_cache_is_used_instead(
    hub: Hub, make_hub: MakeHub
) -> None:
    away = make_hub(endpoint="http://127.0.0.1:9")
    with pytest.raises(HubUnreachable, match=r"127\.0\.0\.1:9"):
        away.find(REPO, None)
    path = pull(hub)
    assert pull(away) == path
    with pytest.raises(HubUnreachable):
        away.find(REPO, "Q8_0")


def test_wrong_bytes_are_refused_and_nothing_of_them_is_kept(
    hub: Hub, server: HubServer, cache: Path
) -> None:
    server.fail(Fault("cdn", flip=300_000))
    with pytest.raises(LoadFailed, match=SHA256) as raised:
        pull(hub)
    assert raised.value.code == "load_failed"
    assert [path for path in cache.rglob("*") if path.is_file() and path.suffix != ".lock"] == []
    assert pull(hub).read_bytes() == CONTENT


def test_a_bad_beginning_is_found_out_and_fetched_anew(hub: Hub, server: HubServer, cache: Path) -> None:
    partial = cache / "models--org--tiny-GGUF" / "blobs" / f"{SHA256}.incomplete"
    partial.parent.mkdir(parents=True)
    partial.write_bytes(b"\0" * 250_000)
    assert pull(hub).read_bytes() == CONTENT
    assert [seen.range_from for seen in server.gets("cdn")] == [250_000, 0]
    (cache / "models--org--tiny-GGUF" / "blobs" / SHA256).unlink()
    partial.write_bytes(CONTENT + b"more")
    assert pull(hub).read_bytes() == CONTENT


def test_a_server_that_ignores_ranges_begins_the_file_anew(hub: Hub, server: HubServer) -> None:
    server.fail(Fault("cdn", cut_after=200_000), Fault("cdn", ignores_range=True))
    assert pull(hub).read_bytes() == CONTENT


def test_what_the_hub_refuses_is_said_with_what_to_do(make_hub: MakeHub, server: HubServer) -> None:
    server.add("org/private", {FILE: CONTENT}, token="right")
    server.add("org/gated", {FILE: CONTENT}, is_gated=True)
    server.add(REPO, {FILE: CONTENT})
    expected: list[tuple[Hub, str, type[GanglionError], str]] = [
        (make_hub(), "org/nothing", ModelNotFound, "HF_TOKEN"),
        (make_hub(token="any"), "org/nothing", ModelNotFound, "no such repository"),
        (make_hub(), "org/private", ModelNotFound, "HF_TOKEN"),
        (make_hub(token="wrong"), "org/private", LoadFailed, "HF_TOKEN"),
        (make_hub(), "org/gated", LoadFailed, "HF_TOKEN"),
        (make_hub(token="any"), "org/gated", LoadFailed, "Accept them at"),
    ]
    for hub, repo, kind, words in expected:
        with pytest.raises(kind) as raised:
            pull(hub, repo=repo)
        assert words in (raised.value.hint or ""), repo
    server.fail(Fault("api", status=403))
    with pytest.raises(LoadFailed, match="403") as raised_forbidden:
        pull(make_hub())
    assert "HF_TOKEN" in (raised_forbidden.value.hint or "")
    with pytest.raises(ModelNotFound) as raised_revision:
        make_hub().find(REPO, None, revision="v2")
    assert "revision" in (raised_revision.value.hint or "")
    assert pull(make_hub(token="right"), repo="org/private").read_bytes() == CONTENT


def test_the_token_goes_to_the_hub_and_to_nobody_else(make_hub: MakeHub, server: HubServer) -> None:
    server.add(REPO, {FILE: CONTENT}, token="secret")
    pull(make_hub(token="secret"))
    assert {seen.authorization for seen in server.seen if seen.part != "cdn"} == {"Bearer secret"}
    assert [seen.authorization for seen in server.gets("cdn")] == [None]


@pytest.mark.parametrize("token", ["hf_a\nb", "hf_\u20ac", "hf_\0"])
def test_a_token_that_is_none_is_refused_and_not_repeated(token: str, hub: Hub, make_hub: MakeHub) -> None:
    with pytest.raises(LoadFailed, match="HF_TOKEN") as raised:
        pull(make_hub(token=token))
    assert "hf_" not in f"{raised.value.message} {raised.value.hint}"


def test_a_quantisation_that_is_not_there_is_answered_with_those_that_are(
    make_hub: MakeHub, server: HubServer
) -> None:
    server.add(REPO, {"tiny-Q8_0.gguf": b"8", "tiny-F16.gguf": b"16", "mmproj-F16.gguf": b"p"})
    with pytest.raises(ModelNotFound) as raised:
        make_hub().find(REPO, "Q4_K_M")
    assert raised.value.hint == "The repository has Q8_0, F16."


def test_offline_the_cache_is_used_and_what_it_lacks_is_said(
    hub: Hub, make_hub: MakeHub, server: HubServer
) -> None:
    offline = make_hub(is_offline=True)
    with pytest.raises(ModelNotFound) as raised:
        offline.find(REPO, None)
    assert "HF_HUB_OFFLINE" in (raised.value.hint or "")
    path = pull(hub)
    requests = len(server.seen)
    assert pull(offline, "Q4_K_M") == path
    assert offline.find(REPO, None, revision=path.parent.name).is_cached
    with pytest.raises(ModelNotFound) as raised:
        offline.find(REPO, "Q8_0")
    assert "HF_HUB_OFFLINE" in (raised.value.hint or "")
    assert "has Q4_K_M" in (raised.value.hint or "")
    files = offline.find(REPO, None)
    path.resolve().unlink()
    with pytest.raises(ModelNotFound):
        offline.fetch(files, lambda done, total: None, lambda: False)
    assert len(server.seen) == requests


def test_a_disk_without_room_is_said_before_a_byte_is_fetched(
    make_hub: MakeHub, server: HubServer, cache: Path
) -> None:
    server.add(REPO, {FILE: CONTENT}, sizes={FILE: 1 << 60})
    with pytest.raises(StorageFull) as raised:
        pull(make_hub())
    assert raised.value.extras["required_bytes"] == 1 << 60
    assert isinstance(raised.value.extras["free_bytes"], int)
    assert not server.gets("resolve")
    assert not cache.exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_disk_that_fills_up_on_the_way_is_said(hub: Hub, cache: Path) -> None:
    partial = cache / "models--org--tiny-GGUF" / "blobs" / f"{SHA256}.incomplete"
    partial.parent.mkdir(parents=True)
    partial.symlink_to("/dev/full")
    with pytest.raises(StorageFull, match="No room"):
        pull(hub)
    assert not bad_files(cache)


def test_a_cache_that_cannot_be_written_is_named(make_hub: MakeHub, server: HubServer, cache: Path) -> None:
    server.add(REPO, {FILE: CONTENT})
    cache.parent.mkdir(parents=True)
    cache.touch()
    with pytest.raises(LoadFailed, match="could not be written") as raised:
        pull(make_hub())
    assert "HF_HOME" in (raised.value.hint or "")


def test_fifty_who_ask_at_once_get_one_download_and_all_its_progress(hub: Hub, server: HubServer) -> None:
    server.fail(Fault("cdn", pause_s=0.05))
    files = hub.find(REPO, None)
    reports: list[list[tuple[int, int]]] = [[] for _ in range(50)]
    gate = threading.Barrier(50)

    working: list[int] = []

    def ask(mine: list[tuple[int, int]]) -> Path:
        gate.wait()
        return hub.fetch(files, lambda done, total: mine.append((done, total)), lambda: False)

    def count() -> bool:
        working.append(sum(thread.name.startswith("ganglion-fetch") for thread in threading.enumerate()))
        return len(server.gets("cdn")) == 1

    with ThreadPoolExecutor(50) as pool:
        asked = [pool.submit(ask, mine) for mine in reports]
        wait_until(count)
        paths = {one.result(20) for one in asked}
    assert max(working) == 1
    assert [path.read_bytes() == CONTENT for path in paths] == [True]
    assert len(server.gets("cdn")) == 1
    assert all(mine[-1] == (len(CONTENT), len(CONTENT)) for mine in reports)
    assert sum(len(mine) > 2 for mine in reports) > 40


def test_one_who_leaves_does_not_stop_the_others(hub: Hub, server: HubServer) -> None:
    server.fail(Fault("cdn", stall_after=100_000))
    files = hub.find(REPO, None)
    leave = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        leaver = pool.submit(hub.fetch, files, lambda done, total: None, leave.is_set)
        stayer = pool.submit(hub.fetch, files, lambda done, total: None, lambda: False)
        wait_until(lambda: bool(server.gets("cdn")))
        leave.set()
        with pytest.raises(FlightCancelled):
            leaver.result(5)
        assert stayer.result(10).read_bytes() == CONTENT
    assert len(server.gets("cdn")) == 2


def test_when_the_last_one_leaves_a_silent_download_ends_at_once_and_keeps_what_came(
    make_hub: MakeHub, server: HubServer
) -> None:
    server.add(REPO, {FILE: CONTENT})
    server.fail(Fault("cdn", stall_after=100_000))
    hub = make_hub(patience=HubRetryLimits(silence_s=25))
    came: list[int] = []
    with pytest.raises(FlightCancelled):
        hub.fetch(hub.find(REPO, None), lambda done, total: came.append(done), lambda: 100_000 in came)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("ganglion-fetch")]
    assert pull(hub).read_bytes() == CONTENT
    assert [seen.range_from for seen in server.gets("cdn")] == [0, 100_000]


PROGRAM = """
import sys
from pathlib import Path
from ganglion.registry.files.receipts import Receipts
from ganglion.registry.hub.client import Hub
endpoint, cache, repo = sys.argv[1:]
receipts = Receipts(Path(cache).parent / "receipts.json")
hub = Hub(endpoint, None, Path(cache), False, receipts=receipts)
print(hub.fetch(hub.find(repo, None), lambda done, total: None, lambda: False), flush=True)
"""


def child(server: HubServer, cache: Path, repo: str = REPO) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", PROGRAM, server.url, str(cache), repo]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_processes_that_ask_at_once_share_one_download(hub: Hub, server: HubServer, cache: Path) -> None:
    server.fail(Fault("cdn", pause_s=0.05))
    children = [child(server, cache) for _ in range(4)]
    paths = {process.communicate(timeout=30)[0].strip() for process in children}
    assert [Path(path).read_bytes() == CONTENT for path in paths] == [True]
    assert len(server.gets("cdn")) == 1


KILL_POINTS = [
    *(round(len(CONTENT) * tenth / 16) for tenth in range(16)),
    1,
    65_537,
    len(CONTENT) - 1,
    len(CONTENT),
]


def test_a_download_that_is_killed_anywhere_is_resumed_and_never_leaves_a_bad_file(
    server: HubServer, tmp_path: Path
) -> None:
    assert len(KILL_POINTS) == 20

    def kill_and_resume(index: int) -> None:
        point = KILL_POINTS[index]
        content = random.Random(index).randbytes(len(CONTENT))
        with HubServer() as mine:
            mine.add(REPO, {FILE: content})
            mine.fail(Fault("cdn", stall_after=point))
            cache = tmp_path / str(index) / "hub"
            blob = cache / "models--org--tiny-GGUF" / "blobs" / digest(content, True)
            partial = blob.with_name(f"{blob.name}.incomplete")
            process = child(mine, cache)
            wait_until(lambda: blob.exists() or (size_of(partial) >= point and bool(mine.gets("cdn"))))
            process.send_signal(signal.SIGKILL)
            process.communicate(timeout=10)
            assert not bad_files(cache)
            left = size_of(partial)
            receipts = Receipts(cache.parent / "receipts.json")
            path = pull(Hub(mine.url, None, cache, False, receipts=receipts, patience=QUICK))
            assert path.read_bytes() == content
            assert not bad_files(cache)
            assert [seen.range_from for seen in mine.gets("cdn")] in ([0], [0, left])
            assert mine.sent.get(blob.name, 0) <= len(content)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(kill_and_resume, range(20)))


def size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


HOSTILE = [
    "../etc",
    "org/..",
    "org",
    "org/a/b",
    "/etc/passwd",
    "org/a\0b",
    "org/a%2f..",
    "a--b/c",
    "",
    "org/" + "a" * 99,
]


@pytest.mark.parametrize("repo", HOSTILE)
def test_a_name_that_is_no_repository_s_is_asked_of_nobody(repo: str, hub: Hub, server: HubServer) -> None:
    with pytest.raises(ModelNotFound):
        hub.find(repo, None)
    for revision in ("../main", "/etc", "a//b", "a b"):
        with pytest.raises(ModelNotFound):
            hub.find(REPO, None, revision)
    assert not server.seen


@pytest.mark.parametrize("name", ["../../../../evil.gguf", "/evil.gguf", "a\\..\\evil.gguf", "a//evil.gguf"])
def test_a_hub_that_names_files_elsewhere_is_refused(name: str, make_hub: MakeHub, server: HubServer) -> None:
    server.add(REPO, {name: CONTENT})
    with pytest.raises(LoadFailed, match="no usable name"):
        make_hub().find(REPO, None)


def test_the_environment_says_where_the_hub_and_the_cache_are(tmp_path: Path) -> None:
    hub = Hub.from_environment({"HOME": str(tmp_path), "HF_HOME": str(tmp_path / "hf")}, tmp_path / "home")
    assert (hub.endpoint, hub.cache, hub.is_offline) == (
        "https://huggingface.co",
        tmp_path / "hf" / "hub",
        False,
    )
    environment = {
        "HF_ENDPOINT": "http://mirror/",
        "HF_HUB_CACHE": "/c",
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": "/h",
    }
    hub = Hub.from_environment(environment, tmp_path)
    assert (hub.endpoint, hub.cache, hub.is_offline) == ("http://mirror", Path("/c"), True)
    assert cache_folder({"XDG_CACHE_HOME": "/x"}) == Path("/x/huggingface/hub")
    assert cache_folder({}) == Path("~/.cache/huggingface/hub").expanduser()


@pytest.mark.parametrize(
    ("environment", "is_sent"),
    [
        ({"HF_TOKEN": "right"}, True),
        ({"HUGGING_FACE_HUB_TOKEN": "right\n"}, True),
        ({"HF_TOKEN": "", "HF_TOKEN_PATH": "{folder}/token"}, True),
        ({"HF_HOME": "{folder}"}, True),
        ({"HF_TOKEN": "right", "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"}, False),
        ({"HF_HOME": "{folder}/nowhere"}, False),
    ],
)
def test_the_token_is_taken_from_where_people_have_it(
    environment: dict[str, str], is_sent: bool, server: HubServer, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("right\n")
    server.add(REPO, {FILE: CONTENT}, token="right")
    named = {key: value.format(folder=tmp_path) for key, value in environment.items()}
    hub = Hub.from_environment({"HF_HOME": "/nowhere", **named, "HF_ENDPOINT": server.url}, tmp_path)
    if is_sent:
        assert isinstance(hub.find(REPO, None), HubFiles)
    else:
        with pytest.raises(ModelNotFound):
            hub.find(REPO, None)


def test_a_name_is_split_as_people_write_it() -> None:
    assert split_name("org/repo") == ("org/repo", None)
    assert split_name("org/repo:Q4_0") == ("org/repo", "Q4_0")
    assert split_name("hf.co/org/repo:Q4_0") == ("org/repo", "Q4_0")
    assert split_name("huggingface.co/org/repo:") == ("org/repo", None)


def test_importing_it_does_not_import_huggingface_hub() -> None:
    program = "import sys, ganglion.registry.hub.client; print('huggingface_hub' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]
