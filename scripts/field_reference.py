"""The tables of sampling parameters, unsupported fields and errors in docs/*.md, written from the code.

`python scripts/field_reference.py FILES` fills in what stands between `<!-- NAME -->` and
`<!-- end of NAME -->`, for each name of `TABLES`.
"""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from ganglion.core.errors import GanglionError, class_of, error_classes
from ganglion.core.request import JsonValue
from ganglion.core.sampling import PARAMS, PLAIN, SAMPLER_PARAMS, Param, ResolvedSampling
from ganglion.wire.field_policy import (
    INSTEAD,
    UNSUPPORTED,
    UNSUPPORTED_IN_CHAT,
    UNSUPPORTED_IN_COMPLETIONS,
    NeutralValues,
)
from ganglion.wire.responses.supported_fields import INSTEAD as RESPONSES_INSTEAD
from ganglion.wire.responses.supported_fields import OF_OTHER_WIRES
from ganglion.wire.salience import salience_pb2 as pb

_SAMPLING_HEAD: Final = "| field | bounds | default | meaning |\n|---|---|---|---|\n"
_UNSUPPORTED_HEAD: Final = "| field | passes besides null | use |\n|---|---|---|\n"
_ERRORS_HEAD: Final = "| status | type | code | gRPC | when |\n|---|---|---|---|---|\n"


def main(arguments: list[str]) -> int:
    """Write the tables of some files anew."""
    for file in map(Path, arguments):
        file.write_text(filled(file.read_text()))
    return 0


def filled(document: str) -> str:
    """The document with every table as the code has it."""
    for name, table in TABLES.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        before, found, rest = document.partition(begin)
        if found:
            document = f"{before}{begin}{table()}{end}{rest.partition(end)[2]}"
    return document


def _sampling(name: Callable[[str, Param], str]) -> str:
    return _SAMPLING_HEAD + "".join(_rows(PARAMS, ResolvedSampling(), name))


def _session_options() -> str:
    names = pb.GenerateRequest.DESCRIPTOR.fields_by_name
    params = {name: param for name, param in PARAMS.items() if name in names}
    return _SAMPLING_HEAD + "".join(_rows(params, ResolvedSampling(), _own_name))


def _samplers() -> str:
    return _SAMPLING_HEAD + "".join(_rows(SAMPLER_PARAMS, PLAIN, _own_name))


def _own_name(name: str, _: Param) -> str:
    return f"`{name}`"


def _alias(name: str, param: Param) -> str:
    return f"`{param.alias or name}`"


def _both_names(name: str, param: Param) -> str:
    return f"`{name}`, `{param.alias}`" if param.alias else f"`{name}`"


def _rows(params: Mapping[str, Param], defaults: object, title: Callable[[str, Param], str]) -> Iterator[str]:
    for name, param in params.items():
        default = _default(getattr(defaults, name))
        yield f"| {title(name, param)} | {param.bounds} | {default} | {param.doc} |\n"


def _default(value: object) -> str:
    match value:
        case None:
            return "none"
        case tuple():
            return " ".join(f"`{text}`".replace("\n", r"\n") for text in value)
        case _:
            return f"{value:g}"


def _unsupported(fields: NeutralValues, instead: Mapping[str, str]) -> str:
    """The fields that a wire refuses by name, with the values that pass and the field to use instead."""
    return _UNSUPPORTED_HEAD + "".join(
        f"| `{name}` | {_passing(neutral)} | {_use(instead.get(name), fields)} |\n"
        for name, neutral in fields.items()
    )


def _passing(neutral: tuple[JsonValue, ...]) -> str:
    # 1 and 1.0 are one number to a reader.
    return ", ".join(dict.fromkeys(f"`{json.dumps(value)}`".replace(".0`", "`") for value in neutral))


def _use(instead: str | None, fields: NeutralValues) -> str:
    return f"`{instead}`" if instead is not None and instead not in fields else ""


def _errors() -> str:
    """Every code, by status; where two classes state one, the class that it leads back to."""
    ours = [kind for kind in error_classes() if kind.__module__ == GanglionError.__module__]
    kinds = {kind.code: class_of(kind.code) or kind for kind in ours}.values()
    return _ERRORS_HEAD + "".join(map(_error_row, sorted(kinds, key=lambda kind: kind.status)))


def _error_row(kind: type[GanglionError]) -> str:
    when = (kind.__doc__ or "").partition("\n")[0]
    return f"| {kind.status} | `{kind.type}` | `{kind.code}` | `{kind.grpc}` | {when} |\n"


TABLES: Final[Mapping[str, Callable[[], str]]] = {
    "sampling": partial(_sampling, _both_names),
    "options": partial(_sampling, _alias),  # of Ollama's wire
    "session options": _session_options,
    "samplers": _samplers,
    "errors": _errors,
    "unsupported in chat": partial(_unsupported, UNSUPPORTED_IN_CHAT, INSTEAD),
    "unsupported in completions": partial(
        _unsupported,
        {name: neutral for name, neutral in UNSUPPORTED_IN_COMPLETIONS.items() if name not in UNSUPPORTED},
        INSTEAD,
    ),
    "unsupported in responses": partial(_unsupported, OF_OTHER_WIRES, RESPONSES_INSTEAD),
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
