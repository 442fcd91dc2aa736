"""The queue of configured models that are loaded at the start, one after another.

Law: a model stands in exactly one of pending, in progress, completed and failed. Only a hub that cannot be
reached is tried again, later and later; every other failure is final.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from ganglion.core.engine import Activation
from ganglion.core.errors import GanglionError, HubUnreachable

_RETRY_S: Final = (5.0, 15.0, 60.0, 300.0)
"""Pauses before a hub is asked again."""


class ActivationQueue:
    """The configured models that are still to be loaded, and the outcome of the others."""

    def __init__(self, retry_s: Sequence[float] = _RETRY_S) -> None:
        self._retry_s = retry_s
        self._pending: dict[str, float] = {}
        """When each may be tried, on the event loop's clock."""
        self._in_progress: str | None = None
        self._completed: list[str] = []
        self._failed: dict[str, GanglionError] = {}
        self._attempts: dict[str, int] = {}

    def configure(self, models: Sequence[str]) -> None:
        """Take these models and forget the others; what is over stays over."""
        self._pending = {
            model: self._pending.get(model, 0.0)
            for model in models
            if model not in (*self._completed, *self._failed, self._in_progress)
        }
        self._completed = [model for model in self._completed if model in models]
        self._failed = {model: error for model, error in self._failed.items() if model in models}

    async def next(self) -> str | None:
        """The model to load now, waiting while what is left must be tried later; None when all are over."""
        if not self._pending:
            return None
        model = min(self._pending, key=lambda each: self._pending[each])
        await asyncio.sleep(max(self._pending[model] - asyncio.get_running_loop().time(), 0.0))
        self._pending.pop(model, None)
        self._in_progress = model
        return model

    def completed(self, model: str) -> None:
        """Note that a model was loaded."""
        self._in_progress = None
        self._completed.append(model)

    def failed(self, model: str, error: GanglionError) -> None:
        """Note why a model could not be loaded; a hub that is unreachable is tried again later."""
        self._in_progress = None
        if not isinstance(error, HubUnreachable):
            self._failed[model] = error
            return
        attempt = self._attempts.get(model, 0)
        self._attempts[model] = attempt + 1
        pause_s = self._retry_s[min(attempt, len(self._retry_s) - 1)]
        self._pending[model] = asyncio.get_running_loop().time() + pause_s

    @property
    def is_warming(self) -> bool:
        """Whether a model is being loaded, or is still to be tried for the first time."""
        return self._in_progress is not None or any(each not in self._attempts for each in self._pending)

    def awaits(self, model: str) -> bool:
        """Whether it is configured and not loaded yet."""
        return model in self._pending or model == self._in_progress

    def final_error(self) -> GanglionError | None:
        """The first reason, when every model failed for good."""
        if self._failed and not self._pending and not self._completed and self._in_progress is None:
            return next(iter(self._failed.values()))
        return None

    def snapshot(self) -> Activation:
        """The configured models by the stage they are in."""
        return Activation(
            pending=tuple(self._pending),
            in_progress=self._in_progress,
            completed=tuple(self._completed),
            failed=tuple((model, error.message) for model, error in self._failed.items()),
        )
