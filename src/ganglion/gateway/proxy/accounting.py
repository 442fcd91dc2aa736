"""The accounts of a request: what its answer came to, and its key's ledger, metrics, log line and trace."""

from time import perf_counter
from typing import TYPE_CHECKING

from ganglion.core.events import Usage
from ganglion.gateway.access.admission import Admission
from ganglion.gateway.proxy.attempt import NodeAttempt
from ganglion.gateway.proxy.authorize import RequestContext
from ganglion.gateway.proxy.reply import ClientReply
from ganglion.gateway.routing.decision import ChosenNode
from ganglion.wire.proxy_usage import estimated_answer, estimated_prompt, usage_of_body

if TYPE_CHECKING:
    from ganglion.gateway.proxy.listener import ProxyListener


def usage_of_attempt(context: RequestContext, attempt: NodeAttempt) -> Usage:
    """What an answer came to so far; where nobody says, what it looks like, since it was not free."""
    stream = attempt.stream
    if stream is None:
        return _estimated(context, 0)
    return stream.usage or _estimated(context, stream.said)


def usage_of_whole(context: RequestContext, attempt: NodeAttempt | None, body: bytes) -> Usage:
    """What a whole answer came to; ours say so, wherever something is counted."""
    route = context.route
    usage = usage_of_body(body, route.dialect.read_usage)
    if usage is not None:
        return usage
    if attempt is None or attempt.is_control_app or attempt.spec.kind != "openai":
        return Usage(0, 0)
    return _estimated(context, estimated_answer(body, route.dialect.answer_texts) if route.generates else 0)


def _estimated(context: RequestContext, completion_tokens: int) -> Usage:
    """About what was used, within what was reserved."""
    if not context.route.runs_model:
        return Usage(0, 0)
    prompt_tokens, bound = estimated_prompt(context.call.body), context.bound
    if bound is not None:
        most = bound.tokens + bound.open_answers * (context.answer_tokens or 0)
        prompt_tokens = min(prompt_tokens, most)
        completion_tokens = min(completion_tokens, most - prompt_tokens)
    return Usage(prompt_tokens, completion_tokens)


def settle(
    listener: "ProxyListener",
    context: RequestContext,
    admission: Admission,
    chosen: ChosenNode | None,
    usage: Usage | None,
) -> None:
    """Book what was used on the key that was let in."""
    if context.admission_id:
        listener.open_admissions.close(context.admission_id)
    if chosen is not None:
        admission.answered_by(chosen.booked_as)
    admission.settle(usage)
    if usage is not None:
        listener.metrics.spent(context.identity.tenant, admission.model, usage)


def record(
    listener: "ProxyListener", context: RequestContext, reply: ClientReply, node: str, usage: Usage | None
) -> None:
    """Say how a request went, where requests are measured, logged and traced."""
    duration_s = perf_counter() - reply.began_s
    listener.metrics.ended(context.route.label, reply.status, node, duration_s)
    listener.log.add(context, reply.status, duration_s, node, usage)
    if context.span is not None:
        context.span.end(reply.status, {"ganglion.node": node, "gen_ai.request.model": context.model})
