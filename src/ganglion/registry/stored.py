"""A model file that this machine already has, wherever another program put it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Store = Literal["models folder", "Hugging Face cache", "LM Studio", "Ollama", "folder"]


@dataclass(frozen=True, slots=True)
class StoredModel:
    """Found, not opened: what a listing needs, and enough to resolve a name to it."""

    name: str
    """The file's stem without the part number of a split file; for Ollama `name:tag`."""
    path: Path
    """The file to open; of a split model the first part."""
    files: tuple[Path, ...]
    """All parts, in order."""
    store: Store
    size_bytes: int
    """Of all parts."""
    architecture: str | None = None
    """As the file says; None when it could not be read."""
    quantisation: str = ""
    hub_id: str | None = None
    """`org/repo` where the store knows it."""
    error: str | None = None
    """Why it cannot be used, for people."""
    parameters: int = 0
    context_length: int = 0
    """As trained; 0 when the file does not say."""
    capabilities: tuple[str, ...] = ()
