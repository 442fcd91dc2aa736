"""The client's values: chunks, images, events, results."""

import mimetypes
from binascii import Error, a2b_base64
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp
from pathlib import Path
from typing import ClassVar, Final, Literal

from ganglion.core.attachments import MAX_ATTACHMENT_BYTES, media_type_of
from ganglion.core.engine import ReadoutManifest
from ganglion.core.errors import InvalidValue, ReadoutNotFound
from ganglion.core.events import Alternative
from ganglion.core.request import Steering


@dataclass(frozen=True, slots=True)
class Image:
    """An image as a chunk of a session: the bytes of a file, and their media type."""

    data: bytes
    mime: str = "image/png"

    @classmethod
    def of(cls, source: str | Path | bytes) -> "Image":
        """An image from a path, the bytes of a file, or a data URI; its media type is what its bytes say."""
        match source:
            case bytes():
                return cls._of_bytes(source)
            case str() if source[:5].lower() == "data:":
                return cls._of_bytes(_data_of(source))
            case _:
                return cls.file(source)

    @classmethod
    def _of_bytes(cls, data: bytes) -> "Image":
        media_type = media_type_of(data[:64])
        if media_type is None or not media_type.startswith("image/"):
            raise InvalidValue(
                "Expected an image, and the bytes are none that is known.", param="source", hint=_KINDS
            )
        return cls(data, media_type)

    @classmethod
    def file(cls, path: str | Path) -> "Image":
        """An image from a file, with the media type of its bytes, or else of its name."""
        path = Path(path)
        if path.stat().st_size > MAX_ATTACHMENT_BYTES:
            raise InvalidValue(f"{path.name!r} is larger than {MAX_ATTACHMENT_BYTES} bytes.", param="path")
        data = path.read_bytes()
        mime = media_type_of(data) or mimetypes.guess_type(path.name)[0]
        if mime is None or not mime.startswith("image/"):
            raise InvalidValue(f"{path.name!r} is no image that is known.", param="path", hint=_KINDS)
        return cls(data, mime)


_KINDS: Final = "PNG, JPEG, WebP, GIF and BMP are read."


def _data_of(uri: str) -> bytes:
    """The bytes of a data URI; raises InvalidValue where it is none in base64."""
    head, comma, text = uri.partition(",")
    if not comma or not head.lower().endswith(";base64"):
        raise InvalidValue(
            "Expected a data URI in base64.", param="source", hint="It looks like data:image/png;base64,...."
        )
    if len(text) > MAX_ATTACHMENT_BYTES * 2:
        raise InvalidValue(f"The image is larger than {MAX_ATTACHMENT_BYTES} bytes.", param="source")
    try:
        return a2b_base64(text, strict_mode=True)
    except (Error, ValueError) as error:
        raise InvalidValue(f"The data URI is not base64: {error}.", param="source") from None


Chunk = str | Sequence[int] | Image
"""A part of a session: text, token ids, or an image."""


@dataclass(frozen=True, slots=True)
class Readout:
    """The projections of one token's residual stream on each concept, after each layer.

    `values` is `[layers x concepts]`, by layer.
    """

    values: tuple[float, ...]
    manifest: ReadoutManifest

    def layer(self, layer: int) -> dict[str, float]:
        """Every concept after one layer."""
        width = len(self.manifest.concepts)
        row = _index(self.manifest.layers, layer, "layer") * width
        return dict(zip(self.manifest.concepts, self.values[row : row + width], strict=True))

    def concept(self, concept: str) -> dict[int, float]:
        """One concept after every layer."""
        column = _index(self.manifest.concepts, concept, "concept")
        return dict(
            zip(self.manifest.layers, self.values[column :: len(self.manifest.concepts)], strict=True)
        )


def _index(names: Sequence[object], name: object, kind: str) -> int:
    try:
        return names.index(name)
    except ValueError:
        raise ReadoutNotFound(
            f"There is no readout of {kind} {name!r}, only of {', '.join(map(str, names))}.", param=kind
        ) from None


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One token: generated now, or (`is_prefill`) one of the session in a requested range.

    `text` is what this token completes: a character that spans tokens comes with the last of them. The token
    that ends an answer is an event too, so `text` may be the written-out name of a control token.
    """

    kind: ClassVar[Literal["token"]] = "token"
    id: int
    piece: bytes
    position: int
    text: str = ""
    is_prefill: bool = False
    logprob: float | None = None
    top: tuple[Alternative, ...] = ()
    readout: Readout | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """How many of the tokens that precede the answer have been read."""

    kind: ClassVar[Literal["progress"]] = "progress"
    prefilled: int
    total: int


@dataclass(frozen=True, slots=True)
class ImageAppended:
    """`run()` appended an image: the positions it takes, and the session's length with it."""

    kind: ClassVar[Literal["image"]] = "image"
    placeholder_count: int
    total_length: int


@dataclass(frozen=True, slots=True)
class Done:
    """How a generation ended; always the last event."""

    kind: ClassVar[Literal["done"]] = "done"
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    total_tokens: int
    finish_reason: str
    stop_token: int | None = None
    """The token that ended it, where one did: the last one, and no part of the text."""
    stop_text: str | None = None
    """The text of `stop` that ended it, where one did: its tokens are in the session, and no part of the
    text."""
    stop_start: int | None = None
    """The position of the first token that has a part of it: `truncate()` there removes it."""
    healed: str = ""
    """What `heal=True` took back and generated again; the first tokens begin with it, the text does not."""


Event = TokenEvent | Progress | ImageAppended | Done
"""Distinguished by class, or by `kind`."""


@dataclass(frozen=True, slots=True)
class Result:
    """A whole generation: pass `tokens` back to `run()` as the next chunk.

    `text` leaves out the token that ended it, where one did.
    """

    text: str
    tokens: tuple[int, ...]
    events: tuple[TokenEvent, ...]
    done: Done


@dataclass(frozen=True, slots=True)
class Branch:
    """One continuation that a search has tried."""

    tokens: tuple[int, ...]
    text: str
    logprob: float
    """Of all its tokens together."""
    is_ended: bool
    """Whether the model, or a stop, has ended it."""
    score: float = 0.0
    """By which it was ranked."""

    @property
    def mean(self) -> float:
        """The logprob per token; 0 of nothing."""
        return self.logprob / len(self.tokens) if self.tokens else 0.0


@dataclass(frozen=True, slots=True)
class Score:
    """How likely a text was to the model, token by token, in natural logarithms."""

    tokens: tuple[TokenEvent, ...]

    @property
    def total(self) -> float:
        """The logprob of the whole; a session's very first token has none and does not count."""
        return sum(token.logprob for token in self.tokens if token.logprob is not None)

    @property
    def mean(self) -> float:
        """The logprob per token; 0 of nothing."""
        count = sum(token.logprob is not None for token in self.tokens)
        return self.total / count if count else 0.0

    @property
    def perplexity(self) -> float:
        """The exponential of the negative mean."""
        return exp(-self.mean)


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """One of the caller's sessions, as the node lists it."""

    session_id: str
    model: str
    total_tokens: int
    image_count: int
    idle_s: float
    ttl_s: float
    is_busy: bool
    is_suspended: bool
    steering: Steering = ()


@dataclass(frozen=True, slots=True)
class Suspended:
    """A session that is on the node's disk."""

    total_tokens: int
    size_bytes: int
