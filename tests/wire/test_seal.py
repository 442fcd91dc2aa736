"""What leaves the server sealed comes back unchanged, or not at all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganglion.wire.seal import HmacSeal

KEY = bytes(range(32))
SEALS = HmacSeal(KEY)


@given(st.binary(max_size=300), st.text(max_size=8))
def test_a_blob_opens_to_what_was_sealed(payload: bytes, tenant: str) -> None:
    assert SEALS.of(tenant).open(SEALS.of(tenant).seal(payload)) == payload


@given(st.binary(max_size=60), st.data())
def test_a_blob_that_was_touched_does_not_open(payload: bytes, data: st.DataObject) -> None:
    blob = SEALS.of("a").seal(payload)
    place = data.draw(st.integers(0, len(blob) - 1))
    other = data.draw(st.characters(max_codepoint=127).filter(lambda char: char != blob[place]))
    assert SEALS.of("a").open(blob[:place] + other + blob[place + 1 :]) in (None, payload)
    assert SEALS.of("a").open(blob[:place]) is None


@given(st.text(max_size=40))
def test_any_other_text_does_not_open(text: str) -> None:
    assert SEALS.of("a").open(text) is None


def test_another_tenant_another_key_and_another_purpose_do_not_open() -> None:
    blob = SEALS.of("a").seal(b"secret")
    assert SEALS.of("b").open(blob) is None
    assert HmacSeal(bytes(32)).of("a").open(blob) is None
    assert SEALS.of("a").open(SEALS.sign("a", "secret")) is None


@given(st.text(max_size=40), st.text(max_size=40), st.text(max_size=5))
def test_a_signature_holds_for_its_own_text_and_tenant_only(text: str, other: str, tenant: str) -> None:
    signature = SEALS.sign(tenant, text)
    assert SEALS.verify(tenant, text, signature)
    assert SEALS.verify(tenant, other, signature) is (other == text)
    assert not SEALS.verify(tenant + "x", text, signature)
    assert not SEALS.verify(tenant, text, other)


def test_a_short_key_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 32"):
        HmacSeal(b"short")


def test_another_key_is_taken_over_and_what_was_sealed_before_still_opens() -> None:
    seal, other = HmacSeal(b"a" * 32), HmacSeal(b"b" * 32)
    blob, signature = seal.of("ann").seal(b"before"), seal.sign("ann", "before")
    seal.adopt(b"b" * 32)
    assert seal.of("ann").open(blob) == b"before"
    assert seal.verify("ann", "before", signature)
    assert other.of("ann").open(seal.of("ann").seal(b"after")) == b"after"
    assert other.verify("ann", "after", seal.sign("ann", "after"))
    assert other.of("ann").open(blob) is None
