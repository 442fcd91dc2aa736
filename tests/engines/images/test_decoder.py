"""Pictures of every kind come out as they look, and a hostile file costs its own request an error."""

import asyncio
import io
import os
import resource
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hostile_images import BOMBS, GOOD_KINDS, SURVIVED, picture, png, saved, truncations
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from ganglion.core.attachments import MAX_ATTACHMENT_BYTES
from ganglion.core.errors import InvalidValue, Overloaded, ShuttingDown
from ganglion.engines.images.decoder import ImageDecoder
from ganglion.engines.images.decoder_frames import DecodedImage
from support.embedded_model import kept_open

RED, BLUE = (200, 0, 0), (0, 0, 200)
WHITE = (255, 255, 255)


@asynccontextmanager
async def opened(**limits: float) -> AsyncIterator[ImageDecoder]:
    decoder = ImageDecoder(**limits)  # type: ignore[arg-type]
    async with kept_open(decoder):  # type: ignore[arg-type]
        yield decoder


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


def pixel(image: DecodedImage, x: int, y: int) -> tuple[int, ...]:
    at = 3 * (y * image.width + x)
    return tuple(image.rgb[at : at + 3])


def near(found: tuple[int, ...], expected: tuple[int, ...], most: int = 12) -> bool:
    return all(abs(a - b) <= most for a, b in zip(found, expected, strict=True))


async def refused(decoder: ImageDecoder, data: bytes) -> InvalidValue:
    with pytest.raises(InvalidValue) as raised:
        await decoder.decode(data)
    return raised.value


@pytest.mark.parametrize("kind", GOOD_KINDS)
async def test_each_kind_is_decoded(kind: str) -> None:
    async with opened() as decoder:
        image = await decoder.decode(picture(kind))
    assert (image.width, image.height, len(image.rgb)) == (24, 16, 24 * 16 * 3)
    assert near(pixel(image, 1, 1), RED) and near(pixel(image, 22, 14), BLUE)


async def test_every_orientation_is_set_upright() -> None:
    upright = Image.new("RGB", (32, 16), WHITE)
    upright.paste(RED, (0, 0, 16, 8))
    transposed = {
        1: None,
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    async with opened() as decoder:
        for kind in ("jpeg", "png", "webp"):
            for orientation, by in transposed.items():
                exif = Image.Exif()
                exif[0x0112] = orientation
                stored = upright if by is None else upright.transpose(by)
                image = await decoder.decode(saved(stored, kind, exif=exif, quality=95))
                assert (image.width, image.height) == (32, 16), (kind, orientation)
                assert near(pixel(image, 3, 2), RED, 24), (kind, orientation)
                assert near(pixel(image, 28, 2), WHITE, 24), (kind, orientation)
                assert near(pixel(image, 3, 13), WHITE, 24), (kind, orientation)


async def test_transparent_pixels_are_white_and_half_transparent_ones_half() -> None:
    image = Image.new("RGBA", (3, 1), (0, 0, 0, 0))
    image.putpixel((1, 0), (200, 0, 0, 128))
    image.putpixel((2, 0), (200, 0, 0, 255))
    palette = Image.new("P", (2, 1))
    palette.putpalette([0, 0, 0, 200, 0, 0])
    palette.putpixel((1, 0), 1)
    grey = Image.new("LA", (2, 1), (0, 0))
    grey.putpixel((1, 0), (100, 255))
    async with opened() as decoder:
        for kind in ("png", "webp"):
            seen = await decoder.decode(saved(image, kind, lossless=True))
            assert pixel(seen, 0, 0) == WHITE
            assert near(pixel(seen, 1, 0), (227, 127, 127), 2)
            assert pixel(seen, 2, 0) == RED
        for kind in ("png", "gif"):
            seen = await decoder.decode(saved(palette, kind, transparency=0))
            assert (pixel(seen, 0, 0), pixel(seen, 1, 0)) == (WHITE, RED), kind
        seen = await decoder.decode(saved(grey, "png"))
        assert (pixel(seen, 0, 0), pixel(seen, 1, 0)) == (WHITE, (100, 100, 100))


async def test_every_way_to_write_a_pixel_comes_out_as_eight_bits_of_rgb() -> None:
    sixteen = Image.new("I;16", (2, 1))
    sixteen.putpixel((1, 0), 65535)
    sixteen.putpixel((0, 0), 128 * 257)
    async with opened() as decoder:
        seen = await decoder.decode(saved(sixteen, "png"))
        assert (pixel(seen, 0, 0), pixel(seen, 1, 0)) == ((128, 128, 128), WHITE)
        for mode, value, expected in (
            ("1", 1, WHITE),
            ("L", 77, (77, 77, 77)),
            ("RGB", RED, RED),
            ("P", 0, RED),
        ):
            image = Image.new(mode, (4, 4), value)
            if mode == "P":
                image.putpalette([200, 0, 0])
            for kind in ("png", "bmp"):
                assert pixel(await decoder.decode(saved(image, kind)), 2, 2) == expected, (mode, kind)
        for mode, colour, expected in (("CMYK", (0, 255, 255, 0), (255, 0, 0)), ("L", 77, (77, 77, 77))):
            seen = await decoder.decode(saved(Image.new(mode, (16, 16), colour), "jpeg"))
            assert near(pixel(seen, 8, 8), expected), mode


async def test_the_first_of_many_frames_is_seen() -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in (RED, BLUE, WHITE)]
    async with opened() as decoder:
        for kind in ("gif", "webp", "png"):
            data = saved(frames[0], kind, save_all=True, append_images=frames[1:], lossless=True)
            assert near(pixel(await decoder.decode(data), 4, 4), RED), kind


