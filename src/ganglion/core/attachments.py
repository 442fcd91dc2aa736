"""The files in the messages of a prompt: what they may be, and which models take them.

Law: a wire reads pictures and sounds whatever the model can do; `check_attachments` refuses them where the
model lacks the sense, before anything is fetched or decoded.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final, Literal

from ganglion.core.errors import UnsupportedParameter, VisionUnsupported
from ganglion.core.request import Attachment, ChatPrompt, Message, Prompt

MAX_ATTACHMENT_BYTES: Final = 20 * 2**20
"""Of one file, as it was sent or fetched."""
MAX_ATTACHMENTS: Final = 100
"""Files in one request, those of earlier turns included: as many as the Messages API takes."""

MediaType = Literal[
    "image/png", "image/jpeg", "image/webp", "image/gif", "image/bmp", "audio/wav", "audio/mpeg"
]

_BMP_HEADER_SIZES: Final = (12, 16, 40, 52, 56, 64, 108, 124)
"""`BM` alone begins many a text: the length of the header that follows tells a bitmap."""


def media_type_of(data: bytes) -> MediaType | None:
    """What a file is by its first bytes; None for anything that nobody here reads."""
    found: MediaType | None = None
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        found = "image/png"
    elif data.startswith(b"\xff\xd8\xff"):
        found = "image/jpeg"
    elif data[:4] == b"RIFF" and data[8:12] in (b"WEBP", b"WAVE"):
        found = "image/webp" if data[8:12] == b"WEBP" else "audio/wav"
    elif data.startswith((b"GIF87a", b"GIF89a")):
        found = "image/gif"
    elif data.startswith(b"BM") and int.from_bytes(data[14:18], "little") in _BMP_HEADER_SIZES:
        found = "image/bmp"
    elif data.startswith(b"ID3") or (data[:1] == b"\xff" and data[1:2] >= b"\xe0"):
        found = "audio/mpeg"
    return found


def attachments_of(prompt: Prompt) -> tuple[Attachment, ...]:
    """Every file in a prompt, in order."""
    if not isinstance(prompt, ChatPrompt):
        return ()
    return tuple(each for message in prompt.messages for each in message.attachments)


def joined_content(messages: Sequence[Message], between: str) -> tuple[str, tuple[Attachment, ...]]:
    """The contents of messages as one, and their files where they stand in it."""
    attachments: list[Attachment] = []
    start = 0
    for message in messages:
        attachments += [replace(each, at=start + each.at) for each in message.attachments]
        start += len(message.content) + len(between)
    return between.join(message.content for message in messages), tuple(attachments)


def check_attachments(prompt: Prompt, model: str, capabilities: Collection[str]) -> None:
    """Raise VisionUnsupported, or for a sound UnsupportedParameter, where a model lacks the sense."""
    for attachment in attachments_of(prompt):
        where = f"'{attachment.path}'" if attachment.path else "the prompt"
        if attachment.kind == "image" and "vision" not in capabilities:
            verb = "is" if attachment.path else "holds"
            raise VisionUnsupported(
                f"The model {model!r} reads text only, and {where} {verb} an image.",
                param=attachment.path or None,
                extras={"model": model, "suggestion": "send text only"},
            )
        if attachment.kind == "audio" and "audio" not in capabilities:
            raise UnsupportedParameter(
                f"The model {model!r} does not hear, and {where} is a sound.",
                param=attachment.path or None,
                hint="Send what was said as text.",
            )
