import os
import signal
import tempfile
from pathlib import Path

import pytest

from ganglion.server.gateway.unix_socket import PREFIX, socket_folder


@pytest.fixture(autouse=True)
def above(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_only_its_user_gets_in_and_it_is_gone_with_its_gateway(above: Path) -> None:
    with socket_folder() as folder:
        (folder / "desk").touch()
        assert folder.stat().st_mode & 0o777 == 0o700
    assert list(above.iterdir()) == []


def test_what_a_killed_gateway_left_is_gone_with_the_next_start_and_nothing_else(above: Path) -> None:
    (above / "ganglion-other").mkdir()
    (above / f"{PREFIX}link").symlink_to(above / "ganglion-other")
    read, write = os.pipe()
    if not (child := os.fork()):
        with socket_folder() as theirs:
            (theirs / "desk").touch()
            os.write(write, str(theirs).encode())
            signal.pause()
    killed = Path(os.read(read, 4096).decode())
    try:
        with socket_folder() as ours:
            assert killed.exists() and ours.exists()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    with socket_folder() as ours:
        assert {path.name for path in above.iterdir()} == {"ganglion-other", f"{PREFIX}link", ours.name}
