"""Finds unknown fields inside a body, by the shapes in which it is read.

Free-form JSON, and an object of which nothing is read (it is refused, or left to others), is not looked into.
A null asks for nothing, whatever it is called.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import msgspec
from msgspec import Raw, inspect

from ganglion.core.errors import UnknownParameter
from ganglion.wire.decode import FIELDS, decode

MAX_LISTED_BYTES: Final = 2**18
"""Of a body in which unknown fields are looked for only to be listed."""
_MAX_KINDS: Final = 64
"""Types whose shapes are kept in mind; there are fewer."""
_MAX_FOUND: Final = 64
_SHOWN: Final = 64

_list = msgspec.json.Decoder(list[Raw])
_text = msgspec.json.Decoder(str)

FieldShapes = Mapping[str, "FieldShape | None"]


@dataclass(frozen=True, slots=True)
class FieldShape:
    """The shape of a value: objects, by the value of their tag where they have one, and lists."""

    objects: Mapping[str, FieldShapes] = field(default_factory=dict)
    tag: str | None = None
    untagged: str = ""
    """Which of the objects is meant where the tag is left out."""
    items: "FieldShape | None" = None


@lru_cache(_MAX_KINDS)
def shape_of(kind: Any) -> FieldShape | None:
    """The shape of a type; None where nothing inside it is read."""
    return _shape(inspect.type_info(kind))


def list_of(items: FieldShape) -> FieldShape:
    """A list of such things."""
    return FieldShape(items=items)


def fields_of(kind: type[msgspec.Struct]) -> FieldShapes:
    """The shapes of the fields of a body."""
    shape = shape_of(kind)
    return {} if shape is None else shape.objects[""]


def check_unknown(
    unknown: Sequence[str],
    fields: Mapping[str, Raw],
    shapes: FieldShapes,
    harmless: frozenset[str] = frozenset(),
    *,
    is_strict: bool,
) -> tuple[str, ...]:
    """The unknown fields of a body and those inside it; with `is_strict`, raises for the first of them."""
    found = tuple(unknown)
    if is_strict or sum(len(memoryview(raw)) for raw in fields.values()) <= MAX_LISTED_BYTES:
        found += _unknown_inside(fields, shapes, harmless)
    if found and is_strict:
        raise UnknownParameter(f"The parameter '{found[0]}' is not known.", param=found[0])
    return found


def _unknown_inside(
    fields: Mapping[str, Raw], shapes: FieldShapes, harmless: frozenset[str] = frozenset()
) -> tuple[str, ...]:
    """The paths of fields that no shape has, in order; those named `harmless` ask nothing of an answer."""
    search = _Search(harmless)
    for name, raw in fields.items():
        shape = shapes.get(name)
        if shape is not None:
            search.look(raw, shape, name)
    return tuple(search.found)


class _Search:
    def __init__(self, harmless: frozenset[str]) -> None:
        self._harmless = harmless
        self.found: list[str] = []

    def look(self, raw: Raw, shape: FieldShape, path: str) -> None:
        first = bytes(memoryview(raw)[:1])
        if first == b"[" and shape.items is not None:
            items = decode(_list, raw, path)
            for place, each in enumerate(items):
                self.look(each, shape.items, f"{path}[{place}]")
        elif first == b"{" and shape.objects:
            self._object(raw, shape, path)

    def _object(self, raw: Raw, shape: FieldShape, path: str) -> None:
        fields = decode(FIELDS, raw, path)
        known = shape.objects.get(_kind(fields, shape))
        if known is None or len(self.found) >= _MAX_FOUND:
            return
        for name, value in fields.items():
            if name in known:
                inner = known[name]
                if inner is not None:
                    self.look(value, inner, f"{path}.{name}")
            elif name != shape.tag and name not in self._harmless and bytes(memoryview(value)[:4]) != b"null":
                self.found.append(f"{path}.{name[:_SHOWN]}")


def _kind(fields: Mapping[str, Raw], shape: FieldShape) -> str:
    if shape.tag is None or shape.tag not in fields:
        return shape.untagged
    try:
        return _text.decode(fields[shape.tag])
    except (msgspec.MsgspecError, UnicodeError):
        return shape.untagged


def _shape(info: inspect.Type) -> FieldShape | None:
    match info:
        case inspect.Metadata(type=inner):
            return _shape(inner)
        case inspect.StructType():
            return _of_structs([info])
        case inspect.ListType(item_type=inner) | inspect.VarTupleType(item_type=inner):
            items = _shape(inner)
            return None if items is None else FieldShape(items=items)
        case inspect.UnionType(types=types):
            return _of_union(types)
        case _:
            return None


def _of_union(types: Sequence[inspect.Type]) -> FieldShape | None:
    plain = [each.type if isinstance(each, inspect.Metadata) else each for each in types]
    objects = _of_structs([each for each in plain if isinstance(each, inspect.StructType)])
    lists = [shape for each in plain if isinstance(each, inspect.ListType) and (shape := _shape(each))]
    if not lists:
        return objects
    if objects is None:
        return lists[0]
    return FieldShape(objects.objects, objects.tag, items=lists[0].items)


def _of_structs(infos: Sequence[inspect.StructType]) -> FieldShape | None:
    # What forbids unknown fields refuses them when it is read.
    read = [info for info in infos if info.fields and not info.forbid_unknown_fields]
    if not read:
        return None
    objects = {
        str(info.tag) if info.tag is not None else "": {
            each.encode_name: _shape(each.type) for each in info.fields
        }
        for info in read
    }
    return FieldShape(objects, read[0].tag_field)


def refuse_unknown(body: bytes, shape: type[msgspec.Struct], *, is_strict: bool) -> None:
    """With `is_strict`, raise the UnknownParameter that names the first field that the shape lacks."""
    if not is_strict:
        return
    fields = decode(FIELDS, body)
    unknown = [name[:64] for name in fields if name not in shape.__struct_encode_fields__]
    check_unknown(unknown, fields, fields_of(shape), is_strict=is_strict)
