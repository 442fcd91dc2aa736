"""The committer of one session, which opens it on the node and brings the node to the planned tokens.

Law: a call that raises changes nothing here; an iteration that is abandoned keeps what its caller has seen.
Whatever the node made of either, the next call puts it right (see `committed`).

Law: a node that has forgotten the session (it was killed, or the session's time to live ran out) is sent all
of it again, once in a call and before the call has emitted anything: the tokens are here. Where some are not,
as with images and with tokens from before it was restored or attached to, SessionNotFound is raised.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from ganglion.client.committed import CommittedTokens, checked_tokens
from ganglion.client.decoding import TokenDecoder, done_of, progress_of
from ganglion.client.errors import Disconnected
from ganglion.client.flow import Emit, Flow, UnaryCall, call_rpc, open_stream, read_message, retry_busy
from ganglion.client.node_api import NodeApi
from ganglion.client.options import GenerateOptions, generate_request
from ganglion.client.rpcs import APPEND_IMAGE, CLOSE, GENERATE, TRUNCATE
from ganglion.client.values import Done, Image, ImageAppended, TokenEvent
from ganglion.core.attachments import MAX_ATTACHMENT_BYTES
from ganglion.core.errors import GanglionError, InvalidRequest, InvalidValue, SessionNotFound
from ganglion.core.request import PLACEHOLDER, Steering
from ganglion.wire.salience import salience_pb2 as pb

_T = TypeVar("_T")

PREFILL_ONLY: Final = GenerateOptions(max_tokens=0)


@dataclass(slots=True)
class NodeSession:
    """The node's id of a session; None while there is none."""

    id: str | None = None
    is_ours: bool = True
    """It was opened by this client and ends with it: not one that was attached to."""
    is_suspended: bool = False
    """It is on the node's disk and outlives the client."""

    @property
    def is_ours_to_close(self) -> bool:
        """Whether nobody else will close it once the client's session is gone."""
        return self.id is not None and self.is_ours and not self.is_suspended