@pytest.mark.parametrize(
    ("kind", "size"), [("jpeg", (8000, 6000)), ("png", (9000, 1000)), ("png", (5000, 1))]
)
async def test_a_large_picture_is_shrunk_to_a_bounded_one(kind: str, size: tuple[int, int]) -> None:
    async with opened() as decoder:
        image = await decoder.decode(picture(kind, size))
    assert (image.width, image.height) == (4096, max(round(4096 * size[1] / size[0]), 1))
    assert near(pixel(image, 100, 0), RED) and near(pixel(image, 4000, 0), BLUE)


async def test_metadata_changes_no_pixel_and_does_not_come_out() -> None:
    plain = Image.new("RGB", (16, 16), RED)
    async with opened() as decoder:
        noted = await decoder.decode(saved(plain, "png", icc_profile=b"not a profile", dpi=(1, 1)))
        assert noted == await decoder.decode(saved(plain, "png"))


@pytest.mark.parametrize("name", BOMBS)
async def test_a_bomb_is_refused_and_the_next_picture_is_decoded(name: str) -> None:
    bomb = BOMBS[name]()
    async with opened() as decoder:
        began = time.process_time()
        before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        error = await refused(decoder, bomb)
        assert error.hint
        assert time.process_time() - began < 2, "the server's own time"
        grown_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib) >> 10
        assert grown_mib < 100
        assert (await decoder.decode(picture("png"))).width == 24


@pytest.mark.parametrize("name", SURVIVED)
async def test_an_odd_file_gets_an_answer(name: str) -> None:
    async with opened() as decoder:
        try:
            image = await decoder.decode(SURVIVED[name]())
            assert image.width * image.height * 3 == len(image.rgb)
        except InvalidValue as error:
            assert error.hint
        assert (await decoder.decode(picture("png"))).width == 24


@pytest.mark.parametrize("kind", GOOD_KINDS)
async def test_a_file_that_was_cut_short_is_no_part_of_a_picture(kind: str) -> None:
    async with opened() as decoder:
        for cut in truncations(kind):
            await refused(decoder, cut)


async def test_too_much_memory_is_refused_and_costs_the_child_nothing() -> None:
    async with opened(memory_bytes=32 << 20) as decoder:
        before = decoder.process_ids
        error = await refused(decoder, picture("png", (5000, 5000)))
        assert "memory" in error.message
        assert (await decoder.decode(picture("png"))).width == 24
        assert decoder.process_ids == before


async def test_too_much_processor_time_ends_the_child_and_another_takes_its_place() -> None:
    async with opened(budget_s=0.05) as decoder:
        before = decoder.process_ids
        error = await refused(decoder, picture("webp", (6000, 6000), lossless=True))
        assert "processor time" in error.message
        assert (await decoder.decode(picture("png"))).width == 24
        assert decoder.process_ids != before


