"""A seal on reasoning that leaves the server, so that it is believed only when it comes back unchanged."""

import base64
import hashlib
import hmac


def sign(key: bytes, tenant: str, text: str) -> str:
    """The seal of this text for this tenant."""
    return base64.b64encode(_digest(key, tenant, text)).decode()


def verify(key: bytes, tenant: str, text: str, signature: str) -> bool:
    """Whether the signature is our seal of exactly this text for this tenant."""
    return hmac.compare_digest(sign(key, tenant, text).encode(), signature.encode("utf-8", "replace"))


def _digest(key: bytes, tenant: str, text: str) -> bytes:
    owner = tenant.encode()
    # The length keeps a tenant's name and the text that follows it from trading characters.
    return hmac.new(key, len(owner).to_bytes(8) + owner + text.encode(), hashlib.sha256).digest()
