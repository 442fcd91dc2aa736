"""One session as the client leads it: every call of it as a flow, and what is known after each.

Law: a call that raises changes nothing here; an iteration that is left keeps what its caller has seen.
Whatever the server made of either, the next call puts it right (see `ledger`).

Law: a node that has forgotten the session (it was killed, or nobody named the session in its time) is told
all of it again, once in a call and before anything of that call was told: the tokens are here. Where some
are not, as with images and with what somebody else put there, SessionNotFound is raised.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from ganglion.client.committed import CommittedTokens, checked_chunks, checked_tokens
from ganglion.client.decoding import TokenDecoder, done_of, progress_of
from ganglion.client.errors import Disconnected
from ganglion.client.flow import Emit, Flow, UnaryCall, call_rpc, open_stream, read_message, retry_busy
from ganglion.client.flow_run import ResultBuilder
from ganglion.client.node_api import NodeApi, healed_suffix
from ganglion.client.options import GenerateOptions, generate_request
from ganglion.client.rpcs import APPEND_IMAGE, CLOSE, FORK, GENERATE, SAVE, SUSPEND, TRUNCATE
from ganglion.client.values import (
    MAX_IMAGE_BYTES,
    PLACEHOLDER,
    Alternative,
    Chunk,
    Done,
    Image,
    ImageAppended,
    Result,
    Score,
    Suspended,
    TokenEvent,
)
from ganglion.core.errors import (
    GanglionError,
    InvalidRequest,
    InvalidValue,
    RateLimited,
    ServerError,
    SessionDrift,
    SessionNotFound,
)
from ganglion.core.request import Steering
from ganglion.wire.salience import salience_pb2 as pb

T = TypeVar("T")

MAX_SAVED_BYTES: Final = 16 << 30
PRECEDING_TOKENS: Final = 64
"""Tokens before new messages that are looked at for how the last turn ended."""
PREFILL_ONLY: Final = GenerateOptions(max_tokens=0)


@dataclass(slots=True)
class NodeSession:
    """What a node calls a conversation's session; None while there is none."""

    id: str | None = None
    is_ours: bool = True
    """It was made for this conversation, and ends with it: not one that was attached to."""
    is_kept: bool = False
    """It lies on the node's disk and outlives whoever closes it here."""

    @property
    def is_left(self) -> bool:
        """Whether nobody else will close it, once its conversation is gone."""
        return self.id is not None and self.is_ours and not self.is_kept


