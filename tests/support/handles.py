"""A process that can open nothing more."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_more_files() -> Iterator[None]:
    """Nothing can be opened until the block is left: neither files nor sockets."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
