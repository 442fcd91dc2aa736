"""A model over a worker process as an Engine: chat, prompts and token lists inside the model's limits.

Law: data flows one way. `WorkerTokens` knows the workers, `TextEngine` the tokens, and this knows both;
neither of them knows this. An engine adds how its worker is planned, how the model is described, and vectors.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import replace
from functools import partial

from ganglion.core.delivery import Room, Sink, give, pulled
from ganglion.core.engine import ModelState, PlacedImage, ReadPrompt, TokenizerInfo
from ganglion.core.errors import (
    GanglionError,
    InvalidValue,
    ModelLoading,
    ModelNotFound,
    Overloaded,
    VisionUnsupported,
)
from ganglion.core.events import Event, Failed, Started, TokenEvent
from ganglion.core.model import ModelFacts
from ganglion.core.request import PLACEHOLDER, ImageBlock, Request, TokenRequest
from ganglion.engines.images.placing import before_images, checked_blocks
from ganglion.engines.prompt_checks import bounded, check_tokens
from ganglion.engines.rendering.renderer import Renderer
from ganglion.engines.settings import EngineSettings
from ganglion.engines.text_engine import TextEngine
from ganglion.engines.worker_tokens import WorkerTokens

_logger = logging.getLogger("ganglion.engines")


class WorkerEngine:
    """One model, served by one worker process; the engines that have workers derive from it."""

    def __init__(
        self,
        facts: ModelFacts,
        settings: EngineSettings,
        tokens: WorkerTokens,
        *,
        context: int,
        limit: int,
        senses: tuple[str, ...] = (),
    ) -> None:
        """`limit` is how many requests the model takes at once, running or waiting.

        `senses` are the capabilities by which it takes files.
        """
        self._facts = facts
        self._senses = senses
        self._settings = settings
        self._context = context
        self._limit = limit
        self._in_flight = 0
        self._created_s = facts.modified_s or int(time.time())
        self.tokens = tokens
        self._renderer = Renderer()
        self._text = TextEngine(
            settings.model_id,
            tokens,
            self._renderer,
            facts,
            context=context,
            chat_template=settings.chat_template,
            special_tokens=lambda: tokens.ready.special_tokens,
            place=self._place if senses else None,
            senses=senses,
        )
        if context > facts.context_length > 0:
            _logger.warning(
                "%s was trained on contexts of %d tokens; beyond that its answers degrade (context is %d)",
                settings.model_id,
                facts.context_length,
                context,
            )

    async def open(self) -> None:
        """Start the worker and wait until the model is loaded."""
        rendering = asyncio.create_task(self._renderer.open())
        try:
            await self.tokens.open()
            await rendering
        except BaseException:
            rendering.cancel()
            await asyncio.gather(rendering, return_exceptions=True)
            await self._renderer.close()
            raise

    async def close(self) -> None:
        """Stop the worker, which may keep its hot prefixes."""
        await self._renderer.close()
        await self.tokens.close()

    def _state(self) -> ModelState:
        """What is the same of every model over a worker; the engine fills in what it alone knows."""
        supervisor, load = self.tokens.supervisor, self.tokens.load
        return ModelState(
            id=self._settings.model_id,
            engine="",
            status=supervisor.status,
            context_length=self._context,
            created_s=self._created_s,
            aliases=self._settings.aliases,
            capabilities=self._facts.capabilities or ("chat",),
            resident_mb=self.tokens.resident_bytes() >> 20,
            in_flight=self._in_flight,
            queued=self.tokens.queue.queued + load.waiting,
            kv_used=load.kv_used,
            slots_used=load.running,
            restarts=self.tokens.restarts,
            load=load,
            error=supervisor.error.message if supervisor.error is not None else None,
            facts=self._facts,
            sampling=self._facts.sampling,
            readout=self.tokens.readout,
        )

    def generate(self, request: Request) -> AsyncGenerator[Event, None]:
        """Answer one request."""
        return pulled(partial(self.generate_into, request))

    async def generate_into(self, request: Request, sink: Sink[Event]) -> None:
        """Answer one request, delivering what comes of it."""
        if (error := self._refusal()) is not None:
            await give(sink, Failed(error))
            return
        self._in_flight += 1
        try:
            await self._text.generate_into(request, self._laid_out(sink) if request.wants_readout else sink)
        finally:
            self._in_flight -= 1

    def _refusal(self) -> GanglionError | None:
        """Why nothing can be generated now, None where it can."""
        model_id = self._settings.model_id
        if self.tokens.supervisor.status in ("unloaded", "loading"):
            return ModelLoading(f"The model {model_id!r} is still loading.")
        if self._in_flight >= self._limit:
            return self._overloaded()
        if not self._facts.can_generate:
            return InvalidValue(
                f"The model {model_id!r} makes embeddings and does not generate text.",
                param="model",
                hint="Ask it through /v1/embeddings, or name another model.",
            )
        return None

    def _overloaded(self) -> Overloaded:
        return Overloaded(
            f"{self._limit} requests are running or waiting, which is as many as this model takes.",
            extras={"queue_depth": self._settings.queue_limit},
        )

    def _laid_out(self, sink: Sink[Event]) -> Sink[Event]:
        """Says where readouts begin how many of their values belong to a layer."""
        concepts = len(self.tokens.ready.concepts)

        def say(events: Sequence[Event]) -> Room:
            return sink(
                [
                    replace(event, readout_concepts=concepts) if isinstance(event, Started) else event
                    for event in events
                ]
            )

        return say

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """One request inside the limits of the model."""
        if self._in_flight >= self._limit:
            raise self._overloaded()
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1

    # Prompts

    async def read(self, request: Request) -> ReadPrompt:
        """The prompt as the model reads it."""
        return await self._text.read(request)

    async def detokenize(self, model: str, tokens: tuple[int, ...], *, tenant: str = "") -> str:
        """Ids to text."""
        self._check(model, tokens)
        return await self.tokens.text_of(tokens, tenant=tenant)

    async def pieces(self, model: str, tokens: tuple[int, ...], *, tenant: str = "") -> tuple[bytes, ...]:
        """The bytes of each token."""
        self._check(model, tokens)
        return await self.tokens.pieces(tokens, tenant=tenant)

    async def tokenizer_info(self, model: str) -> TokenizerInfo:
        """The vocabulary and the template."""
        self._check(model)
        ready = self.tokens.ready
        special = ready.special_tokens
        return TokenizerInfo(
            vocabulary_size=ready.vocabulary_size,
            context_length=self._context,
            chat_template=self._text.template,
            bos_token=self._facts.bos_token,
            eos_token=self._facts.eos_token,
            bos_id=special.bos,
            eos_id=special.eos,
            adds_bos=special.adds_bos,
            end_ids=tuple(special.ends),
        )

    async def _place(self, data: bytes, tenant: str) -> ImageBlock:
        return await self.tokens.place(data, tenant=tenant)

    def _check(self, model: str, tokens: tuple[int, ...] = ()) -> None:
        if model != self._settings.model_id:
            raise ModelNotFound(model)
        if tokens:
            check_tokens((min(tokens), max(tokens)), self._facts.vocabulary_size, "tokens")

    # Token lists

    async def continue_tokens(self, model: str, request: TokenRequest) -> AsyncGenerator[TokenEvent, None]:
        """Run a token list, inside the limits of the model."""
        try:
            self._check_list(model, request)
            if (refusal := self._refusal()) is not None:
                raise refusal
            request = bounded(request, self._context)
        except GanglionError as error:
            yield Failed(error)
            return
        self._in_flight += 1
        try:
            async with aclosing(self.tokens.run(request)) as events:
                async for event in events:
                    yield event
        finally:
            self._in_flight -= 1

    def _check_list(self, model: str, request: TokenRequest) -> None:
        if not request.images:
            self._check(model, request.tokens)
            return
        self._check(model)
        self._check_sight(model)
        checked_blocks(request.tokens, request.images)
        check_tokens(
            (token for token in request.tokens if token != PLACEHOLDER),
            self._facts.vocabulary_size,
            "tokens",
        )

    def _check_sight(self, model: str) -> None:
        if not self._senses:
            raise VisionUnsupported(
                f"The model {model!r} reads text and no images.",
                param="data",
                hint="Describe the image in words, or name a model that sees.",
                extras={"model": model, "suggestion": None},
            )

    async def save_kv(self, model: str, salt: str, tokens: tuple[int, ...]) -> bytes:
        """The KV that is cached of some tokens, up to the first image."""
        tokens = before_images(tokens)
        self._check(model, tokens)
        return await self.tokens.save_kv(salt, tokens)

    async def load_kv(self, model: str, salt: str, tokens: tuple[int, ...], state: bytes) -> int:
        """Put saved KV into the cache, up to the first image."""
        tokens = before_images(tokens)
        self._check(model, tokens)
        return await self.tokens.load_kv(salt, tokens, state)

    async def place_image(self, model: str, data: bytes, mime: str, *, tenant: str = "") -> PlacedImage:
        """What an image takes in a token list."""
        self._check(model)
        self._check_sight(model)
        if (refusal := self._refusal()) is not None:
            raise refusal
        with self._counted():
            block = await self.tokens.place(data, tenant=tenant)
        return PlacedImage(block.count, block.digest)