class SessionFlows:
    """A session's state and flows; one call at a time."""

    def __init__(
        self,
        station: NodeApi,
        model: str,
        *,
        ttl_s: float | None = None,
        steering: Steering = (),
        place: NodeSession | None = None,
        ledger: CommittedTokens | None = None,
    ) -> None:
        self.station = station
        self.model = model
        self.ttl_s = ttl_s
        self.steering = steering
        self.place = place or NodeSession()
        self.ledger = ledger or CommittedTokens()
        self.context_length: int | None = None
        self.is_closed = False
        self.is_restored = False
        """How it is steered is in bytes that only the node has read."""
        self._is_told = False
        """The call that runs has said something, so that it cannot be made again."""

    @property
    def session_id(self) -> str | None:
        """The node's name for it."""
        return self.place.id

    def append(self, chunk: Chunk, *, parse_special: bool) -> Flow[int]:
        """Put a chunk at the end; the new length."""
        before = self.ledger
        if isinstance(chunk, Image):
            yield from self._retold(lambda: self._place(chunk))
            return self.ledger.length
        planned = yield from self._planned(before, chunk, parse_special)
        return (yield from self._grown(planned))

    def append_messages(self, chat: Mapping[str, object]) -> Flow[int]:
        """Put chat messages at the end as the model's template writes them; the new length."""
        ledger = self.ledger
        if ledger.hidden > ledger.length - PRECEDING_TOKENS:
            yield from self.read_tokens()
        tail = self.ledger.tokens[-PRECEDING_TOKENS:]
        while PLACEHOLDER in tail:  # an image has no text
            tail = tail[tail.index(PLACEHOLDER) + 1 :]
        tokens = yield from self.station.render(self.model, chat, tail, is_continued=ledger.length > 0)
        return (yield from self._grown(self.ledger.with_tokens(tokens)))

    def read_tokens(self) -> Flow[tuple[int, ...]]:
        """All tokens, also those that somebody else put there."""
        if self.ledger.hidden and self.place.id is not None:
            if self.is_restored:
                info = yield from self.station.session(self.place.id)
                self.ttl_s, self.steering, self.is_restored = info.ttl_s, info.steering, False
            tokens = yield from self.station.tokens(self.place.id, self.ledger.hidden)
            self.ledger = self.ledger.revealed(tokens)
        return self.ledger.tokens

    def collected(self, options: GenerateOptions) -> Flow[Result]:
        """Continue the session, and tell all of it at the end."""
        seen: list[TokenEvent] = []

        def attempt() -> Flow[Done]:
            seen.clear()
            return self._feed(self.ledger, options, seen)

        done = yield from self._retold(attempt)
        gathered = ResultBuilder()
        for event in seen:
            gathered.take(event)
        gathered.take(done)
        return gathered.result()

    def likeliest(self, tokens: Sequence[int], count: int) -> Flow[tuple[Alternative, ...]]:
        """Put tokens at the end, and say which are the likeliest after them."""
        planned, seen = self.ledger.with_tokens(tokens), list[TokenEvent]()
        where = [(planned.length, None)]
        options = GenerateOptions(
            max_tokens=1, temperature=0.0, ignore_eos=True, logprobs=where, top_k_logprobs=count
        )

        def attempt() -> Flow[Done]:
            seen.clear()
            return self._feed(planned, options, seen)

        yield from self._retold(attempt)
        # The one that was chosen goes with the next call.
        self.ledger = planned.settled().ragged(planned.length)
        return seen[-1].top if seen else ()

    def generate(self, options: GenerateOptions) -> Flow[None]:
        """Continue the session."""
        if options.get("heal") and self.ledger.hidden:
            yield from self.read_tokens()
        yield from self._retold(lambda: self._told(self.ledger, options))

    def score(self, chunks: Sequence[str | Sequence[int]], top: int, parse_special: bool) -> Flow[Score]:
        """The last chunk's logprobs after the others; the session stays as it is."""
        before = planned = self.ledger
        start = planned.length
        for chunk in chunks:
            start = planned.length
            planned = yield from self._planned(planned, chunk, parse_special)
        if planned.length == start:
            return Score(())
        options = GenerateOptions(max_tokens=0, logprobs=[(start, planned.length)], top_k_logprobs=top)
        scored: list[TokenEvent] = []

        def attempt() -> Flow[Done]:
            scored.clear()
            return self._feed(planned, options, scored)

        try:
            yield from self._retold(attempt)
        except GeneratorExit:
            self.ledger = before.ragged(self.ledger.certain)
            raise
        # Not truncated here: the next call does it on its way.
        self.ledger = before.ragged(before.certain)
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
        before, rest = self.ledger, self.ledger.rest(chunks)
        self._is_told = False
        try:
            try:
                yield from self._run(rest, options, parse_special)
            except SessionNotFound:
                if self._is_told:
                    raise
                self.place.id, self.ledger = None, CommittedTokens()
                before = self.ledger
                yield from self._run(chunks, options, parse_special)
        except GanglionError as error:
            if _is_refusal(error):
                # What it has sent already is cut off by the next call.
                self.ledger = before.ragged(self.ledger.certain)
            else:
                yield from self._drop(error)
            raise

    def _run(self, rest: Sequence[Chunk], options: GenerateOptions, parse_special: bool) -> Flow[None]:
        planned = self.ledger
        for chunk in rest:
            if isinstance(chunk, Image):
                if planned.length > self.ledger.length:
                    yield from self._feed(planned, PREFILL_ONLY)
                # A text of no tokens stands there as well.
                self.ledger = replace(self.ledger, sent=planned.sent)
                placed = yield from self._place(chunk)
                self._is_told = True
                yield Emit(placed)
                planned = self.ledger
            else:
                planned = yield from self._planned(planned, chunk, parse_special)
        yield from self._told(planned, options)

    def fork(self, at: int | None, ttl_s: float | None) -> Flow["SessionFlows"]:
        """Another conversation that begins like this one."""
        ledger = self.ledger if at is None else self.ledger.cut(at)
        forked = yield from self._retold(lambda: self._forked(ledger.length, ttl_s))
        child = SessionFlows(
            self.station,
            self.model,
            ttl_s=self.ttl_s if ttl_s is None else ttl_s,
            steering=self.steering,
            place=NodeSession(forked.session_id),
            ledger=ledger.settled(),
        )
        child.context_length, child.is_restored = self.context_length, self.is_restored
        return child

    def _forked(self, at: int, ttl_s: float | None) -> Flow[pb.ForkSessionResponse]:
        session_id = yield from self._settled()
        return (yield from call_rpc(FORK, pb.ForkSessionRequest(session_id=session_id, at=at, ttl_s=ttl_s)))

    def truncate(self, length: int) -> Flow[int]:
        """Forget everything from a position on; the length."""
        return (yield from self._retold(lambda: self._truncated(length)))

    def _truncated(self, length: int) -> Flow[int]:
        before, cut = self.ledger, self.ledger.cut(length)
        if self.place.id is not None and length <= before.certain:
            request = pb.TruncateSessionRequest(session_id=self.place.id, length=length)
            try:
                yield from retry_busy(lambda: call_rpc(TRUNCATE, request), is_ours=before.is_ragged)
            except InvalidRequest:
                raise
            except (GanglionError, GeneratorExit):
                self.ledger = cut.ragged(length)
                raise
            cut = cut.settled()
        self.ledger = cut
        return cut.length

    def save(self, *, without_kv: bool) -> Flow[bytes]:
        """The session as bytes."""
        return (yield from self._retold(lambda: self._saved(without_kv)))

    def _saved(self, without_kv: bool) -> Flow[bytes]:
        request = pb.SaveSessionRequest(session_id=(yield from self._settled()), without_kv=without_kv)
        parts, size_bytes = [], 0
        message = yield from open_stream(SAVE, request)
        while message is not None:
            size_bytes += len(message.data)
            if size_bytes > MAX_SAVED_BYTES:
                raise ServerError(
                    f"The session is larger than {MAX_SAVED_BYTES} bytes.", hint="without_kv=True"
                )
            parts.append(message.data)
            message = yield from read_message(SAVE)
        return b"".join(parts)

    def suspend(self) -> Flow[Suspended]:
        """Put the session on the node's disk; it wakes when it is named again."""
        suspended = yield from self._retold(self._suspended)
        self.place.is_kept = True
        return Suspended(suspended.total_tokens, suspended.size_bytes)

    def _suspended(self) -> Flow[pb.SuspendSessionResponse]:
        return (
            yield from call_rpc(SUSPEND, pb.SuspendSessionRequest(session_id=(yield from self._settled())))
        )

    def reset(self) -> Flow[None]:
        """Begin anew; the next call opens another session."""
        yield from self._drop(None)

    def close(self) -> Flow[None]:
        """Forget the session, here and (unless it is suspended) on the node, where that can be told."""
        if not self.is_closed:
            self.is_closed = True
            if not self.place.is_kept:
                yield from self._drop(None)

    def _retold(self, attempt: Callable[[], Flow[T]]) -> Flow[T]:
        """Attempt; where the node has forgotten the session, once more in one that is told all of it."""
        self._is_told = False
        try:
            return (yield from attempt())
        except SessionNotFound:
            if self._is_told or PLACEHOLDER in self.ledger.tokens:
                raise
            self.place.id, self.ledger = None, replace(self.ledger, certain=0, is_ragged=False)
        return (yield from attempt())

    def _grown(self, planned: CommittedTokens) -> Flow[int]:
        """Have the node read what was planned, nothing more; the new length."""
        before = self.ledger
        if planned.length == before.length:
            self.ledger = planned
            return planned.length
        try:
            yield from self._retold(lambda: self._feed(planned, PREFILL_ONLY))
        except GeneratorExit:
            self.ledger = before.ragged(self.ledger.certain)
            raise
        return self.ledger.length

    def _told(self, planned: CommittedTokens, options: GenerateOptions) -> Flow[None]:
        healed = (
            (yield from healed_suffix(self.station, self.model, planned.tokens))
            if options.get("heal")
            else None
        )
        if healed is not None:
            planned = planned.cut(healed.start)
            options = {**options, "prefix": healed.text + options.get("prefix", "")}
        done = yield from self._feed(planned, options, is_told=True)
        yield Emit(done if healed is None else replace(done, healed=healed.text))

    def _feed(
        self,
        planned: CommittedTokens,
        options: GenerateOptions,
        seen: list[TokenEvent] | None = None,
        *,
        is_told: bool = False,
    ) -> Flow[Done]:
        """Bring the server to `planned` and generate; left midway, what was planned and seen counts.

        What is planned may be shorter than what is there: the rest is then cut off on the way.
        """
        before = self.ledger
        offset = min(before.certain, planned.length)
        session_id = yield from self._opened()
        manifest = (yield from self.station.manifest(self.model)) if options.get("readout") else None
        request = generate_request(
            session_id,
            options,
            append=planned.tokens[offset:],
            offset=offset,
            is_truncating=before.is_ragged or offset < before.certain,
        )
        reader, generated = TokenDecoder(manifest), list[int]()
        message = None
        try:
            message = yield from retry_busy(lambda: open_stream(GENERATE, request), is_ours=before.is_ragged)
            self._is_told = self._is_told or is_told
            while message is not None and not message.HasField("done"):
                if message.HasField("token"):
                    event = reader.event(message.token)
                    if not event.is_prefill:
                        generated.append(event.id)
                    if seen is not None:
                        seen.append(event)
                    if is_told:
                        yield Emit(event)
                elif is_told and message.HasField("progress"):
                    yield Emit(progress_of(message.progress))
                message = yield from read_message(GENERATE)
            if message is None:
                raise Disconnected("The node ended an answer without saying how.")
        except GeneratorExit:
            is_cut = planned.length < before.length and not generated
            left = before if is_cut else planned.with_tokens(generated)
            self.ledger = left.ragged(offset)
            raise
        except GanglionError as error:
            is_refused = message is None and isinstance(error, InvalidRequest)
            self.ledger = before if is_refused else before.ragged(offset)
            raise
        after = planned.with_tokens(generated)
        is_agreed = message.done.total_tokens == after.length
        self.ledger = after.settled() if is_agreed else after.ragged(offset)
        return done_of(message.done)

    def _place(self, image: Image) -> Flow[ImageAppended]:
        if len(image.data) > MAX_IMAGE_BYTES:
            raise InvalidValue(f"The image is larger than {MAX_IMAGE_BYTES} bytes.", param="image")
        session_id = (yield from self._settled()) if self.ledger.unsent else (yield from self._opened())
        before = self.ledger
        request = pb.AppendImageRequest(
            session_id=session_id,
            data=image.data,
            mime=image.mime,
            offset=before.certain,
            truncating=before.is_ragged,
        )
        try:
            placed = yield from retry_busy(lambda: call_rpc(APPEND_IMAGE, request), is_ours=before.is_ragged)
        except InvalidRequest:
            raise
        except (GanglionError, GeneratorExit):
            self.ledger = before.ragged(before.certain)
            raise
        count = placed.placeholder_count
        after = before.with_tokens((PLACEHOLDER,) * count).with_chunk(image, before.length, count)
        self.ledger = after.settled()
        return ImageAppended(count, placed.total_length)

    def _planned(
        self, ledger: CommittedTokens, chunk: str | Sequence[int], parse_special: bool
    ) -> Flow[CommittedTokens]:
        if not isinstance(chunk, str):
            return ledger.with_tokens(checked_tokens(chunk))
        start = ledger.length
        tokens = yield from self.station.tokenize(
            self.model, chunk, add_special=start == 0, parse_special=parse_special
        )
        return ledger.with_tokens(tokens).with_chunk(chunk, start, len(tokens))

    def _opened(self) -> Flow[str]:
        if self.is_closed:
            raise InvalidValue("The session is closed.", hint="Open another one with client.session().")
        if self.place.id is None:
            opened = yield from self.station.open(self.model, self.ttl_s, self.steering)
            self.place.id, self.place.is_ours = opened.session_id, True
            self.context_length = opened.context_length
        self.place.is_kept = False
        return self.place.id

    def _settled(self) -> Flow[str]:
        """The session's id, once the server holds what we say it holds and nothing else."""
        session_id = yield from self._opened()
        if self.ledger.unsent:
            yield from self._feed(self.ledger, PREFILL_ONLY)
        elif self.ledger.is_ragged:
            yield from self._truncated(self.ledger.length)
        return session_id

    def _drop(self, error: GanglionError | None) -> Flow[None]:
        session_id, self.place.id, self.ledger = self.place.id, None, CommittedTokens()
        # Nobody to tell where the node is away or does not know the session.
        if session_id is not None and not isinstance(error, Disconnected | SessionNotFound):
            with suppress(GanglionError):
                yield UnaryCall(CLOSE, pb.CloseSessionRequest(session_id=session_id))


def _is_refusal(error: GanglionError) -> bool:
    """Whether a node that says so has changed nothing and still holds what it held."""
    is_ours = isinstance(error, InvalidRequest | RateLimited)
    return is_ours and not isinstance(error, SessionNotFound | SessionDrift)
