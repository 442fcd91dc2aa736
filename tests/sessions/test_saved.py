"""What can be told of a saved session before all of its bytes are there."""

import pytest

from ganglion.core.errors import InvalidValue
from ganglion.sessions.saved import encode_session, header_of, peek_model_name
from ganglion.sessions.token_session import TokenSession


@pytest.mark.parametrize("length", [1, 31, 32, 255, 256, 1024])
def test_the_model_is_named_as_soon_as_its_name_is_there(length: int) -> None:
    model = "é" + "m" * (length - 1)
    header = header_of(TokenSession(), model=model, fingerprint=[model], steering=(), kv=b"kv")
    saved = encode_session(header, TokenSession(), b"kv")
    named = [peek_model_name(saved[:size]) for size in range(len(saved) + 1)]
    first = named.index(model)
    assert set(named[:first]) == {None}
    assert set(named[first:]) == {model}
    assert first < 70 + len(model.encode())


@pytest.mark.parametrize("data", [b"x", b"ganglion sess 3\n", b"ganglion sess 1\n" + b"\0" * 60])
def test_what_does_not_begin_like_a_saved_session_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidValue):
        peek_model_name(data)
