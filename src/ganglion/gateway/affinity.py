"""One name for a conversation, the same at each turn, so that its turns meet the same prefix cache."""

from hashlib import blake2b

DIGEST_BYTES = 8
MAX_PREFIX_BYTES = 4096
"""Of each part: enough to tell conversations apart, whatever follows."""


def affinity_of(tenant: str, model: str, *parts: bytes | str) -> str:
    """The name of what these parts begin; different tenants and models never share one."""
    named = f"{len(tenant)}:{tenant}{len(model)}:{model}".encode(errors="surrogatepass")
    for part in parts:
        encoded = part.encode(errors="surrogatepass") if isinstance(part, str) else part
        kept = encoded[:MAX_PREFIX_BYTES]
        named += b"%d:%b" % (len(kept), kept)
    return blake2b(named, digest_size=DIGEST_BYTES).hexdigest()
