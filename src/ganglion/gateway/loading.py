"""The port through which somebody who needs a model has it loaded."""

from typing import Protocol


class Loader(Protocol):
    """Decides where a model of the catalogue goes, and has it loaded there."""

    async def load(self, model: str) -> None:
        """Return once some node holds the model; however many ask, one load runs. Raises why it cannot be."""
        ...
