"""Sounds as a projector takes them: one channel at its own rate."""

import io
import wave

import numpy as np
import pytest

from ganglion.core.errors import InvalidValue
from ganglion.engines.images.wave_sound import decode_wave


def sound(samples: np.ndarray, rate: int, width: int = 2, channels: int = 1) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as written:
        written.setnchannels(channels)
        written.setsampwidth(width)
        written.setframerate(rate)
        kinds = {1: (128, 127, "u1"), 2: (0, 32767, "<i2"), 4: (0, 2**31 - 1, "<i4")}
        zero, scale, kind = kinds[width]
        written.writeframes((zero + samples * scale).astype(kind).tobytes())
    return file.getvalue()


def tone(rate: int, seconds: float = 0.5, pitch: float = 220.0) -> np.ndarray:
    return 0.5 * np.sin(2 * np.pi * pitch * np.arange(int(rate * seconds)) / rate)


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("rate", [8_000, 16_000, 44_100])
def test_a_tone_stays_what_it_is_at_the_projector_s_rate(rate: int, width: int) -> None:
    heard = np.frombuffer(decode_wave(sound(tone(rate), rate, width), 16_000), np.float32)
    assert len(heard) == 8_000
    assert np.abs(heard[:7_900] - tone(16_000)[:7_900]).max() < 0.02


def test_channels_become_one() -> None:
    both = np.stack([tone(16_000), -tone(16_000)], axis=1).ravel()
    heard = np.frombuffer(decode_wave(sound(both, 16_000, channels=2), 16_000), np.float32)
    assert np.abs(heard).max() < 0.01


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"RIFF....WAVE", id="cut short"),
        pytest.param(sound(tone(16_000), 16_000)[:30], id="a piece of its head"),
        pytest.param(sound(np.zeros(0), 16_000), id="empty"),
        pytest.param(sound(np.zeros(10), 1_000), id="too slow"),
        pytest.param(
            sound(tone(16_000), 16_000).replace(b"\x01\x00\x01\x00", b"\x55\x00\x01\x00", 1), id="mp3"
        ),
    ],
)
def test_what_cannot_be_read_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidValue):
        decode_wave(data, 16_000)
