"""Which fields a body may hold: judged by name and size before any of them is read."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from ganglion.core.errors import InvalidValue
from ganglion.core.request import JsonValue
from ganglion.wire.decode import decode
from ganglion.wire.nested import Fields, judged
from ganglion.wire.unhonoured import HARMLESS, INSTEAD, refuse_unhonoured

MAX_FIELDS = 512
MAX_FREE_FORM_BYTES = 2**18

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


@dataclass(frozen=True, slots=True)
class Known:
    """The fields of one wire; `free_form` says how large each of those may be whose shape is the client's."""

    honoured: frozenset[str]
    unhonoured: Mapping[str, tuple[JsonValue, ...]]
    free_form: Mapping[str, int]
    instead: Mapping[str, str] = field(default_factory=lambda: INSTEAD)
    """What to use in place of some of those that are not honoured."""
    shapes: Callable[[], Fields] = dict
    """What is read inside of them."""
    harmless_inside: frozenset[str] = frozenset()
    """Fields inside them that ask nothing of the answer."""

    def check(self, body: bytes, *, is_strict: bool) -> tuple[str, ...]:
        """The fields that nobody knows, also inside others; raises for what is too large or not honoured."""
        fields = decode(_fields, body)
        self._check_size(fields)
        refuse_unhonoured(fields, self.unhonoured, self.instead)
        known = self.honoured | HARMLESS | self.unhonoured.keys()
        unknown = tuple(name for name in fields if name not in known)
        return judged(unknown, fields, self.shapes(), self.harmless_inside, is_strict=is_strict)

    def _check_size(self, fields: dict[str, msgspec.Raw]) -> None:
        # Free-form JSON costs a hundred times its size to read, on the event loop: bound it before reading.
        if len(fields) > MAX_FIELDS:
            raise InvalidValue(f"The body holds {len(fields)} parameters; {MAX_FIELDS} is the most.")
        for name, raw in fields.items():
            limit = MAX_FREE_FORM_BYTES if name in self.unhonoured else self.free_form.get(name)
            if limit is not None and len(bytes(raw)) > limit:
                raise InvalidValue(f"'{name}' is larger than {limit} bytes.", param=name)
