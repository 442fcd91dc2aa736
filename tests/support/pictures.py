"""Small files of every kind that a wire takes, and a few that it does not."""

import base64
import struct
import zlib


def png(width: int = 4, height: int = 4, colour: tuple[int, int, int] = (200, 30, 30)) -> bytes:
    """A picture of one colour."""
    rows = b"".join(b"\x00" + bytes(colour) * width for _ in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 0)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


JPEG = b"\xff\xd8\xff\xe0\x00\x10JFIF\x00" + bytes(40)
GIF = b"GIF89a" + bytes(40)
WEBP = b"RIFF\x24\x00\x00\x00WEBPVP8 " + bytes(40)
BMP = b"BM" + struct.pack("<IHHI", 58, 0, 0, 54) + struct.pack("<I", 40) + bytes(40)
WAV = b"RIFF\x24\x00\x00\x00WAVEfmt " + bytes(40)
MP3 = b"ID3\x04" + bytes(40)
KINDS = {
    "image/png": png(),
    "image/jpeg": JPEG,
    "image/gif": GIF,
    "image/webp": WEBP,
    "image/bmp": BMP,
}


def base64_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


def data_uri(data: bytes, declared: str = "image/png") -> str:
    return f"data:{declared};base64,{base64_of(data)}"


def positions(data: bytes) -> int:
    """How many positions an echo that sees counts for a file."""
    return max(len(data) // 100, 1)
