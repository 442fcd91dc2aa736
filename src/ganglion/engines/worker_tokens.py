"""The tokens of one model: a TokenEngine over its worker process, and over a second one for suspects.

Requests cross to a worker as `Submit` frames and come back as updates; the codec is at the end. Which engine
the worker runs makes no difference here.
"""

import asyncio
import logging
from array import array
from collections.abc import AsyncGenerator, Callable
from functools import partial
from hashlib import sha256
from time import monotonic
from typing import Final

import msgspec

from ganglion.core.delivery import Room, Sink, give, pulled
from ganglion.core.engine import ReadoutManifest
from ganglion.core.errors import (
    ContextLengthExceeded,
    EngineFailed,
    GanglionError,
    InvalidValue,
    ModelRecovering,
    Overloaded,
    ReadoutUnavailable,
    UnsupportedParameter,
)
from ganglion.core.events import (
    Alternative,
    Failed,
    Finished,
    FinishReason,
    Piece,
    Pieces,
    Progress,
    Scored,
    Started,
    Timing,
    Token,
    TokenEvent,
    Usage,
)
from ganglion.core.model import WorkerLoad
from ganglion.core.request import ImageBlock, TokenRequest, tenant_of
from ganglion.engines.images.placing import ImagePlacer, PlacedTokens, in_key
from ganglion.engines.resources import ResidentMemory
from ganglion.engines.steering_check import check_steering, salt_covers_steering
from ganglion.engines.supervision.connection import IDLE, Connection
from ganglion.engines.supervision.ipc import (
    MAX_STATE_BYTES,
    Detokenize,
    Detokenized,
    Embed,
    ImagePlaced,
    KvLoaded,
    KvSaved,
    LoadKv,
    MeasurePieces,
    PieceRecord,
    PiecesMeasured,
    PlaceImage,
    SaveKv,
    SequenceEnd,
    SequenceUpdate,
    Submit,
    Tokenize,
    Tokenized,
    TokenRecord,
    Vectors,
    WorkerReady,
)
from ganglion.engines.supervision.isolation import (
    IsolationQueue,
    OnReleased,
    Outcome,
    PromptKey,
    Suspects,
    WorkerAdmission,
    key_of_text,
    key_of_tokens,
)
from ganglion.engines.supervision.second_worker import SecondWorker
from ganglion.engines.supervision.supervisor import Supervisor
from ganglion.engines.token_floor import TokenFloor, may_exceed

MakeSecond = Callable[[], tuple[Supervisor, int] | None]
"""A second worker's supervisor and the memory that it was planned with; None where there is no room."""


def check_nothing(_: TokenRequest) -> None:
    """For an engine that can do whatever a request asks for."""


def no_second() -> None:
    """For an engine whose worker takes the device for itself."""


_logger = logging.getLogger("ganglion.engines")


