"""What an operator may write about fetching images."""

import pytest

from ganglion.core.errors import InvalidValue
from ganglion.server.settings import ImageFetchSettings, ServerSettings


@pytest.mark.parametrize(
    "host", ["images.example.com", "*.example.com", "*", "*:8443", "HOST:80", "intranet"]
)
def test_a_host_that_can_be_meant_is_taken(host: str) -> None:
    ServerSettings(images=ImageFetchSettings((host,))).check()


@pytest.mark.parametrize(
    "host", ["", "https://host", "host/path", "a..b", "*.*", "[::1]", "host:port", "h*st"]
)
def test_a_host_that_could_never_match_stops_the_start(host: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        ServerSettings(images=ImageFetchSettings((host,))).check()
    assert caught.value.param == "server.images.fetch_hosts"
