"""The fields that clients send and nobody knows, each said once in the debug log."""

import logging

logger = logging.getLogger("ganglion.server")

# Field names are the clients' to choose: remember enough for every real one, not all that could be sent.
_REMEMBERED_FIELDS = 1024
_FIELD_SHOWN = 64


class UnknownFields:
    """Remembers what it has said."""

    def __init__(self) -> None:
        self._noted: set[str] = set()

    def note(self, fields: tuple[str, ...]) -> None:
        """Say those that are new."""
        for field in fields:
            name = field[:_FIELD_SHOWN]
            if name not in self._noted and len(self._noted) < _REMEMBERED_FIELDS:
                self._noted.add(name)
                logger.debug("a client sent the unknown field %r", name)