class WorkerTokens:
    """Runs token lists, and answers questions about them, in a supervised worker."""

    def __init__(
        self,
        model_id: str,
        supervisor: Supervisor,
        *,
        vocabulary_size: int,
        limit: int,
        make_second: MakeSecond = no_second,
        check: Callable[[TokenRequest], None] = check_nothing,
        keep_s: float = 0.0,
        is_deterministic: bool = False,
        has_children: bool = False,
        images: ImagePlacer | None = None,
    ) -> None:
        """`limit` is how many requests the model takes at once, running or waiting.

        `check` raises what the engine cannot do for a request. A worker that ends is given `keep_s` to keep
        its hot prefixes; `has_children` says whether it has processes of its own, whose memory counts.
        `images` are there for a model that sees or hears.
        """
        self._model_id = model_id
        self.supervisor = supervisor
        self._make = make_second
        self._check = check
        self._keep_s = keep_s
        self._is_deterministic = is_deterministic
        self.second = SecondWorker(model_id, self._make_second)
        # Twice: clients that left are counted until the worker has let go of what they asked for.
        self.queue = IsolationQueue(2 * limit, Suspects(), has_second=lambda: self.second.is_available)
        self.ready = WorkerReady(vocabulary_size, 0.0)
        """What the worker said of the model when it had loaded it."""
        self._images = images
        self._floor: TokenFloor | None = None
        self._measuring = asyncio.Lock()
        self._resident = ResidentMemory(has_children=has_children)
        self._second_resident = ResidentMemory()
        self._second_bytes = 0

    async def open(self) -> None:
        """Start the worker and wait until the model is loaded."""
        await self.supervisor.open()
        self.ready = (await self.supervisor.connection()).ready.result()
        if self.ready.placement:
            _logger.info("%s: %s", self._model_id, self.ready.placement)

    async def close(self) -> None:
        """Stop the workers; the first keeps its hot prefixes where there is a place for them."""
        await self.second.close()
        await self.supervisor.close(self._keep_s)

    # The state of the workers

    @property
    def load(self) -> WorkerLoad:
        """How busy the worker is."""
        connection = self.supervisor.current
        return IDLE if connection is None else connection.load

    @property
    def restarts(self) -> int:
        """How often a worker was started again after its death."""
        return self.supervisor.restarts + self.second.restarts

    @property
    def readout(self) -> ReadoutManifest | None:
        """What can be read out, None where no concepts are loaded."""
        concepts, layers = self.ready.concepts, self.ready.readout_layers
        return ReadoutManifest(tuple(concepts), tuple(layers)) if concepts else None

    @property
    def second_bytes(self) -> int:
        """What the second worker was planned with, while there is one."""
        return 0 if self.second.process_id is None else self._second_bytes

    def resident_bytes(self) -> int:
        """What the workers hold in memory now."""
        now_s = monotonic()
        first = self._resident.of(self.supervisor.process_id, now_s)
        return first + self._second_resident.of(self.second.process_id, now_s)

    # Texts, vectors and KV

    async def tokenize(
        self, text: str, *, add_special: bool, parse_special: bool, tenant: str = "", most: int | None = None
    ) -> tuple[int, ...]:
        """Text to ids, unless it certainly has more of them than `most`."""
        if most is not None and may_exceed(text, most):
            least = await (await self._token_floor(text)).above(text, most)
            if least is not None:
                raise ContextLengthExceeded(least, most, is_least=True)
        connection, released = await self._enter(key_of_text(text))
        frame = Tokenize(connection.new_id(), text, add_special, parse_special, tenant)
        return tuple((await connection.ask(frame, Tokenized, released)).tokens)

    async def _token_floor(self, text: str) -> TokenFloor:
        """A lower bound on tokens; asked of the worker by the first text that may be too long.

        It is asked for nobody in particular: all wait for it, and should not wait for that text's tenant.
        """
        async with self._measuring:
            if self._floor is None:
                connection, released = await self._enter(key_of_text(text))
                frame = MeasurePieces(connection.new_id())
                self._floor = TokenFloor((await connection.ask(frame, PiecesMeasured, released)).longest)
            return self._floor

    async def text_of(self, tokens: tuple[int, ...], *, tenant: str = "") -> str:
        """Ids to text."""
        return (await self._detokenize(tokens, tenant)).text

    async def pieces(self, tokens: tuple[int, ...], *, tenant: str = "") -> tuple[bytes, ...]:
        """The bytes of each token."""
        return tuple((await self._detokenize(tokens, tenant, in_pieces=True)).pieces)

    async def _detokenize(
        self, tokens: tuple[int, ...], tenant: str, *, in_pieces: bool = False
    ) -> Detokenized:
        connection, released = await self._enter(key_of_tokens("", tokens))
        frame = Detokenize(connection.new_id(), list(tokens), in_pieces, tenant)
        return await connection.ask(frame, Detokenized, released)

    async def embed(
        self, inputs: list[tuple[int, ...]], *, is_normalized: bool, tenant: str = ""
    ) -> tuple[bytes, ...]:
        """A vector of each of a few inputs, of length 1 where they are to be normalized."""
        tokens = tuple(token for each in inputs for token in each)
        connection, released = await self._enter(key_of_tokens("", tokens))
        frame = Embed(connection.new_id(), [list(each) for each in inputs], is_normalized, tenant)
        return tuple((await connection.ask(frame, Vectors, released)).vectors)

    async def place(self, data: bytes, *, tenant: str = "") -> ImageBlock:
        """What an image's or a sound's file becomes in a token list, for a model that takes such."""
        assert self._images is not None
        key = key_of_tokens(tenant, array("B", sha256(data).digest()))

        async def ask(frame: PlaceImage) -> ImagePlaced:
            connection, released = await self._enter(key)
            return await connection.ask(
                msgspec.structs.replace(frame, id=connection.new_id()), ImagePlaced, released
            )

        return await self._images.place(data, ask, tenant=tenant)

    async def save_kv(self, salt: str, tokens: tuple[int, ...]) -> bytes:
        """The KV that is cached of some tokens."""
        connection, released = await self._enter(key_of_tokens(salt, tokens))
        frame = SaveKv(connection.new_id(), salt, list(tokens))
        return (await connection.ask(frame, KvSaved, released)).state

    async def load_kv(self, salt: str, tokens: tuple[int, ...], state: bytes) -> int:
        """Put saved KV into the cache; returns of how many leading tokens it is cached now."""
        if len(state) > MAX_STATE_BYTES:
            return 0
        connection, released = await self._enter(key_of_tokens(salt, tokens))
        frame = LoadKv(connection.new_id(), salt, list(tokens), state)
        return (await connection.ask(frame, KvLoaded, released)).length

    # Token lists

    def run(self, request: TokenRequest) -> AsyncGenerator[TokenEvent, None]:
        """Continue one token list."""
        return pulled(partial(self.run_into, request))

    async def run_into(self, request: TokenRequest, sink: Sink[TokenEvent]) -> None:
        """Continue one token list, delivering what comes of it."""
        assert salt_covers_steering(request.salt, request.steering), "steered KV would be found by others"
        try:
            self._check(request)
            check_steering(request.steering, self.readout)
            if request.readout and self.readout is None:
                raise ReadoutUnavailable(
                    f"No concepts are loaded for the model {self._model_id!r}.",
                    param="readout",
                    hint="Start it with --concepts PACK, or leave the readout out.",
                )
            key = key_of_tokens(request.salt, in_key(request.tokens, request.images))
            connection, admission = await self._admitted(key)
            tokens = PlacedTokens(request.tokens, ())
            if request.images:
                tokens = await self._with_images(request, connection, admission)
            submit = _submit_frame(
                connection.new_id(), request, tokens, is_deterministic=self._is_deterministic
            )
            decoder = _UpdateDecoder(len(request.tokens), sink)
            admission.interruptible(partial(connection.interrupt, submit.id, _interrupted()))
            await connection.run(submit, decoder.feed, partial(self._leave, admission))
        except GanglionError as error:
            await give(sink, Failed(error))

    async def _with_images(
        self, request: TokenRequest, connection: Connection, admission: WorkerAdmission
    ) -> PlacedTokens:
        """The request's tokens for a worker that has its images; else what it was let in for is over."""
        outcome: Outcome = "abandoned"

        def note(end: Outcome) -> None:
            nonlocal outcome
            outcome = end if end != "completed" else outcome

        async def ask(frame: PlaceImage) -> ImagePlaced:
            return await connection.ask(
                msgspec.structs.replace(frame, id=connection.new_id()), ImagePlaced, note
            )

        assert self._images is not None
        try:
            return await self._images.substitute(
                request.tokens, request.images, ask, tenant=tenant_of(request.salt)
            )
        except BaseException:
            self._leave(admission, outcome)
            raise

    async def _enter(self, key: PromptKey) -> tuple[Connection, OnReleased]:
        """A worker to ask, and what to call once the worker has let go of what is done with it."""
        connection, admission = await self._admitted(key)
        return connection, partial(self._leave, admission)

    async def _admitted(self, key: PromptKey) -> tuple[Connection, WorkerAdmission]:
        while True:
            # All who wait for a restart wait together, not one by one inside.
            await self.supervisor.connection()
            admission = await self.queue.enter(key)
            try:
                if admission.stay != "apart":
                    return await self.supervisor.connection(), admission
                return await self.second.enter(), admission
            except BaseException as error:
                self.queue.leave(admission, "abandoned")
                is_second = admission.stay == "apart" and isinstance(error, GanglionError)
                if not is_second or self.second.is_available:
                    raise
                # It could not be started after all: the next turn is one alone in the first worker.

    def _leave(self, admission: WorkerAdmission, outcome: Outcome) -> None:
        if admission.stay == "apart":
            self.second.leave()
        self.queue.leave(admission, outcome)

    def _make_second(self) -> Supervisor | None:
        made = self._make()
        if made is None:
            return None
        supervisor, self._second_bytes = made
        return supervisor


