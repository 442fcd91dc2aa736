"""The node that the tests of a file share."""

from collections.abc import Iterator

import pytest

from support.real_node import Node, running_node


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running_node(tmp_path_factory.mktemp("home"), "--context", "2048") as running:
        yield running
