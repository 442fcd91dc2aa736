"""The operator's settings for sessions."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """Limits of all sessions, and the folder of suspended ones."""

    default_ttl_s: float = 1800.0
    max_ttl_s: float = 86400.0
    max_per_key: int = 4096
    max_tokens: int = 1 << 24
    """Of all sessions in memory together: four bytes each, and as much again while one is run."""
    max_image_bytes: int = 20 * 2**20
    folder: Path | None = None
    """Where suspended sessions are written; None where none can be suspended."""
    folder_bytes: int = 4 * 2**30
    keeps_on_drain: bool = False
    """Whether open sessions are written there when the server stops."""
