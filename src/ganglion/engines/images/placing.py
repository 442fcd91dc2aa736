"""Hands pictures and sounds to workers, and remembers what each becomes in the token lists of its model.

Law: a file is decoded once, and again only for a worker that no longer has what it made of it. What is
remembered belongs to the tenant who sent it, and holds no pixels.
"""

import asyncio
import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ganglion.core.errors import InvalidValue
from ganglion.core.request import PLACEHOLDER, ImageBlock
from ganglion.engines.images.decoder import ImageDecoder
from ganglion.engines.supervision.ipc import ImagePlaced, PlaceImage

AskWorker = Callable[[PlaceImage], Awaitable[ImagePlaced]]
"""Asks one worker; the number in the frame is replaced."""
_REMEMBERED: Final = 2**20
"""Positions of all images whose layout is remembered."""
_WAVE: Final = b"RIFF"
_WAVE_MARK: Final = b"WAVE"


@dataclass(frozen=True, slots=True)
class PlacedTokens:
    """A token list as a worker takes it: what stands for each image in the place of its placeholders."""

    tokens: tuple[int, ...]
    images: tuple[tuple[int, str], ...]


class ImagePlacer:
    """The images of one model."""

    def __init__(self, decoder: ImageDecoder, sample_rate: Callable[[], int]) -> None:
        """`sample_rate` is that of the sounds that the model's projector takes, 0 where it takes none."""
        self._decoder = decoder
        self._sample_rate = sample_rate
        self._known: OrderedDict[tuple[str, str], array[int]] = OrderedDict()
        self._positions = 0

    async def place(self, data: bytes, ask: AskWorker, *, tenant: str) -> ImageBlock:
        """What a file becomes, at the start of a list; raises InvalidValue for what cannot be read."""
        digest = hashlib.sha256(data).hexdigest()
        known = self._known.get((tenant, digest))
        if known is not None:
            self._known.move_to_end((tenant, digest))
            return ImageBlock(0, len(known), digest, data)
        ids = await self._ids(digest, data, ask, tenant)
        return ImageBlock(0, len(ids), digest, data)

    async def substitute(
        self, tokens: Sequence[int], images: Sequence[ImageBlock], ask: AskWorker, *, tenant: str
    ) -> PlacedTokens:
        """The list for a worker, which has all of the images afterwards."""
        found = list(tokens)
        for image in images:
            ids = await self._ids(image.digest, image.data, ask, tenant)
            if len(ids) != image.count:
                raise InvalidValue(
                    f"The image at position {image.start} takes {len(ids)} positions, and {image.count} are "
                    "held for it.",
                    param="images",
                    hint="Ask again what it takes: the model was loaded with another projector.",
                )
            found[image.start : image.start + image.count] = ids
        return PlacedTokens(tuple(found), tuple((image.start, image.digest) for image in images))

    async def _ids(self, digest: str, data: bytes, ask: AskWorker, tenant: str) -> Sequence[int]:
        placed = await ask(PlaceImage(0, digest, tenant=tenant))
        if not placed.ids:
            placed = await ask(await self._decoded(digest, data, tenant))
        self._remember((tenant, digest), placed.ids)
        return placed.ids

    async def _decoded(self, digest: str, data: bytes, tenant: str) -> PlaceImage:
        if not data or hashlib.sha256(data).hexdigest() != digest:
            raise InvalidValue(
                "An image is no longer held, and its file did not come with the request.",
                param="images",
                hint="Send the image again.",
            )
        rate = self._sample_rate()
        if rate and is_wave(data):
            # Few models hear, and what resamples takes longer to load than all else here.
            from ganglion.engines.images.wave_sound import decode_wave  # noqa: PLC0415

            sound = await asyncio.to_thread(decode_wave, data, rate)
            return PlaceImage(0, digest, sound=sound, tenant=tenant)
        image = await self._decoder.decode(data, tenant=tenant)
        return PlaceImage(0, digest, image.width, image.height, image.rgb, tenant=tenant)

    def _remember(self, key: tuple[str, str], ids: Sequence[int]) -> None:
        known = self._known.pop(key, None)
        self._positions += len(ids) - (0 if known is None else len(known))
        self._known[key] = array("i", ids)
        while self._positions > _REMEMBERED and len(self._known) > 1:
            _, forgotten = self._known.popitem(last=False)
            self._positions -= len(forgotten)


def is_wave(data: bytes) -> bool:
    """Whether a file is a sound that can be read here."""
    return data.startswith(_WAVE) and data[8:12] == _WAVE_MARK


def checked_blocks(tokens: Sequence[int], images: Sequence[ImageBlock]) -> None:
    """Raise InvalidValue unless the images stand exactly where the placeholders are."""
    end = 0
    for image in images:
        if image.start < end or image.count < 1 or image.start + image.count > len(tokens):
            raise InvalidValue(f"An image stands at {image.start}, where none can.", param="images")
        if any(token != PLACEHOLDER for token in tokens[image.start : image.start + image.count]):
            raise InvalidValue(f"The image at {image.start} covers tokens.", param="images")
        end = image.start + image.count
    if sum(token == PLACEHOLDER for token in tokens) != sum(image.count for image in images):
        raise InvalidValue(f"A token is {PLACEHOLDER} where no image is.", param="tokens")


def before_images(tokens: tuple[int, ...]) -> tuple[int, ...]:
    """What stands before the first image of a list that does not say which images are in it."""
    return tokens[: tokens.index(PLACEHOLDER)] if PLACEHOLDER in tokens else tokens


def cut_before(
    tokens: tuple[int, ...], images: tuple[ImageBlock, ...], kept: int
) -> tuple[tuple[int, ...], tuple[ImageBlock, ...]]:
    """The last `kept` tokens with their images; of an image that would be cut, nothing."""
    cut = max(len(tokens) - kept, 0)
    for image in images:
        if image.start < cut < image.start + image.count:
            cut = image.start + image.count
    left = tuple(replace(image, start=image.start - cut) for image in images if image.start >= cut)
    return tokens[cut:], left


def with_images(
    pieces: Sequence[tuple[int, ...]], images: Sequence[ImageBlock]
) -> tuple[tuple[int, ...], tuple[ImageBlock, ...]]:
    """Tokens and images in turn, as one list; there is one more piece than images."""
    tokens: list[int] = list(pieces[0])
    placed: list[ImageBlock] = []
    for image, piece in zip(images, pieces[1:], strict=True):
        placed.append(replace(image, start=len(tokens)))
        tokens += [PLACEHOLDER] * image.count
        tokens += piece
    return tuple(tokens), tuple(placed)


def in_key(tokens: tuple[int, ...], images: Sequence[ImageBlock]) -> tuple[int, ...]:
    """Tokens that tell lists with different images apart."""
    if not images:
        return tokens
    found = list(tokens)
    for image in images:
        found[image.start] = -2 - int(image.digest[:14], 16)
    return tuple(found)
