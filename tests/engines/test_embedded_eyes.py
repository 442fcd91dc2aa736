"""The projector that makes the embedded model see, beside a forward pass that is not llama.cpp's."""

from collections import Counter

import numpy as np
import pytest
from PIL import Image
from reference_model import cosines
from tools.eyes.describe import is_right
from tools.eyes.evaluate import answered, opened

from ganglion.engines.llama.native.library import open_library
from ganglion.engines.llama.native.model import load_model
from support.embedded_model import embedded_model
from support.seeing import PROJECTOR, expected_hash, found_hash, pictures, questions
from support.small_tower import SmallTower

pytestmark = pytest.mark.model
ALIKE = 0.999


def test_the_projector_is_the_file_whose_figures_were_written_down():
    assert found_hash() == expected_hash()
    assert PROJECTOR.stat().st_size <= 12 << 20


@pytest.fixture(scope="module")
def embed():
    """What llama.cpp makes of a picture."""
    model = load_model(open_library(), str(embedded_model().path), gpu_layers=0)
    projector = model.project(str(PROJECTOR), threads=2, uses_gpu=False)

    def rows(picture: Image.Image) -> np.ndarray:
        layout = projector.lay_out(picture.width, picture.height, picture.tobytes())
        try:
            (found,) = projector.encode(layout)
        finally:
            layout.free()
        return found

    yield rows
    projector.free()
    model.free()


def test_llama_cpp_and_numpy_make_the_same_of_every_picture(embed):
    tower = SmallTower.read(PROJECTOR)
    for picture in pictures(12):
        assert cosines(embed(picture), tower.embed(picture)).min() >= ALIKE


def test_a_picture_that_is_not_square_keeps_its_shape_inside_a_border(embed):
    tower = SmallTower.read(PROJECTOR)
    square = next(pictures(1))
    for size in ((200, 100), (100, 300), (47, 48), (1, 64)):
        picture = square.resize(size)
        assert cosines(embed(picture), tower.embed(picture)).min() >= ALIKE


def test_it_answers_nine_of_ten_questions_about_pictures_that_it_was_not_taught():
    server, address = opened(embedded_model().path, PROJECTOR, threads=2)
    asked: Counter[str] = Counter()
    right: Counter[str] = Counter()
    for number, question in enumerate(questions(60, seed=11)):
        asked[question.kind] += 1
        said = answered(address, question, is_picture_first=number % 2 == 0)
        right[question.kind] += is_right(said, question.answer)
    del server  # it stops with its last reference
    assert {"colour", "shape", "digit"} <= asked.keys()
    wrong = {kind: (right[kind], asked[kind]) for kind in asked if right[kind] < 0.9 * asked[kind]}
    assert right.total() >= 0.9 * asked.total() and not wrong.keys() & {"colour", "shape", "digit"}, wrong
