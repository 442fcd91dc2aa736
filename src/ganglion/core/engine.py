"""The ports: everything that answers is an Engine, and under it lie tokens.

Law: `generate()` and `run()` return async generators, and closing one *is* cancellation: whatever it held is
given back before `aclose()` returns or soon after. Errors are `Failed` events, also before the first token;
these generators raise only on bugs.
"""

from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from ganglion.core.device_layout import DEFAULT_LAYOUT, DeviceLayout
from ganglion.core.events import Event, TokenEvent
from ganglion.core.model import ModelFacts, WorkerLoad
from ganglion.core.request import Request, TextPrompt, TokenPrompt, TokenRequest
from ganglion.core.sampling import Sampling

Status = Literal["unloaded", "downloading", "loading", "loaded", "draining", "recovering", "failed"]


@dataclass(frozen=True, slots=True)
class ReadoutManifest:
    """The concepts and layers whose values are read out of a model."""

    concepts: tuple[str, ...]
    layers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModelState:
    """One model as its engine sees it now."""

    id: str
    engine: str
    status: Status
    context_length: int
    created_s: int
    """When the model was configured or its file last changed, seconds since the epoch."""
    aliases: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    memory_mb: int = 0
    """What it was promised, and of that what it has touched so far."""
    resident_mb: int = 0
    in_flight: int = 0
    queued: int = 0
    kv_used: int = 0
    kv_total: int = 0
    slots_used: int = 0
    slots_total: int = 0
    restarts: int = 0
    load: WorkerLoad = WorkerLoad()
    """How busy its process is, where it has one of its own."""
    error: str | None = None
    loads_on_request: bool = False
    """Whether it is not loaded and a request that names it would load it now."""
    is_pinned: bool = False
    """Never evicted to make room."""
    priority: int = 0
    """Lower is more urgent: of idle models, the one with the highest number is evicted first."""
    last_used_s: float | None = None
    """Seconds since the epoch; None when no request has named it yet."""
    devices: tuple[str, ...] = ("cpu",)
    bytes_done: int = 0
    """While downloading."""
    bytes_total: int = 0
    source: str = ""
    """Where it came from and why its name means it, for people."""
    facts: ModelFacts | None = None
    """What its file says of itself, where somebody has read it."""
    sampling: Sampling = Sampling()
    """Its own defaults, for what a request leaves out."""
    readout: ReadoutManifest | None = None
    """None where no concepts are loaded, or the model is not."""

    @property
    def abilities(self) -> tuple[str, ...]:
        """Its capabilities, and `readout` where concepts are loaded."""
        return self.capabilities if self.readout is None else (*self.capabilities, "readout")


def find_model(models: Iterable[ModelState], name: str) -> ModelState | None:
    """The model that a name means: exactly its id, or one of its aliases in any case."""
    folded = name.casefold()
    by_alias = None
    for model in models:
        if model.id == name:
            return model
        if by_alias is None and folded in map(str.casefold, model.aliases):
            by_alias = model
    return by_alias


class Engine(Protocol):
    """Anything that answers requests: one model, a set of them, a remote server, a fleet."""

    def generate(self, request: Request) -> AsyncGenerator[Event, None]:
        """Answer one request as an event stream."""

    def models(self) -> tuple[ModelState, ...]:
        """Every model that could be asked for by name, cheaply and without blocking."""


class ManagedEngine(Engine, Protocol):
    """An engine that holds processes or memory between requests."""

    async def open(self) -> None:
        """Start; returns once requests can be answered or raises why they cannot."""

    async def close(self) -> None:
        """Stop and give everything back; running requests end with `Failed`."""


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """The choices that come with a request to load a model; None leaves one to the configuration."""

    engine: str | None = None
    quant: str | None = None
    context_length: int | None = None
    is_pinned: bool | None = None
    layout: DeviceLayout = DEFAULT_LAYOUT


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """The progress of a load, in bytes while it downloads."""

    model: str
    status: Status
    bytes_done: int = 0
    bytes_total: int = 0