def _interrupted() -> ModelRecovering:
    return ModelRecovering(
        "This prompt was in a worker that died, so it runs alone, and others wait for the worker.",
        hint="Try again when the model is less busy.",
    )


_REASONS: Final[dict[str, FinishReason]] = {"stop": "stop", "length": "length"}


def _submit_frame(
    number: int, request: TokenRequest, placed: PlacedTokens, *, is_deterministic: bool
) -> Submit:
    """A request as the worker takes it, under a number of its own."""
    return Submit(
        id=number,
        tokens=list(placed.tokens),
        images=list(placed.images),
        max_tokens=request.max_tokens,
        sampling=request.sampling,
        stop=request.stop,
        top_logprobs=request.top_logprobs,
        priority=request.priority,
        # What a neighbour left in the cache was cut elsewhere; only a sequence's own KV is exactly its own.
        salt=f"{request.salt}/{number}" if is_deterministic else request.salt,
        min_tokens=request.min_tokens,
        grammar=request.grammar,
        score_ranges=list(request.score.ranges) if request.score is not None else [],
        score_top=request.score.top if request.score is not None else 0,
        in_tokens=request.in_tokens,
        readout_ranges=list(request.readout),
        steering=[
            (steer.concept, steer.strength, None if steer.layers is None else list(steer.layers))
            for steer in request.steering
        ],
        wants_token_ids=request.wants_token_ids,
        tenant=tenant_of(request.salt),
    )


