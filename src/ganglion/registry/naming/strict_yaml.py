"""YAML files, read without the language's traps.

Law: a file costs what its size says. Aliases are refused, since nine lines of them can stand for a billion
nodes; size and depth are bounded. A key is the text that was written, trimmed and case-folded, and stands
once: `no:` is called "no".
"""

import stat
from pathlib import Path
from typing import Any, Final

import yaml  # type: ignore[import-untyped]  # its stubs would be one more thing to install

from ganglion.core.errors import InvalidValue
from ganglion.registry.naming.names import fold

_SIZE_LIMIT_BYTES: Final = 1 << 18
"""Thousands of models; larger is some other file."""
_DEPTH_LIMIT: Final = 16
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MAP: Final = "tag:yaml.org,2002:map"
_LIST: Final = "tag:yaml.org,2002:seq"

_Tree = dict[str, Any]


def read_yaml(file: Path) -> object:
    """The file's one document as dicts, lists and scalars, None if missing or empty; raises InvalidValue."""
    text = _read(file)
    if text is None:
        return None
    try:
        _check(text, file)
        node = yaml.compose(text, Loader=_LOADER)
        return None if node is None else _value(node, file)
    except yaml.YAMLError as error:
        raise InvalidValue(f"{file} is not YAML: {_reason(error)}.") from error
    except ValueError as error:  # a number of thousands of digits, the 31st of February
        raise InvalidValue(f"{file} holds a value that cannot be read: {error}.") from error


def _read(file: Path) -> str | None:
    try:
        if not stat.S_ISREG(file.stat().st_mode):
            raise InvalidValue(f"{file} is not a regular file.")
        with file.open("rb") as opened:
            data = opened.read(_SIZE_LIMIT_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InvalidValue(f"{file} could not be read: {error.strerror or error}.") from error
    if len(data) > _SIZE_LIMIT_BYTES:
        raise InvalidValue(f"{file} is larger than {_SIZE_LIMIT_BYTES} bytes.")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidValue(f"{file} is not UTF-8 text.") from error


def _check(text: str, file: Path) -> None:
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.AliasEvent):
            raise InvalidValue(
                f"{file} uses the alias *{event.anchor} on line {_line(event)}.",
                hint="Aliases are not read here: write the value out.",
            )
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEPTH_LIMIT:
            raise InvalidValue(f"{file} is nested deeper than {_DEPTH_LIMIT} levels on line {_line(event)}.")


def _value(node: Any, file: Path) -> object:
    if isinstance(node, yaml.ScalarNode):
        return yaml.constructor.SafeConstructor().construct_object(node)
    if node.tag not in (_MAP, _LIST):
        raise InvalidValue(f"{file} uses the tag {node.tag} on line {_line(node)}, which is not read here.")
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, file) for item in node.value]
    return _mapping(node, file)


def _mapping(node: Any, file: Path) -> _Tree:
    lines: dict[str, int] = {}
    tree: _Tree = {}
    for key_node, value_node in node.value:
        if not isinstance(key_node, yaml.ScalarNode):
            raise InvalidValue(f"{file} has a key on line {_line(key_node)} that is not text.")
        key = fold(key_node.value)
        if key in tree:
            raise InvalidValue(
                f"The key {key!r} stands twice in {file}, on lines {lines[key]} and {_line(key_node)}.",
                param=key,
                hint="Keys are compared without blanks around them and in any case: rename one.",
            )
        lines[key], tree[key] = _line(key_node), _value(value_node, file)
    return tree


def _line(at: Any) -> int:
    return int(at.start_mark.line) + 1


def _reason(error: Any) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "it cannot be read"
    return f"{problem} on line {mark.line + 1}" if mark is not None else str(problem)
