"""Plays the scenes of one library and prints, as JSON, what each saw or how it failed.

A scene's name is the whole of what its user says first: the played model tells scenes apart by it.
"""

import asyncio
import inspect
import json
import sys
import traceback
from collections.abc import Callable

Scene = Callable[[str, str], object]
"""Is given the node's URL and the scene's name; what it returns is its report."""

SCENES: dict[str, Scene] = {}


def scene(name: str) -> Callable[[Scene], Scene]:
    """Name a scene."""

    def note(play: Scene) -> Scene:
        SCENES[name] = play
        return play

    return note


def main() -> None:
    """Play all of them, one after another, on one event loop; a failed one does not end the others."""
    asyncio.run(_play_all(sys.argv[1]))


async def _play_all(url: str) -> None:
    reports: dict[str, dict[str, object]] = {}
    for name, play in SCENES.items():
        try:
            saw = play(url, name)
            reports[name] = {"saw": await saw if inspect.isawaitable(saw) else saw}
        except Exception:  # noqa: BLE001 - whatever a library raises is the report
            reports[name] = {"failed": traceback.format_exc()}
    print(json.dumps(reports))
