"""What a checkpoint's own processor makes of a picture: tokens for the prompt, pixels for its vision tower.

Law: the tokens of a picture, with the signs that its family writes around it, are found once, of that picture
alone, without running the model; in every prompt they are the same.
"""

import copy
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from PIL import Image
from vllm.inputs.engine import MultiModalInput, mm_input
from vllm.model_executor.model_loader import get_model_architecture
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.multimodal.inputs import MultiModalKwargsItem, MultiModalKwargsItems, PlaceholderRange
from vllm.multimodal.processing.inputs import ProcessorInputs
from vllm.multimodal.registry import TimingContext
from vllm.utils.torch_utils import set_default_torch_num_threads
from vllm.v1.engine.async_llm import AsyncLLM

from ganglion.core.errors import InvalidValue, LoadFailed

_IMAGE: Final = "image"
_PROBE: Final = 64
"""The side of a picture that is processed when a model is loaded."""


@dataclass(frozen=True, slots=True)
class ProcessedPicture:
    """A picture as vLLM takes it, at the beginning of a prompt."""

    tokens: list[int]
    is_row: list[bool]
    """Which of the tokens stand for rows of embeddings; the others are read as tokens."""
    place: PlaceholderRange
    pixels: MultiModalKwargsItem
    identifier: str
    """By this vLLM's caches tell it from others."""
    size_bytes: int


class PictureProcessor:
    """The processor of one checkpoint; not to be asked by two threads at once."""

    def __init__(self, llm: AsyncLLM) -> None:
        config = llm.model_config
        # Of our own, with a tokenizer of its own: tokenizers must not be asked while another thread does.
        self._processor = MULTIMODAL_REGISTRY.create_processor(
            config, tokenizer=copy.deepcopy(llm.get_tokenizer())
        )
        self.most = self._processor.info.allowed_mm_limits.get(_IMAGE, 0)
        """Pictures in one prompt; 0 where the checkpoint is loaded for text alone."""
        self._most_rows = llm.input_processor.mm_encoder_cache_size
        self._prompt = self._processor.info.get_tokenizer().encode(
            self._sign(config), add_special_tokens=False
        )

    def process(self, width: int, height: int, rgb: bytes, identifier: str) -> ProcessedPicture:
        """What a picture becomes; raises InvalidValue for one that the model does not take."""
        image = Image.frombytes("RGB", (width, height), rgb)
        items = self._processor.info.parse_mm_data({_IMAGE: [image]})
        try:
            with set_default_torch_num_threads():
                found = self._processor.apply(
                    ProcessorInputs(list(self._prompt), items, {_IMAGE: [identifier]}),
                    TimingContext(enabled=False),
                )
        except ValueError as error:
            raise InvalidValue(
                f"The model takes no picture of {width} by {height} pixels: {error}",
                hint="Send it in another size.",
            ) from error
        [place] = found["mm_placeholders"][_IMAGE]
        [pixels] = found["mm_kwargs"][_IMAGE]
        tokens = found["prompt_token_ids"]
        rows = place.get_num_embeds()
        if rows > self._most_rows:
            raise InvalidValue(
                f"The model reads this picture in {rows} rows at once, and {self._most_rows} fit into a "
                "batch.",
                hint="Send it smaller, or raise max_num_batched_tokens in engine.vllm.extra.",
            )
        is_row = [False] * len(tokens)
        inside = [True] * place.length if place.is_embed is None else place.is_embed.tolist()
        is_row[place.offset : place.offset + place.length] = inside
        return ProcessedPicture(tokens, is_row, place, pixels, identifier, _size_of(pixels))

    def _sign(self, config: Any) -> str:
        """What the family writes in a prompt where a picture is."""
        model, _ = get_model_architecture(config)
        sign: str | None = model.get_placeholder_str(_IMAGE, 1)
        return sign or str(self._processor.dummy_inputs.get_dummy_text({_IMAGE: 1}))

    def probe(self) -> ProcessedPicture:
        """A black picture; raises LoadFailed where none can be processed."""
        try:
            return self.process(_PROBE, _PROBE, bytes(3 * _PROBE * _PROBE), "probe")
        except Exception as error:
            raise LoadFailed(
                f"The checkpoint's processor reads no picture: {type(error).__name__}: {error}",
                hint="Load it for text alone: engine.vllm.extra = "
                """'{"limit_mm_per_prompt": {"image": 0}}'.""",
            ) from error


def open_pictures(llm: AsyncLLM) -> PictureProcessor | None:
    """What processes pictures for a model that sees, None for another."""
    if not llm.model_config.supports_multimodal_inputs:
        return None
    processor = PictureProcessor(llm)
    return processor if processor.most else None


def with_pictures(
    tokens: list[int], pictures: Iterable[tuple[int, ProcessedPicture]], salt: str
) -> MultiModalInput:
    """A prompt for vLLM, whose pictures begin where it is said."""
    found = list(tokens)
    placed = list(pictures)
    for start, picture in placed:
        found[start : start + len(picture.tokens)] = picture.tokens
    return mm_input(
        found,
        MultiModalKwargsItems({_IMAGE: [picture.pixels for _, picture in placed]}),
        {_IMAGE: [picture.identifier for _, picture in placed]},
        {_IMAGE: [replace(picture.place, offset=start + picture.place.offset) for start, picture in placed]},
        cache_salt=salt or None,
    )


def _size_of(data: Any) -> int:
    """The bytes of all tensors in what a processor made."""
    if isinstance(data, dict):
        return sum(map(_size_of, data.values()))
    if isinstance(data, list | tuple):
        return sum(map(_size_of, data))
    inner = getattr(data, "data", None)
    size = getattr(data, "nbytes", None)
    return size if isinstance(size, int) else 0 if inner is None else _size_of(inner)