class Committer:
    """The state of one session, and the flows that change it; one call at a time."""

    def __init__(
        self,
        node: NodeApi,
        model: str,
        *,
        ttl_s: float | None = None,
        steering: Steering = (),
        node_session: NodeSession | None = None,
        committed: CommittedTokens | None = None,
    ) -> None:
        self.node = node
        self.model = model
        self.ttl_s = ttl_s
        self.steering = steering
        self.node_session = node_session or NodeSession()
        self.committed = committed or CommittedTokens()
        self.context_length: int | None = None
        self.is_closed = False
        self.has_emitted = False
        """The running call has emitted an event, so it cannot be made again."""

    def with_reopen(self, attempt: Callable[[], Flow[_T]]) -> Flow[_T]:
        """Attempt; where the node has forgotten the session, once more in a fresh one with all its tokens."""
        self.has_emitted = False
        try:
            return (yield from attempt())
        except SessionNotFound:
            if self.has_emitted or PLACEHOLDER in self.committed.tokens:
                raise
            self.node_session.id = None
            self.committed = replace(self.committed, confirmed_length=0, is_diverged=False)
        return (yield from attempt())

    def open_session(self) -> Flow[str]:
        """The session's id; opens it with the first call."""
        if self.is_closed:
            raise InvalidValue("The session is closed.", hint="Open another one with client.session().")
        if self.node_session.id is None:
            opened = yield from self.node.open(self.model, self.ttl_s, self.steering)
            self.node_session.id, self.node_session.is_ours = opened.session_id, True
            self.context_length = opened.context_length
        self.node_session.is_suspended = False
        return self.node_session.id

    def confirmed_session(self) -> Flow[str]:
        """The session's id, once the node holds exactly the committed tokens."""
        session_id = yield from self.open_session()
        if self.committed.unsent:
            yield from self.generate(self.committed, PREFILL_ONLY)
        elif self.committed.is_diverged:
            yield from self.truncate(self.committed.length)
        return session_id

    def plan(
        self, committed: CommittedTokens, chunk: str | Sequence[int], parse_special: bool
    ) -> Flow[CommittedTokens]:
        """The tokens with a chunk at their end, which the node does not have yet."""
        if not isinstance(chunk, str):
            return committed.with_tokens(checked_tokens(chunk))
        start = committed.length
        tokens = yield from self.node.tokenize(
            self.model, chunk, add_special=start == 0, parse_special=parse_special
        )
        return committed.with_tokens(tokens).with_chunk(chunk, start, len(tokens))

    def prefill(self, planned: CommittedTokens) -> Flow[int]:
        """Have the node read what was planned and generate nothing; the new length."""
        before = self.committed
        if planned.length == before.length:
            self.committed = planned
            return planned.length
        try:
            yield from self.with_reopen(lambda: self.generate(planned, PREFILL_ONLY))
        except GeneratorExit:
            self.committed = before.diverged_after(self.committed.confirmed_length)
            raise
        return self.committed.length

    def collect(
        self, planned: CommittedTokens, options: GenerateOptions
    ) -> Flow[tuple[list[TokenEvent], Done]]:
        """Generate after `planned`; all tokens at the end, none emitted."""
        seen: list[TokenEvent] = []

        def attempt() -> Flow[Done]:
            seen.clear()
            return self.generate(planned, options, seen)

        done = yield from self.with_reopen(attempt)
        return seen, done

    def generate(
        self,
        planned: CommittedTokens,
        options: GenerateOptions,
        seen: list[TokenEvent] | None = None,
        *,
        emits: bool = False,
    ) -> Flow[Done]:
        """Bring the node to `planned` and generate; abandoned midway, what was planned and seen is committed.

        What is planned may be shorter than what the node holds: the rest is then cut off in the same call.
        """
        before = self.committed
        offset = min(before.confirmed_length, planned.length)
        session_id = yield from self.open_session()
        manifest = (yield from self.node.manifest(self.model)) if options.get("readout") else None
        request = generate_request(
            session_id,
            options,
            append=planned.tokens[offset:],
            offset=offset,
            is_truncating=before.is_diverged or offset < before.confirmed_length,
        )
        decoder, generated = TokenDecoder(manifest), list[int]()
        message = None
        try:
            message = yield from retry_busy(
                lambda: open_stream(GENERATE, request), is_ours=before.is_diverged
            )
            self.has_emitted = self.has_emitted or emits
            while message is not None and not message.HasField("done"):
                if message.HasField("token"):
                    event = decoder.event(message.token)
                    if not event.is_prefill:
                        generated.append(event.id)
                    if seen is not None:
                        seen.append(event)
                    if emits:
                        yield Emit(event)
                elif emits and message.HasField("progress"):
                    yield Emit(progress_of(message.progress))
                message = yield from read_message(GENERATE)
            if message is None:
                raise Disconnected("The node ended a stream without a final message.")
        except GeneratorExit:
            is_cut = planned.length < before.length and not generated
            seen_by_caller = before if is_cut else planned.with_tokens(generated)
            self.committed = seen_by_caller.diverged_after(offset)
            raise
        except GanglionError as error:
            is_refused = message is None and isinstance(error, InvalidRequest)
            self.committed = before if is_refused else before.diverged_after(offset)
            raise
        after = planned.with_tokens(generated)
        is_agreed = message.done.total_tokens == after.length
        self.committed = after.confirmed() if is_agreed else after.diverged_after(offset)
        return done_of(message.done)

    def append_image(self, image: Image) -> Flow[ImageAppended]:
        """Append an image."""
        if len(image.data) > MAX_ATTACHMENT_BYTES:
            raise InvalidValue(f"The image is larger than {MAX_ATTACHMENT_BYTES} bytes.", param="image")
        session_id = yield from (self.confirmed_session() if self.committed.unsent else self.open_session())
        before = self.committed
        request = pb.AppendImageRequest(
            session_id=session_id,
            data=image.data,
            mime=image.mime,
            offset=before.confirmed_length,
            truncating=before.is_diverged,
        )
        try:
            appended = yield from retry_busy(
                lambda: call_rpc(APPEND_IMAGE, request), is_ours=before.is_diverged
            )
        except InvalidRequest:
            raise
        except (GanglionError, GeneratorExit):
            self.committed = before.diverged_after(before.confirmed_length)
            raise
        count = appended.placeholder_count
        after = before.with_tokens((PLACEHOLDER,) * count).with_chunk(image, before.length, count)
        self.committed = after.confirmed()
        return ImageAppended(count, appended.total_length)

    def truncate(self, length: int) -> Flow[int]:
        """Drop the tokens from a position on; the length."""
        before, cut = self.committed, self.committed.cut(length)
        if self.node_session.id is not None and length <= before.confirmed_length:
            request = pb.TruncateSessionRequest(session_id=self.node_session.id, length=length)
            try:
                yield from retry_busy(lambda: call_rpc(TRUNCATE, request), is_ours=before.is_diverged)
            except InvalidRequest:
                raise
            except (GanglionError, GeneratorExit):
                self.committed = cut.diverged_after(length)
                raise
            cut = cut.confirmed()
        self.committed = cut
        return cut.length

    def drop(self, error: GanglionError | None = None) -> Flow[None]:
        """Forget the session, and close it on the node where it can be reached."""
        session_id, self.node_session.id, self.committed = self.node_session.id, None, CommittedTokens()
        # A node that is away, or does not know the session, has nothing to close.
        if session_id is not None and not isinstance(error, Disconnected | SessionNotFound):
            with suppress(GanglionError):
                yield UnaryCall(CLOSE, pb.CloseSessionRequest(session_id=session_id))
