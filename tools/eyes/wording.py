"""Finds the rows that stand for a picture: what the frozen language model reads so that it answers exactly.

    python -m tools.eyes.wording MODEL.gguf WORDING.pt --steps 200

A model of this size reads a description in plain words too poorly: asked for a colour, it names the shape.
So the rows begin as such a description's embeddings and learn, through the language model, to be understood.
Every kind, colour and background has rows of its own; all others are the same for every picture.
"""

import argparse
import random
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from tools.eyes.describe import asked, pieces
from tools.eyes.draw import COLOURS, KINDS, any_kind
from tools.eyes.language_model import Keys, LanguageModel
from tools.eyes.sizes import POSITIONS
from torch import Tensor, nn
from torch.nn import functional

from ganglion.engines.llama.native.library import open_library
from ganglion.engines.llama.native.model import NativeModel, load_model

BATCH = 12
RATE = 0.006
WARM_UP_STEPS = 10
SAVED_EVERY = 5
NOISE = 0.25
"""What the tower says is that far from what it should; relative to the rows' own size."""
NAMES = tuple(COLOURS)
SYSTEMS = (
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face",
    "You are a helpful assistant.",
)
KIND_PLACES, COLOUR_PLACES, BACKGROUND_PLACES = (1, 4, 5), (10, 11), (16, 17)


@dataclass(frozen=True, slots=True)
class Exchange:
    """A question about a picture and its answer, as tokens before and after the picture's rows."""

    kind: int
    colour: int
    background: int
    before: list[int]
    after: list[int]
    answer: list[int]


