"""The format of a saved session: its tokens and images, its model, and the KV that the engine still had.

`prefix, header, images, KV`. Law: nothing is trusted before its checksum, and the header's length is bounded
before it is read. A session without images is written as the first version had it, which knew none of their
bytes, so that a server of that version can read it.
"""

import struct
import sys
from array import array
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Final

import msgspec

from ganglion.core.errors import InvalidValue
from ganglion.core.model import ModelFacts
from ganglion.core.request import ImageBlock, Steer, Steering
from ganglion.sessions.held_images import files_of
from ganglion.sessions.token_session import ITEM, TokenList, TokenSession

_FORMATS: Final = (b"ganglion sess 1\n", b"ganglion sess 2\n")
"""Without the bytes of images, and with them."""
PREFIX: Final = struct.Struct("<16sI32s")
"""The format, the header's length and its checksum."""
MAX_HEADER_BYTES: Final = 64 * 2**20


class SavedSession(msgspec.Struct, frozen=True, array_like=True):
    """Everything but the images' bytes and the KV; who and where only on our own disk."""

    model: str
    fingerprint: list[str]
    tokens: bytes
    images: list[tuple[int, int, str]]
    steering: list[tuple[str, float, list[int] | None]]
    kv_bytes: int
    kv_checksum: bytes
    owner: str = ""
    session_id: str = ""
    ttl_s: float = 0.0
    files: list[tuple[str, int]] = []
    """The digests of the images' files and their sizes, in the order in which they follow."""

    def session(self, files: Mapping[str, bytes] | None = None) -> TokenSession:
        """The session that was saved; raises InvalidValue where that is none.

        Without its images' files, it is good for nothing but to be counted.
        """
        tokens = array(ITEM)
        held = {} if files is None else files
        images = [ImageBlock(*image, held.get(image[2], b"")) for image in self.images]
        if len(self.tokens) % tokens.itemsize or any(image.count < 1 for image in images):
            raise not_a_saved_session("its tokens are not whole")
        tokens.frombytes(self.tokens)
        if sys.byteorder == "big":
            tokens.byteswap()
        _check_images(tokens, images)
        return TokenSession(TokenList(tokens), images)

    def steers(self) -> Steering:
        """How it was steered."""
        return tuple(
            Steer(concept, strength, None if layers is None else tuple(layers))
            for concept, strength, layers in self.steering
        )


def fingerprint(model_id: str, facts: ModelFacts | None) -> list[str]:
    """What two nodes compare to know that they hold the same model."""
    if facts is None:
        return [model_id]
    sizes = (facts.parameters, facts.vocabulary_size, facts.block_count)
    return [facts.architecture, facts.name, facts.quantisation, *map(str, sizes)]


def header_of(
    session: TokenSession,
    *,
    model: str,
    fingerprint: list[str],
    steering: Steering,
    kv: bytes,
    owner: str = "",
    session_id: str = "",
    ttl_s: float = 0.0,
) -> SavedSession:
    """What is written of a session before its KV."""
    tokens = array(ITEM, session.tobytes())
    if sys.byteorder == "big":
        tokens.byteswap()
    return SavedSession(
        model,
        fingerprint,
        tokens.tobytes(),
        [(image.start, image.count, image.digest) for image in session.images],
        [(each.concept, each.strength, list(each.layers) if each.layers else None) for each in steering],
        len(kv),
        sha256(kv).digest(),
        owner,
        session_id,
        ttl_s,
        [(digest, len(data)) for digest, data in files_of(session.images).items() if data],
    )


def encode_session(saved: SavedSession, session: TokenSession, kv: bytes) -> bytes:
    """A session as bytes."""
    header = msgspec.msgpack.encode(saved)
    prefix = PREFIX.pack(_FORMATS[bool(saved.files)], len(header), sha256(header).digest())
    return b"".join((prefix, header, *files_of(session.images).values(), kv))


def decode_header(data: bytes | memoryview) -> tuple[SavedSession, int]:
    """The header of a saved session, and where it ends; raises InvalidValue for anything else."""
    if len(data) < PREFIX.size:
        raise not_a_saved_session("it is too short")
    form, length, checksum = PREFIX.unpack_from(data)
    end = PREFIX.size + length
    if form not in _FORMATS or length > MAX_HEADER_BYTES or len(data) < end:
        raise not_a_saved_session("it does not begin like one")
    header = bytes(data[PREFIX.size : end])
    if sha256(header).digest() != checksum:
        raise not_a_saved_session("its checksum is wrong")
    try:
        return msgspec.msgpack.decode(header, type=SavedSession), end
    except msgspec.MsgspecError as error:
        raise not_a_saved_session(str(error)) from error


def peek_model_name(beginning: bytes) -> str | None:
    """The model that saved bytes name, before all of them are there; None where more are needed.

    Nothing is checked but what stands before the name; raises InvalidValue where that is wrong.
    """
    if not any(form.startswith(beginning[: len(form)]) for form in _FORMATS):
        raise not_a_saved_session("it does not begin like one")
    start = PREFIX.size + 1  # after the mark of the list
    mark = beginning[start : start + 1]
    if not mark:
        return None
    size_bytes = {0xD9: 1, 0xDA: 2}.get(mark[0], 0)
    if not size_bytes and mark[0] & 0xE0 != 0xA0:
        raise not_a_saved_session("it names no model")
    start += 1 + size_bytes
    length = int.from_bytes(beginning[start - size_bytes : start], "big") if size_bytes else mark[0] & 0x1F
    name = beginning[start : start + length]
    if len(beginning) < start or len(name) < length:
        return None
    return name.decode(errors="replace")


def decode(data: bytes) -> tuple[SavedSession, TokenSession, bytes]:
    """A saved session, what is in it, and its KV; raises InvalidValue for what is none."""
    saved, at = decode_header(data)
    files: dict[str, bytes] = {}
    for digest, size_bytes in saved.files:
        file = data[at : at + size_bytes]
        if size_bytes < 1 or sha256(file).hexdigest() != digest:
            raise not_a_saved_session("its images are not whole")
        files[digest] = file
        at += size_bytes
    if not files.keys() <= {digest for _, _, digest in saved.images}:
        raise not_a_saved_session("its images are not those that it says")
    kv = data[at:]
    if len(kv) != saved.kv_bytes or sha256(kv).digest() != saved.kv_checksum:
        raise not_a_saved_session("its KV is not whole")
    return saved, saved.session(files), kv


def not_a_saved_session(reason: str) -> InvalidValue:
    """The error for bytes that are no session."""
    return InvalidValue(
        f"This is not a saved session: {reason}.",
        param="data",
        hint="Send what SaveSession returned, unchanged.",
    )


def _check_images(tokens: "array[int]", images: Sequence[ImageBlock]) -> None:
    """Check that images are in order, apart, and exactly where the placeholders are."""
    end = inside = 0
    for image in images:
        if image.start < end or image.start + image.count > len(tokens):
            raise not_a_saved_session("its images lie outside of it")
        end = image.start + image.count
        inside += sum(token < 0 for token in tokens[image.start : end])
    if inside != sum(token < 0 for token in tokens) or inside != sum(image.count for image in images):
        raise not_a_saved_session("its images are not where it says")
