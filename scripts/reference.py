"""The tables of docs/configuration.md, written from the code: `python scripts/reference.py FILE`.

A table stands between `<!-- keys: SECTION -->` and `<!-- end of keys -->`; `top` is the section of the keys
that stand above all tables of the TOML file. A list of tables has a section of its own, whose keys stand in
the file alone. The limits stand between `<!-- limits -->` and `<!-- end of limits -->`.
"""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

import msgspec
from msgspec import inspect as kinds

from ganglion.cli.flags import EngineFlags, FlagGroup, OutputFlags
from ganglion.cli.gateway import FleetFlags, GatewayServerFlags
from ganglion.cli.serve import JoinFlags, ResidencyFlags, SecurityFlags, ServerFlags
from ganglion.cli.terminal.console import say_error
from ganglion.config import PREFIX, Config, descriptions
from ganglion.core.attachments import MAX_ATTACHMENT_BYTES, MAX_ATTACHMENTS
from ganglion.engines import tokenizing
from ganglion.engines.images import decoder, decoder_child
from ganglion.engines.llama.grammar import matcher
from ganglion.engines.llama.worker import embedding
from ganglion.engines.rendering import renderer
from ganglion.engines.supervision.watchdog import WorkerLimits
from ganglion.gateway.proxy import body_budget
from ganglion.registry.loading.residency import WAITING_LIMIT
from ganglion.registry.loading.resident_table import LOOKUPS, LOOKUPS_OF_TENANT
from ganglion.server.grpc import message_limits
from ganglion.server.images import image_fetcher, image_memory, outbound
from ganglion.server.life.connection import HEAD_S, MAX_HEAD_BYTES
from ganglion.server.settings import ServerSettings
from ganglion.sessions.settings import SessionSettings

_LIMITS_HEAD = "| what | limit |\n|---|---|\n"


def _limits_table() -> str:
    """The table of fixed limits."""
    return _LIMITS_HEAD + "".join(f"| {what} | {limit} |\n" for what, limit in _limit_rows())


