"""One session as the client leads it: every call of it as a flow, and what is known after each.

Law: a call that raises changes nothing here; an iteration that is left keeps what its caller has seen.
Whatever the server made of either, the next call puts it right (see `ledger`).
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from ganglion.client.errors import Disconnected
from ganglion.client.flow import Emit, Flow, ask, first, read, unbusied
from ganglion.client.ledger import Ledger, checked_chunks, checked_tokens
from ganglion.client.options import GenerateOptions, generate_request
from ganglion.client.readings import TokenReader, done_of, progress_of
from ganglion.client.rpcs import APPEND_IMAGE, CLOSE, FORK, GENERATE, SAVE, SUSPEND, TRUNCATE
from ganglion.client.station import Station
from ganglion.client.values import (
    MAX_IMAGE_BYTES,
    PLACEHOLDER,
    Chunk,
    Done,
    Image,
    ImageAppended,
    Score,
    Suspended,
    TokenEvent,
)
from ganglion.core.errors import GanglionError, InvalidRequest, InvalidValue, ServerError, SessionNotFound
from ganglion.core.request import Steering
from ganglion.wire.salience import salience_pb2 as pb

MAX_SAVED_BYTES: Final = 16 << 30
ONLY_READ: Final = GenerateOptions(max_tokens=0)


class Conversation:
    """A session's state and flows; one call at a time."""

    def __init__(
        self,
        station: Station,
        model: str,
        *,
        ttl_s: float | None = None,
        steering: Steering = (),
        session_id: str | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        self.station = station
        self.model = model
        self.ttl_s = ttl_s
        self.steering = steering
        self.session_id = session_id
        self.ledger = ledger or Ledger()
        self.context_length: int | None = None
        self.is_kept = False
        """It lies on the node's disk and outlives whoever closes it here."""
        self.is_closed = False

    def append(self, chunk: Chunk, *, parse_special: bool) -> Flow[int]:
        """Put a chunk at the end; the new length."""
        before = self.ledger
        if isinstance(chunk, Image):
            yield from self._place(chunk)
            return self.ledger.length
        planned = yield from self._planned(before, chunk, parse_special)
        if planned.length == before.length:
            self.ledger = planned
            return planned.length
        try:
            yield from self._feed(planned, ONLY_READ)
        except GeneratorExit:
            self.ledger = before.ragged(before.certain)
            raise
        return self.ledger.length

    def generate(self, options: GenerateOptions) -> Flow[None]:
        """Continue the session."""
        yield from self._told(self.ledger, options)

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
        try:
            yield from self._feed(planned, options, scored)
        except GeneratorExit:
            self.ledger = before.ragged(before.certain)
            raise
        # Not truncated here: the next call does it on its way.
        self.ledger = before.ragged(before.certain)
        return Score(tuple(scored))

    def run(self, chunks: Sequence[Chunk], options: GenerateOptions, *, parse_special: bool) -> Flow[None]:
        """Generate after a whole conversation, of which only what is new is sent."""
        rest = self.ledger.rest(checked_chunks(chunks))
        try:
            planned = self.ledger
            for chunk in rest:
                if isinstance(chunk, Image):
                    if planned.length > self.ledger.length:
                        yield from self._feed(planned, ONLY_READ)
                    # A text of no tokens stands there as well.
                    self.ledger = replace(self.ledger, sent=planned.sent)
                    yield Emit((yield from self._place(chunk)))
                    planned = self.ledger
                else:
                    planned = yield from self._planned(planned, chunk, parse_special)
            yield from self._told(planned, options)
        except GanglionError as error:
            yield from self._drop(error)
            raise

    def fork(self, at: int | None, ttl_s: float | None) -> Flow["Conversation"]:
        """Another conversation that begins like this one."""
        ledger = self.ledger if at is None else self.ledger.cut(at)
        request = pb.ForkSessionRequest(
            session_id=(yield from self._settled()), at=ledger.length, ttl_s=ttl_s
        )
        forked = yield from ask(FORK, request)
        child = Conversation(
            self.station,
            self.model,
            ttl_s=self.ttl_s if ttl_s is None else ttl_s,
            steering=self.steering,
            session_id=forked.session_id,
            ledger=ledger.settled(),
        )
        child.context_length = self.context_length
        return child

    def truncate(self, length: int) -> Flow[int]:
        """Forget everything from a position on; the length."""
        before, cut = self.ledger, self.ledger.cut(length)
        if self.session_id is not None and length <= before.certain:
            request = pb.TruncateSessionRequest(session_id=self.session_id, length=length)
            try:
                yield from unbusied(lambda: ask(TRUNCATE, request), is_ours=before.is_ragged)
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
        request = pb.SaveSessionRequest(session_id=(yield from self._settled()), without_kv=without_kv)
        parts, size_bytes = [], 0
        message = yield from first(SAVE, request)
        while message is not None:
            size_bytes += len(message.data)
            if size_bytes > MAX_SAVED_BYTES:
                raise ServerError(
                    f"The session is larger than {MAX_SAVED_BYTES} bytes.", hint="without_kv=True"
                )
            parts.append(message.data)
            message = yield from read(SAVE)
        return b"".join(parts)

    def suspend(self) -> Flow[Suspended]:
        """Put the session on the node's disk; it wakes when it is named again."""
        request = pb.SuspendSessionRequest(session_id=(yield from self._settled()))
        suspended = yield from ask(SUSPEND, request)
        self.is_kept = True
        return Suspended(suspended.total_tokens, suspended.size_bytes)

    def reset(self) -> Flow[None]:
        """Begin anew; the next call opens another session."""
        yield from self._drop(None)

    def close(self) -> Flow[None]:
        """Forget the session, here and (unless it is suspended) on the node, where that can be told."""
        if not self.is_closed:
            self.is_closed = True
            if not self.is_kept:
                yield from self._drop(None)

    def _told(self, planned: Ledger, options: GenerateOptions) -> Flow[None]:
        done = yield from self._feed(planned, options, is_told=True)
        yield Emit(done)

    def _feed(
        self,
        planned: Ledger,
        options: GenerateOptions,
        seen: list[TokenEvent] | None = None,
        *,
        is_told: bool = False,
    ) -> Flow[Done]:
        """Bring the server to `planned` and generate; left midway, what was planned and seen counts."""
        before = self.ledger
        session_id = yield from self._opened()
        manifest = (yield from self.station.manifest(self.model)) if options.get("readout") else None
        request = generate_request(
            session_id,
            options,
            append=planned.tokens[before.certain :],
            offset=before.certain,
            is_truncating=before.is_ragged,
        )
        reader, generated = TokenReader(manifest), list[int]()
        message = None
        try:
            message = yield from unbusied(lambda: first(GENERATE, request), is_ours=before.is_ragged)
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
                message = yield from read(GENERATE)
            if message is None:
                raise Disconnected("The node ended an answer without saying how.")
        except GeneratorExit:
            self.ledger = planned.with_tokens(generated).ragged(before.certain)
            raise
        except GanglionError as error:
            is_refused = message is None and isinstance(error, InvalidRequest)
            self.ledger = before if is_refused else before.ragged(before.certain)
            raise
        after = planned.with_tokens(generated)
        is_agreed = message.done.total_tokens == after.length
        self.ledger = after.settled() if is_agreed else after.ragged(before.certain)
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
            placed = yield from unbusied(lambda: ask(APPEND_IMAGE, request), is_ours=before.is_ragged)
        except InvalidRequest:
            raise
        except (GanglionError, GeneratorExit):
            self.ledger = before.ragged(before.certain)
            raise
        count = placed.placeholder_count
        after = before.with_tokens((PLACEHOLDER,) * count).with_chunk(image, before.length, count)
        self.ledger = after.settled()
        return ImageAppended(count, placed.total_length)

    def _planned(self, ledger: Ledger, chunk: str | Sequence[int], parse_special: bool) -> Flow[Ledger]:
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
        if self.session_id is None:
            opened = yield from self.station.open(self.model, self.ttl_s, self.steering)
            self.session_id = opened.session_id
            self.context_length = opened.context_length
        self.is_kept = False
        return self.session_id

    def _settled(self) -> Flow[str]:
        """The session's id, once the server holds what we say it holds and nothing else."""
        session_id = yield from self._opened()
        if self.ledger.unsent:
            yield from self._feed(self.ledger, ONLY_READ)
        elif self.ledger.is_ragged:
            yield from self.truncate(self.ledger.length)
        return session_id

    def _drop(self, error: GanglionError | None) -> Flow[None]:
        session_id, self.session_id, self.ledger = self.session_id, None, Ledger()
        # Nobody to tell where the node is away or does not know the session.
        if session_id is not None and not isinstance(error, Disconnected | SessionNotFound):
            with suppress(GanglionError):
                yield from ask(CLOSE, pb.CloseSessionRequest(session_id=session_id))
