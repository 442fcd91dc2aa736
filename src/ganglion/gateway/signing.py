"""What goes with a call of the gateway: our own nodes believe who it is for, others are not told."""

from ganglion.core.errors import InvalidValue
from ganglion.gateway import trusted
from ganglion.gateway.node import NodeSpec
from ganglion.gateway.upstream import Headers


def trusted_headers(
    spec: NodeSpec, *, tenant: str, request_id: str = "", priority: int = 0, affinity: str = ""
) -> Headers:
    """The headers of a call with a JSON body; raises InvalidValue for what no header can hold."""
    headers = [(b"content-type", b"application/json")]
    if spec.kind != "ganglion":
        return headers
    headers += [
        (trusted.TENANT, _value(tenant)),
        (trusted.PRIORITY, b"%d" % priority),
    ]
    if request_id:
        headers.append((trusted.REQUEST_ID, _value(request_id)))
    if affinity:
        headers.append((trusted.AFFINITY, _value(affinity)))
    if spec.epoch is not None:
        headers.append((trusted.EPOCH, b"%d" % spec.epoch))
    return headers


def _value(text: str) -> bytes:
    if not text.isprintable():
        raise InvalidValue(f"{text[:64]!r} cannot stand in a header.")
    return text.encode()
