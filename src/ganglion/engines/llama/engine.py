"""llama.cpp as an Engine: a supervised worker as the token engine, chat in front of it."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import replace
from functools import partial
from typing import Final

import msgspec

from ganglion.core.engine import (
    Embedded,
    EmbedRequest,
    ModelState,
    PlacedImage,
    Ranked,
    RankRequest,
    ReadoutManifest,
    ReadPrompt,
    TokenizerInfo,
)
from ganglion.core.errors import (
    ContextLengthExceeded,
    GanglionError,
    InsufficientMemory,
    InvalidValue,
    ModelLoading,
    ModelNotFound,
    ModelRecovering,
    Overloaded,
    ReadoutUnavailable,
    VisionUnsupported,
)
from ganglion.core.events import (
    Event,
    Failed,
    Started,
    TokenEvent,
)
from ganglion.core.model import ModelFacts
from ganglion.core.request import Request, TokenRequest
from ganglion.engines.llama.embedder import WorkerEmbedder
from ganglion.engines.llama.plan import EnginePlan, plan, plan_second
from ganglion.engines.llama.tokens import check_steering, events_from, salt_covers_steering, submit_frame
from ganglion.engines.llama.worker.faults import InjectedFault
from ganglion.engines.prompt_length import TokenFloor, may_exceed
from ganglion.engines.rendering.renderer import Renderer
from ganglion.engines.resources import ResidentMemory, free_bytes, usable_cores
from ganglion.engines.settings import EngineSettings
from ganglion.engines.supervision.connection import Connection
from ganglion.engines.supervision.ipc import MAX_STATE_BYTES, WorkerReady
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
from ganglion.engines.text_engine import TextEngine

logger = logging.getLogger("ganglion.engines")

WORKER: Final = "ganglion.engines.llama.worker.main"
SECOND_PATIENCE: Final = 4.0
"""How many times as long a second worker may take for a step."""
KEEP_S: Final = 5.0
"""How long a worker that ends may take to keep its hot prefixes."""


class LlamaEngine:
    """One model file, served by one worker process; `faults` are for tests."""

    def __init__(
        self,
        facts: ModelFacts,
        settings: EngineSettings,
        *,
        free_memory: int | None = None,
        free_video_memory: int | None = None,
        faults: tuple[InjectedFault, ...] = (),
    ) -> None:
        """`free_memory` in bytes is what others leave; left out, it is what the machine has now.

        `free_video_memory` is left out where no accelerator can be used.
        """
        self._facts = facts
        self._settings = settings
        free = free_bytes() if free_memory is None else free_memory
        decided = plan(
            settings, facts, cores=usable_cores(), free_bytes=free, free_video_bytes=free_video_memory
        )
        self.plan: EnginePlan = replace(decided, faults=faults)
        self._created_s = int(time.time())
        if self.plan.context > facts.context_length:
            logger.warning(
                "%s was trained on contexts of %d tokens; beyond that its answers degrade (context is %d)",
                settings.model_id,
                facts.context_length,
                self.plan.context,
            )
        self._supervisor = Supervisor(
            settings.model_id, WORKER, msgspec.msgpack.encode(self.plan), settings.limits
        )
        self._renderer = Renderer()
        self._resident = ResidentMemory()
        self._in_flight = 0
        self._limit = self.plan.parallel + settings.queue_limit
        self._second = SecondWorker(settings.model_id, self._make_second)
        self._second_resident = ResidentMemory()
        self._second_bytes = 0
        # Twice: clients that left are counted until the worker has let go of what they asked for.
        self._ward = IsolationQueue(2 * self._limit, Suspects(), has_second=lambda: self._second.is_available)
        self._text = TextEngine(
            settings.model_id,
            self,
            self._renderer,
            facts,
            context=self.plan.context,
            chat_template=settings.chat_template,
            signs=lambda: self._ready.signs,
        )
        self._ready = WorkerReady(facts.vocabulary_size, 0.0)
        self._floor: TokenFloor | None = None
        self._measuring = asyncio.Lock()
        self._has_vectors = "embeddings" in facts.capabilities
        """Whether what vectors take is part of what was promised."""
        self._embedder = WorkerEmbedder(
            self, self._ask, longest=self.plan.vectors.input_tokens, vocabulary_size=facts.vocabulary_size
        )

    async def open(self) -> None:
        """Start the worker and wait until the model is loaded."""
        rendering = asyncio.create_task(self._renderer.open())
        try:
            await self._supervisor.open()
            await rendering
        except BaseException:
            rendering.cancel()
            await asyncio.gather(rendering, return_exceptions=True)
            await self._renderer.close()
            raise
        self._ready = (await self._supervisor.connection()).ready.result()

    async def close(self) -> None:
        """Stop the worker, which keeps its hot prefixes where there is a folder for them."""
        await self._renderer.close()
        await self._second.close()
        await self._supervisor.close(KEEP_S if self.plan.kv_folder is not None else 0.0)

    def models(self) -> tuple[ModelState, ...]:
        """This model."""
        supervisor = self._supervisor
        connection = supervisor.current
        load = connection.load if connection is not None else None
        running = load.running if load is not None else 0
        return (
            ModelState(
                id=self._settings.model_id,
                engine="llama",
                status=supervisor.status,
                context_length=self.plan.context,
                created_s=self._facts.modified_s or self._created_s,
                aliases=self._settings.aliases,
                capabilities=self._facts.capabilities or ("chat",),
                memory_mb=self._required_bytes() >> 20,
                resident_mb=self._resident_bytes() >> 20,
                devices=("gpu",) if self.plan.video_bytes else ("cpu",),
                in_flight=self._in_flight,
                queued=self._ward.queued + (load.waiting if load is not None else 0),
                kv_used=load.kv_used if load is not None else 0,
                kv_total=self.plan.kv_tokens,
                slots_used=running,
                slots_total=self.plan.parallel,
                restarts=supervisor.restarts + self._second.restarts,
                step_s=load.step_s if load is not None else 0.0,
                native_s=load.decode_s if load is not None else 0.0,
                error=supervisor.error.message if supervisor.error is not None else None,
                facts=self._facts,
                sampling=self._facts.sampling,
                readout=self._readout,
            ),
        )

    async def generate(self, request: Request) -> AsyncGenerator[Event, None]:
        """Answer one request."""
        if self._supervisor.status in ("unloaded", "loading"):
            yield Failed(ModelLoading(f"The model {self._settings.model_id!r} is still loading."))
            return
        if self._in_flight >= self._limit:
            yield Failed(_overloaded(self._limit, self._settings.queue_limit))
            return
        if not self._facts.can_generate:
            yield Failed(_only_embeds(self._settings.model_id))
            return
        self._in_flight += 1
        try:
            async with aclosing(self._text.generate(request)) as events:
                async for event in events:
                    yield self._laid_out(event) if request.wants_readout else event
        finally:
            self._in_flight -= 1

    def _laid_out(self, event: Event) -> Event:
        """Says where readouts begin how many of their values belong to a layer."""
        if not isinstance(event, Started):
            return event
        return replace(event, readout_concepts=len(self._ready.concepts))

    # Prompts and vectors

    async def read(self, request: Request) -> ReadPrompt:
        """The prompt as the model reads it."""
        return await self._text.read(request)

    async def detokenize(self, model: str, tokens: tuple[int, ...], *, tenant: str = "") -> str:
        """Ids to text."""
        self._check(model, tokens)
        return await self.text_of(tokens, tenant=tenant)

    async def pieces(self, model: str, tokens: tuple[int, ...], *, tenant: str = "") -> tuple[bytes, ...]:
        """The bytes of each token."""
        self._check(model, tokens)
        connection, when_gone = await self._enter(key_of_tokens("", tokens))
        return await connection.pieces(tokens, tenant=tenant, when_gone=when_gone)

    async def tokenizer_info(self, model: str) -> TokenizerInfo:
        """The vocabulary and the template."""
        self._check(model)
        signs = self._ready.signs
        return TokenizerInfo(
            vocabulary_size=self._ready.vocabulary_size,
            context_length=self.plan.context,
            chat_template=self._text.template,
            bos_token=self._facts.bos_token,
            eos_token=self._facts.eos_token,
            bos_id=signs.bos,
            eos_id=signs.eos,
            adds_bos=signs.adds_bos,
            end_ids=tuple(signs.ends),
        )

    async def embed(self, request: EmbedRequest) -> Embedded:
        """Embed every input."""
        self._check(request.model)
        if self._ready.ranks:
            raise InvalidValue(
                f"The model {request.model!r} ranks documents and makes no embeddings.",
                param="model",
                hint="Ask it through /v1/rerank, or name another model.",
            )
        with self._embedding():
            return await self._embedder.embed(
                request.inputs, is_normalized=request.is_normalized, tenant=request.tenant
            )

    async def rank(self, request: RankRequest) -> Ranked:
        """Rank every document."""
        self._check(request.model)
        with self._embedding():
            return await self._embedder.rank(request.query, request.documents, self._ready, request.tenant)

    @contextmanager
    def _embedding(self) -> Iterator[None]:
        """One request for vectors, inside the limits of the model and of the machine's memory."""
        if self._in_flight >= self._limit:
            raise _overloaded(self._limit, self._settings.queue_limit)
        if not self._has_vectors:
            free, needed = free_bytes(), self.plan.vectors.size_bytes
            if free < needed:
                raise InsufficientMemory(
                    f"Embeddings of this model need about {needed >> 20} MiB more and {free >> 20} MiB are "
                    "free.",
                    free_mb=free >> 20,
                    required_mb=needed >> 20,
                )
            self._has_vectors = True
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1

    async def _ask(
        self, inputs: list[tuple[int, ...]], is_normalized: bool, tenant: str
    ) -> tuple[bytes, ...]:
        tokens = tuple(token for each in inputs for token in each)
        connection, when_gone = await self._enter(key_of_tokens("", tokens))
        asked = [list(each) for each in inputs]
        return await connection.embed(asked, is_normalized=is_normalized, tenant=tenant, when_gone=when_gone)

    def _required_bytes(self) -> int:
        is_promised = not self._has_vectors or "embeddings" in self._facts.capabilities
        vectors = 0 if is_promised else self.plan.vectors.size_bytes
        second = 0 if self._second.process_id is None else self._second_bytes
        return self.plan.required_bytes + vectors + second

    def _resident_bytes(self) -> int:
        now_s = time.monotonic()
        first = self._resident.of(self._supervisor.process_id, now_s)
        return first + self._second_resident.of(self._second.process_id, now_s)

    def _check(self, model: str, tokens: tuple[int, ...] = ()) -> None:
        if model != self._settings.model_id:
            raise ModelNotFound(model)
        size = self._facts.vocabulary_size
        for token in (min(tokens), max(tokens)) if tokens else ():
            if not 0 <= token < size:
                raise InvalidValue(
                    f"Token {token} is not in the vocabulary of {size} tokens.", param="tokens"
                )

    # Token lists

    async def continue_tokens(self, model: str, request: TokenRequest) -> AsyncGenerator[TokenEvent, None]:
        """Run a token list, inside the limits of the model."""
        try:
            self._check(model, request.tokens)
            if self._supervisor.status in ("unloaded", "loading"):
                raise ModelLoading(f"The model {model!r} is still loading.")
            if self._in_flight >= self._limit:
                raise _overloaded(self._limit, self._settings.queue_limit)
            if not self._facts.can_generate:
                raise _only_embeds(model)
            room = self.plan.context - len(request.tokens)
            if room < min(request.max_tokens, 1):
                raise ContextLengthExceeded(len(request.tokens), self.plan.context)
            if not request.tokens:
                raise InvalidValue("There is no token to continue; give at least one.", param="tokens")
        except GanglionError as error:
            yield Failed(error)
            return
        self._in_flight += 1
        try:
            bounded = replace(request, max_tokens=min(request.max_tokens, room))
            async with aclosing(self.run(bounded)) as events:
                async for event in events:
                    yield event
        finally:
            self._in_flight -= 1

    async def save_kv(self, model: str, salt: str, tokens: tuple[int, ...]) -> bytes:
        """The KV that is cached of some tokens."""
        self._check(model, tokens)
        connection, when_gone = await self._enter(key_of_tokens(salt, tokens))
        return await connection.save_kv(salt, tokens, when_gone)

    async def load_kv(self, model: str, salt: str, tokens: tuple[int, ...], state: bytes) -> int:
        """Put saved KV into the cache."""
        self._check(model, tokens)
        if len(state) > MAX_STATE_BYTES:
            return 0
        connection, when_gone = await self._enter(key_of_tokens(salt, tokens))
        return await connection.load_kv(salt, tokens, state, when_gone)

    async def place_image(self, model: str, data: bytes, mime: str) -> PlacedImage:
        """No model of this engine sees yet."""
        self._check(model)
        raise VisionUnsupported(
            f"The model {model!r} reads text and no images.",
            param="data",
            hint="Describe the image in words, or name a model that sees.",
            extras={"model": model, "suggestion": None},
        )

    # The token engine under it

    async def tokenize(
        self, text: str, *, add_special: bool, parse_special: bool, tenant: str = "", most: int | None = None
    ) -> tuple[int, ...]:
        """Text to ids, in the worker, unless it certainly has more of them than `most`."""
        if most is not None and may_exceed(text, most):
            least = await (await self._token_floor(text)).above(text, most)
            if least is not None:
                raise ContextLengthExceeded(least, most, is_least=True)
        connection, when_gone = await self._enter(key_of_text(text))
        return await connection.tokenize(
            text, add_special=add_special, parse_special=parse_special, tenant=tenant, when_gone=when_gone
        )

    async def _token_floor(self, text: str) -> TokenFloor:
        """Judges how long texts are at least; asked of the worker by the first text that may be too long.

        It is asked for nobody in particular: all wait for it, and should not wait for that text's tenant.
        """
        async with self._measuring:
            if self._floor is None:
                connection, when_gone = await self._enter(key_of_text(text))
                self._floor = TokenFloor(await connection.longest_pieces(when_gone))
            return self._floor

    async def text_of(self, tokens: tuple[int, ...], *, tenant: str = "") -> str:
        """Ids to text, in the worker."""
        connection, when_gone = await self._enter(key_of_tokens("", tokens))
        return await connection.detokenize(tokens, tenant=tenant, when_gone=when_gone)

    async def run(self, request: TokenRequest) -> AsyncGenerator[TokenEvent, None]:
        """Continue one token list in the worker."""
        assert salt_covers_steering(request.salt, request.steering), "steered KV would be found by others"
        try:
            check_steering(request.steering, self._readout)
            if request.readout and self._readout is None:
                raise ReadoutUnavailable(
                    f"No concepts are loaded for the model {self._settings.model_id!r}.",
                    param="readout",
                    hint="Start it with --concepts PACK, or leave the readout out.",
                )
            connection, place = await self._placed(key_of_tokens(request.salt, request.tokens))
            submit = submit_frame(connection.new_id(), request, is_deterministic=self.plan.is_deterministic)
            async with aclosing(connection.updates(submit, partial(self._leave, place))) as updates:
                place.interruptible(partial(connection.interrupt, submit.id, _interrupted()))
                usage = Started(len(request.tokens))
                async for update in updates:
                    for event in events_from(update, usage):
                        if isinstance(event, Started):
                            usage = event
                        yield event
        except GanglionError as error:
            yield Failed(error)

    @property
    def _readout(self) -> ReadoutManifest | None:
        concepts, layers = self._ready.concepts, self._ready.readout_layers
        return ReadoutManifest(tuple(concepts), tuple(layers)) if concepts else None

    async def _enter(self, key: PromptKey) -> tuple[Connection, OnReleased]:
        """A place in a worker, and whom to tell once the worker has let go of what is done with it."""
        connection, place = await self._placed(key)
        return connection, partial(self._leave, place)

    async def _placed(self, key: PromptKey) -> tuple[Connection, WorkerAdmission]:
        while True:
            # All who wait for a restart wait together, not one by one inside.
            await self._supervisor.connection()
            place = await self._ward.enter(key)
            try:
                if place.stay != "apart":
                    return await self._supervisor.connection(), place
                return await self._second.enter(), place
            except BaseException as error:
                self._ward.leave(place, "abandoned")
                if place.stay != "apart" or not isinstance(error, GanglionError) or self._second.is_available:
                    raise
                # It could not be started after all: the next turn is one alone in the first worker.

    def _leave(self, place: WorkerAdmission, outcome: Outcome) -> None:
        if place.stay == "apart":
            self._second.leave()
        self._ward.leave(place, outcome)

    def _make_second(self) -> Supervisor | None:
        """A second worker's supervisor; None where memory has no room for it."""
        settings = self._settings
        try:
            second = plan_second(
                settings, self._facts, self.plan, cores=usable_cores(), free_bytes=free_bytes()
            )
        except InsufficientMemory:
            return None
        self._second_bytes = second.required_bytes
        # Its processor time is the first one's to take: slow is not hung.
        limits = replace(settings.limits, hang_s=SECOND_PATIENCE * settings.limits.hang_s)
        return Supervisor(f"{settings.model_id} (second)", WORKER, msgspec.msgpack.encode(second), limits)


def _only_embeds(model_id: str) -> InvalidValue:
    return InvalidValue(
        f"The model {model_id!r} makes embeddings and does not generate text.",
        param="model",
        hint="Ask it through /v1/embeddings, or name another model.",
    )


def _interrupted() -> ModelRecovering:
    return ModelRecovering(
        "This prompt was in a worker that died, so it runs alone, and others wait for the worker.",
        hint="Try again when the model is less busy.",
    )


def _overloaded(limit: int, queue_limit: int) -> Overloaded:
    return Overloaded(
        f"{limit} requests are running or waiting, which is as many as this model takes.",
        extras={"queue_depth": queue_limit},
    )
