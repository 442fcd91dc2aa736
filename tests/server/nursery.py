"""A process that forks servers on request: `ganglion serve --engine echo`, without waiting for its imports.

Reads lines `home port`; for each, forks a server and prints its pid, and `gone` when it was killed.
"""

import os
import sys

import ganglion.cli.compose
import ganglion.cli.serve
import ganglion.cli.system.this_machine
import ganglion.engines.echo.engine
import ganglion.server.life.serve
import ganglion.store.database  # noqa: F401
from ganglion.cli.main import app


def main() -> None:
    for line in sys.stdin:
        home, port = line.split()
        pid = os.fork()
        if pid == 0:
            os.environ["GANGLION_HOME"] = home
            app(["serve", "--engine", "echo", "--no-grpc", "--port", port], result_action="return_value")
            os._exit(0)
        os.write(1, f"{pid}\n".encode())
        os.waitpid(pid, 0)
        os.write(1, b"gone\n")


if __name__ == "__main__":
    main()
