"""An engine without a model: it says the user's words back, word by word, and does what a script tells it.

It stands in for a model wherever tests and people need answers that are quick, exact or broken on purpose.
"""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Final, assert_never

from ganglion.core.attachments import check_attachments
from ganglion.core.engine import (
    Embedded,
    EmbedRequest,
    ModelState,
    PlacedImage,
    Ranked,
    RankRequest,
    ReadoutManifest,
    ReadPrompt,
    Status,
    TokenizerInfo,
)
from ganglion.core.errors import (
    EngineFailed,
    GanglionError,
    InvalidValue,
    ModelLoading,
    ModelNotFound,
    ModelRecovering,
    ShuttingDown,
)
from ganglion.core.events import (
    Closed,
    Delta,
    Event,
    Failed,
    Finished,
    Pieces,
    Progress,
    Scored,
    Started,
    TokenEvent,
)
from ganglion.core.machine import EngineFacts
from ganglion.core.request import PLACEHOLDER, ChatPrompt, Request, TokenPrompt, TokenRequest
from ganglion.core.sampling import Sampling, resolve
from ganglion.engines.echo.answer import (
    Block,
    EchoPiece,
    EchoPlan,
    EchoRun,
    EchoScript,
    open_block,
    play_plan,
    scripted_words,
    take_directives,
)
from ganglion.engines.echo.capacity import PrefixMemory, Slots, Ticket
from ganglion.engines.echo.vocabulary import (
    EchoReadout,
    WordVocabulary,
    bag_of_words,
    image_positions,
    overlap_scores,
    reusable_tokens,
    scored_tokens,
    split_words,
)
from ganglion.engines.prompt_checks import bounded, fitted
from ganglion.engines.settings import EngineSettings


@dataclass(frozen=True, slots=True)
class EchoSettings:
    """What the operator asks of an echo."""

    model_id: str = "echo"
    aliases: tuple[str, ...] = ()
    context: int = 8192
    parallel: int = 16
    queue_limit: int = 256
    allow_directives: bool = False
    """Let `!echo delay=0.1 fail_at=3` lines in the user's message change the script."""
    open_delay_s: float = 0.0
    open_error: GanglionError | None = None
    recovery_s: float = 0.1
    """How long the engine is gone after a crash."""
    concepts: tuple[str, ...] = ()
    """What can be read out and steered; empty for a model without readouts."""
    readout_layers: tuple[int, ...] = (1, 2)
    sees: bool = False
    """Whether it takes images: in what it repeats, each is named in its place."""
    hears: bool = False
    sampling: Sampling = Sampling()
    """What it says of itself where a request leaves something out; an echo draws nothing."""


SEEING_ID: Final = "echo-vision"
"""The name under which an echo takes images."""


def build_echo(
    facts: object, settings: EngineSettings, *, free_memory: int | None, free_video_memory: int | None
) -> "EchoEngine":
    """The engine of the table: an echo has no file, takes no memory, and obeys directives."""
    return EchoEngine(
        EchoSettings(
            model_id=settings.model_id,
            context=settings.context or EchoSettings().context,
            parallel=settings.parallel,
            queue_limit=settings.queue_limit,
            allow_directives=True,
            sees=settings.model_id == SEEING_ID,
        )
    )


def describe_echo(name: str, version: str, environment: object) -> EngineFacts:
    """The engine of the table, which comes with Ganglion and needs nothing."""
    return EngineFacts(name, version)


