"""URLs of nodes, read and refused."""

import pytest

from ganglion.core.errors import InvalidValue
from ganglion.gateway.upstream.address import NodeAddress, parse_node_url


@pytest.mark.parametrize(
    ("url", "address", "authority"),
    [
        ("http://gpu1:8080", NodeAddress("gpu1", 8080), "gpu1:8080"),
        ("http://gpu1:8080/", NodeAddress("gpu1", 8080), "gpu1:8080"),
        ("http://gpu1", NodeAddress("gpu1", 80), "gpu1"),
        ("HTTP://GPU1:8080", NodeAddress("gpu1", 8080), "gpu1:8080"),
        ("https://api.example.org", NodeAddress("api.example.org", 443, is_tls=True), "api.example.org"),
        ("https://x:8443/v1", NodeAddress("x", 8443, is_tls=True), "x:8443"),
        ("https://x/openai/v1/", NodeAddress("x", 443, is_tls=True, prefix="/openai"), "x"),
        ("http://x/a/b", NodeAddress("x", 80, prefix="/a/b"), "x"),
        ("http://x//v1", NodeAddress("x", 80), "x"),
        ("http://[::1]:9000", NodeAddress("::1", 9000), "[::1]:9000"),
        ("http://[::1]", NodeAddress("::1", 80), "[::1]"),
        ("http://127.0.0.1:443", NodeAddress("127.0.0.1", 443), "127.0.0.1:443"),
        ("unix:///run/a/desk.sock", NodeAddress("localhost", 80, unix="/run/a/desk.sock"), "localhost"),
    ],
)
def test_a_url_names_where_a_node_listens(url: str, address: NodeAddress, authority: str) -> None:
    assert parse_node_url(url) == address
    assert parse_node_url(url).authority == authority


@pytest.mark.parametrize(
    "url",
    [
        *(
            "",
            "gpu1",
            "gpu1:8080",
            "//gpu1",
            "ftp://gpu1",
            "http://",
            "http:///v1",
            "unix://",
            "unix://run/sock",
        ),
        *("http://x:0", "http://x:65536", "http://x:port", "http://[::1", "http://x:80:80"),
        *("http://x?q=1", "http://x#f", "http://me@x", "http://me:secret@x", "http://@x"),
        *(
            "http://x/a b",
            "http://x y",
            "http://x/\r\nhost: y",
            "http://x\t",
            "http://h\u00f6st",
            "http://x/\x00",
        ),
        "http://x/" + "a" * 3000,
    ],
)
def test_what_is_no_url_of_a_server_is_refused(url: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        parse_node_url(url)
    assert refused.value.hint
    assert len(refused.value.message) < 300
