"""The `[store]` section of the configuration."""

from pathlib import Path
from typing import Annotated, Final

from msgspec import Meta, Struct

_FILE_NAME: Final = "ganglion.db"
_OFF: Final = "off"
"""The url of a server that keeps nothing."""


class StoreSettings(Struct, frozen=True):
    """Where responses and conversations are kept, and for how long.

    url: A SQLite file, `postgresql://…`, `:memory:`, or `off` to keep nothing; left out, `data/ganglion.db`
        in the home folder.
    max_age_days: How long they are kept, in days; 0 for ever.
    max_mb: How much they may take together, in MiB, the oldest going first; 0 for no limit.
    """

    url: str | None = None
    max_age_days: Annotated[float, Meta(ge=0)] = 30.0
    max_mb: Annotated[int, Meta(ge=0)] = 10240

    def location(self, home: Path) -> str | Path | None:
        """The database to open; None for a server that keeps nothing."""
        if self.url is None:
            return home / "data" / _FILE_NAME
        return None if self.url == _OFF else self.url
