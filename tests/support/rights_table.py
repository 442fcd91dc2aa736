"""The checked-in table of who may call what, as tests read it."""

from dataclasses import dataclass
from typing import Literal

from support.golden import GOLDEN

TABLE = GOLDEN / "rights.txt"
NAMES = {"{id}": "resp_1", "{item}": "msg_1", "{model}": "echo"}


@dataclass(frozen=True, slots=True)
class Row:
    """One call, and the least role that may make it."""

    method: str
    path: str
    right: str

    @property
    def url(self) -> str:
        """Its path with something in each place."""
        path = self.path
        for place, name in NAMES.items():
            path = path.replace(place, name)
        return path


def rows(where: Literal["node", "gateway"]) -> list[Row]:
    """What the table says of a node or a gateway."""
    lines = [line.split() for line in TABLE.read_text().splitlines() if not line.startswith("#")]
    return [Row(*rest) for served, *rest in lines if served == where]
