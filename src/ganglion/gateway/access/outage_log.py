"""Logs once that the database cannot be used, and once that it can again."""

import logging

from ganglion.core.errors import GanglionError


class OutageLog:
    """For one task that needs the database; `meanwhile` says what happens without it."""

    def __init__(self, log: logging.Logger, meanwhile: str) -> None:
        self._log = log
        self._meanwhile = meanwhile
        self._is_out = False

    def failed(self, error: GanglionError) -> None:
        """The database could not be used."""
        if not self._is_out:
            self._is_out = True
            self._log.warning("the database cannot be used, %s: %s", self._meanwhile, error)

    def worked(self) -> None:
        """The database was used."""
        if self._is_out:
            self._is_out = False
            self._log.info("the database can be used again")
