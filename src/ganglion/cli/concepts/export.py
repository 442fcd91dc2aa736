"""`ganglion concepts export`: a concept pack in another folder, for another machine or for llama.cpp."""

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ganglion.cli.concepts import local_packs
from ganglion.cli.flags import ConfigFile, Json
from ganglion.cli.models.local_models import LocalContext
from ganglion.cli.terminal.output import print_json
from ganglion.core.errors import InvalidValue


def export(
    name: local_packs.PackName,
    /,
    *,
    to: Annotated[Path, Parameter(help="The folder to write into; made if it is not there.")],
    gguf: Annotated[
        bool, Parameter(help="Also a control vector of llama.cpp for each concept.", negative=())
    ] = False,
    json: Json = False,
    config: ConfigFile = None,
) -> None:
    """Copy a pack; the paths of what was written are printed on stdout."""
    path = local_packs.existing_pack(name, LocalContext.read(config))
    if to.exists() and path.parent.samefile(to):
        raise InvalidValue(f"The pack lies in {to} already.", param="to", hint="Name another folder.")
    files = _written(path, to, is_gguf=gguf)
    if json:
        print_json([str(file) for file in files])
    else:
        sys.stdout.writelines(f"{file}\n" for file in files)


def _written(path: Path, folder: Path, *, is_gguf: bool) -> list[Path]:
    from safetensors import SafetensorError

    from ganglion.engines.concepts.pack import (
        manifest_path,
        read_pack,
        write_control_vector,
        write_pack,
    )

    pack = read_pack(path)
    target = folder / path.name
    files = [target, manifest_path(target)]
    try:
        write_pack(pack, target)
        for number, concept in enumerate(pack.manifest.concepts if is_gguf else ()):
            # A pack from elsewhere may call its concepts anything, and so may not name a file.
            known = concept if local_packs.WORD.fullmatch(concept) else str(number)
            is_alone = len(pack.manifest.concepts) == 1
            files.append(folder / (f"{path.stem}.gguf" if is_alone else f"{path.stem}.{known}.gguf"))
            write_control_vector(pack, concept, files[-1])
    except (OSError, SafetensorError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise InvalidValue(f"{folder} cannot be written into: {reason}.", param="to") from error
    return files
