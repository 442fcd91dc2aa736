"""Pictures as files, drawn from numbers."""

import io

import numpy as np
from PIL import Image


def noise_png(seed: int, width: int = 160, height: int = 120) -> bytes:
    """A picture that no other seed gives."""
    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()
