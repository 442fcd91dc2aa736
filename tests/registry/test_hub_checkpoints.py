"""Checkpoints at a hub: only what is needed is fetched, all of it, and no code that nobody trusts."""

import hashlib
import json
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ganglion.core.errors import HubUnreachable, LoadFailed, ModelNotFound
from ganglion.registry.files.formats import Format
from ganglion.registry.files.model_files import files_of
from ganglion.registry.files.receipts import Receipts
from ganglion.registry.files.safetensors import read_facts
from ganglion.registry.hub.client import Hub
from ganglion.registry.hub.requests import HubRetryLimits
from support.hub_server import Fault, HubServer
from support.model_files import CONFIG, safetensors
from support.waiting import wait_until

REPO = "org/Tiny-1B"
QUICK = HubRetryLimits(silence_s=0.4, attempts=3, first_wait_s=0.01, longest_wait_s=0.3, reset_bytes=100_000)
INDEX = "model.safetensors.index.json"


def shards(count: int, elements: int = 40_000) -> dict[str, bytes]:
    """The parts of a split model, none like another, and their index."""
    names = [f"model-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)]
    files = {}
    for number, name in enumerate(names):
        empty = safetensors({f"t{number}": ("F32", [elements], 4 * elements)})
        files[name] = empty[: -4 * elements] + random.Random(number).randbytes(4 * elements)
    weight_map = {f"t{number}": name for number, name in enumerate(names)}
    return {**files, INDEX: json.dumps({"weight_map": weight_map}).encode()}


def repository(**changes: bytes) -> dict[str, bytes]:
    """A repository as publishers have it: the checkpoint, and much that is none of it."""
    return {
        **shards(3),
        "config.json": json.dumps(CONFIG).encode(),
        "generation_config.json": b'{"temperature": 0.5}',
        "tokenizer.json": b"{}",
        "tokenizer_config.json": b'{"chat_template": "{{ messages }}"}',
        "README.md": b"hello",
        "pytorch_model.bin": b"pickle" * 1000,
        "consolidated.safetensors": safetensors(),
        "original/consolidated.00.pth": b"pickle",
        "onnx/model.onnx": b"onnx",
        "modeling_tiny.py": b"raise SystemExit",
        **changes,
    }


NEEDED = {
    *(f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)),
    *(INDEX, "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"),
}


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
    def make(token: str | None = None, is_offline: bool = False) -> Hub:
        receipts = Receipts(tmp_path / "receipts.json")
        return Hub(server.url, token, cache, is_offline, receipts=receipts, patience=QUICK)

    return make


def pull(hub: Hub, quant: str | None = None, *, trusts_code: bool = False) -> Path:
    files = hub.find(REPO, quant, trusts_code=trusts_code)
    return hub.fetch(files, lambda done, total: None, lambda: False)


def asked_for(server: HubServer) -> set[str]:
    """The files of the repository that somebody wanted to have."""
    return {seen.path.split("/", 4)[4] for seen in server.gets("resolve")}


def test_what_is_needed_is_fetched_and_verified_and_nothing_else(
    make_hub: MakeHub, server: HubServer, cache: Path
) -> None:
    commit = server.add(REPO, repository())
    hub = make_hub()
    found = hub.find(REPO, None)
    assert (found.format, found.is_cached) == ("safetensors", False)
    assert found.files[0].path == "config.json", "it is looked at before the weights come"
    reports: list[tuple[int, int]] = []
    folder = hub.fetch(found, lambda done, total: reports.append((done, total)), lambda: False)
    assert folder == cache / "models--org--Tiny-1B" / "snapshots" / commit
    assert {path.name for path in folder.iterdir()} == NEEDED == asked_for(server)
    assert reports[-1] == (found.size_bytes, found.size_bytes)
    for file in files_of(folder):
        assert hashlib.sha256(file.read_bytes()).hexdigest() == file.readlink().name
    facts = read_facts(folder)
    assert (facts.name, facts.parameters, facts.sampling.temperature) == ("Tiny-1B", 3 * 40_000, 0.5)
    requests = len(server.gets("cdn"))
    assert make_hub().find(REPO, None).is_cached
    assert pull(make_hub(is_offline=True)) == folder
    assert len(server.gets("cdn")) == requests


