"""An id for a conversation, the same at each turn, so that its turns meet the same prefix cache."""

from functools import lru_cache
from hashlib import blake2b

_DIGEST_BYTES = 8
_MAX_NAME = 256
"""No model has a longer name, and none is cached."""
_MAX_PREFIX_BYTES = 4096
"""Of each part: enough to tell conversations apart, whatever follows."""


_MAX_IMAGE_PREFIX_BYTES = 2**16
"""The same where they hold pictures, which begin alike; nobody reads megabytes for a choice."""


def _owner(tenant: str, model: str) -> bytes:
    return f"{len(tenant)}:{tenant}{len(model)}:{model}".encode(errors="surrogatepass")


_owned = lru_cache(maxsize=1024)(_owner)


def affinity_of(tenant: str, model: str, *parts: bytes | str, has_images: bool = False) -> str:
    """The id of a conversation that begins with these parts; tenants and models never share one."""
    most = _MAX_IMAGE_PREFIX_BYTES if has_images else _MAX_PREFIX_BYTES
    named = _owned(tenant, model) if len(model) <= _MAX_NAME else _owner(tenant, model)
    for part in parts:
        encoded = part.encode(errors="surrogatepass") if isinstance(part, str) else part
        kept = encoded[:most]
        named += b"%d:%b" % (len(kept), kept)
    return blake2b(named, digest_size=_DIGEST_BYTES).hexdigest()
