"""The rules for steering a model: which concepts, layers and strengths an engine accepts."""

import math
from typing import Final

from ganglion.core.engine import ReadoutManifest
from ganglion.core.errors import InvalidValue
from ganglion.core.request import Steer, Steering, salt_of

_STRONGEST: Final = 100.0
"""Beyond a few times the distance between opposites a model only stammers; this is a mistake."""
_MOST_STEERS: Final = 64


def check_steering(steering: Steering, manifest: ReadoutManifest | None) -> None:
    """Raise InvalidValue unless the model can be steered so."""
    if not steering:
        return
    if manifest is None:
        raise _refused(
            "This model has no concepts to steer by.", "Load a concept pack with it; ganglion concepts helps."
        )
    if len(steering) > _MOST_STEERS:
        raise _refused(f"{len(steering)} concepts are steered at once, and {_MOST_STEERS} are allowed.")
    for steer in steering:
        _check_steer(steer, manifest)


def salt_covers_steering(salt: str, steering: Steering) -> bool:
    """Whether a salt keeps what is computed under some steering from everybody who is steered otherwise."""
    return not steering or salt.endswith(salt_of("", steering))


def _check_steer(steer: Steer, manifest: ReadoutManifest) -> None:
    if steer.concept not in manifest.concepts:
        raise _refused(
            f"The concept {steer.concept[:80]!r} is not one of this model's.",
            f"It knows {', '.join(manifest.concepts[:16])}.",
        )
    if not math.isfinite(steer.strength) or abs(steer.strength) > _STRONGEST:
        raise _refused(
            f"The strength {steer.strength} is not a number between -{_STRONGEST:g} and {_STRONGEST:g}.",
            "At 1 the concept moves as far as its examples are from their opposites; try 0.5 to 4.",
        )
    known = [layer for layer in manifest.layers if layer > 0]
    hint = f"Layers {', '.join(map(str, known))} can be steered; leave them out for all of these."
    if steer.layers is None and not known:
        raise _refused("The concepts are of layer 0 alone, which cannot be steered.")
    if steer.layers is not None and not steer.layers:
        raise _refused(f"No layer is named to steer {steer.concept[:80]!r} after.", hint)
    if len(steer.layers or ()) > len(known):
        raise _refused(f"{len(steer.layers or ())} layers are named, and {len(known)} can be steered.", hint)
    for layer in steer.layers or ():
        if layer not in known:
            why = "cannot be steered" if layer == 0 else "is not one of the concepts' layers"
            raise _refused(f"Layer {layer} {why}.", hint)


def _refused(message: str, hint: str | None = None) -> InvalidValue:
    return InvalidValue(message, param="steering", hint=hint)
