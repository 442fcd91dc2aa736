"""`ganglion concepts train`: a concept pack from a file of examples and a file of their opposites."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

from cyclopts import Parameter, validators

from ganglion.cli.concepts import local_packs
from ganglion.cli.concepts.examples import Examples, Negative, Positive, read_examples
from ganglion.cli.concepts.pack_files import SUFFIX
from ganglion.cli.flags import ConfigFile, Json
from ganglion.cli.models.local_models import LocalContext
from ganglion.cli.terminal.console import say
from ganglion.cli.terminal.output import TableRow, print_json, print_table
from ganglion.cli.terminal.progress import count_bar
from ganglion.core.errors import InvalidValue

if TYPE_CHECKING:
    from ganglion.engines.concepts.pack import ConceptPack, PackModel
    from ganglion.engines.llama.concepts.training import LayerChoice, TrainedConcept

_AUTO: Final = "auto"
_BEST: Final = "best"
_MAX_LAYERS: Final = 64
_HEADINGS: Final = ("layer", "AUC", "", "logistic", "d'", "chosen")


@dataclass(frozen=True, slots=True)
class _TrainedLayer:
    """One layer, as `--json` prints it."""

    layer: int
    auc: float
    auc_logistic: float
    dprime: float
    span: float | None
    """None where no vector was kept."""
    is_chosen: bool


@dataclass(frozen=True, slots=True)
class _TrainingReport:
    """What was made, as `--json` prints it."""

    name: str
    concept: str
    path: str
    model: str
    concepts: tuple[str, ...]
    positive: int
    negative: int
    layers: tuple[_TrainedLayer, ...]
    eval_command: str
    serve_command: str


def train(
    name: Annotated[str, Parameter(help="What the pack is called.")],
    /,
    *,
    positive: Positive,
    negative: Negative,
    model: local_packs.ModelName = None,
    layers: Annotated[str, Parameter(help="auto, best, or numbers as in 7,14,21.")] = _AUTO,
    concept: Annotated[
        str | None, Parameter(help="What the concept is called (default: as the pack).")
    ] = None,
    add: Annotated[bool, Parameter(help="Put it into a pack that is there.", negative=())] = False,
    out: Annotated[
        Path | None, Parameter(help="The .safetensors file to write (default: in GANGLION_HOME/concepts).")
    ] = None,
    pool: Annotated[
        Literal["mean", "last"],
        Parameter(help="What is read of an example: the mean of its tokens, or its last one."),
    ] = "mean",
    held_out: Annotated[
        float,
        Parameter(help="Share held out at a time, for judging.", validator=validators.Number(gt=0, lte=0.5)),
    ] = 0.25,
    description: Annotated[str, Parameter(help="A sentence for whoever finds it.")] = "",
    json: Json = False,
    config: ConfigFile = None,
) -> None:
    """Make a concept and write it into a pack."""
    from ganglion.engines.llama.concepts.training import FEWEST_EXAMPLES

    local = LocalContext.read(config)
    path = _target(name, out, local)
    title = local_packs.checked_name(concept or name, "concept")
    asked = _layers(layers)
    examples = read_examples(positive, negative, fewest=FEWEST_EXAMPLES)
    before = _before(path, title, asked, is_added=add)
    named = model or (local_packs.EMBEDDED if before is None else local_packs.model_of(before, local))
    made, about = _made(
        local,
        named,
        examples,
        title,
        before=before,
        layers=asked if before is None else before.manifest.layers,
        choice=_choice(layers, before),
        pool=pool,
        held_out=held_out,
    )
    pack = _written(path, name, made, about, before=before, description=description[:1000])
    trained = _trained(path, pack, made, named, str(path) if out is not None else name)
    if json:
        print_json(trained)
    else:
        _print(trained)


def _target(name: str, out: Path | None, local: LocalContext) -> Path:
    local_packs.checked_name(name, "name")
    if out is None:
        return local_packs.pack_file(name, local)
    if out.suffix != SUFFIX:
        raise InvalidValue(f"--out names {out}; expected a file that ends in {SUFFIX}.", param="out")
    return out


def _layers(text: str) -> list[int] | None:
    """The layers that were named, None for auto; raises InvalidValue."""
    if text.strip() in (_AUTO, _BEST):
        return None
    parts = [part.strip() for part in text.split(",")]
    if len(parts) > _MAX_LAYERS or not all(
        part.isascii() and part.isdecimal() and len(part) < 5 for part in parts
    ):
        raise InvalidValue(
            f"--layers is {text[:80]!r}; expected auto, best, or up to {_MAX_LAYERS} numbers as in 7,14,21.",
            param="layers",
        )
    return sorted(set(map(int, parts)))


def _before(path: Path, concept: str, asked: list[int] | None, *, is_added: bool) -> "ConceptPack | None":
    """The pack to add to; raises InvalidValue where it does not fit, or where one would be lost."""
    from ganglion.engines.concepts.pack import read_pack

    if not path.is_file():
        if is_added:
            raise InvalidValue(
                f"There is no pack {path} to add to.", param="add", hint="Leave --add out to make one."
            )
        return None
    pack = read_pack(path)
    others = [name for name in pack.manifest.concepts if name != concept]
    if others and not is_added:
        raise InvalidValue(
            f"The pack {pack.manifest.name!r} holds {', '.join(others[:8])}, which would be lost.",
            param="name",
            hint="--add puts another concept beside them; another NAME makes another pack.",
        )
    if is_added and asked is not None and asked != pack.manifest.layers:
        raise InvalidValue(
            f"The pack {pack.manifest.name!r} has the layers {pack.manifest.layers}, not {asked}.",
            param="layers",
            hint="All concepts of a pack share its layers: leave --layers out.",
        )
    return pack if is_added else None


def _made(
    local: LocalContext,
    model: str,
    examples: Examples,
    title: str,
    *,
    before: "ConceptPack | None",
    layers: list[int] | None,
    choice: "LayerChoice",
    pool: Literal["mean", "last"],
    held_out: float,
) -> "tuple[TrainedConcept, PackModel]":
    from ganglion.engines.llama.concepts import training

    read, about = local_packs.read_texts(local, model, examples.all, layers=layers, pool=pool, pack=before)
    count = len(examples.positive)
    with count_bar("judging", len(read.layers)) as report:
        made = training.train(
            title,
            read.values[:count],
            read.values[count:],
            read.layers,
            block_count=about.block_count,
            choice=choice,
            pool=pool,
            held_out=held_out,
            digest=training.digest_of(examples.positive, examples.negative),
            report=report,
        )
    return made, about


def _written(
    path: Path,
    name: str,
    made: "TrainedConcept",
    about: "PackModel",
    *,
    before: "ConceptPack | None",
    description: str,
) -> "ConceptPack":
    from safetensors import SafetensorError

    from ganglion.engines.concepts.pack import write_pack
    from ganglion.engines.llama.concepts.training import add_concept, new_pack

    if before is None:
        pack = new_pack(name, about, made, description)
    else:
        pack = add_concept(before, made, description)
    try:
        write_pack(pack, path)
    except (OSError, SafetensorError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise InvalidValue(f"{path} cannot be written: {reason}.", param="out") from error
    return pack


def _choice(text: str, before: "ConceptPack | None") -> "LayerChoice":
    if before is not None:
        return "named"
    match text.strip():
        case "auto":
            return "common"
        case "best":
            return "best"
        case _:
            return "named"


def _trained(
    path: Path, pack: "ConceptPack", made: "TrainedConcept", model: str, name: str
) -> _TrainingReport:
    """What was made; `model` and `name` as the next commands have to name them."""
    layers = tuple(
        _TrainedLayer(
            each.layer,
            round(each.auc, 4),
            round(each.auc_logistic, 4),
            round(each.dprime, 4),
            made.directions[each.layer].span if each.layer in made.directions else None,
            each.layer in made.directions,
        )
        for each in made.judged
    )
    return _TrainingReport(
        pack.manifest.name,
        made.name,
        str(path),
        pack.manifest.model.name,
        tuple(pack.manifest.concepts),
        made.notes.positive,
        made.notes.negative,
        layers,
        shlex.join(["ganglion", "concepts", "eval", name, "--model", model]),
        shlex.join(["ganglion", "serve", model, "--concepts", name]),
    )


def _print(trained: _TrainingReport) -> None:
    rows = [
        TableRow(
            (
                str(each.layer),
                f"{each.auc:.3f}",
                local_packs.bar(each.auc),
                f"{each.auc_logistic:.3f}",
                f"{each.dprime:.2f}",
                "yes" if each.is_chosen else "",
            )
        )
        for each in trained.layers
    ]
    print_table(_HEADINGS, rows, right=("layer", "AUC", "logistic", "d'"))
    chosen = ", ".join(str(each.layer) for each in trained.layers if each.is_chosen)
    say(f"{trained.concept} after the layers {chosen} of {trained.model}: {trained.path}")
    say(f"judge it on other examples:  {trained.eval_command} --positive FILE --negative FILE")
    say(f"read it and steer by it:     {trained.serve_command}")
