"""Settings of all property tests, which tests want the machine to themselves, and a PostgreSQL server."""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest
from hypothesis import settings

from support.costs import Guard, starts_something
from support.postgres_server import ABSENT, BINARIES, Server, running_server

# A busy machine is no failed property; and what CI finds, anybody finds again. `make quick` tries a tenth.
settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, database=None)
settings.register_profile("quick", deadline=None, max_examples=10)
settings.load_profile("ci" if os.environ.get("CI") else "default")

# A shell starts its background jobs deaf to Ctrl-C, and so would be the programs that tests start.
with suppress(ValueError):  # not the main thread, which then starts none that care
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Side by side, each has cores of its own: threads of two models that meet at barriers on the same cores wait
# for each other most of the time. What a test starts inherits them.
if "PYTEST_XDIST_WORKER" in os.environ and hasattr(os, "sched_setaffinity"):
    _cores = sorted(os.sched_getaffinity(0))
    _count = int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    _number = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw"))
    os.sched_setaffinity(0, _cores[_number % len(_cores) :: min(_count, len(_cores))])

ALONE = {
    "cli/test_terminal_chat.py",
    *("end_to_end/test_faults.py", "end_to_end/test_leaving.py", "end_to_end/test_limits.py"),
    *("engines/test_hostile_grammars.py", "engines/test_recovery.py", "engines/test_rendering.py"),
    *("registry/test_gguf.py", "registry/test_manifest.py", "registry/test_resolver.py"),
    *("server/test_alarm.py", "server/test_chat_endpoint.py", "server/test_disconnect.py"),
    *("server/test_responses_crash.py", "server/test_responses_keeping.py"),
    *("store/test_store_file.py", "store/test_store_kills.py", "store/test_store_power.py"),
}
"""Files whose tests measure time or memory: a neighbour on the same cores would be measured with them."""
HERE = Path(__file__).parent
guard = Guard()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.relative_to(HERE).as_posix() in ALONE:
            item.add_marker("alone")
        if "fleet_faults" in item.path.name:
            item.add_marker("soak")
        if not (item.get_closest_marker("model") or item.get_closest_marker("process")):
            item.add_marker("process" if starts_something(item.path) else "unit")
    # Files go to whoever is free, in this order: a long one at the end would leave the others idle.
    long = {item.path for item in items if item.get_closest_marker("model") or _is_long(item)}
    items.sort(key=lambda item: item.path not in long)


def _is_long(item: pytest.Item) -> bool:
    name = item.path.name
    return item.path.parent.name == "clients" or "fuzz" in name or "faults" in name or "gateway" in name


# Not while fixtures are taken down: with a file's last test goes what a neighbour of it started.
@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    with guard.over(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    with guard.over(item):
        return (yield)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Server]:
    if not BINARIES:
        pytest.skip(ABSENT)
    with running_server() as server:
        yield server


@pytest.fixture
def postgres(postgres_server: Server) -> str:
    """The URL of a database in which nothing is kept yet."""
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS ganglion CASCADE")
    return postgres_server.url
