"""Requests for readouts and what they are told, whichever engine computes them."""

from pathlib import Path

import numpy as np

from ganglion.core.events import Finished, Pieces, Scored, TokenEvent
from ganglion.core.request import Stop, TokenRequest
from ganglion.core.sampling import ResolvedSampling
from ganglion.engines.concepts.pack import ConceptPack, PackManifest, PackModel, write_pack
from ganglion.engines.worker_engine import WorkerEngine

HIDDEN, BLOCKS = 576, 30
CLOSE = 0.1
"""Of a row's length. Few rows are computed by other kernels than many, so the same position differs by some
hundredths; another position of the same text differs by about one."""


def pack(
    name: str,
    layers: list[int],
    concepts: tuple[str, ...] = ("a", "b", "c"),
    *,
    hidden: int = HIDDEN,
    blocks: int = BLOCKS,
    seed: int = 5,
) -> ConceptPack:
    chance = np.random.default_rng(seed)
    vectors = {}
    for layer in layers:
        drawn = chance.normal(size=(len(concepts), hidden))
        vectors[layer] = (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)
    model = PackModel("smollm2", "llama", hidden, blocks)
    names = [f"{name}-{concept}" for concept in concepts]
    return ConceptPack(PackManifest(name, names, layers, model), vectors)


def written(folder: Path, *packs: ConceptPack) -> tuple[str, ...]:
    paths = [folder / f"{each.manifest.name}.safetensors" for each in packs]
    for path, each in zip(paths, packs, strict=True):
        write_pack(each, path)
    return tuple(map(str, paths))


def asked(tokens: tuple[int, ...], *ranges: tuple[int, int | None], max_tokens: int = 0) -> TokenRequest:
    return TokenRequest(
        "read",
        tokens,
        max_tokens,
        sampling=ResolvedSampling(temperature=0.0),
        stop=Stop(ignore_eos=True),
        in_tokens=True,
        readout=ranges,
    )


class Told:
    """What a run told, its laws checked."""

    def __init__(self, events: list[TokenEvent]) -> None:
        assert isinstance(events[-1], Finished), events[-1]
        self.finished = events[-1]
        scored = [event.tokens for event in events if isinstance(event, Scored)]
        self.prompt = [token for tokens in scored for token in tokens]
        pieces = [event.pieces for event in events if isinstance(event, Pieces)]
        self.pieces = [piece for each in pieces for piece in each]
        self.generated = [token for piece in self.pieces for token in piece.tokens]
        for tokens in (self.prompt, self.generated):
            positions = [token.position for token in tokens]
            assert positions == sorted(set(positions)), "each position once, in order"

    @property
    def read(self) -> dict[int, np.ndarray]:
        tokens = [*self.prompt, *self.generated]
        return {token.position: np.array(token.readout) for token in tokens if token.readout}


async def run(engine: WorkerEngine, request: TokenRequest) -> Told:
    return Told([event async for event in engine.tokens.run(request)])


def far_apart(one: dict[int, np.ndarray], other: dict[int, np.ndarray]) -> float:
    """The largest difference at a position, in units of the value's own length."""
    assert one.keys() == other.keys()
    return max(
        float(np.linalg.norm(one[place] - other[place]) / np.linalg.norm(other[place])) for place in one
    )
