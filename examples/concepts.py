"""Train a concept, read it while a model writes, and steer by it: a walk in three parts.

    python concepts.py                        all of it, with a node of its own
    python concepts.py --url http://HOST:8080/v1   parts 2 and 3 with a node that serves the pack
    python concepts.py --part train           part 1 alone

Part 1 needs nothing but Ganglion; parts 2 and 3 draw with matplotlib where it is installed
(pip install 'ganglion[plots]') and in the terminal where it is not.
"""

import argparse
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ganglion.engines.concepts.pack import PackModel, write_pack
from ganglion.engines.llama.concepts.residuals import read_residuals
from ganglion.engines.llama.concepts.training import TrainedConcept, new_pack, train
from ganglion.registry.hub.embedded import SMOLLM2, find

try:
    from matplotlib.figure import Figure
except ImportError:
    Figure = None

EXAMPLES = Path(__file__).parent / "concepts"
CONCEPT = "formal"
QUESTION = "Write to a friend and ask whether they will come to your party."


# Part 1. A concept is the direction from what casual sentences leave in the model to what formal ones leave.
#
# Each sentence runs through the model once. After every layer we keep the residual stream, averaged over the
# sentence's tokens: 576 numbers a layer for SmolLM2. The vector of a layer is the mean of the formal
# sentences minus the mean of the casual ones, made one unit long. Whether it means anything is judged on
# sentences that were held out: AUC 0.5 is chance, 1.0 tells every formal sentence from every casual one.


def train_concept(folder: Path) -> Path:
    """Make the concept from the sentences beside this program, and write its pack."""
    formal = (EXAMPLES / "formal.txt").read_text().splitlines()
    casual = (EXAMPLES / "casual.txt").read_text().splitlines()
    found = find(SMOLLM2, Path(os.environ.get("GANGLION_HOME", Path.home() / ".ganglion")) / "cache")
    if found is None:
        sys.exit("The embedded model is not here yet: ganglion models pull smollm2")
    read = read_residuals(found.path, formal + casual)
    concept = train(
        CONCEPT,
        read.values[: len(formal)],
        read.values[len(formal) :],
        read.layers,
        block_count=read.model.block_count,
        choice="common",
    )
    show_layers(concept)
    model = PackModel(SMOLLM2.id, read.model.architecture, read.model.hidden_size, read.model.block_count)
    path = folder / f"{CONCEPT}.safetensors"
    write_pack(new_pack(CONCEPT, model, concept, "formal against casual English"), path)
    print(f"\n{path}")
    return path


def show_layers(concept: TrainedConcept) -> None:
    """One line a layer: where in the model the concept can be read."""
    print("layer  AUC    of held-out sentences")
    for each in concept.judged:
        mark = "  <- kept" if each.layer in concept.chosen else ""
        print(f"{each.layer:5}  {each.auc:.3f}  {'#' * round(40 * max(each.auc - 0.5, 0)):20}{mark}")


# Part 2. The same vectors, read while the model writes.
#
# A readout is the dot product of the residual stream at a token with each vector. Asked for with
# "readout": true, it comes beside each token. One number says little; how it moves along a text says where
# the model is being formal. Its zero means nothing, so we compare two answers with each other.


def read_while_generating(url: str) -> dict[str, list[float]]:
    """Two answers to one question, and the readout of the deepest layer at each of their tokens."""
    found = {}
    for manner in ("formal", "casual"):
        messages = [{"role": "system", "content": f"Write in a very {manner} style."}, user_says(QUESTION)]
        tokens, readouts = answer(url, messages=messages, readout=True)
        found[manner] = [values[-1] for values in readouts]
        print(f"\n{manner}: {''.join(tokens)}\n{sparkline(found[manner])}")
    return found


# Part 3. The same vectors, pushed into the model.
#
# Steering adds the vector to the residual stream after its layers. At strength 1 it adds, over all of them,
# the whole distance between casual and formal sentences; far beyond, the model stops making sense.


def steer(url: str, strengths: tuple[float, ...] = (-3.0, -1.5, 0.0, 1.5, 3.0)) -> dict[str, list[float]]:
    """One question, answered under steering of different strength, read out as in part 2."""
    found = {}
    for strength in strengths:
        steering = [{"concept": CONCEPT, "strength": strength}] if strength else []
        tokens, readouts = answer(url, messages=[user_says(QUESTION)], readout=True, steering=steering)
        found[f"{strength:+.1f}"] = [values[-1] for values in readouts]
        print(f"\n{strength:+.1f}: {''.join(tokens)}")
    return found


def answer(url: str, **options: Any) -> tuple[list[str], list[list[float]]]:
    """Stream one chat answer: its pieces, and for each token the readouts of our one concept."""
    body = {"model": SMOLLM2.id, "stream": True, "max_tokens": 60, "temperature": 0, **options}
    request = urllib.request.Request(
        f"{url}/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    tokens: list[str] = []
    readouts: list[list[float]] = []
    with urllib.request.urlopen(request, timeout=120) as lines:
        for line in lines:
            if not line.startswith(b"data: {"):
                continue
            for choice in json.loads(line[6:])["choices"]:
                tokens.append(choice["delta"].get("content") or "")
                readouts += [[layer[0] for layer in each["values"]] for each in choice.get("readout", [])]
    return tokens, readouts


def user_says(text: str) -> dict[str, str]:
    """A message."""
    return {"role": "user", "content": text}


def sparkline(values: list[float]) -> str:
    """A row of bars, the lowest value of this row to its highest."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    return "".join("▁▂▃▄▅▆▇█"[round(7 * (value - low) / ((high - low) or 1))] for value in values)


def plot(lines: dict[str, list[float]], title: str, path: Path) -> None:
    """Draw readouts token by token, where matplotlib is installed."""
    if Figure is None:
        print("(no plot: pip install 'ganglion[plots]')")
        return
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.add_subplot()
    for label, values in lines.items():
        axes.plot(values, label=label)
    axes.set(title=title, xlabel="token", ylabel=f"readout of {CONCEPT!r}")
    axes.legend()
    figure.savefig(path)
    print(f"drawn into {path}")


@contextmanager
def node(pack: Path) -> Iterator[str]:
    """A node on a free port with the pack loaded, for as long as the block runs."""
    command = [sys.executable, "-m", "ganglion.cli.main", "serve", "smollm2"]
    command += ["--port", "0", "--concepts", str(pack)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            ready = (line.split()[-1] for line in process.stderr if line.startswith("ganglion "))
            yield f"{next(ready)}/v1"
        finally:
            process.terminate()
            process.communicate(timeout=30)


def main() -> None:
    """Run the chosen parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--part", choices=["train", "all"], default="all")
    parser.add_argument("--url", help="a node that serves the pack (default: one is started)")
    parser.add_argument("--out", type=Path, default=Path("concepts-example"), help="where files go")
    options = parser.parse_args()
    pack = train_concept(options.out)
    if options.part == "train":
        return
    if options.url:
        explore(options.url, options.out)
    else:
        with node(pack) as url:
            explore(url, options.out)


def explore(url: str, folder: Path) -> None:
    """Parts 2 and 3."""
    plot(read_while_generating(url), "Read while generating", folder / "read.png")
    plot(steer(url), "Steered", folder / "steered.png")


if __name__ == "__main__":
    main()