def test_small_files_that_git_holds_are_verified_too(make_hub: MakeHub, server: HubServer) -> None:
    server.add(REPO, repository(), is_lfs=False)
    server.fail(Fault("resolve", flip=3))
    with pytest.raises(LoadFailed, match="git SHA-1"):
        pull(make_hub())
    assert read_facts(pull(make_hub())).parameters == 3 * 40_000


BOTH = {**repository(), "Tiny-1B-Q4_0.gguf": b"GGUF" * 100, "Tiny-1B-BF16.gguf": b"BF16" * 100}
CHOSEN: list[tuple[str | None, tuple[Format, ...], str, str]] = [
    (None, ("gguf", "safetensors"), "gguf", "Tiny-1B-Q4_0.gguf"),
    (None, ("safetensors", "gguf"), "safetensors", "config.json"),
    ("SAFETENSORS", ("gguf", "safetensors"), "safetensors", "config.json"),
    ("gguf", ("safetensors", "gguf"), "gguf", "Tiny-1B-Q4_0.gguf"),
    ("BF16", ("safetensors", "gguf"), "gguf", "Tiny-1B-BF16.gguf"),
]


@pytest.mark.parametrize(("quant", "formats", "expected", "first"), CHOSEN)
def test_where_a_repository_has_both_the_name_decides_else_the_preferred_format(
    quant: str | None,
    formats: tuple[Format, ...],
    expected: str,
    first: str,
    make_hub: MakeHub,
    server: HubServer,
) -> None:
    server.add(REPO, BOTH)
    found = make_hub().find(REPO, quant, formats=formats)
    assert (found.format, found.files[0].path) == (expected, first)


CODED = json.dumps(CONFIG | {"auto_map": {"AutoModel": "modeling_tiny.TinyModel"}}).encode()
CODED_TOKENIZER = b'{"auto_map": {"AutoTokenizer": ["modeling_tiny.TinyModel", null]}}'


@pytest.mark.parametrize("changes", [{"config.json": CODED}, {"tokenizer_config.json": CODED_TOKENIZER}])
def test_code_is_refused_by_name_before_a_weight_is_fetched(
    changes: dict[str, bytes], make_hub: MakeHub, server: HubServer, cache: Path
) -> None:
    server.add(REPO, repository(**changes))
    with pytest.raises(LoadFailed, match=r"modeling_tiny\.TinyModel") as raised:
        pull(make_hub())
    assert "trust_remote_code" in (raised.value.hint or "")
    assert not any(name.endswith((".py", ".safetensors")) for name in asked_for(server))
    assert not list(cache.glob("models--*/snapshots/*/*"))
    folder = pull(make_hub(), trusts_code=True)
    assert (folder / "modeling_tiny.py").is_file()


REFUSED = {
    "a missing shard": ({"model-00002-of-00003.safetensors": None}, "lacks model-00002-of-00003"),
    "pickle alone": (dict.fromkeys(NEEDED - {"config.json"}), r"pickle \(pytorch_model\.bin\)"),
    "an adapter": (
        {**dict.fromkeys(repository()), "adapter_model.safetensors": b"x", "adapter_config.json": b"{}"},
        "adapter",
    ),
    "no config": ({"config.json": None}, r"no config\.json"),
}


@pytest.mark.parametrize(("changes", "reason"), REFUSED.values(), ids=REFUSED)
def test_a_repository_that_has_none_says_what_it_has(
    changes: dict[str, bytes | None], reason: str, make_hub: MakeHub, server: HubServer
) -> None:
    files = {name: content for name, content in {**repository(), **changes}.items() if content is not None}
    server.add(REPO, files)
    with pytest.raises(ModelNotFound) as raised:
        pull(make_hub(), "safetensors")
    assert raised.value.hint
    assert re.search(reason, raised.value.hint)
    assert not server.gets("resolve")


def test_what_the_hub_refuses_or_keeps_for_itself_is_said_with_what_to_do(
    make_hub: MakeHub, server: HubServer
) -> None:
    server.add(REPO, repository(), is_gated=True)
    with pytest.raises(LoadFailed, match="gated") as gated:
        pull(make_hub())
    assert "Accept them" in (gated.value.hint or "")
    server.add(REPO, repository(), token="right")
    with pytest.raises(ModelNotFound) as private:
        pull(make_hub())
    assert "HF_TOKEN" in (private.value.hint or "")
    with pytest.raises(LoadFailed, match="401"):
        pull(make_hub(token="wrong"))
    server.fail(Fault("api", times=99, status=503))
    with pytest.raises(HubUnreachable):
        pull(make_hub(token="right"))
    server.heal()
    assert read_facts(pull(make_hub(token="right"))).parameters == 3 * 40_000