class Wording(nn.Module):
    """The rows of every picture that can be drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Parameter(torch.zeros(POSITIONS, 576))
        self.kinds = nn.Parameter(torch.zeros(len(KINDS), len(KIND_PLACES), 576))
        self.colours = nn.Parameter(torch.zeros(len(NAMES), len(COLOUR_PLACES), 576))
        self.backgrounds = nn.Parameter(torch.zeros(len(NAMES), len(BACKGROUND_PLACES), 576))

    def begin(self, embeddings: Tensor, number: dict[str, int]) -> None:
        """With a description in words."""

        def words(kind: str, colour: str, background: str) -> Tensor:
            return embeddings[[number[piece] for piece in pieces(kind, colour, background)]]

        with torch.no_grad():
            self.shared.copy_(words("circle", "red", "white"))
            for row, kind in enumerate(KINDS):
                self.kinds[row] = words(kind, "red", "white")[list(KIND_PLACES)]
            for row, name in enumerate(NAMES):
                self.colours[row] = words("circle", name, "white")[list(COLOUR_PLACES)]
                self.backgrounds[row] = words("circle", "red", name)[list(BACKGROUND_PLACES)]

    def forward(self, kinds: Tensor, colours: Tensor, backgrounds: Tensor) -> Tensor:
        rows = self.shared.expand(len(kinds), -1, -1).clone()
        rows[:, list(KIND_PLACES)] = self.kinds[kinds]
        rows[:, list(COLOUR_PLACES)] = self.colours[colours]
        rows[:, list(BACKGROUND_PLACES)] = self.backgrounds[backgrounds]
        return rows

    def table(self) -> tuple[Tensor, Tensor]:
        """All distinct rows, and which of them stands where: (kinds, colours, backgrounds, POSITIONS)."""
        parts = [self.shared, *(p.flatten(0, 1) for p in (self.kinds, self.colours, self.backgrounds))]
        which = torch.arange(POSITIONS).repeat(len(KINDS), len(NAMES), len(NAMES), 1)
        begun = POSITIONS
        for places, count, shape in (
            (KIND_PLACES, len(KINDS), (-1, 1, 1)),
            (COLOUR_PLACES, len(NAMES), (1, -1, 1)),
            (BACKGROUND_PLACES, len(NAMES), (1, 1, -1)),
        ):
            for number, place in enumerate(places):
                which[..., place] = (begun + torch.arange(count) * len(places) + number).view(shape)
            begun += count * len(places)
        return torch.cat(parts).detach(), which


def exchange(chance: random.Random, model: NativeModel) -> Exchange:
    """A random question about a random picture, before or after it."""

    def tokens(text: str) -> list[int]:
        return list(model.tokenize(text, add_special=False, parse_special=True))

    kind, colour, background = any_kind(chance), chance.choice(NAMES), chance.choice(NAMES)
    question, answer = asked(chance, kind, colour, background)
    between = chance.choice(("", "\n"))
    turn = "<|im_end|>\n<|im_start|>assistant\n"
    first, then = ("", between + question) if chance.random() < 0.6 else (question + between, "")
    return Exchange(
        KINDS.index(kind),
        NAMES.index(colour),
        NAMES.index(background),
        tokens(first) if first else [],
        tokens(then + turn),
        tokens(answer + "<|im_end|>"),
    )


def missed(
    language: LanguageModel, prefix: list[Keys], wording: Wording, exchanges: list[Exchange]
) -> tuple[Tensor, float]:
    """The loss over the answers, and the share of answers that are exact throughout."""
    index = [torch.tensor([getattr(e, name) for e in exchanges]) for name in ("kind", "colour", "background")]
    pictures = wording(*index)
    size = pictures.detach().square().mean().sqrt()
    pictures = pictures + NOISE * size * torch.randn_like(pictures)
    longest = max(len(e.before) + len(e.after) + len(e.answer) for e in exchanges) + POSITIONS
    rows, places, wanted = [], [], []
    for number, each in enumerate(exchanges):
        texts = (language.embeddings[each.before], language.embeddings[each.after + each.answer])
        whole = torch.cat([texts[0], pictures[number], texts[1]])
        begun = len(each.before) + POSITIONS + len(each.after) - 1
        places += [(number, begun + offset) for offset in range(len(each.answer))]
        wanted += each.answer
        rows.append(functional.pad(whole, (0, 0, 0, longest - len(whole))))
    states = language.states(torch.stack(rows), prefix)
    scores = language.logits(states[[n for n, _ in places], [p for _, p in places]])
    loss = functional.cross_entropy(scores, torch.tensor(wanted))
    wrong = {
        n
        for (n, _), hit in zip(places, (scores.argmax(-1) == torch.tensor(wanted)).tolist(), strict=True)
        if not hit
    }
    return loss, 1 - len(wrong) / len(exchanges)


def learn(path: Path, kept: Path, steps: int) -> None:
    """From where the file stands to the last step."""
    native = load_model(open_library(), str(path), gpu_layers=0)
    language = LanguageModel(path)
    wording = Wording()
    wording.begin(language.embeddings, language.vocabulary)
    optimizer = torch.optim.Adam(wording.parameters(), lr=RATE, betas=(0.9, 0.95))
    begun = 0
    if kept.exists():
        held = torch.load(kept, weights_only=True)
        wording.load_state_dict(held["wording"])
        optimizer.load_state_dict(held["optimizer"])
        begun = held["step"]
    prefixes = [
        language.prefix(
            list(
                native.tokenize(
                    f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n",
                    add_special=False,
                    parse_special=True,
                )
            )
        )
        for system in SYSTEMS
    ]
    shares: list[float] = []
    for step in range(begun, steps):
        chance = random.Random(f"wording/{step}")
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, (step + 1) / WARM_UP_STEPS, max(0.05, 2 * (1 - step / steps)))
        loss, share = missed(
            language, chance.choice(prefixes), wording, [exchange(chance, native) for _ in range(BATCH)]
        )
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        shares.append(share)
        if (step + 1) % SAVED_EVERY == 0 or step + 1 == steps or step == 0:
            exact = sum(shares[-20:]) / len(shares[-20:])
            print(
                step + 1,
                f"{time.process_time():.0f} s",
                f"{loss.item():.3f}",
                f"exact {exact:.3f}",
                flush=True,
            )
            rows, which = wording.table()
            state = {"wording": wording.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
            torch.save(state | {"rows": rows, "which": which}, kept.with_suffix(".new"))
            kept.with_suffix(".new").replace(kept)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("wording", type=Path)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    learn(arguments.model, arguments.wording, arguments.steps)


if __name__ == "__main__":
    main()