def _limit_rows() -> tuple[tuple[str, str], ...]:
    """Each bounded quantity and its limit."""
    server, worker, sessions = ServerSettings(), WorkerLimits(), SessionSettings()
    sizes = message_limits
    return (
        ("head of a request", f"{_bytes(MAX_HEAD_BYTES)}, {HEAD_S:g} s"),
        ("body", f"`server.max_body_bytes`, {server.body_s:g} s"),
        (
            f"bodies above {_bytes(body_budget.SMALL_BYTES)} that are still coming",
            f"{_bytes(body_budget.ROOM_BYTES)}, half of it of one key; others wait {body_budget.WAIT_S:g} s, "
            "then `overloaded`",
        ),
        (
            "images and sounds in a request",
            f"{MAX_ATTACHMENTS} of {_bytes(MAX_ATTACHMENT_BYTES)} each, within the body",
        ),
        (
            "images fetched by their address",
            f"{image_fetcher.MAX_ADDRESSES} and {_bytes(image_fetcher.MAX_FETCHED_BYTES)} for a request, "
            f"{outbound.TOTAL_S:g} s each; {image_fetcher.AT_ONCE} at once, "
            f"{image_fetcher.AT_ONCE_EACH} of one key",
        ),
        (
            "images and sounds of requests that run",
            f"{_bytes(image_memory.ROOM_BYTES)}, {_bytes(image_memory.ROOM_BYTES_EACH)} of one key, "
            "then `overloaded`",
        ),
        ("connections", f"{server.max_connections:,}"),
        ("requests being answered at once", f"{server.max_in_flight:,}, then `overloaded`"),
        ("requests that wait for one model to load", f"{WAITING_LIMIT:,}, then `model_loading`"),
        (
            "hub names that a key has looked up at once, and all keys together",
            f"{LOOKUPS_OF_TENANT} and {LOOKUPS}, then `overloaded`",
        ),
        (
            "a message over gRPC",
            f"{_bytes(MAX_ATTACHMENT_BYTES)} of an image, {_bytes(sizes.CONTENT_BYTES)} of tokens, text or "
            f"saved session, {_bytes(sizes.SMALL_BYTES)} of anything else, {sizes.MAX_FIELDS:,} fields, "
            f"{server.body_s:g} s",
        ),
        (
            "messages over gRPC that are still coming",
            f"{sizes.QUICK_MESSAGES}, {sizes.QUICK_MESSAGES_EACH} of one key; those that take longer than "
            f"{sizes.QUICK_S:g} s: {sizes.SLOW_MESSAGES}, {sizes.SLOW_MESSAGES_EACH} of one key",
        ),
        (
            "a saved session that comes in",
            f"{_bytes(sizes.MAX_SAVED_BYTES)}, and {_bytes(sizes.MAX_UPLOADING_BYTES)} of all at a time",
        ),
        ("a stream whose client does not read", f"cut after {server.stalled_reader_s:g} s"),
        ("an idle connection", f"closed after {server.idle_connection_s} s"),
        ("silence on a stream", f"a comment after {server.keep_alive_s:g} s"),
        (
            "rendering of a chat template",
            f"{renderer.BUDGET_S:g} s of processor time, {_bytes(renderer.MEMORY_BYTES)} of memory, "
            f"{_bytes(renderer.MAX_BYTES)} of text; {renderer.CHILDREN} at once, "
            f"{renderer.CHILDREN - 1} of one key; {renderer.WALL_S:g} s of waiting, then `overloaded`",
        ),
        (
            "decoding of an image",
            f"{decoder.BUDGET_S:g} s of processor time, {_bytes(decoder.MEMORY_BYTES)} of memory, "
            f"{_bytes(MAX_ATTACHMENT_BYTES)} of file, {decoder_child.MAX_PIXELS:,} pixels "
            f"({decoder_child.MAX_JPEG_PIXELS:,} of a JPEG), {decoder_child.MAX_EDGE:,} on a side; "
            f"{decoder.CHILDREN} at once, {decoder.CHILDREN - 1} of one key",
        ),
        (
            "images in sessions",
            f"{_bytes(sessions.max_session_image_bytes)} of files in one session, "
            f"{_bytes(sessions.max_key_image_bytes)} of one key, `sessions.max_image_mb` of all",
        ),
        (
            "texts that wait to be tokenized",
            f"{_bytes(tokenizing.MOST_BYTES_EACH)} of one key in each of three sizes "
            f"({_bytes(tokenizing.SIZE_LIMITS[0])}, {_bytes(tokenizing.SIZE_LIMITS[1])}, larger)",
        ),
        ("control tokens in one text", f"{tokenizing.MARKERS:,}"),
        ("formats that wait to be compiled", f"{matcher.WAITING_EACH} of one key"),
        ("tokens that wait to be made vectors of", f"{embedding.MOST_TOKENS_EACH:,} of one key"),
        ("loading of a model", f"{worker.load_s:g} s"),
        (
            "wait of a new request for a crashed model's restart",
            f"{worker.recovery_wait_s:g} s, then `model_recovering`",
        ),
    )


def _bytes(count: int) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count // size} {unit}"
    return f"{count} bytes"


_FLAGS: Final[tuple[type[FlagGroup], ...]] = (
    ServerFlags,
    SecurityFlags,
    EngineFlags,
    ResidencyFlags,
    JoinFlags,
    GatewayServerFlags,
    FleetFlags,
    OutputFlags,
)
_TOP: Final = "top"
_BLOCK: Final = re.compile(r"(<!-- keys: (\S+) -->\n).*?(<!-- end of keys -->)", re.DOTALL)
_LIMITS: Final = re.compile(r"(<!-- limits -->\n).*?(<!-- end of limits -->)", re.DOTALL)
_ABSENT: Final = "-"
_REQUIRED: Final = object()
_TYPE_WORDS: Final = {kinds.BoolType: "`true`, `false`", kinds.StrType: "text", kinds.DictType: "table"}
HEAD: Final = "| key | flag | environment | value | default | meaning |\n|---|---|---|---|---|---|\n"


@dataclass(frozen=True, slots=True)
class _ReferenceRow:
    """One thing that an operator can decide."""

    section: str
    name: str
    type: kinds.Type
    default: object
    meaning: str
    is_listed: bool = False
    """Of one of several tables, which only a file can hold."""

    @property
    def path(self) -> str:
        """As it is written in the environment and in messages."""
        return self.name if self.section == _TOP else f"{self.section}.{self.name}"


def main(arguments: list[str]) -> int:
    """Write the tables of one file anew."""
    if len(arguments) != 1:
        say_error("One file is expected.", "python scripts/reference.py docs/configuration.md")
        return 2
    file = Path(arguments[0])
    try:
        file.write_text(filled(file.read_text()))
    except ValueError as error:
        say_error(str(error))
        return 1
    return 0


