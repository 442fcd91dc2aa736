"""A request as it is put to one node: its words, our names for it, and never the client's key."""

from functools import lru_cache

from msgspec import Struct

from ganglion.gateway import heads
from ganglion.gateway.judging import Errand
from ganglion.gateway.lines import Line
from ganglion.gateway.node import Wire
from ganglion.gateway.peek import with_fields, with_model_query
from ganglion.gateway.trusted import AFFINITY, KEY, PLACE, PRIORITY, REQUEST_ID, TENANT

_BODYLESS = (b"GET", b"HEAD", b"DELETE", b"OPTIONS")


class Question(Struct, frozen=True, gc=False):
    """What goes to a node, and whether it asks for a usage chunk that the client does not want."""

    data: bytes
    takes_usage: bool = False


def question(errand: Errand, line: Line, model: str | None, context_length: int = 0) -> Question:
    """The bytes for a node that names the model so; None leaves that as the client wrote it.

    `context_length` is what the model's prompt and answer are together at most; 0 where nobody knows.
    """
    peeked, head = errand.peeked, errand.call.head
    body, query = errand.call.body, head.target.query
    is_ours = line.spec.kind == "ganglion"
    takes_usage = False
    if peeked is not None and (model is not None or peeked.is_filled_in):
        named = model or peeked.model
        renamed = named if peeked.is_filled_in or named != peeked.model else None
        takes_usage = not is_ours and _is_counted_by_chunk(errand)
        if head.method == b"GET":
            query = query if renamed is None else with_model_query(query, renamed)
        elif renamed is not None or takes_usage or errand.answer_tokens is not None:
            answer = _answer_bound(errand, context_length)
            body = with_fields(body, model=renamed, asks_usage=takes_usage, answer=answer)
    elif errand.answer_tokens is not None and errand.route.wire != "responses":
        # At the desk, where a Responses call finds its bound by its place, and tells its client's own.
        body = with_fields(body, model=None, asks_usage=False, answer=_answer_bound(errand, 0))
    has_length = body or head.method not in _BODYLESS
    data = b"".join(
        (
            # The parser of answers cannot know that one to HEAD has no body; the front leaves it out.
            b"GET" if head.method == b"HEAD" else head.method,
            b" ",
            line.prefix,
            head.target.encoded,
            b"?" + query if query else b"",
            line.head,
            _ours(errand) if is_ours else _foreign(errand),
            b"content-length: %d\r\n\r\n" % len(body) if has_length else b"\r\n",
            body,
        )
    )
    return Question(data, takes_usage)


def _answer_bound(errand: Errand, context_length: int) -> tuple[Wire, int] | None:
    """What each open answer is held to; None where there is none, or where the model's context does that."""
    wire, bound, tokens = errand.route.wire, errand.bound, errand.answer_tokens
    if wire is None or bound is None or tokens is None:
        return None
    # Some servers refuse a bound that does not fit behind the prompt, and need none then.
    if context_length and bound.open_answers == 1 and bound.tokens + tokens > context_length:
        return None
    return wire, tokens


def _is_counted_by_chunk(errand: Errand) -> bool:
    peeked = errand.peeked
    if peeked is None or errand.route.wire not in ("chat", "completions"):
        return False
    return peeked.is_stream and not peeked.asks_usage


def _foreign(errand: Errand) -> bytes:
    forwarded = heads.to_foreign(errand.call.head)
    return b"%b%b: %b\r\n" % (forwarded, REQUEST_ID, errand.request_id.encode())


@lru_cache(maxsize=1024)
def _vouching(tenant: str, key_id: str, priority: int) -> bytes:
    """What a node of ours is told of whose request it is."""
    told = (TENANT, heads.value_of(tenant), KEY, heads.value_of(key_id), PRIORITY, priority)
    return b"%b: %b\r\n%b: %b\r\n%b: %d\r\n" % told


def _ours(errand: Errand) -> bytes:
    head, identity = errand.call.head, errand.identity
    lines = b"%b%b%b: %b\r\n" % (
        heads.to_ours(head),
        _vouching(identity.tenant, identity.key_id, identity.priority),
        REQUEST_ID,
        errand.request_id.encode(),
    )
    if errand.place:
        lines += b"%b: %b\r\n" % (PLACE, errand.place)
    if errand.affinity:
        lines += b"%b: %b\r\n" % (AFFINITY, errand.affinity.encode())
    return lines + heads.SOCKET if head.is_socket else lines
