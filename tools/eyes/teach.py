"""Teaches the tower to say what is in a picture in rows that the language model reads.

    python -m tools.eyes.teach WORDING.pt CHECKPOINT.pt --steps 3000

The language model is not run: `wording.py` has found what it reads, and row n of the tower learns to be row n
of that. A checkpoint is written every fifty steps; given again, the command goes on from it.
"""

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as functional
from tools.eyes.batches import NAMES, Batch, batch, masks
from tools.eyes.draw import KINDS
from tools.eyes.sizes import WIDTH
from tools.eyes.tower import Eyes
from torch import Tensor, nn

Optimizers = tuple[torch.optim.Optimizer, torch.optim.Optimizer]

BATCH = 96
RATE = 2e-3
WARM_UP_STEPS = 60
SAVED_EVERY = 50
SHOWN_EVERY = 100
# How sharply the nearest embedding is preferred among those of all descriptions.
SHARPNESS = 16.0
MASKS_EACH = 250
TEACHING_SEED, EXAM_SEED = 1, 2


@dataclass(frozen=True, slots=True)
class Words:
    """The rows that stand for each picture that can be drawn."""

    embeddings: Tensor
    """(rows, width of the language model)"""
    descriptions: Tensor
    """(kinds, colours, backgrounds, POSITIONS): which of those rows stands there"""

    @classmethod
    def read(cls, wording: Path) -> "Words":
        """What `wording.py` found."""
        held = torch.load(wording, weights_only=True)
        return cls(held["rows"], held["which"])


