"""How a worker's process is started and ended: alone, or with all processes that it starts itself.

Law: a worker that has processes of its own leads a group of its own, and whoever ends the worker ends the
group. A process that keeps shared memory tidy is left its moment: killed with the others it would leave what
they held behind.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

import psutil

_TIDY_S: Final = 1.0
"""How long what is left of a group may take to end by itself."""
_POLL_S: Final = 0.02
_TRACKER: Final = "multiprocessing.resource_tracker"


@dataclass(frozen=True, slots=True)
class WorkerLaunch:
    """The Python that runs a worker, and what its process is."""

    python: str = sys.executable
    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """What is set for it besides the server's own environment."""
    leads_group: bool = False
    """Whether it starts processes of its own."""

    def kill(self, process_id: int) -> None:
        """End a worker's process, and those of its group."""
        if not self.leads_group:
            with suppress(ProcessLookupError):
                os.kill(process_id, signal.SIGKILL)
            return
        kill_group(process_id)

    async def clear(self, process_id: int) -> None:
        """See to it that nothing is left of a worker whose own process has ended."""
        if not self.leads_group:
            return
        self.kill(process_id)
        loop = asyncio.get_running_loop()
        until_s = loop.time() + _TIDY_S
        while any(group_members(process_id)):
            if loop.time() >= until_s:
                with suppress(ProcessLookupError):
                    os.killpg(process_id, signal.SIGKILL)
                return
            await asyncio.sleep(_POLL_S)


def kill_group(group: int, *, spared: int = 0) -> None:
    """End the processes of a group but for one, and but for what tidies up once they are gone."""
    for process in group_members(group):
        with suppress(psutil.Error):
            if process.pid != spared and _TRACKER not in " ".join(process.cmdline()):
                process.kill()


def group_members(group: int) -> Iterator[psutil.Process]:
    """The living processes of a group; dead ones that nobody has waited for yet are none."""
    for process in psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError):
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                yield process