class EchoEngine:
    """A ManagedEngine and TokenEngine whose answer is its prompt."""

    def __init__(self, settings: EchoSettings | None = None, script: EchoScript | None = None) -> None:
        settings = settings or EchoSettings()
        self._settings = settings
        self._script = script or EchoScript()
        self._slots = Slots(settings.parallel, settings.queue_limit)
        self._runs: dict[EchoRun, int] = {}
        self._status: Status = "unloaded"
        self._restarts = 0
        self._created_s = int(time.time())
        self._words = WordVocabulary()
        self._memory = PrefixMemory()
        senses = [sense for sense, has in (("vision", settings.sees), ("audio", settings.hears)) if has]
        self._capabilities = ("chat", "completion", "embeddings", "tools", *senses)
        self._manifest = (
            ReadoutManifest(settings.concepts, settings.readout_layers) if settings.concepts else None
        )

    async def open(self) -> None:
        """Be ready, after the delay or with the error that the settings ask for."""
        self._status = "loading"
        await asyncio.sleep(self._settings.open_delay_s)
        if self._settings.open_error is not None:
            self._status = "failed"
            raise self._settings.open_error
        self._status = "loaded"

    async def close(self) -> None:
        """End what runs."""
        self._status = "unloaded"
        self._memory.clear()
        self._end_all(ShuttingDown("The engine is shutting down."))

    def crash(self) -> None:
        """Die as a native engine would: every running request fails, and new ones wait for the recovery."""
        self._restarts += 1
        self._status = "recovering"
        self._memory.clear()
        self._end_all(EngineFailed("The engine died under this request."))
        asyncio.get_running_loop().call_later(self._settings.recovery_s, self._recover)

    def models(self) -> tuple[ModelState, ...]:
        """The one model."""
        settings, slots = self._settings, self._slots
        return (
            ModelState(
                id=settings.model_id,
                engine="echo",
                status=self._status,
                context_length=settings.context,
                created_s=self._created_s,
                aliases=settings.aliases,
                capabilities=self._capabilities,
                in_flight=slots.used,
                queued=slots.queued,
                kv_used=sum(self._runs.values()),
                kv_total=settings.context * settings.parallel,
                slots_used=slots.used,
                slots_total=slots.total,
                restarts=self._restarts,
                readout=self._manifest,
                sampling=settings.sampling,
            ),
        )

    async def generate(self, request: Request) -> AsyncGenerator[Event, None]:
        """Say the last user message, or what the script says instead."""
        try:
            plan = self._plan(request)
        except GanglionError as error:
            yield Failed(error)
            return
        index = -1
        block: Block | None = None
        async with aclosing(self._play(plan)) as said:
            async for event in said:
                match event:
                    case EchoPiece(block=new_block, piece=piece):
                        if new_block is not block:
                            if block is not None:
                                yield Closed(index)
                            index, block = index + 1, new_block
                            yield open_block(index, new_block)
                        yield Delta(index, piece.text, piece.tokens)
                    case Finished():
                        if block is not None:
                            yield Closed(index)
                        yield event
                    case Progress() | Started() | Scored() | Failed():
                        yield event
                    case _:
                        assert_never(event)

    async def run(self, request: TokenRequest) -> AsyncGenerator[TokenEvent, None]:
        """Say the prompt's own tokens, and remember them as a prefix cache would."""
        try:
            plan = self._token_plan(request)
        except GanglionError as error:
            yield Failed(error)
            return
        ran: list[int] = []
        try:
            async with aclosing(self._play(plan)) as said:
                async for event in said:
                    if isinstance(event, Started):
                        ran += request.tokens
                    elif isinstance(event, Failed):
                        ran.clear()
                    if isinstance(event, EchoPiece):
                        ran += [token.id for token in event.piece.tokens]
                        yield Pieces((event.piece,))
                    else:
                        yield event
        finally:
            # The token that was sampled last has not been run.
            self._memory.keep(request.salt, tuple(ran[: max(len(ran) - 1, len(request.tokens))]))

    async def continue_tokens(self, model: str, request: TokenRequest) -> AsyncGenerator[TokenEvent, None]:
        """Say the prompt's own tokens, to somebody who reads tokens."""
        try:
            self._check_name(model)
            request = bounded(request, self._settings.context)
            if PLACEHOLDER in request.tokens and not request.images:
                raise InvalidValue(
                    "The tokens have a placeholder for an image, and no image is given.", param="tokens"
                )
        except GanglionError as error:
            yield Failed(error)
            return
        async with aclosing(self.run(request)) as events:
            async for event in events:
                yield event

    async def save_kv(self, model: str, salt: str, tokens: tuple[int, ...]) -> bytes:
        """An echo computes nothing that would be worth keeping."""
        self._check_name(model)
        return b""

    async def load_kv(self, model: str, salt: str, tokens: tuple[int, ...], state: bytes) -> int:
        """Nothing is restored."""
        self._check_name(model)
        return 0

    async def place_image(self, model: str, data: bytes, mime: str, *, tenant: str = "") -> PlacedImage:
        """An image takes as many positions as it has hundreds of bytes, and is known by its bytes."""
        self._check_name(model)
        return PlacedImage(image_positions(data), sha256(data).hexdigest())

    async def tokenize(
        self, text: str, *, add_special: bool, parse_special: bool, tenant: str = "", most: int | None = None
    ) -> tuple[int, ...]:
        """A token for each word; an echo has no special ones."""
        return tuple(map(self._words.id_of, split_words(text)))

    async def text_of(self, tokens: tuple[int, ...]) -> str:
        """Ids to the words they were, as far as this echo has seen them."""
        return self._words.text_of(tokens)

    async def detokenize(self, model: str, tokens: tuple[int, ...], *, tenant: str = "") -> str:
        """Ids to the words they were, as far as this echo has seen them."""
        self._check_name(model)
        return self._words.text_of(tokens)

    async def pieces(self, model: str, tokens: tuple[int, ...], *, tenant: str = "") -> tuple[bytes, ...]:
        """The words one by one."""
        self._check_name(model)
        return tuple(self._words.text_of((token,)).encode() for token in tokens)

    async def read(self, request: Request) -> ReadPrompt:
        """The words of all messages, one after another."""
        self._check_name(request.model)
        check_attachments(request.prompt, request.model, self._capabilities)
        prompt, tokens = request.prompt, self._words.ids_of(request.prompt)
        if isinstance(prompt, ChatPrompt):
            return ReadPrompt(tokens, "\n".join(message.content for message in prompt.messages))
        return ReadPrompt(tokens, None if isinstance(prompt, TokenPrompt) else prompt.text)

    async def tokenizer_info(self, model: str) -> TokenizerInfo:
        """A tokenizer of words."""
        self._check_name(model)
        return TokenizerInfo(2**31, self._settings.context, "", "", "")

    async def embed(self, request: EmbedRequest) -> Embedded:
        """A vector of each input's words, the same for the same words."""
        self._check_name(request.model)
        inputs = [self._words.ids_of(each) for each in request.inputs]
        return Embedded(tuple(map(bag_of_words, inputs)), sum(map(len, inputs)))

    async def rank(self, request: RankRequest) -> Ranked:
        """The share of the query's words that a document holds."""
        self._check_name(request.model)
        return Ranked(*overlap_scores(request.query, request.documents))

    def _plan(self, request: Request) -> EchoPlan:
        self._check_name(request.model)
        check_attachments(request.prompt, request.model, self._capabilities)
        text, script = self._words.repeated(request.prompt), self._script
        if self._settings.allow_directives:
            text, script = take_directives(text, script)
        if request.stop.ignore_eos:
            script = replace(script, is_unbounded=True)
        tokens, max_tokens = fitted(self._words.ids_of(request.prompt), request, self._settings.context)
        if request.keep_markers and script.reasoning:
            text = f"<think>{script.reasoning}</think>{text if script.reply is None else script.reply}"
            script = replace(script, reasoning="", reply=None)
        readout = ((len(tokens), None),) if request.wants_readout else ()
        reader = EchoReadout(self._manifest, readout, request.steering)
        return EchoPlan(
            script=script,
            words=scripted_words(text, script),
            prompt_tokens=len(tokens),
            max_tokens=max_tokens,
            stop=request.stop,
            top_logprobs=request.top_logprobs,
            priority=request.priority,
            reader=reader,
            cached_tokens=min(script.cached_tokens, len(tokens)),
            scored=scored_tokens(tokens, request.score, reader, self._words),
            readout_concepts=len(self._settings.concepts) if readout else 0,
            prompt_token_ids=tokens if request.wants_token_ids else None,
            sampling=resolve(request.sampling, self._settings.sampling),
        )

    def _token_plan(self, request: TokenRequest) -> EchoPlan:
        script = replace(self._script, reasoning="")
        if request.stop.ignore_eos:
            script = replace(script, is_unbounded=True)
        reader = EchoReadout(self._manifest, request.readout, request.steering)
        known = max(self._memory.common(request.salt, request.tokens), script.cached_tokens)
        return EchoPlan(
            script=script,
            words=scripted_words(self._words.text_of(request.tokens), script),
            prompt_tokens=len(request.tokens),
            max_tokens=request.max_tokens,
            stop=request.stop,
            top_logprobs=request.top_logprobs,
            priority=request.priority,
            reader=reader,
            cached_tokens=reusable_tokens(request, known),
            scored=scored_tokens(request.tokens, request.score, reader, self._words),
            in_tokens=request.in_tokens,
            readout_concepts=len(self._settings.concepts) if request.readout else 0,
        )

    async def _play(
        self, plan: EchoPlan
    ) -> AsyncGenerator[Progress | Started | Scored | EchoPiece | Finished | Failed, None]:
        """Wait for a slot and say the plan; errors end it as Failed."""
        run, ticket = EchoRun(), None
        try:
            self._check_ready()
            ticket = self._slots.enter(plan.priority)
            entered_s = time.perf_counter()
            if not ticket.turn.done():
                yield Progress("queued", 0, self._slots.queued)
            await ticket.turn
            self._runs[run] = plan.prompt_tokens
            queued_s = time.perf_counter() - entered_s
            async with aclosing(play_plan(plan, run, self._words, queued_s, self.crash)) as events:
                async for event in events:
                    yield event
        except GanglionError as error:
            yield Failed(error)
        finally:
            self._leave(run, ticket)

    def _check_name(self, name: str) -> None:
        names = map(str.casefold, self._settings.aliases)
        if name != self._settings.model_id and name.casefold() not in (*names,):
            raise ModelNotFound(name, hint=f"Here: {self._settings.model_id}.")

    def _check_ready(self) -> None:
        if self._status == "recovering":
            raise ModelRecovering("The engine died and is starting again.")
        if self._status != "loaded":
            raise ModelLoading(f"The model {self._settings.model_id!r} is not loaded.")

    def _leave(self, run: EchoRun, ticket: Ticket | None) -> None:
        self._runs.pop(run, None)
        if ticket is not None:
            self._slots.leave(ticket)

    def _end_all(self, error: GanglionError) -> None:
        self._slots.refuse_waiting(error)
        for run in self._runs:
            run.end(error)

    def _recover(self) -> None:
        if self._status == "recovering":
            self._status = "loaded"
