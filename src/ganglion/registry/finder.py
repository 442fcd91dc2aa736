"""What names mean on this machine: the manifest, the stored files and the embedded model, read from disk."""

import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from ganglion.registry.catalogue import Catalogue
from ganglion.registry.index import Index
from ganglion.registry.manifest import Manifest, read_manifest
from ganglion.registry.stored import StoredModel
from ganglion.registry.stores import Root, roots, scan

FRESH_S: Final = 1.0
"""How long a listing of the disk is believed: a burst of unknown names is one walk."""


class Finder:
    """Blocking, and safe to use from many threads."""

    def __init__(
        self, home: Path, environment: Mapping[str, str], *, folders: Sequence[Path], may_download: bool
    ) -> None:
        self._home = home
        self._roots: tuple[Root, ...] = roots(home, environment, folders)
        self._may_download = may_download
        self._lock = threading.Lock()
        self._index: Index | None = None
        self._catalogue: Catalogue | None = None
        self._read_s = 0.0

    def manifest(self) -> Manifest:
        """What `models.yaml` says now; raises what is wrong with it."""
        return read_manifest(self._home / "models.yaml")

    def catalogue(self) -> Catalogue:
        """Everything that a name can mean, as it was at most a second ago."""
        with self._lock:
            if self._catalogue is None or time.monotonic() - self._read_s > FRESH_S:
                self._catalogue = Catalogue(
                    manifest=self.manifest(), stored=self._stored(), may_download=self._may_download
                )
                self._read_s = time.monotonic()
            return self._catalogue

    def _stored(self) -> tuple[StoredModel, ...]:
        if self._index is None:
            self._index = Index(self._home / "cache")
        return scan(self._roots, self._index)
