"""URLs of nodes, read and refused."""

import pytest

from ganglion.core.errors import InvalidValue
from ganglion.gateway.address import Address, parse_address


@pytest.mark.parametrize(
    ("url", "address", "authority"),
    [
        ("http://gpu1:8080", Address("gpu1", 8080), "gpu1:8080"),
        ("http://gpu1:8080/", Address("gpu1", 8080), "gpu1:8080"),
        ("http://gpu1", Address("gpu1", 80), "gpu1"),
        ("HTTP://GPU1:8080", Address("gpu1", 8080), "gpu1:8080"),
        ("https://api.example.org", Address("api.example.org", 443, is_tls=True), "api.example.org"),
        ("https://x:8443/v1", Address("x", 8443, is_tls=True), "x:8443"),
        ("https://x/openai/v1/", Address("x", 443, is_tls=True, prefix="/openai"), "x"),
        ("http://x/a/b", Address("x", 80, prefix="/a/b"), "x"),
        ("http://x//v1", Address("x", 80), "x"),
        ("http://[::1]:9000", Address("::1", 9000), "[::1]:9000"),
        ("http://[::1]", Address("::1", 80), "[::1]"),
        ("http://127.0.0.1:443", Address("127.0.0.1", 443), "127.0.0.1:443"),
        ("unix:///run/a/desk.sock", Address("localhost", 80, unix="/run/a/desk.sock"), "localhost"),
    ],
)
def test_a_url_names_where_a_node_listens(url: str, address: Address, authority: str) -> None:
    assert parse_address(url) == address
    assert parse_address(url).authority == authority


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
        parse_address(url)
    assert refused.value.hint
    assert len(refused.value.message) < 300
