"""The `[sessions]` section of the configuration, and what a node fixes beside it.

A field that its class docstring describes is a key of the section. Any other is the program's own: no file
sets it.
"""

from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct, field

from ganglion.core.attachments import MAX_ATTACHMENT_BYTES
from ganglion.core.errors import InvalidValue


class SessionSettings(Struct, frozen=True):
    """How long token sessions live, and how much they may hold.

    ttl_s: A session that no request names for so many seconds is dropped, unless its client asked for
        another time.
    max_ttl_s: The most that a client may ask for.
    max_per_key: Sessions that one key may have open.
    max_tokens: Tokens that all sessions in memory may hold together.
    max_image_mb: Mebibytes of image files that all sessions in memory may hold together. One key may hold a
        quarter of a gibibyte, and one session 64 MiB.
    keep_on_drain: Write open sessions to disk at shutdown, into the home folder's `data/sessions`; the next
        start restores them.
    """

    default_ttl_s: Annotated[float, Meta(gt=0)] = field(default=1800.0, name="ttl_s")
    max_ttl_s: Annotated[float, Meta(gt=0)] = 86400.0
    max_per_key: Annotated[int, Meta(ge=1)] = 4096
    # Four bytes each, and as much again while a session is run.
    max_tokens: Annotated[int, Meta(ge=1)] = 1 << 24
    max_image_mb: Annotated[int, Meta(ge=0)] = 1024
    keeps_on_drain: bool = field(default=False, name="keep_on_drain")

    max_image_bytes: int = MAX_ATTACHMENT_BYTES
    max_session_image_bytes: int = 64 * 2**20
    max_key_image_bytes: int = 256 * 2**20
    folder: Path | None = None
    """Where suspended sessions are written; None where none can be suspended."""
    folder_bytes: int = 4 * 2**30

    def check(self) -> None:
        """Raise InvalidValue where two keys contradict each other."""
        if self.default_ttl_s > self.max_ttl_s:
            raise InvalidValue(
                f"sessions.ttl_s is {self.default_ttl_s:g} and sessions.max_ttl_s {self.max_ttl_s:g}.",
                hint="Raise sessions.max_ttl_s.",
            )
