"""The frames between the server and a worker: length-prefixed msgpack, typed both ways, never pickle.

One `Stepped` a step carries what every sequence got; the other way go submits, aborts, questions and pings.
"""

from typing import Final

import msgspec

from ganglion.core.model import WorkerLoad
from ganglion.core.request import Stop
from ganglion.core.sampling import ResolvedSampling
from ganglion.engines.child_main import LENGTH_PREFIX

MAX_FRAME_BYTES: Final = 256 * 2**20
"""A frame announces its size; anything larger than a prompt could be is a broken peer."""
MAX_STATE_BYTES: Final = MAX_FRAME_BYTES - 16 * 2**20
"""The largest state that is handed out or in: what a frame leaves beside the tokens."""


class _WorkerFrame(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Anything on the socket."""


class Submit(_WorkerFrame, frozen=True):
    """Run a token list; sampling and stop values are resolved."""

    id: int
    tokens: list[int]
    max_tokens: int
    sampling: ResolvedSampling
    stop: Stop
    top_logprobs: int | None
    priority: int
    salt: str
    min_tokens: int = 0
    grammar: str | None = None
    """What may be generated, in llguidance's Lark."""
    score_ranges: list[tuple[int, int | None]] = []
    """Positions of the prompt whose tokens' logprobs are wanted, half-open."""
    score_top: int = 0
    in_tokens: bool = False
    """Tell each token as it is sampled, the one that ends included, without text."""
    readout_ranges: list[tuple[int, int | None]] = []
    """Positions whose readouts are wanted, of the prompt and of what is generated, half-open."""
    steering: list[tuple[str, float, list[int] | None]] = []
    """Concept, strength and layers, None for all of the pack's."""
    wants_token_ids: bool = False
    tenant: str = ""
    """Whose grammar it is, and whose pictures: tenants take turns."""
    images: list[tuple[int, str]] = []
    """Where pictures begin, and which: what stands there are the ids of their `ImagePlaced`."""


class Abort(_WorkerFrame, frozen=True):
    """Stop a sequence; nothing more is said of it but `SequenceGone`."""

    id: int


class Tokenize(_WorkerFrame, frozen=True):
    """Ask for a text's token ids."""

    id: int
    text: str
    add_special: bool
    parse_special: bool
    tenant: str = ""
    """Whose question it is: tenants take turns."""


class Detokenize(_WorkerFrame, frozen=True):
    """Ask for the text of token ids, special ones written out."""

    id: int
    tokens: list[int]
    in_pieces: bool = False
    tenant: str = ""


class MeasurePieces(_WorkerFrame, frozen=True):
    """Ask how long the vocabulary's pieces are."""

    id: int
    tenant: str = ""


class Embed(_WorkerFrame, frozen=True):
    """Ask for one vector an input."""

    id: int
    inputs: list[list[int]]
    is_normalized: bool
    tenant: str = ""


class SaveKv(_WorkerFrame, frozen=True):
    """Ask for the cached KV of the longest prefix of some tokens."""

    id: int
    salt: str
    tokens: list[int]


class LoadKv(_WorkerFrame, frozen=True):
    """Put KV that some worker saved into the cache."""

    id: int
    salt: str
    tokens: list[int]
    state: bytes


class PlaceImage(_WorkerFrame, frozen=True):
    """Ask what a picture becomes, and hand it over; without pixels, whether the worker has it."""

    id: int
    digest: str
    width: int = 0
    height: int = 0
    rgb: bytes = b""
    sound: bytes = b""
    """Of a sound in its place: samples at the projector's rate, float32 in the machine's byte order."""
    tenant: str = ""


class WorkerPing(_WorkerFrame, frozen=True):
    """Ask for a sign of life."""


class StopWorker(_WorkerFrame, frozen=True):
    """End the worker; with `keep_s` it first keeps its hot prefixes, for at most so long."""

    keep_s: float = 0.0


class SpecialTokens(msgspec.Struct, frozen=True, array_like=True):
    """The vocabulary's special tokens by what they are for, None where it has none."""

    bos: int | None = None
    eos: int | None = None
    separator: int | None = None
    adds_bos: bool = False
    adds_eos: bool = False
    adds_separator: bool = False
    fill_prefix: int | None = None
    fill_suffix: int | None = None
    fill_middle: int | None = None
    ends: list[int] = []
    """The tokens that end a generation."""

    @property
    def opening(self) -> tuple[int, ...]:
        """The token before every text, where the vocabulary wants one."""
        return (self.bos,) if self.adds_bos and self.bos is not None else ()


class WorkerReady(_WorkerFrame, frozen=True):
    """The model is loaded."""

    vocabulary_size: int
    load_s: float
    special_tokens: SpecialTokens = SpecialTokens()
    ranks: bool = False
    """Whether what it makes of an input is a rank and not a vector."""
    rank_template: str | None = None
    """How such a model wants to be asked, with {query} and {document} where they go."""
    concepts: list[str] = []
    """What is read out, of each of the layers."""
    readout_layers: list[int] = []
    placement: str = ""
    """Where the layers went, for the log; empty where all are on the processor."""
    sample_rate: int = 0
    """Of the sounds that it takes, 0 where it takes none."""
    kv_tokens: int = 0
    """How many tokens its cache has room for, where only the worker can tell."""


class WorkerRefusal(_WorkerFrame, frozen=True):
    """The model could not be loaded, or a question not answered; `id` is the question's, 0 the load's."""

    id: int
    code: str
    message: str
    hint: str | None
    extras: dict[str, str | int | float | bool | None]


class Tokenized(_WorkerFrame, frozen=True):
    """The answer to Tokenize."""

    id: int
    tokens: list[int]


class Detokenized(_WorkerFrame, frozen=True):
    """The answer to Detokenize."""

    id: int
    text: str
    pieces: list[bytes] = []
    """The bytes of each token, where they were asked for."""


class PiecesMeasured(_WorkerFrame, frozen=True):
    """For each byte value the longest piece with it, as `token_floor` wants it; empty where none is known."""

    id: int
    longest: list[int]


class WorkerProgress(_WorkerFrame, frozen=True):
    """What is to be embedded or tokenized is being read: a sign of progress, since it may take long."""

    is_of_step: bool = False
    """Whether it is a picture, which the sequences that are to step wait for."""


class Vectors(_WorkerFrame, frozen=True):
    """The answer to Embed: float32 in the machine's byte order, one vector an input."""

    id: int
    vectors: list[bytes]


class KvSaved(_WorkerFrame, frozen=True):
    """The answer to SaveKv; empty where nothing was cached."""

    id: int
    state: bytes


class KvLoaded(_WorkerFrame, frozen=True):
    """The answer to LoadKv: of how many leading tokens the KV is cached now."""

    id: int
    length: int


class ImagePlaced(_WorkerFrame, frozen=True):
    """The answer to PlaceImage: what stands for the picture in a token list; empty where it is not there.

    Those at and above 0 are marker tokens of the vocabulary. Each below 0 is a row of embeddings, and a
    different number for every row of every picture.
    """

    id: int
    ids: list[int]


class TokenRecord(msgspec.Struct, frozen=True, array_like=True):
    """One token; its readout is float32 in the machine's byte order."""

    id: int
    piece: bytes
    position: int
    logprob: float | None = None
    top: list[tuple[int, bytes, float]] = []
    readout: bytes = b""
    rank: int | None = None


class PieceRecord(msgspec.Struct, frozen=True, array_like=True):
    """Text that may be shown, with its tokens."""

    text: str
    is_special: bool
    tokens: list[TokenRecord]


class SequenceEnd(msgspec.Struct, frozen=True, array_like=True):
    """How a sequence ended."""

    reason: str
    completion_tokens: int
    stop_sequence: str | None
    queued_s: float
    prefill_s: float
    decode_s: float
    error: str | None = None
    code: str | None = None
    """The code of an error that is the request's own fault, such as a grammar that cannot be compiled."""
    stop_token: int | None = None
    token_ids: list[int] | None = None
    """All that were generated, where somebody asked for them."""


class SequenceUpdate(msgspec.Struct, frozen=True, array_like=True):
    """What one step meant for one sequence; each field None or empty when it did not happen."""

    id: int
    started: tuple[int, int] | None = None
    prefilled: tuple[int, int] | None = None
    scored: list[TokenRecord] = []
    pieces: list[PieceRecord] = []
    end: SequenceEnd | None = None


class Stepped(_WorkerFrame, frozen=True):
    """One step's news."""

    updates: list[SequenceUpdate]
    load: WorkerLoad


class SequenceGone(_WorkerFrame, frozen=True):
    """The answer to Abort: no later step has the sequence in it."""

    id: int


class WorkerPong(_WorkerFrame, frozen=True):
    """The answer to Ping, from the thread that reads: the process runs, which says nothing of its steps."""


ToWorker = (
    Submit
    | Abort
    | Tokenize
    | Detokenize
    | MeasurePieces
    | Embed
    | SaveKv
    | LoadKv
    | PlaceImage
    | WorkerPing
    | StopWorker
)
FromWorker = (
    WorkerReady
    | WorkerRefusal
    | Tokenized
    | Detokenized
    | PiecesMeasured
    | WorkerProgress
    | Vectors
    | KvSaved
    | KvLoaded
    | ImagePlaced
    | Stepped
    | SequenceGone
    | WorkerPong
)

_encoder = msgspec.msgpack.Encoder()
to_worker: Final = msgspec.msgpack.Decoder(ToWorker)
from_worker: Final = msgspec.msgpack.Decoder(FromWorker)


def encode(frame: ToWorker | FromWorker) -> bytes:
    """A frame with its length before it."""
    body = _encoder.encode(frame)
    return LENGTH_PREFIX.pack(len(body)) + body
