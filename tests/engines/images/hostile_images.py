"""Files that are made to hurt whoever decodes them, and those that only pretend to be pictures."""

import io
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Final

from PIL import Image

PNG: Final = b"\x89PNG\r\n\x1a\n"
GOOD_KINDS: Final = ("png", "jpeg", "webp", "gif", "bmp")


def picture(kind: str, size: tuple[int, int] = (24, 16), **options: object) -> bytes:
    """A good file: red on the left, blue on the right."""
    image = Image.new("RGB", size, (200, 0, 0))
    image.paste((0, 0, 200), (size[0] // 2, 0, *size))
    return saved(image, kind, **options)


def saved(image: Image.Image, kind: str, **options: object) -> bytes:
    """A picture as a file."""
    file = io.BytesIO()
    image.save(file, kind, **options)  # type: ignore[arg-type]
    return file.getvalue()


def chunk(name: bytes, body: bytes, *, length: int | None = None) -> bytes:
    """A chunk of a PNG, which may say another length than it has."""
    size = len(body) if length is None else length
    return struct.pack(">I", size) + name + body + struct.pack(">I", zlib.crc32(name + body))


def png(width: int, height: int, *chunks: bytes, depth: int = 8, colours: int = 2) -> bytes:
    """A PNG of these chunks."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colours, 0, 0, 0))
    return PNG + header + b"".join(chunks) + chunk(b"IEND", b"")


def gif(width: int, height: int, frames: int = 1) -> bytes:
    """A GIF with a large canvas, or many frames of one pixel."""
    frame = b"\x2c" + struct.pack("<HHHHB", 0, 0, 1, 1, 0) + b"\x02\x02\x44\x01\x00"
    colours = b"\x00\x00\x00\xff\xff\xff"
    return b"GIF89a" + struct.pack("<HHBBB", width, height, 0x80, 0, 0) + colours + frame * frames + b"\x3b"


def bmp(width: int, height: int, *, bits: int = 24, compression: int = 0, body: bytes = b"") -> bytes:
    """A BMP that says what it likes of itself."""
    head = struct.pack("<IiiHHIIiiII", 40, width, height, 1, bits, compression, len(body), 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", 54 + len(body), 0, 0, 54) + head + body


def webp_canvas(width: int, height: int) -> bytes:
    """An animated WebP whose header says a canvas, and that has no frame."""
    body = b"\x02\x00\x00\x00" + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    chunks = b"VP8X" + struct.pack("<I", 10) + body + b"ANIM" + struct.pack("<I", 6) + bytes(6)
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WEBP" + chunks


def webp_lossless(width: int, height: int) -> bytes:
    """A lossless WebP whose header says a size, and that ends there."""
    bits = (width - 1) | (height - 1) << 14
    body = b"\x2f" + bits.to_bytes(4, "little") + bytes(16)
    return b"RIFF" + struct.pack("<I", 12 + len(body)) + b"WEBPVP8L" + struct.pack("<I", len(body)) + body


def scan_bomb(scans: int = 20_000) -> bytes:
    """A progressive JPEG of 16 megapixels whose first scan is repeated."""
    good = picture("jpeg", (4096, 4096), progressive=True)
    start = good.index(b"\xff\xda")
    end = good.index(b"\xff", start + 14)
    while good[end + 1] in (0, *range(0xD0, 0xD8)):
        end = good.index(b"\xff", end + 2)
    return good[:end] + good[start:end] * scans + b"\xff\xd9"


def sized_jpeg(width: int, height: int) -> bytes:
    """A JPEG that says another size than it has."""
    good = bytearray(picture("jpeg"))
    at = good.index(b"\xff\xc0") + 5
    good[at : at + 4] = struct.pack(">HH", height, width)
    return bytes(good)


def exif_loop() -> bytes:
    """A JPEG whose EXIF names itself as the next directory, and as one inside."""
    entries = struct.pack("<HHIIHHII", 0x8769, 4, 1, 8, 0x0112, 3, 1, 6)
    tiff = b"II*\x00" + struct.pack("<I", 8) + struct.pack("<H", 2) + entries + struct.pack("<I", 8)
    return with_exif(b"Exif\x00\x00" + tiff)


def with_exif(body: bytes) -> bytes:
    """A JPEG with these bytes for EXIF."""
    good = picture("jpeg")
    return good[:2] + b"\xff\xe1" + struct.pack(">H", len(body) + 2) + body + good[2:]


def many_segments() -> bytes:
    """A JPEG with millions of empty comments."""
    good = picture("jpeg")
    return good[:2] + b"\xff\xfe\x00\x02" * 4_000_000 + good[2:]


def rle_bomb() -> bytes:
    """A BMP of 36 megapixels in runs, each of which jumps."""
    return bmp(6000, 6000, bits=8, compression=1, body=b"\x00\x02\xff\x01" * 1_000_000 + b"\x00\x01")


def _zeros(size: int) -> bytes:
    packer = zlib.compressobj(9)
    block = bytes(1 << 20)
    packed = b"".join(packer.compress(block) for _ in range(size >> 20))
    return packed + packer.flush()


BOMBS: Final[dict[str, Callable[[], bytes]]] = {
    "a PNG of 2^31 pixels a side": lambda: png(2**31 - 1, 2**31 - 1, chunk(b"IDAT", _zeros(1 << 20))),
    "a PNG without a width": lambda: png(0, 16, chunk(b"IDAT", _zeros(1 << 20))),
    "a PNG that is one long line": lambda: png(2_000_000, 1, chunk(b"IDAT", _zeros(1 << 20))),
    "a PNG of 100 megapixels of nothing": lambda: png(10_000, 10_000, chunk(b"IDAT", _zeros(300 << 20))),
    "a PNG whose pixels end early": lambda: png(6000, 6000, chunk(b"IDAT", _zeros(1 << 20))),
    "a PNG whose text is a gigabyte": lambda: png(
        8, 8, chunk(b"zTXt", b"a\x00\x00" + _zeros(1 << 30)), chunk(b"IDAT", zlib.compress(b"short"))
    ),
    "a PNG whose international text is a gigabyte": lambda: png(
        8, 8, chunk(b"iTXt", b"a\x00\x01\x00\x00\x00" + _zeros(1 << 30)), chunk(b"IDAT", b"")
    ),
    "a PNG whose colour profile is a gigabyte": lambda: png(
        8, 8, chunk(b"iCCP", b"a\x00\x00" + _zeros(1 << 30)), chunk(b"IDAT", zlib.compress(b"short"))
    ),
    "a PNG of a million chunks": lambda: png(8, 8, chunk(b"tEXt", b"a\x00b") * 1_000_000),
    "a PNG whose chunk says 4 GiB": lambda: png(8, 8, chunk(b"IDAT", b"abc", length=2**32 - 1)),
    "a PNG without a palette": lambda: png(8, 8, chunk(b"IDAT", zlib.compress(b"\x00")), colours=3),
    "a PNG of a colour type that is none": lambda: png(8, 8, chunk(b"IDAT", _zeros(1 << 20)), colours=5),
    "an animated PNG of 2^32 frames": lambda: png(
        8, 8, chunk(b"acTL", struct.pack(">II", 2**32 - 1, 0)), chunk(b"fcTL", bytes(26))
    ),
    "a GIF with a canvas of 65535 a side": lambda: gif(65535, 65535),
    "a GIF without a frame": lambda: gif(8, 8, 0),
    "a GIF whose code size is none": lambda: gif(1, 1).replace(b"\x00\x02\x02\x44", b"\x00\xff\x02\x44"),
    "a BMP of minus 2^31 rows": lambda: bmp(8, -(2**31)),
    "a BMP of 2^31 columns": lambda: bmp(2**31 - 1, 2**31 - 1),
    "a BMP of a negative width": lambda: bmp(-8, 8, body=bytes(192)),
    "a BMP of 3 bits": lambda: bmp(8, 8, bits=3, body=bytes(192)),
    "a BMP without pixels": lambda: bmp(6000, 6000),
    "a WebP with a canvas of 2^24 a side": lambda: webp_canvas(2**24, 2**24),
    "a WebP with a canvas of 16384 a side": lambda: webp_canvas(16384, 16384),
    "a WebP with a canvas and no frame": lambda: webp_canvas(5000, 5000),
    "a lossless WebP of 16384 a side": lambda: webp_lossless(16384, 16384),
    "a lossless WebP that is empty": lambda: webp_lossless(5000, 5000),
    "a JPEG of 65535 a side": lambda: sized_jpeg(65535, 65535),
    "a JPEG without a height": lambda: sized_jpeg(24, 0),
    "a JPEG of 20,000 scans": scan_bomb,
    "a JPEG that never begins": lambda: b"\xff\xd8\xff" + b"\xff" * (10 << 20),
    "an SVG": lambda: b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>',
    "a TIFF": lambda: saved(Image.new("RGB", (8, 8)), "TIFF"),
    "an icon": lambda: saved(Image.new("RGB", (16, 16)), "ICO"),
    "a PostScript program": lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(/etc/passwd) run\n",
    "a PDF": lambda: b"%PDF-1.7\n1 0 obj\n<</Type/Catalog>>\nendobj\n",
    "a PostScript program after a PNG's first bytes": lambda: PNG + b"%!PS-Adobe-3.0 EPSF-3.0\n",
    "a TIFF after a JPEG's first bytes": lambda: b"\xff\xd8\xff" + saved(Image.new("RGB", (8, 8)), "TIFF"),
    "a RIFF that is a sound": lambda: b"RIFF\x24\x00\x00\x00WAVEfmt " + bytes(64),
    "nothing": lambda: b"",
    "more bytes than a file may have": lambda: picture("png") + bytes(20 << 20),
}
"""Each is refused."""

SURVIVED: Final[dict[str, Callable[[], bytes]]] = {
    "a BMP in runs that jump": rle_bomb,
    "a JPEG that says more than it has": lambda: sized_jpeg(7000, 9000),
    "a GIF of 100,000 frames": lambda: gif(1, 1, 100_000),
    "a JPEG whose EXIF is a loop": exif_loop,
    "a JPEG whose EXIF is noise": lambda: with_exif(b"Exif\x00\x00MM\x00*" + b"\xff" * 4096),
    "a JPEG that is a zip, too": lambda: picture("jpeg") + b"PK\x05\x06" + bytes(18),
    "a PNG that is a program, too": lambda: picture("png") + b"<script>alert(1)</script><?php ?>",
    "a PNG whose palette is short": lambda: png(
        2, 1, chunk(b"PLTE", b"\x01\x02\x03"), chunk(b"IDAT", zlib.compress(b"\x00\x00\xff")), colours=3
    ),
    "a JPEG of four million comments": many_segments,
}
"""Each is a picture all the same, or takes too much: what is owed is an answer."""


def truncations(kind: str, most: int = 20) -> Iterator[bytes]:
    """A good file cut at that many places."""
    good = picture(kind, (64, 48))
    pixels_end = len(good) - (16 if kind == "png" else 8)
    for index in range(most):
        yield good[: pixels_end * index // most]
