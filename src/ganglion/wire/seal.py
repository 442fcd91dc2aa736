"""Sealed blobs and signatures: text that leaves this server and must come back unchanged.

Law: a seal is not secrecy. Whoever holds a blob can unpack and read it; nobody without the key can make or
change one, and a blob of one tenant does not open for another.
"""

import base64
import binascii
import hmac
import zlib

_VERSION = b"\x01"
_MAC_BYTES = 32
_MAX_OPENED_BYTES = 2**25
_SEAL = b"ganglion-seal"
_SIGNATURE = b"ganglion-signature"


class HmacSeal:
    """Seals and signs with one secret key; every use is bound to a tenant, a purpose and a version."""

    def __init__(self, key: bytes) -> None:
        if len(key) < _MAC_BYTES:
            raise ValueError(f"a seal's key holds at least {_MAC_BYTES} bytes, this one {len(key)}")
        self._keys: tuple[bytes, ...] = (key,)

    def adopt(self, key: bytes) -> None:
        """Seal with this key from now on; what was sealed before still opens."""
        self._keys = (key, *self._keys)

    def of(self, tenant: str) -> "Seal":
        """The seal of one tenant."""
        return Seal(self._keys, tenant)

    def sign(self, tenant: str, text: str) -> str:
        """A signature of the text, for this tenant."""
        return _signature(self._keys[0], tenant, text)

    def verify(self, tenant: str, text: str, signature: str) -> bool:
        """Whether `sign` gave this signature for exactly this tenant and text."""
        given = signature.encode("utf-8", "replace")
        return any(hmac.compare_digest(_signature(key, tenant, text).encode(), given) for key in self._keys)


class Seal:
    """Packs bytes into text that only the same server, for the same tenant, unpacks again.

    That is a version, then HMAC-SHA256 over purpose, tenant and packed payload, then the packed payload.
    """

    def __init__(self, keys: tuple[bytes, ...], tenant: str) -> None:
        self._keys = keys
        self._tenant = tenant

    def seal(self, payload: bytes) -> str:
        """The payload as an opaque text."""
        packed = zlib.compress(payload)
        return _text(_VERSION + _mac(self._keys[0], _SEAL, self._tenant, packed) + packed)

    def open(self, blob: str) -> bytes | None:
        """The payload of a blob sealed here for this tenant; None for any other text."""
        try:
            raw = base64.b64decode(blob.encode("ascii"), b"-_", validate=True)
        except (UnicodeEncodeError, binascii.Error):
            return None
        version, mac, packed = raw[:1], raw[1 : 1 + _MAC_BYTES], raw[1 + _MAC_BYTES :]
        expected = (_mac(key, _SEAL, self._tenant, packed) for key in self._keys)
        if version != _VERSION or not any(hmac.compare_digest(mac, each) for each in expected):
            return None
        unpacking = zlib.decompressobj()
        payload = unpacking.decompress(packed, _MAX_OPENED_BYTES)
        return None if unpacking.unconsumed_tail else payload


def _signature(key: bytes, tenant: str, text: str) -> str:
    return _text(_VERSION + _mac(key, _SIGNATURE, tenant, text.encode("utf-8", "surrogatepass")))


def _mac(key: bytes, purpose: bytes, tenant: str, payload: bytes) -> bytes:
    # Lengths in front, so that no tenant and payload can be cut at another place to mean the same bytes.
    owner = tenant.encode("utf-8", "surrogatepass")
    head = b"%b%b%d:%b:" % (purpose, _VERSION, len(owner), owner)
    return hmac.digest(key, head + payload, "sha256")


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode("ascii")
