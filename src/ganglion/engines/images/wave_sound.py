"""Reads a WAV file of PCM samples as one channel at a wanted rate."""

import io
import wave
from typing import Final

import numpy as np

from ganglion.core.errors import InvalidValue

MOST_BYTES: Final = 64 * 2**20
MOST_S: Final = 600.0
"""Half an hour of speech is a call for transcription, not a message."""
_RATES: Final = (4_000, 192_000)
_WIDTHS: Final = {1: ("u1", 128.0, 128.0), 2: ("<i2", 0.0, 32768.0), 4: ("<i4", 0.0, 2147483648.0)}


def decode_wave(data: bytes, rate: int) -> bytes:
    """Samples from -1 to 1 as float32; raises InvalidValue for what is no such file, or too long."""
    if len(data) > MOST_BYTES:
        raise InvalidValue(f"The sound has {len(data)} bytes, and may have {MOST_BYTES}.")
    try:
        with wave.open(io.BytesIO(data)) as file:
            own_rate, channels, width = file.getframerate(), file.getnchannels(), file.getsampwidth()
            count = file.getnframes()
            if width not in _WIDTHS or not 1 <= channels <= 8 or not _RATES[0] <= own_rate <= _RATES[1]:
                raise InvalidValue(
                    f"The sound has {channels} channels of {8 * width} bits at {own_rate} Hz.",
                    hint="Send WAV with PCM samples of 8, 16 or 32 bits.",
                )
            if not 0 < count <= MOST_S * own_rate:
                raise InvalidValue(f"The sound has {count / own_rate:.0f} s, expected up to {MOST_S:.0f}.")
            frames = file.readframes(count)
    except (wave.Error, EOFError, ValueError) as error:
        raise InvalidValue(
            f"The sound cannot be read: {error}.", hint="Send WAV with PCM samples."
        ) from error
    kind, zero, scale = _WIDTHS[width]
    samples = np.frombuffer(frames[: len(frames) // (width * channels) * width * channels], kind)
    if not len(samples):
        raise InvalidValue("The sound is empty.")
    mono = ((samples.astype(np.float32) - zero) / scale).reshape(-1, channels).mean(axis=1)
    if own_rate != rate:
        places = np.arange(max(round(len(mono) * rate / own_rate), 1)) * (own_rate / rate)
        mono = np.interp(places, np.arange(len(mono)), mono)
    result: bytes = mono.astype(np.float32).tobytes()
    return result