@dataclass(frozen=True, slots=True)
class Activation:
    """The models that were configured, each in exactly one of these."""

    pending: tuple[str, ...] = ()
    in_progress: str | None = None
    completed: tuple[str, ...] = ()
    failed: tuple[tuple[str, str], ...] = ()
    """Model and why."""

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to warm."""
        return not self.pending and self.in_progress is None


@runtime_checkable
class ModelHolder(ManagedEngine, Protocol):
    """An engine whose models come and go."""

    def load(self, name: str, options: LoadOptions) -> AsyncGenerator[LoadProgress, None]:
        """Load a model, joining whoever already does; ends when it is resident, raises why it cannot be."""

    async def unload(self, name: str, *, is_forced: bool) -> None:
        """Let a model go once its requests are finished; forced, they end with `Failed`."""

    def activation(self) -> Activation:
        """The progress of the configured models."""


@dataclass(frozen=True, slots=True)
class ReadPrompt:
    """A prompt as the model reads it; `text` is None where token ids were given."""

    tokens: tuple[int, ...]
    text: str | None = None


@dataclass(frozen=True, slots=True)
class TokenizerInfo:
    """Facts of a tokenizer, for prompt debuggers and evaluation harnesses."""

    vocabulary_size: int
    context_length: int
    chat_template: str
    bos_token: str
    eos_token: str
    bos_id: int | None = None
    eos_id: int | None = None
    adds_bos: bool = False
    end_ids: tuple[int, ...] = ()


@runtime_checkable
class PromptReader(Protocol):
    """Says how prompts become tokens, without answering them; raises GanglionErrors."""

    async def read(self, request: Request) -> ReadPrompt:
        """The request's prompt rendered and tokenized, whatever its length."""

    async def detokenize(self, model: str, tokens: tuple[int, ...], *, tenant: str = "") -> str:
        """Ids to text, special tokens written out; half a character becomes U+FFFD."""

    async def pieces(self, model: str, tokens: tuple[int, ...], *, tenant: str = "") -> tuple[bytes, ...]:
        """The bytes of each token, special ones written out."""

    async def tokenizer_info(self, model: str) -> TokenizerInfo:
        """The model's tokenizer and template."""


@dataclass(frozen=True, slots=True)
class EmbedRequest:
    """Vectors for some inputs, in order."""

    id: str
    model: str
    inputs: tuple[TextPrompt | TokenPrompt, ...]
    is_normalized: bool = True
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class Embedded:
    """One vector an input, each float32 in the machine's byte order, and what reading them cost."""

    vectors: tuple[bytes, ...]
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class RankRequest:
    """Documents to rank by how well each answers a query."""

    id: str
    model: str
    query: str
    documents: tuple[str, ...]
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class Ranked:
    """One relevance a document, higher is better, in the documents' order."""

    scores: tuple[float, ...]
    prompt_tokens: int


@runtime_checkable
class Embedder(Protocol):
    """Turns texts into vectors and rankings; raises GanglionErrors, cancelling stops the work."""

    async def embed(self, request: EmbedRequest) -> Embedded:
        """Embed every input."""

    async def rank(self, request: RankRequest) -> Ranked:
        """Rank every document: with the model's own classifier, else by the angle between embeddings."""


@dataclass(frozen=True, slots=True)
class PlacedImage:
    """An image as a model reads it: how many positions it takes, and which image it is."""

    count: int
    digest: str


@runtime_checkable
class SessionEngine(Protocol):
    """Continues token lists of the models it holds by name, and hands their KV out and in.

    All but `continue_tokens` raise GanglionErrors.
    """

    def continue_tokens(self, model: str, request: TokenRequest) -> AsyncGenerator[TokenEvent, None]:
        """Run a token list on the model that is meant."""

    async def save_kv(self, model: str, salt: str, tokens: tuple[int, ...]) -> bytes:
        """The cached KV of the longest prefix of some tokens, as `load_kv` takes it; empty for none."""

    async def load_kv(self, model: str, salt: str, tokens: tuple[int, ...], state: bytes) -> int:
        """Put KV into the cache; returns of how many leading tokens, 0 where it is not this model's."""

    async def place_image(self, model: str, data: bytes, mime: str, *, tenant: str = "") -> PlacedImage:
        """Decode an image and say what it takes; raises VisionUnsupported where the model does not see.

        Tenants take turns.
        """


class TokenEngine(Protocol):
    """Token ids in, token events out."""

    def run(self, request: TokenRequest) -> AsyncGenerator[TokenEvent, None]:
        """Continue one token list."""

    async def tokenize(
        self, text: str, *, add_special: bool, parse_special: bool, tenant: str = "", most: int | None = None
    ) -> tuple[int, ...]:
        """Text to ids; `parse_special` reads control tokens written out in the text.

        Tenants take turns. A text that certainly has more than `most` tokens may be refused with
        ContextLengthExceeded instead of being tokenized.
        """

    async def text_of(self, tokens: tuple[int, ...]) -> str:
        """Ids to text, special tokens written out; half a character becomes U+FFFD."""
