"""Reasoning is believed under its own seal and no other."""

from hypothesis import given
from hypothesis import strategies as st

from ganglion.wire.seal import sign, verify

KEY = bytes(range(32))


@given(st.text(), st.text())
def test_a_seal_holds_for_its_own_text_and_tenant(tenant: str, text: str) -> None:
    assert verify(KEY, tenant, text, sign(KEY, tenant, text))


@given(st.text(), st.text(), st.text(), st.text())
def test_a_seal_holds_for_nothing_else(tenant: str, text: str, other_tenant: str, other_text: str) -> None:
    signature = sign(KEY, tenant, text)
    is_same = (tenant, text) == (other_tenant, other_text)
    assert verify(KEY, other_tenant, other_text, signature) == is_same
    assert not verify(bytes(32), tenant, text, signature)


def test_a_tenant_cannot_borrow_letters_from_the_text() -> None:
    assert sign(KEY, "ab", "c") != sign(KEY, "a", "bc")


@given(st.text(alphabet=st.characters(), max_size=60))
def test_no_made_up_signature_is_believed(signature: str) -> None:
    assert not verify(KEY, "", "a thought", signature)
