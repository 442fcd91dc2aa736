"""A PostgreSQL server of Debian's package, started for the tests in a folder of its own."""

import getpass
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

BINARIES = sorted(
    Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parent.parent.name)
)
ABSENT = "PostgreSQL is not installed: apt-get install -y postgresql"
# Commits need not survive the test's machine, and initdb is most of the time this takes.
SETTINGS = {
    "fsync": "off",
    "listen_addresses": "",
    "shared_buffers": "16MB",
    "autovacuum": "off",
    "max_connections": "40",
}


def user() -> str:
    """Who runs the server: it refuses to be root."""
    return "postgres" if os.geteuid() == 0 else getpass.getuser()


@dataclass(frozen=True)
class Server:
    """A server that listens on a Unix socket in its folder."""

    folder: Path

    @property
    def url(self) -> str:
        return f"postgresql://{user()}@/postgres?host={self.folder}"

    def control(self, *words: str) -> None:
        options = " ".join(f"-c {name}={value or repr('')}" for name, value in SETTINGS.items())
        command = [
            str(BINARIES[-1].with_name("pg_ctl")),
            "-w",
            "-D",
            str(self.folder / "data"),
            "-l",
            str(self.folder / "log"),
        ]
        command += ["-o", f"{options} -k {self.folder}", *words]
        subprocess.run(
            command,
            check=True,
            user=user(),
            stdout=subprocess.DEVNULL,
            cwd=self.folder,
            start_new_session=True,
        )

    def start(self) -> None:
        self.control("start")

    def stop(self) -> None:
        """As a crash would: connections break, nothing is said to them."""
        self.control("stop", "-m", "immediate")


@contextmanager
def running_server() -> Iterator[Server]:
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    try:
        account = pwd.getpwnam(user())
        os.chown(folder, account.pw_uid, account.pw_gid)
        initdb = BINARIES[-1].with_name("initdb")
        initialise = [str(initdb), "-D", str(folder / "data"), "-A", "trust", "--no-sync"]
        subprocess.run(
            [*initialise, "-E", "UTF8", "--locale=C"],
            check=True,
            user=user(),
            stdout=subprocess.DEVNULL,
            cwd=folder,
        )
        server = Server(folder)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
