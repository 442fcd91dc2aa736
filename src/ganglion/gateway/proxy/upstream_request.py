"""A request as it is sent to one node: its body, our headers, and never the client's key."""

from dataclasses import dataclass
from functools import lru_cache

from msgspec import Struct

from ganglion.gateway.node import NodeSpec
from ganglion.gateway.proxy import heads
from ganglion.gateway.proxy.authorize import RequestContext
from ganglion.gateway.proxy.peek import with_fields, with_model_query
from ganglion.gateway.upstream.node_headers import (
    header_lines,
    identity_headers,
    key_headers,
    lease_headers,
)
from ganglion.gateway.upstream.pool import ConnectionPool, ConnectionPools
from ganglion.wire.headers import ADMISSION, AFFINITY, REQUEST_ID, USAGE

_MAX_UPSTREAM_HEADS = 2048


@dataclass(frozen=True, slots=True)
class UpstreamHead:
    """What stands at the head of every request to one node."""

    spec: NodeSpec
    pool: ConnectionPool
    prefix: bytes
    """Of every path there."""
    head: bytes
    """From behind the path on: the version, whom it is for, and the gateway's own key."""


class UpstreamHeads:
    """The upstream heads of all nodes, each made once for each declaration."""

    def __init__(self, pools: ConnectionPools) -> None:
        self._pools = pools
        self._upstreams: dict[str, UpstreamHead] = {}

    def to(self, spec: NodeSpec) -> UpstreamHead:
        """A node's; raises InvalidValue where its URL is none."""
        upstream = self._upstreams.get(spec.name)
        if upstream is None or upstream.spec is not spec:
            if len(self._upstreams) >= _MAX_UPSTREAM_HEADS:
                self._upstreams.clear()  # of nodes that are gone, mostly; the others are made again
            upstream = self._upstreams[spec.name] = self._made(spec)
        return upstream

    def _made(self, spec: NodeSpec) -> UpstreamHead:
        pool = self._pools.of(spec)
        head = b" HTTP/1.1\r\nhost: %b\r\n" % pool.address.authority.encode()
        head += header_lines(key_headers(spec))
        if spec.is_ours:
            head += header_lines([(USAGE, b"1"), *lease_headers(spec)])
        return UpstreamHead(spec, pool, pool.address.prefix.encode(), head)


_BODYLESS = (b"GET", b"HEAD", b"DELETE", b"OPTIONS")


class _UpstreamRequest(Struct, frozen=True, gc=False):
    """What goes to a node, and whether it asks for a usage chunk that the client does not want."""

    data: bytes
    takes_usage: bool = False


def encode_upstream_request(
    context: RequestContext, upstream: UpstreamHead, model: str | None, context_length: int = 0
) -> _UpstreamRequest:
    """The bytes for a node that names the model so; None leaves that as the client wrote it.

    `context_length` is what the model's prompt and answer are together at most; 0 where nobody knows.
    """
    peeked, head = context.peeked, context.call.head
    body, query = context.call.body, head.target.query
    is_ours = upstream.spec.kind == "ganglion"
    takes_usage = False
    if peeked is not None and (model is not None or peeked.is_filled_in):
        named = model or peeked.model
        renamed = named if peeked.is_filled_in or named != peeked.model else None
        takes_usage = not is_ours and _is_counted_by_chunk(context)
        if head.method == b"GET":
            query = query if renamed is None else with_model_query(query, renamed)
        elif renamed is not None or takes_usage or context.answer_tokens is not None:
            answer_tokens = _answer_bound(context, context_length)
            body = with_fields(
                body,
                context.route.dialect,
                model=renamed,
                asks_usage=takes_usage,
                answer_tokens=answer_tokens,
            )
    elif context.answer_tokens is not None and not context.route.is_control_app:
        # At the control app, where a call whose answer is kept finds its bound by its admission.
        body = with_fields(body, context.route.dialect, answer_tokens=_answer_bound(context, 0))
    has_length = body or head.method not in _BODYLESS
    data = b"".join(
        (
            # The parser of answers cannot know that one to HEAD has no body; the proxy leaves it out.
            b"GET" if head.method == b"HEAD" else head.method,
            b" ",
            upstream.prefix,
            head.target.encoded,
            b"?" + query if query else b"",
            upstream.head,
            _internal_lines(context) if is_ours else _foreign_lines(context),
            b"content-length: %d\r\n\r\n" % len(body) if has_length else b"\r\n",
            body,
        )
    )
    return _UpstreamRequest(data, takes_usage)


def _answer_bound(context: RequestContext, context_length: int) -> int | None:
    """The bound on each open answer; None where there is none, or where the model's context does that."""
    bound, tokens = context.bound, context.answer_tokens
    if bound is None or tokens is None:
        return None
    # Some servers refuse a bound that does not fit behind the prompt, and need none then.
    if context_length and bound.open_answers == 1 and bound.tokens + tokens > context_length:
        return None
    return tokens


def _is_counted_by_chunk(context: RequestContext) -> bool:
    peeked = context.peeked
    if peeked is None or context.route.dialect.ask_usage is None:
        return False
    return peeked.is_stream and not peeked.asks_usage


def _foreign_lines(context: RequestContext) -> bytes:
    forwarded = heads.to_foreign(context.call.head)
    return b"%b%b: %b\r\n" % (forwarded, REQUEST_ID, context.request_id.encode())


@lru_cache(maxsize=1024)
def _identity_lines(tenant: str, key_id: str, priority: int) -> bytes:
    """The headers that tell a node of ours whose request it is."""
    return header_lines(identity_headers(tenant=tenant, key_id=key_id, priority=priority))


def _internal_lines(context: RequestContext) -> bytes:
    head, identity = context.call.head, context.identity
    lines = b"%b%b%b: %b\r\n" % (
        heads.to_ours(head),
        _identity_lines(identity.tenant, identity.key_id, identity.priority),
        REQUEST_ID,
        context.request_id.encode(),
    )
    if context.admission_id:
        lines += b"%b: %b\r\n" % (ADMISSION, context.admission_id)
    if context.affinity:
        lines += b"%b: %b\r\n" % (AFFINITY, context.affinity.encode())
    return lines + heads.SOCKET if head.is_socket else lines
