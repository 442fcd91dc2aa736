"""Getting a model: what `/api/pull` asks for, and the lines that tell how it gets there."""

import msgspec
from msgspec import UNSET, Struct, UnsetType

from ganglion.core.engine import LoadProgress
from ganglion.core.errors import GanglionError, MissingParameter
from ganglion.wire.decode import decode
from ganglion.wire.frame import Frame
from ganglion.wire.ollama.asked import OllamaPullBody
from ganglion.wire.ollama.errors import envelope
from ganglion.wire.ollama.models import digest_of

_body = msgspec.json.Decoder(OllamaPullBody)
_encode = msgspec.json.Encoder().encode


class OllamaPulled(Struct, frozen=True, kw_only=True):
    """One line of a pull; bytes while something is downloaded."""

    status: str
    digest: str | UnsetType = UNSET
    total: int | UnsetType = UNSET
    completed: int | UnsetType = UNSET


def parse_pull(body: bytes) -> tuple[str, bool]:
    """The model that is asked for, and whether its progress is streamed."""
    asked = decode(_body, body)
    name = asked.model or asked.name
    if name is None:
        raise MissingParameter("The parameter 'model' is required.", param="model")
    return name, asked.stream is not False


def begun() -> Frame:
    """The first line."""
    return Frame(_encode(OllamaPulled(status="pulling manifest")))


def progress(step: LoadProgress) -> Frame:
    """One step of a load; clients draw one bar for each digest."""
    if step.status != "downloading":
        return Frame(_encode(OllamaPulled(status="loading model")))
    digest = digest_of(step.model)
    return Frame(
        _encode(
            OllamaPulled(
                status=f"pulling {digest[:12]}",
                digest=f"sha256:{digest}",
                total=step.bytes_total,
                completed=step.bytes_done,
            )
        )
    )


def success() -> Frame:
    """The good end, also all of an answer that is not streamed."""
    return Frame(_encode(OllamaPulled(status="success")))


def failure(error: GanglionError) -> Frame:
    """The bad end."""
    return Frame(envelope(error))
