"""Reads the files that a body attaches: base64, data URIs and addresses, each with its place in the text.

Law: text around a file is joined as if the file were not there, so that a body without files reads as ever.
What is declared of a file must agree with its first bytes. Nothing is decoded but base64.
"""

import binascii
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from ganglion.core.attachments import MAX_ATTACHMENT_BYTES, MAX_ATTACHMENTS, MediaType, media_type_of
from ganglion.core.errors import InvalidValue
from ganglion.core.request import Attachment, ImageDetail, Message

_IMAGE_TYPES: Final = "PNG, JPEG, WebP, GIF or BMP"
_MAX_URL: Final = 8192
_MAX_BASE64: Final = 4 * ((MAX_ATTACHMENT_BYTES + 2) // 3)
_SPELLINGS: Final[dict[str, MediaType]] = {
    "image/jpg": "image/jpeg",
    "image/pjpeg": "image/jpeg",
    "image/x-png": "image/png",
    "image/x-ms-bmp": "image/bmp",
    "image/x-bmp": "image/bmp",
    "audio/x-wav": "audio/wav",
    "audio/wave": "audio/wav",
    "audio/mp3": "audio/mpeg",
}
_UNSAID: Final = ("", "application/octet-stream", "image/*")
"""Declared types that say nothing."""


@dataclass(slots=True)
class MessageContent:
    """The content of a message as it is put together: its text, and the files that stand in it."""

    attachments: list[Attachment] = field(default_factory=list)
    _said: list[str] = field(default_factory=list)
    _length: int = 0

    def say(self, text: str) -> None:
        """Put text at the end."""
        self._said.append(text)
        self._length += len(text)

    def show(self, source: str, path: str, inside: str, detail: ImageDetail | None = None) -> None:
        """Put an image at the end: a data URI or an address, which stands `inside` the part at `path`."""
        data, url = _from_uri(source, path + inside)
        self._attach(Attachment(data, self._length, path=path, url=url, detail=detail or "auto"))

    def show_base64(self, text: str, path: str, inside: str = "", declared: str = "") -> None:
        """Put an image at the end that is bare base64, of the declared media type."""
        data = _decoded(text, path + inside)
        _check_image(data, declared, path + inside)
        self._attach(Attachment(data, self._length, path=path))

    def play(self, text: str, path: str, inside: str, declared: Literal["wav", "mp3"]) -> None:
        """Put a sound at the end."""
        data = _decoded(text, path + inside)
        wanted: MediaType = "audio/wav" if declared == "wav" else "audio/mpeg"
        if media_type_of(data) != wanted:
            raise InvalidValue(
                f"'{path}{inside}' is declared as {declared} and its bytes are not.", param=path + inside
            )
        self._attach(Attachment(data, self._length, "audio", path))

    def extend(self, other: "MessageContent") -> None:
        """Put all of another at the end."""
        for attachment in other.attachments:
            self._attach(replace(attachment, at=self._length + attachment.at))
        self.say(other.text)

    @property
    def text(self) -> str:
        """All that was said."""
        return "".join(self._said)

    def _attach(self, attachment: Attachment) -> None:
        self.attachments.append(attachment)


def check_attachment_count(messages: Iterable[Message]) -> None:
    """Raise InvalidValue, naming the first file that is one too many."""
    every = [each for message in messages for each in message.attachments]
    if len(every) > MAX_ATTACHMENTS:
        path = every[MAX_ATTACHMENTS].path
        raise InvalidValue(
            f"The request holds {len(every)} images and sounds, and {MAX_ATTACHMENTS} is the most it may.",
            param=path or None,
            hint="Leave those of earlier turns out.",
        )


def check_fetched(data: bytes, path: str) -> None:
    """Raise InvalidValue where a file that was fetched is no image."""
    _check_image(data, "", path)


def _from_uri(source: str, path: str) -> tuple[bytes, str]:
    """The bytes of a data URI, or the address of what is elsewhere."""
    scheme = source[:8].lower()
    if scheme.startswith("data:"):
        # The header of an honest one is short, and what follows it may be megabytes.
        head, comma, _ = source[:_MAX_URL].partition(",")
        declared, *options = head[len("data:") :].lower().split(";")
        if not comma or "base64" not in (option.strip() for option in options):
            raise InvalidValue(
                f"'{path}' is a data URI that is not base64.",
                param=path,
                hint="Write it as 'data:image/png;base64,...'.",
            )
        data = _decoded(source[len(head) + 1 :], path)
        _check_image(data, declared.strip(), path)
        return data, ""
    if scheme.startswith(("http://", "https://")):
        if len(source) > _MAX_URL:
            raise InvalidValue(f"'{path}' is an address of more than {_MAX_URL} characters.", param=path)
        return b"", source
    raise InvalidValue(
        f"'{path}' is neither a data URI nor an http or https address.",
        param=path,
        hint="Write it as 'data:image/png;base64,...'.",
    )


def _decoded(text: str, path: str) -> bytes:
    if len(text) > _MAX_BASE64:
        raise _too_large(path)
    try:
        data = binascii.a2b_base64(text, strict_mode=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidValue(
            f"'{path}' is not base64: {str(error)[:1].lower()}{str(error)[1:]}.", param=path
        ) from None
    if len(data) > MAX_ATTACHMENT_BYTES:
        raise _too_large(path)
    return data


def _too_large(path: str) -> InvalidValue:
    return InvalidValue(f"'{path}' is larger than {MAX_ATTACHMENT_BYTES} bytes.", param=path)


def _check_image(data: bytes, declared: str, path: str) -> None:
    found = media_type_of(data)
    if found is None or not found.startswith("image/"):
        raise InvalidValue(f"'{path}' is no image by its bytes: expected {_IMAGE_TYPES}.", param=path)
    declared = declared.lower()
    if declared not in _UNSAID and _SPELLINGS.get(declared, declared) != found:
        raise InvalidValue(
            f"'{path}' is declared as {declared[:64]!r}, and its bytes are {found}.", param=path
        )
