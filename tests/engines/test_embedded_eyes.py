"""The projector that makes the embedded model see, beside a forward pass that is not llama.cpp's."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from reference_model import ReferenceModel, cosines, log_softmax

from ganglion.core.events import Pieces
from ganglion.core.request import (
    PLACEHOLDER,
    Attachment,
    ChatPrompt,
    ImageBlock,
    Message,
    Request,
    TokenRequest,
)
from ganglion.core.sampling import ResolvedSampling
from ganglion.engines.llama.engine import LlamaEngine
from ganglion.engines.llama.native.library import open_library
from ganglion.engines.llama.native.model import load_model
from ganglion.engines.settings import EngineSettings
from ganglion.registry.stores.sighted import read_whole_facts
from support.embedded_model import embedded_model, kept_open
from support.seeing import PROJECTOR, expected_hash, found_hash, laid_side_by_side, pictures, questions
from support.small_tower import SmallTower

pytestmark = pytest.mark.model
ALIKE = 0.999
ROUNDED = 0.05
"""How far a logprob lies apart at most because the library rounds activations to 8 bits."""


def test_the_projector_is_the_file_whose_figures_were_written_down():
    assert found_hash() == expected_hash()
    assert PROJECTOR.stat().st_size <= 12 << 20


@pytest.fixture(scope="module")
def embed():
    """What llama.cpp makes of a picture."""
    model = load_model(open_library(), str(embedded_model().path), gpu_layers=0)
    projector = model.project(str(PROJECTOR), threads=1, uses_gpu=False)

    def rows(picture: Image.Image) -> np.ndarray:
        layout = projector.lay_out(picture.width, picture.height, picture.tobytes())
        try:
            (found,) = projector.encode(layout)
        finally:
            layout.free()
        return found.rows

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


async def test_what_follows_a_picture_is_what_the_dequantised_weights_say(tmp_path: Path) -> None:
    reference, tower = ReferenceModel(embedded_model().path), SmallTower.read(PROJECTOR)
    engine = LlamaEngine(
        read_whole_facts(laid_side_by_side(tmp_path).model), EngineSettings("m", context=512)
    )
    async with kept_open(engine):
        for question, picture in zip(questions(3), pictures(3), strict=True):
            shown = Message("user", question.text, attachments=(Attachment(question.png, 0),))
            tokens = (await engine.read(Request("r", "m", ChatPrompt((shown,))))).tokens
            placed = await engine.place_image("m", question.png, "image/png")
            start = tokens.index(PLACEHOLDER)
            image = ImageBlock(start, placed.count, placed.digest, question.png)

            before, after = tokens[:start], tokens[start + placed.count :]
            stream = np.concatenate([reference.embed(before), tower.embed(picture), reference.embed(after)])
            for layer in range(reference.shape.layers):
                stream = reference.after(layer, stream)
            expected = log_softmax(reference.logits(stream[-1:]))[0]

            greedy = ResolvedSampling(temperature=0.0)
            asked = TokenRequest(
                "r", tokens, 1, sampling=greedy, top_logprobs=5, in_tokens=True, images=(image,)
            )
            (told,) = [
                token
                async for event in engine.continue_tokens("m", asked)
                if isinstance(event, Pieces)
                for piece in event.pieces
                for token in piece.tokens
            ]
            assert told.id == expected.argmax()
            assert told.logprob == pytest.approx(expected[told.id], abs=ROUNDED)
            # What is hardly possible is far apart in logs and not in chance.
            for each in told.top:
                assert np.exp(each.logprob) == pytest.approx(np.exp(expected[each.id]), abs=ROUNDED)
