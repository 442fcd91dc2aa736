"""What follows a prompt with a picture in it, computed from both files with numpy alone."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image
from reference_model import Forward, ReferenceModel

from support.small_tower import SmallTower


def next_logprobs(
    model: Path, projector: Path, before: Sequence[int], picture: Image.Image, after: Sequence[int]
) -> npt.NDArray[np.float64]:
    """The next token's logprobs over the vocabulary, where the picture stands between these tokens."""
    language = ReferenceModel(model)
    rows = [language.embed(before), SmallTower.read(projector).embed(picture), language.embed(after)]
    stream = np.concatenate(rows)
    for layer in range(language.shape.layers):
        stream = language.after(layer, stream)
    last = stream[-1:]
    return Forward(last[None], language.logits(last)).logprobs[0]