class _UpdateDecoder:
    """Puts the updates of one sequence into the words of the event stream."""

    __slots__ = ("_sink", "_started")

    def __init__(self, prompt_tokens: int, sink: Sink[TokenEvent]) -> None:
        self._started = Started(prompt_tokens)
        self._sink = sink

    def feed(self, update: SequenceUpdate) -> Room:
        """Give the events of an update to the sink."""
        events: list[TokenEvent] = []
        if update.started is not None:
            self._started = Started(*update.started)
            events.append(self._started)
        if update.prefilled is not None:
            events.append(Progress("prefilled", *update.prefilled))
        if update.scored:
            events.append(Scored(tuple([_token(record) for record in update.scored])))
        if update.pieces:
            events.append(Pieces(tuple([_piece(record) for record in update.pieces])))
        if update.end is not None:
            events.append(_end(update.end, self._started))
        return self._sink(events) if events else None


def _end(end: SequenceEnd, started: Started) -> Finished | Failed:
    if end.error is not None and end.code == InvalidValue.code:
        return Failed(InvalidValue(end.error, param="response_format"))
    if end.error is not None and end.code == UnsupportedParameter.code:
        return Failed(UnsupportedParameter(end.error))
    if end.error is not None and end.code == Overloaded.code:
        return Failed(Overloaded(end.error, hint="Retry in a moment."))
    if end.error is not None:
        return Failed(EngineFailed(end.error))
    usage = Usage(started.prompt_tokens, end.completion_tokens, started.cached_tokens)
    timing = Timing(end.queued_s, end.prefill_s, end.decode_s)
    token_ids = None if end.token_ids is None else tuple(end.token_ids)
    return Finished(_REASONS[end.reason], usage, timing, end.stop_sequence, end.stop_token, token_ids)


def _piece(record: PieceRecord) -> Piece:
    return Piece(record.text, tuple([_token(token) for token in record.tokens]), record.is_special)


def _token(record: TokenRecord) -> Token:
    top = tuple([Alternative(*each) for each in record.top]) if record.top else ()
    readout = tuple(array("f", record.readout)) if record.readout else ()
    return Token(record.id, record.piece, record.position, record.logprob, top, readout, record.rank)
