"""The calls of one client session as flows; `Committer` keeps the laws on errors and forgotten sessions."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from ganglion.client.committed import CommittedTokens, checked_chunks
from ganglion.client.committer import PREFILL_ONLY, Committer, NodeSession
from ganglion.client.flow import Emit, Flow, call_rpc, open_stream, read_message
from ganglion.client.flow_run import ResultBuilder
from ganglion.client.node_api import healed_suffix
from ganglion.client.options import GenerateOptions
from ganglion.client.rpcs import FORK, SAVE, SUSPEND
from ganglion.client.values import Chunk, Image, Result, Score, Suspended
from ganglion.core.errors import (
    GanglionError,
    InvalidRequest,
    InvalidValue,
    Overloaded,
    RateLimited,
    ServerError,
    SessionDrift,
    SessionNotFound,
)
from ganglion.core.events import Alternative
from ganglion.core.request import PLACEHOLDER
from ganglion.wire.salience import salience_pb2 as pb

_MAX_SAVED_BYTES: Final = 16 << 30
_PRECEDING_TOKENS: Final = 64
"""Tokens before new messages that are looked at for how the last turn ended."""


class SessionFlows:
    """A session's calls; one at a time."""

    def __init__(self, committer: Committer, *, is_restored: bool = False) -> None:
        """A restored session's steering is in bytes that only the node has read."""
        self._committer = committer
        self._is_restored = is_restored
        self.node = committer.node
        self.model = committer.model

    @property
    def node_session(self) -> NodeSession:
        """The session on the node."""
        return self._committer.node_session

    @property
    def committed(self) -> CommittedTokens:
        """What it holds after the last call that ended."""
        return self._committer.committed

    @property
    def context_length(self) -> int | None:
        """How many tokens it may hold; None where the node has not said."""
        return self._committer.context_length

    def append(self, chunk: Chunk, *, parse_special: bool) -> Flow[int]:
        """Append a chunk; the new length."""
        committer = self._committer
        if isinstance(chunk, Image):
            yield from committer.with_reopen(lambda: committer.append_image(chunk))
            return self.committed.length
        planned = yield from committer.plan(self.committed, chunk, parse_special)
        return (yield from committer.prefill(planned))

    def append_messages(self, chat: Mapping[str, object]) -> Flow[int]:
        """Append chat messages as the model's template writes them; the new length."""
        length = self.committed.length
        if self.committed.unknown_prefix > length - _PRECEDING_TOKENS:
            yield from self.read_tokens()
        tail = self.committed.tokens[-_PRECEDING_TOKENS:]
        while PLACEHOLDER in tail:  # an image has no text
            tail = tail[tail.index(PLACEHOLDER) + 1 :]
        tokens = yield from self.node.render(self.model, chat, tail, is_continued=length > 0)
        return (yield from self._committer.prefill(self.committed.with_tokens(tokens)))

    def read_tokens(self) -> Flow[tuple[int, ...]]:
        """All tokens, also those from before it was restored or attached to."""
        committer, session_id = self._committer, self.node_session.id
        if self.committed.unknown_prefix and session_id is not None:
            if self._is_restored:
                info = yield from self.node.session(session_id)
                committer.ttl_s, committer.steering, self._is_restored = info.ttl_s, info.steering, False
            tokens = yield from self.node.tokens(session_id, self.committed.unknown_prefix)
            committer.committed = self.committed.revealed(tokens)
        return self.committed.tokens

    def generate_result(self, options: GenerateOptions) -> Flow[Result]:
        """Continue the session; the whole result at the end."""
        seen, done = yield from self._committer.collect(self.committed, options)
        builder = ResultBuilder()
        for event in seen:
            builder.take(event)
        builder.take(done)
        return builder.result()

    def likeliest(self, tokens: Sequence[int], count: int) -> Flow[tuple[Alternative, ...]]:
        """Append tokens; the likeliest ones after them."""
        planned = self.committed.with_tokens(tokens)
        where = [(planned.length, None)]
        options = GenerateOptions(
            max_tokens=1, temperature=0.0, ignore_eos=True, logprobs=where, top_k_logprobs=count
        )
        seen, _ = yield from self._committer.collect(planned, options)
        # The generated token is cut off by the next call.
        self._committer.committed = planned.confirmed().diverged_after(planned.length)
        return seen[-1].top if seen else ()

    def generate(self, options: GenerateOptions) -> Flow[None]:
        """Continue the session."""
        if options.get("heal") and self.committed.unknown_prefix:
            yield from self.read_tokens()
        yield from self._committer.with_reopen(lambda: self._generate_events(self.committed, options))

    def _generate_events(self, planned: CommittedTokens, options: GenerateOptions) -> Flow[None]:
        healed = (
            (yield from healed_suffix(self.node, self.model, planned.tokens)) if options.get("heal") else None
        )
        if healed is not None:
            planned = planned.cut(healed.start)
            options = {**options, "prefix": healed.text + options.get("prefix", "")}
        done = yield from self._committer.generate(planned, options, emits=True)
        yield Emit(done if healed is None else replace(done, healed=healed.text))

    def score(self, chunks: Sequence[str | Sequence[int]], top: int, parse_special: bool) -> Flow[Score]:
        """The last chunk's logprobs after the others; the session stays as it is."""
        before = planned = self.committed
        start = planned.length
        for chunk in chunks:
            start = planned.length
            planned = yield from self._committer.plan(planned, chunk, parse_special)
        if planned.length == start:
            return Score(())
        options = GenerateOptions(max_tokens=0, logprobs=[(start, planned.length)], top_k_logprobs=top)
        try:
            scored, _ = yield from self._committer.collect(planned, options)
        except GeneratorExit:
            self._committer.committed = before.diverged_after(self.committed.confirmed_length)
            raise
        # Not truncated here: the next call does it on its way.
        self._committer.committed = before.diverged_after(before.confirmed_length)
        return Score(tuple(scored))

    def run(self, chunks: Sequence[Chunk], options: GenerateOptions, *, parse_special: bool) -> Flow[None]:
        """Generate after a whole conversation, of which only what is new is sent.

        A node that has forgotten the session is sent all of it, images too. A call that is refused changes
        nothing; after any other error the session is dropped.
        """
        chunks = checked_chunks(chunks)
        if options.get("heal"):
            raise InvalidValue(
                "run() sends chunks as they are, and heals no token of theirs.",
                param="heal",
                hint="generate(heal=True) does.",
            )
        committer = self._committer
        before, rest = self.committed, self.committed.rest(chunks)
        committer.has_emitted = False
        try:
            try:
                yield from self._run(rest, options, parse_special)
            except SessionNotFound:
                if committer.has_emitted:
                    raise
                committer.node_session.id, committer.committed = None, CommittedTokens()
                before = self.committed
                yield from self._run(chunks, options, parse_special)
        except GanglionError as error:
            if _is_refusal(error):
                # What it has sent already is cut off by the next call.
                committer.committed = before.diverged_after(self.committed.confirmed_length)
            else:
                yield from committer.drop(error)
            raise

    def _run(self, rest: Sequence[Chunk], options: GenerateOptions, parse_special: bool) -> Flow[None]:
        committer = self._committer
        planned = self.committed
        for chunk in rest:
            if isinstance(chunk, Image):
                if planned.length > self.committed.length:
                    yield from committer.generate(planned, PREFILL_ONLY)
                # A text of no tokens stands there as well.
                committer.committed = replace(self.committed, sent=planned.sent)
                appended = yield from committer.append_image(chunk)
                committer.has_emitted = True
                yield Emit(appended)
                planned = self.committed
            else:
                planned = yield from committer.plan(planned, chunk, parse_special)
        yield from self._generate_events(planned, options)

    def fork(self, at: int | None, ttl_s: float | None) -> Flow["SessionFlows"]:
        """Another session that begins like this one."""
        committer = self._committer
        committed = self.committed if at is None else self.committed.cut(at)
        forked = yield from committer.with_reopen(lambda: self._fork(committed.length, ttl_s))
        child = Committer(
            self.node,
            self.model,
            ttl_s=committer.ttl_s if ttl_s is None else ttl_s,
            steering=committer.steering,
            node_session=NodeSession(forked.session_id),
            committed=committed.confirmed(),
        )
        child.context_length = committer.context_length
        return SessionFlows(child, is_restored=self._is_restored)

    def _fork(self, at: int, ttl_s: float | None) -> Flow[pb.ForkSessionResponse]:
        session_id = yield from self._committer.confirmed_session()
        return (yield from call_rpc(FORK, pb.ForkSessionRequest(session_id=session_id, at=at, ttl_s=ttl_s)))

    def truncate(self, length: int) -> Flow[int]:
        """Drop the tokens from a position on; the length."""
        return (yield from self._committer.with_reopen(lambda: self._committer.truncate(length)))

    def save(self, *, without_kv: bool) -> Flow[bytes]:
        """The session as bytes."""
        return (yield from self._committer.with_reopen(lambda: self._save(without_kv)))

    def _save(self, without_kv: bool) -> Flow[bytes]:
        session_id = yield from self._committer.confirmed_session()
        request = pb.SaveSessionRequest(session_id=session_id, without_kv=without_kv)
        parts, size_bytes = [], 0
        message = yield from open_stream(SAVE, request)
        while message is not None:
            size_bytes += len(message.data)
            if size_bytes > _MAX_SAVED_BYTES:
                raise ServerError(
                    f"The session is larger than {_MAX_SAVED_BYTES} bytes.", hint="without_kv=True"
                )
            parts.append(message.data)
            message = yield from read_message(SAVE)
        return b"".join(parts)

    def suspend(self) -> Flow[Suspended]:
        """Put the session on the node's disk; the next call that names it resumes it."""
        suspended = yield from self._committer.with_reopen(self._suspend)
        self.node_session.is_suspended = True
        return Suspended(suspended.total_tokens, suspended.size_bytes)

    def _suspend(self) -> Flow[pb.SuspendSessionResponse]:
        session_id = yield from self._committer.confirmed_session()
        return (yield from call_rpc(SUSPEND, pb.SuspendSessionRequest(session_id=session_id)))

    def reset(self) -> Flow[None]:
        """Begin anew; the next call opens another session."""
        yield from self._committer.drop()

    def close(self) -> Flow[None]:
        """Forget the session, here and (unless it is suspended) on the node, where it can be reached."""
        if not self._committer.is_closed:
            self._committer.is_closed = True
            if not self.node_session.is_suspended:
                yield from self._committer.drop()


def _is_refusal(error: GanglionError) -> bool:
    """Whether the error says that the node changed nothing and still holds what it held."""
    is_ours = isinstance(error, InvalidRequest | RateLimited | Overloaded)
    return is_ours and not isinstance(error, SessionNotFound | SessionDrift)