class Lessons(nn.Module):
    """The tower with three heads that name what it sees; the heads are thrown away afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.eyes = Eyes()
        self.kind = nn.Linear(WIDTH, len(KINDS))
        self.colour = nn.Linear(WIDTH, len(NAMES))
        self.background = nn.Linear(WIDTH, len(NAMES))

    def answers(self, pictures: Tensor) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
        """Scores of kind, colour and background, and the projected vectors."""
        with torch.autocast("cpu", torch.bfloat16):
            features = self.eyes.features(pictures)
            said = self.eyes.project(features)
        seen = features.float().mean(1)
        return (self.kind(seen), self.colour(seen), self.background(seen)), said.float()


def loss(lessons: Lessons, shown: Batch, words: Words) -> Tensor:
    """How far names and descriptions are from what is shown."""
    named, said = lessons.answers(shown.pictures)
    wanted = (shown.kinds, shown.colours, shown.backgrounds)
    naming = sum(
        (
            weight * functional.cross_entropy(scores, right, label_smoothing=0.02)
            for weight, scores, right in zip((1.0, 0.4, 0.4), named, wanted, strict=True)
        ),
        torch.zeros(()),
    )
    described = words.descriptions[shown.kinds, shown.colours, shown.backgrounds]
    target = words.embeddings[described]
    telling = functional.cross_entropy(nearness(said, words).flatten(0, 1), described.flatten())
    distance = (said - target).square().mean() / words.embeddings.square().mean()
    return naming + 0.5 * telling + 2 * distance


def nearness(said: Tensor, words: Words) -> Tensor:
    """How near each vector is to each word."""
    rows = functional.normalize(words.embeddings, dim=-1)
    return SHARPNESS * functional.normalize(said, dim=-1) @ rows.T


def exam(lessons: Lessons, shown: Batch, words: Words) -> dict[str, float]:
    """Shares of what is named rightly, of words said rightly, and of whole descriptions."""
    with torch.no_grad():
        named, said = lessons.answers(shown.pictures)
    described = words.descriptions[shown.kinds, shown.colours, shown.backgrounds]
    right = nearness(said, words).argmax(-1) == described
    wanted = (shown.kinds, shown.colours, shown.backgrounds)
    shares = {
        name: scores.argmax(1) == expected
        for name, scores, expected in zip(("kind", "colour", "background"), named, wanted, strict=True)
    }
    shares |= {"words": right, "descriptions": right.all(1)}
    lengths = {
        "distance": functional.mse_loss(said, words.embeddings[described]) / words.embeddings.square().mean()
    }
    return {name: round(share.float().mean().item(), 3) for name, share in (shares | lengths).items()}


def rate(step: int, steps: int) -> float:
    """Up quickly, level, and down over the second half."""
    rising = min(1.0, (step + 1) / WARM_UP_STEPS)
    falling = min(1.0, 2 * (1 - step / steps))
    return RATE * rising * max(0.01, falling)


def optimizers(lessons: Lessons) -> Optimizers:
    """Muon for the matrices of the layers, which it teaches with far fewer pictures; AdamW for the rest."""
    matrices = [p for p in lessons.eyes.blocks.parameters() if p.ndim == 2]
    known = {id(p) for p in matrices}
    rest = [p for p in lessons.parameters() if id(p) not in known]
    return (
        torch.optim.Muon(matrices, lr=RATE, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, lr=RATE, betas=(0.9, 0.98), weight_decay=0.01),
    )


def drawn_once(checkpoint: Path, kinds: tuple[str, ...]) -> tuple[Tensor, Tensor]:
    """Masks to teach with and to examine with, kept beside the checkpoint."""
    kept = checkpoint.with_suffix(f".masks-{len(kinds)}")
    if not kept.exists():
        torch.save((masks(kinds, MASKS_EACH, TEACHING_SEED), masks(kinds, 20, EXAM_SEED)), kept)
    teaching, examining = torch.load(kept, weights_only=True)
    return teaching, examining


def teach(words: Words, checkpoint: Path, steps: int, kinds: int) -> None:
    """From the checkpoint's step to the last one."""
    teaching, examining = drawn_once(checkpoint, KINDS[:kinds])
    lessons, begun = Lessons(), 0
    optimizing = optimizers(lessons)
    if checkpoint.exists():
        held = torch.load(checkpoint, weights_only=True)
        lessons.load_state_dict(held["lessons"])
        begun = held["step"]
        for optimizer, state in zip(optimizing, held["optimizers"], strict=True):
            optimizer.load_state_dict(state)
    asked = batch(examining, 600, torch.Generator().manual_seed(EXAM_SEED))
    for step in range(begun, steps):
        for group in (group for optimizer in optimizing for group in optimizer.param_groups):
            group["lr"] = rate(step, steps)
        generator = torch.Generator().manual_seed(TEACHING_SEED * 1_000_000 + step)
        missed = loss(lessons, batch(teaching, BATCH, generator), words)
        for optimizer in optimizing:
            optimizer.zero_grad()
        missed.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(lessons.parameters(), 1.0)
        for optimizer in optimizing:
            optimizer.step()
        if (step + 1) % SHOWN_EVERY == 0 or step in (9, 49):
            print(
                step + 1,
                f"{time.process_time():.0f} s",
                f"{missed.item():.3f}",
                exam(lessons, asked, words),
                flush=True,
            )
        if (step + 1) % SAVED_EVERY == 0 or step + 1 == steps:
            save(lessons, optimizing, step + 1, checkpoint)


def save(lessons: Lessons, optimizing: Optimizers, step: int, checkpoint: Path) -> None:
    """Replace the checkpoint, whole or not at all."""
    beside = checkpoint.with_suffix(".new")
    states = [optimizer.state_dict() for optimizer in optimizing]
    eyes = lessons.eyes.state_dict()
    torch.save({"eyes": eyes, "lessons": lessons.state_dict(), "optimizers": states, "step": step}, beside)
    beside.replace(checkpoint)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wording", type=Path)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument(
        "--kinds", type=int, default=len(KINDS), help="only the first so many kinds of things"
    )
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    teach(Words.read(arguments.wording), arguments.checkpoint, arguments.steps, arguments.kinds)


if __name__ == "__main__":
    main()