def filled(document: str) -> str:
    """The document with every table as the code has it; raises ValueError where a section has no place."""
    tables = {section: _table(section) for section in dict.fromkeys(key.section for key in keys())}
    placed = [match[2] for match in _BLOCK.finditer(document)]
    if sorted(placed) != sorted(tables):
        wrong = set(placed) ^ set(tables) or {name for name in placed if placed.count(name) > 1}
        raise ValueError(f"Each section needs one place in the document, as in <!-- keys: {min(wrong)} -->.")
    document = _BLOCK.sub(lambda match: f"{match[1]}{tables[match[2]]}{match[3]}", document)
    return _LIMITS.sub(lambda match: f"{match[1]}{_limits_table()}{match[2]}", document)


def keys() -> Iterator[_ReferenceRow]:
    """Every key there is, section by section, in the order of the code."""
    yield from _keys(Config, _TOP)


def _keys(struct: type[msgspec.Struct], section: str, *, is_listed: bool = False) -> Iterator[_ReferenceRow]:
    described = descriptions(struct)
    below: list[tuple[type[msgspec.Struct], str, bool]] = []
    for field in msgspec.structs.fields(struct):
        name = field.encode_name if section == _TOP else f"{section}.{field.encode_name}"
        kind = kinds.type_info(field.type)
        match kind.type if isinstance(kind, kinds.Metadata) else kind:
            case kinds.StructType(cls=each):
                below.append((each, name, False))
            case kinds.VarTupleType(item_type=kinds.StructType(cls=each)):
                below.append((each, name, True))
            case kind if meaning := described.get(field.encode_name):
                default = _REQUIRED if field.required else field.default
                yield _ReferenceRow(section, field.encode_name, kind, default, meaning, is_listed)
    for each, name, is_list in below:
        yield from _keys(each, name, is_listed=is_list)


def _table(section: str) -> str:
    flags = _flags()
    return HEAD + "".join(_row(key, flags.get(key.path)) for key in keys() if key.section == section)


def _row(key: _ReferenceRow, flag: str | None) -> str:
    variable = PREFIX + key.path.upper().replace(".", "__")
    cells = (
        f"`{key.path}`",
        f"`{flag}`" if flag else _ABSENT,
        _ABSENT if key.is_listed else f"`{variable}`",
        _value(key.type),
        _default(key.default),
        key.meaning,
    )
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


def _flags() -> dict[str, str]:
    """The flag of each key that has one."""
    found = {"models": "MODELS"}
    for group in _FLAGS:
        given = group(**{field.name: "given" for field in fields(group)})  # type: ignore[arg-type]
        found |= {setting.key: setting.source.removeprefix("the flag ") for setting in given.settings()}
    return found


def _value(kind: kinds.Type) -> str:
    match kind:
        case kinds.Metadata(type=inner):
            return _value(inner)
        case kinds.UnionType(types=types):
            return " or ".join(_value(each) for each in types if not isinstance(each, kinds.NoneType))
        case kinds.LiteralType(values=values):
            return ", ".join(f"`{value}`" for value in values)
        case kinds.IntType() | kinds.FloatType():
            return f"{'whole ' if isinstance(kind, kinds.IntType) else ''}number{_bounds(kind)}"
        case kinds.VarTupleType(item_type=item) | kinds.ListType(item_type=item):
            return f"list of {_value(item)}"
        case _ if type(kind) in _TYPE_WORDS:
            return _TYPE_WORDS[type(kind)]
        case _:
            raise ValueError(f"The reference has no words for {type(kind).__name__}.")


def _bounds(kind: kinds.IntType | kinds.FloatType) -> str:
    lowest = f" from {kind.ge}" if kind.ge is not None else f" above {kind.gt}" if kind.gt is not None else ""
    highest = f" to {kind.le}" if kind.le is not None else f" below {kind.lt}" if kind.lt is not None else ""
    return lowest + highest


def _default(value: object) -> str:
    match value:
        case None:
            return _ABSENT
        case _ if value is _REQUIRED:
            return "required"
        case () | []:
            return "none"
        case bool():
            return f"`{str(value).lower()}`"
        case int() | float():
            return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"
        case _:
            return f"`{value}`"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
