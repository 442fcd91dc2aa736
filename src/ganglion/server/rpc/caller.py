"""Who makes a call, read from its metadata: the key's tenant and the request's name."""

from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

from ganglion.server.keys import KeyRing, bearer_key, key_refusal
from ganglion.server.request_log import request_id_of

REQUEST_ID: Final = "x-request-id"
PUBLIC: Final = frozenset({"grpc.health.v1.Health"})
"""Services that answer without a key."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose call it is, and the name under which it is logged."""

    tenant: str
    request_id: str


CALLER: Final[ContextVar[Caller]] = ContextVar("caller")
"""Written by the guard for the call that it lets in: gRPC hands a method its message and nothing of ours."""

Metadata = Iterable[tuple[str, str | bytes]]

Judge = Callable[[str, Metadata, str], Caller]
"""Takes a call's method, metadata and name, and says whose it is; raises InvalidApiKey."""


def value_of(metadata: Metadata, name: str) -> bytes | None:
    """The first value under a name."""
    for key, value in metadata:
        if key == name:
            return value.encode() if isinstance(value, str) else value
    return None


def named(metadata: Metadata) -> str:
    """The call's name: its own where it brings one, else a new one."""
    return request_id_of(value_of(metadata, REQUEST_ID))


def judge_of(keys: KeyRing) -> Judge:
    """Judges by the keys that are valid when it is asked."""

    def judge(method: str, metadata: Metadata, request_id: str) -> Caller:
        return Caller(tenant_of(method, metadata, keys), request_id)

    return judge


def tenant_of(method: str, metadata: Metadata, keys: KeyRing) -> str:
    """Whose call it is; raises InvalidApiKey for everything that is not public."""
    key = bearer_key(value_of(metadata, "authorization"))
    tenant = keys.tenant_of(key)
    if tenant is not None:
        return tenant
    if is_public(method):
        return ""
    raise key_refusal(key)


def is_public(method: str) -> bool:
    """Whether a method answers anybody."""
    return method.removeprefix("/").rpartition("/")[0] in PUBLIC