def test_a_hub_that_names_parts_elsewhere_is_refused(
    make_hub: MakeHub, server: HubServer, cache: Path
) -> None:
    for name in ("1_a/../../x/config.json", "a\\b.safetensors", "c:d.safetensors"):
        server.add(REPO, repository(**{name: safetensors()}))
        found: list[str] = []
        try:
            found = [file.path for file in make_hub().find(REPO, None).files]
        except LoadFailed as refused:
            assert "no usable name" in refused.message
        assert name not in found
    assert not cache.exists()


def test_an_index_that_names_what_is_not_there_is_found_out_after_the_pull(
    make_hub: MakeHub, server: HubServer
) -> None:
    index = json.dumps({"weight_map": {"t0": "../../../secret.safetensors"}}).encode()
    server.add(REPO, repository(**{INDEX: index}))
    with pytest.raises(LoadFailed, match="beside it"):
        read_facts(pull(make_hub()))


def test_twenty_who_ask_at_once_get_one_download(make_hub: MakeHub, server: HubServer) -> None:
    server.add(REPO, repository())
    server.fail(Fault("cdn", times=99, pause_s=0.02))
    hub = make_hub()
    files = hub.find(REPO, None)
    with ThreadPoolExecutor(20) as pool:
        jobs = [pool.submit(hub.fetch, files, lambda done, total: None, lambda: False) for _ in range(20)]
        assert len({job.result() for job in jobs}) == 1
    assert len(server.gets("cdn")) == len(NEEDED)


def test_a_damaged_shard_is_fetched_anew_and_the_others_are_not(make_hub: MakeHub, server: HubServer) -> None:
    server.add(REPO, repository())
    folder = pull(make_hub())
    blob = (folder / "model-00002-of-00003.safetensors").resolve()
    good = blob.read_bytes()
    blob.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    requests = len(server.gets("cdn"))
    assert pull(make_hub()) == folder
    assert blob.read_bytes() == good
    assert len(server.gets("cdn")) == requests + 1


PULL = """
import sys
from pathlib import Path
from ganglion.registry.files.receipts import Receipts
from ganglion.registry.hub.client import Hub
url, cache, receipts = sys.argv[1:]
hub = Hub(url, None, Path(cache), False, receipts=Receipts(Path(receipts)))
print("ready", flush=True)
hub.fetch(hub.find("org/Tiny-1B", None), lambda done, total: None, lambda: False)
"""


def test_a_pull_that_is_killed_at_any_shard_goes_on_and_leaves_no_half_checkpoint(tmp_path: Path) -> None:
    files = repository()
    whole = sum(len(files[name]) for name in NEEDED)

    def kill_and_resume(number: int) -> None:
        home = tmp_path / str(number)
        with HubServer() as mine:
            mine.add(REPO, files)
            mine.fail(Fault("cdn", times=99, pause_s=0.01, piece_bytes=8192))
            arguments = [mine.url, str(home / "hub"), str(home / "receipts.json")]
            environment = {**os.environ, "NO_PROXY": "127.0.0.1,localhost"}
            process = subprocess.Popen(
                [sys.executable, "-c", PULL, *arguments], env=environment, stdout=subprocess.PIPE
            )
            goal = whole * (number + 1) // 9
            wait_until(lambda: sum(mine.sent.values()) >= goal or process.poll() is not None, within_s=60)
            process.send_signal(signal.SIGKILL)
            process.communicate(timeout=10)
            snapshots = list((home / "hub").glob("models--*/snapshots/*"))
            assert all(read_facts(each) for each in snapshots), "a name in a snapshot only once all are here"
            for blob in (home / "hub").glob("models--*/blobs/*"):
                if not blob.name.endswith(".incomplete"):
                    assert hashlib.sha256(blob.read_bytes()).hexdigest() == blob.name
            mine.heal()
            receipts = Receipts(home / "receipts.json")
            hub = Hub(mine.url, None, home / "hub", False, receipts=receipts, patience=QUICK)
            assert read_facts(pull(hub)).parameters == 3 * 40_000
            # A piece is counted once it was sent, and may have been lost with the process.
            assert sum(mine.sent.values()) <= whole + (1 << 20)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(kill_and_resume, range(8)))
