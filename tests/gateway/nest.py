"""A process that forks servers on request, as many at once as are asked for, without waiting for imports.

Reads lines of JSON `{"home", "args", "log"}`; for each, forks, runs the command line (or, with `hollow` as
the first argument, a node that is only its wire) and prints `{"pid"}`. Prints `{"gone", "status"}` when one
ended. When nobody asks any more, all of them end.
"""

import json
import os
import select
import signal
import sys
from contextlib import suppress
from traceback import print_exc

os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"  # read at the import

import hollow_node

import ganglion.cli.compose
import ganglion.cli.gateway
import ganglion.cli.keys.key_commands
import ganglion.cli.keys.usage
import ganglion.cli.serve
import ganglion.cli.system.this_machine
import ganglion.engines.echo.engine
import ganglion.server.gateway.lifecycle
import ganglion.server.life.serve
import ganglion.store.access_store
import ganglion.store.database  # noqa: F401
from ganglion.cli.main import _run


def run(home: str, args: list[str], log: str) -> int:
    """Be that server until it ends."""
    nothing, said = (
        os.open(os.devnull, os.O_RDWR),
        os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
    )
    os.dup2(nothing, 0)
    os.dup2(said, 1)
    os.dup2(said, 2)
    os.environ["GANGLION_HOME"] = home
    if args[0] == "hollow":
        hollow_node.main(args[1:])
        return 0
    return _run(args)


def fork(home: str, args: list[str], log: str) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 70
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        status = run(home, args, log)
    except BaseException:  # noqa: BLE001  nothing of a child may run on in the parent's code
        print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def say(**fields: int) -> None:
    os.write(1, json.dumps(fields).encode() + b"\n")


def reap(children: set[int]) -> None:
    for pid in tuple(children):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            children.discard(pid)
            say(gone=pid, status=os.waitstatus_to_exitcode(status))


def main() -> None:
    woken, wakes = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    children: set[int] = set()
    asked = b""
    try:
        while True:
            ready, _, _ = select.select([0, woken], [], [])
            if woken in ready:
                os.read(woken, 4096)
                reap(children)
            if 0 in ready:
                more = os.read(0, 65536)
                if not more:
                    return
                *lines, asked = (asked + more).split(b"\n")
                for line in lines:
                    pid = fork(**json.loads(line))
                    children.add(pid)
                    say(pid=pid)
    finally:
        for pid in children:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
