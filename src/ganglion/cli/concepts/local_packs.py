"""The concept packs of this machine, and the residuals of examples in its models."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter

from ganglion.cli.concepts.pack_files import FOLDER, SUFFIX, is_path, pack_path
from ganglion.cli.models.local_models import LocalContext
from ganglion.cli.terminal.console import say_warning
from ganglion.cli.terminal.progress import count_bar
from ganglion.core.errors import InvalidValue, MissingParameter, ModelNotFound, ReadoutNotFound

if TYPE_CHECKING:
    from cyclopts.completion import CompletionContext

    from ganglion.engines.concepts.pack import ConceptPack, PackModel
    from ganglion.engines.llama.concepts.residual_frames import Pool
    from ganglion.engines.llama.concepts.residuals import Residuals

WORD: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
EMBEDDED: Final = "smollm2"


def packs_folder(local: LocalContext) -> Path:
    """Where this machine keeps its packs."""
    return local.home / FOLDER


def _local_pack_names(_: "CompletionContext") -> list[str]:
    """The names that a shell offers behind a command."""
    return [file.stem for file in sorted(packs_folder(LocalContext.read(None)).glob(f"*{SUFFIX}"))]


PackName = Annotated[
    str,
    Parameter(
        help="A name from `ganglion concepts list`, or a .safetensors file.", completer=_local_pack_names
    ),
]
ModelName = Annotated[str | None, Parameter(help="A GGUF file or a name (default: the pack's, or smollm2).")]


def checked_name(text: str, param: str) -> str:
    """A name that can be a file's and stand in a request; raises InvalidValue."""
    if not WORD.fullmatch(text):
        raise InvalidValue(
            f"{text[:80]!r} cannot be a name.",
            param=param,
            hint="Names are up to 64 letters, digits, '-', '_' and '.', and begin with a letter or digit.",
        )
    return text


def pack_file(name: str, local: LocalContext) -> Path:
    """Where a pack's vectors lie, or would lie."""
    return pack_path(name if is_path(name) else checked_name(name, "name"), local.home)


def existing_pack(name: str, local: LocalContext) -> Path:
    """The same of a pack that is there; raises ReadoutNotFound."""
    path = pack_file(name, local)
    if not path.is_file():
        raise ReadoutNotFound(
            f"There is no concept pack {name!r} here.",
            param="name",
            hint="ganglion concepts list shows those that are; ganglion concepts train makes one.",
        )
    return path


def model_of(pack: "ConceptPack", local: LocalContext) -> str:
    """The name of a pack's model on this machine; raises ModelNotFound where nothing is called so."""
    from ganglion.registry.naming.resolver import Unresolved

    name = pack.manifest.model.name
    if isinstance(local.explain(name), Unresolved):
        raise ModelNotFound(name, hint=f"The pack was made on it; name its file with --model {name}.gguf")
    return name


def concept_of(pack: "ConceptPack", asked: str | None) -> str:
    """Which concept of a pack is meant; raises what is wrong with it."""
    names = pack.manifest.concepts
    if asked is None and len(names) > 1:
        raise MissingParameter(
            f"The pack {pack.manifest.name!r} holds {len(names)} concepts.",
            param="concept",
            hint=f"Name one with --concept: {', '.join(names[:16])}",
        )
    if asked is not None and asked not in names:
        raise InvalidValue(
            f"The pack {pack.manifest.name!r} holds no concept {asked!r}.",
            param="concept",
            hint=f"It holds: {', '.join(names[:16])}",
        )
    return asked or names[0]


def read_texts(
    local: LocalContext,
    model: str,
    texts: Sequence[str],
    *,
    layers: Sequence[int] | None,
    pool: "Pool",
    pack: "ConceptPack | None" = None,
) -> "tuple[Residuals, PackModel]":
    """Run texts through a model with a bar beside it; raises what is wrong with the model.

    With a pack it has to be the model of that pack.
    """
    from ganglion.engines.concepts.pack import PackModel
    from ganglion.engines.llama.concepts.residual_frames import LARGEST_TEXT_TOKENS
    from ganglion.engines.llama.concepts.residuals import read_residuals
    from ganglion.engines.llama.concepts.training import check_model
    from ganglion.registry.files.gguf import read_facts

    resolution = local.resolve(model)
    path = local.file_of(model, resolution)
    facts = read_facts(path)
    if pack is not None:  # as far as the file says; how wide its stream is turns out when it is read
        width = pack.manifest.model.hidden_size
        check_model(pack, PackModel(resolution.id, facts.architecture, width, facts.block_count))
    if not facts.can_generate:
        raise InvalidValue(f"{resolution.id} only embeds text; concepts are read where text is generated.")
    engine = local.config.engine
    with count_bar("reading", len(texts)) as report:
        read = read_residuals(
            path,
            texts,
            layers=layers,
            pool=pool,
            threads=engine.threads,
            gpu_layers=engine.gpu_layers or 0,
            report=report,
        )
    if read.cut:
        say_warning(f"{read.cut} examples were read up to their {LARGEST_TEXT_TOKENS}th token only")
    about = PackModel(resolution.id, read.model.architecture, read.model.hidden_size, read.model.block_count)
    if pack is not None:
        check_model(pack, about)
    return read, about


def bar(share: float, width: int = 10) -> str:
    """An AUC as a bar, from chance to perfect."""
    eighths: int = round(min(max(share - 0.5, 0.0) * 2, 1.0) * width * 8)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()