async def test_a_neighbour_is_served_beside_a_bomb() -> None:
    bomb = BOMBS["a JPEG that never begins"]()
    async with opened(budget_s=1.0) as decoder:
        bombs = [asyncio.create_task(decoder.decode(bomb, tenant="one")) for _ in range(3)]
        await asyncio.sleep(0.05)
        image = await decoder.decode(picture("png"), tenant="another")
        assert image.width == 24
        assert not all(task.done() for task in bombs), "it did not have to wait for all of them"
        results = await asyncio.gather(*bombs, return_exceptions=True)
        assert all(isinstance(result, InvalidValue) for result in results)


async def test_too_much_that_waits_is_refused_with_a_reason() -> None:
    async with opened(children=1) as decoder:
        data = picture("png") + bytes(MAX_ATTACHMENT_BYTES - 4096)
        tasks = [asyncio.create_task(decoder.decode(data, tenant="one")) for _ in range(20)]
        results = await asyncio.gather(*tasks, return_exceptions=True)
    assert any(isinstance(result, Overloaded) for result in results)
    assert all(isinstance(result, Overloaded | DecodedImage) for result in results)


async def test_a_child_that_is_killed_is_replaced_and_the_picture_is_decoded() -> None:
    async with opened() as decoder:
        (child,) = decoder.process_ids
        os.kill(child, signal.SIGKILL)
        assert (await decoder.decode(picture("jpeg"))).width == 24
        assert decoder.process_ids != (child,)


async def test_the_child_has_its_three_streams_and_can_open_nothing() -> None:
    async with opened() as decoder:
        await decoder.decode(picture("png"))
        (child,) = decoder.process_ids
        process = Path("/proc") / str(child)
        limits = process.joinpath("limits").read_text()
        (files,) = (line.split() for line in limits.splitlines() if line.startswith("Max open files"))
        assert files[3:5] == ["3", "3"]
        assert sorted(int(each.name) for each in process.joinpath("fd").iterdir()) == [0, 1, 2]
        assert b"HF_TOKEN" not in process.joinpath("environ").read_bytes()


async def test_whatever_waits_when_it_closes_is_told_so() -> None:
    decoder = ImageDecoder()
    await decoder.open()
    task = asyncio.create_task(decoder.decode(picture("webp", (5000, 5000), lossless=True)))
    await asyncio.sleep(0.05)
    await decoder.close()
    with pytest.raises(ShuttingDown):
        await task
    assert not decoder.process_ids


async def test_without_opening_it_the_first_picture_starts_the_child() -> None:
    decoder = ImageDecoder()
    try:
        assert (await decoder.decode(picture("gif"))).height == 16
    finally:
        await decoder.close()


@pytest.fixture(scope="module")
def shared(loop: asyncio.Runner) -> Iterator[ImageDecoder]:
    decoder = ImageDecoder()
    loop.run(decoder.open())
    yield decoder
    loop.run(decoder.close())


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kind=st.sampled_from(GOOD_KINDS),
    changes=st.lists(
        st.tuples(st.floats(0, 1, exclude_max=True), st.binary(min_size=1, max_size=6)),
        min_size=1,
        max_size=6,
    ),
)
def test_a_file_with_any_bytes_changed_is_a_picture_or_refused(
    shared: ImageDecoder, loop: asyncio.Runner, kind: str, changes: list[tuple[float, bytes]]
) -> None:
    data = bytearray(picture(kind))
    for place, new in changes:
        at = int(place * len(data))
        data[at : at + len(new)] = new
    try:
        image = loop.run(shared.decode(bytes(data)))
    except InvalidValue:
        return
    assert len(image.rgb) == image.width * image.height * 3


def test_a_png_of_our_own_making_is_read(shared: ImageDecoder, loop: asyncio.Runner) -> None:
    """The bombs above are made by `png`, which makes pictures, too."""
    import zlib

    from hostile_images import chunk

    rows = b"\x00\xc8\x00\x00\x00\x00\xc8"
    image = loop.run(shared.decode(png(2, 1, chunk(b"IDAT", zlib.compress(rows)))))
    assert image.rgb == bytes((*RED, *BLUE))
    assert Image.open(io.BytesIO(picture("png"))).size == (24, 16)
