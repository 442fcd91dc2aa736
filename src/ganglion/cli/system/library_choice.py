"""Whether the llama.cpp that was built here can be used, asked before a worker has to find out.

Law: a build that is stale or broken is said and not used: the models of this process and its workers then run
on the bundled library.
"""

import logging
import os
from dataclasses import dataclass
from typing import Final

from ganglion.core.errors import GanglionError
from ganglion.engines.llama.native.built import IGNORE_VARIABLE, built_library, rebuild_command
from ganglion.engines.llama.native.probe import probe

_logger: Final = logging.getLogger("ganglion.engines")


@dataclass(frozen=True, slots=True)
class UnusableBuild:
    """A build that is here and is not used."""

    problem: str
    hint: str


def unusable_build() -> UnusableBuild | None:
    """What is wrong with the build of this machine; None where nothing is, or none would be used."""
    if os.environ.get("GANGLION_LIBLLAMA"):
        return None
    built = built_library(os.environ)
    if built is None:
        return None
    problem = built.problem
    if problem is None:
        try:
            probe(None, library=built.path)
        except GanglionError as error:
            problem = error.message.rstrip(".")
    if problem is None:
        return None
    return UnusableBuild(
        f"The llama.cpp that was built here is not used: {problem}.",
        f"Build it again: {rebuild_command(built.receipt)} (or ganglion engines remove llama).",
    )


def settle_library() -> None:
    """Turn to the bundled library where what was built here does not work, and log why."""
    if os.environ.get(IGNORE_VARIABLE):
        return
    found = unusable_build()
    if found is not None:
        os.environ[IGNORE_VARIABLE] = "1"
        _logger.warning("%s %s", found.problem, found.hint)
