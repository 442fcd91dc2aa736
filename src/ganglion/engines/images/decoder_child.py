"""The child process that decodes pictures: a `DecodedImage` or a refusal for each `DecodeRequest`.

Started by `child_pool.py` with the longest side that a picture may have. Law: sizes are checked before pixels
are allocated; nothing of a file is used but its pixels and its orientation; part of a picture is no picture.

Pillow's own door is not used: it tries plugins by registry, and one of them leads to others (a JPEG may be an
MPO, which is a TIFF inside). Each kind has exactly one reader here.
"""

import io
import struct
import warnings
from collections.abc import Iterator
from typing import Final

import msgspec
from PIL import (
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    ImageFile,
    JpegImagePlugin,
    PngImagePlugin,
    WebPImagePlugin,
)

from ganglion.engines.child_main import Answer, serve
from ganglion.engines.images.decoder_frames import DecodedImage, DecodeRefusal, DecodeReply, DecodeRequest

MAX_EDGE: Final = 16384
MAX_PIXELS: Final = 36_000_000
MAX_JPEG_PIXELS: Final = 64_000_000
"""A large JPEG is decoded at a fraction of its size, so that what phones take fits in memory."""

_READERS: Final[dict[str, type[ImageFile.ImageFile]]] = {
    "png": PngImagePlugin.PngImageFile,
    "jpeg": JpegImagePlugin.JpegImageFile,
    "webp": WebPImagePlugin.WebPImageFile,
    "gif": GifImagePlugin.GifImageFile,
    "bmp": BmpImagePlugin.BmpImageFile,
}

_ORIENTATION: Final = 0x0112
_UPRIGHT: Final = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""What sets a picture upright, by its EXIF orientation."""

_SIXTEEN_BITS: Final = 257
"""By how much more white is in sixteen bits than in eight."""


class _TooLarge(Exception):
    """The picture has more pixels than it may."""


def _prepare(arguments: list[str]) -> Answer:
    max_side = int(arguments[0])
    decoder = msgspec.msgpack.Decoder(DecodeRequest)
    warnings.simplefilter("ignore")  # they would go to the operator's terminal, in a stranger's words
    _warm(max_side)

    def answer(body: bytes) -> Iterator[bytes]:
        yield msgspec.msgpack.encode(_reply(decoder.decode(body), max_side))

    return answer


def _warm(max_side: int) -> None:
    """Decode one picture of each kind, so that whatever is loaded on first use is loaded by now."""
    for kind in _READERS:
        file = io.BytesIO()
        exif = Image.Exif()
        exif[_ORIENTATION] = 6
        Image.new("P", (2, 1)).convert("RGB").save(file, kind, exif=exif)
        _decode(DecodeRequest(kind, file.getvalue()), max_side)


def _reply(ask: DecodeRequest, max_side: int) -> DecodeReply:
    try:
        return _decode(ask, max_side)
    except _TooLarge as error:
        return DecodeRefusal(str(error), hint="Send it smaller.")
    except MemoryError:
        return DecodeRefusal("The image takes more memory to decode than it may.", hint="Send it smaller.")
    except Exception:  # noqa: BLE001 - a reader given a hostile file raises whatever it happens to run into
        return DecodeRefusal(
            f"The image cannot be decoded: its file is no whole {ask.kind.upper()}.",
            hint="It may be cut short or damaged; save it anew.",
        )


def _decode(ask: DecodeRequest, max_side: int) -> DecodedImage:
    if ask.kind == "webp":
        _check_size(*_webp_size(ask.data), MAX_PIXELS)  # its reader allocates when it opens
    image: Image.Image = _READERS[ask.kind](io.BytesIO(ask.data))
    _check_size(*image.size, MAX_JPEG_PIXELS if ask.kind == "jpeg" else MAX_PIXELS)
    if max(image.size) > max_side and isinstance(image, ImageFile.ImageFile):
        image.draft(None, (max_side, max_side))
    image.load()
    orientation = _orientation(image)
    image = _on_white(_shrunk(_eight_bits(image), max_side))
    if orientation in _UPRIGHT:
        image = image.transpose(_UPRIGHT[orientation])
    return DecodedImage(image.width, image.height, image.tobytes())


def _check_size(width: int, height: int, most: int) -> None:
    if width < 1 or height < 1:
        raise ValueError
    if max(width, height) > MAX_EDGE or width * height > most:
        raise _TooLarge(
            f"The image has {width} x {height} pixels, and may have {most // 1_000_000} million, and "
            f"{MAX_EDGE} on a side."
        )


def _webp_size(data: bytes) -> tuple[int, int]:
    """The size of the canvas, from the first chunk."""
    kind, body = data[12:16], data[20:30]
    if kind == b"VP8X":
        return 1 + int.from_bytes(body[4:7], "little"), 1 + int.from_bytes(body[7:10], "little")
    if kind == b"VP8L":
        bits = int.from_bytes(body[1:5], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", body, 6)
        return width & 0x3FFF, height & 0x3FFF
    raise ValueError


def _orientation(image: Image.Image) -> int:
    try:
        orientation = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # noqa: BLE001 - metadata that cannot be read turns nothing
        return 1
    return orientation if isinstance(orientation, int) else 1


def _eight_bits(image: Image.Image) -> Image.Image:
    """The picture as RGB, or as RGBA where some of it is transparent."""
    if image.mode.startswith("I"):
        scaled = image.convert("I").point(lambda value: value * (1 / _SIXTEEN_BITS) + 0.5)
        return scaled.convert("L").convert("RGB")
    if image.has_transparency_data:
        return image.convert("RGBA")
    return image if image.mode == "RGB" else image.convert("RGB")


def _shrunk(image: Image.Image, max_side: int) -> Image.Image:
    if max(image.size) <= max_side:
        return image
    scale = max_side / max(image.size)
    size = (max(round(image.width * scale), 1), max(round(image.height * scale), 1))
    return image.resize(size, Image.Resampling.LANCZOS, reducing_gap=2.0)


def _on_white(image: Image.Image) -> Image.Image:
    if image.mode == "RGB":
        return image
    canvas = Image.new("RGB", image.size, "white")
    canvas.paste(image, mask=image.getchannel("A"))
    return canvas


if __name__ == "__main__":
    serve(_prepare, is_sealed=True)
