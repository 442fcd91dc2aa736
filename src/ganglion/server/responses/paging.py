"""Pages of lists: the query parameters `limit`, `after` and `order`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request

from ganglion.core.errors import InvalidValue, ItemNotFound
from ganglion.wire.responses import Item

_DEFAULT_LIMIT: Final = 20
_MAX_LIMIT: Final = 100
_LARGEST: Final = 2**53


def query_number(request: Request, name: str, *, default: int, most: int = _LARGEST) -> int:
    """A number of the query; raises InvalidValue for anything else."""
    value = request.query_params.get(name)
    if value is None:
        return default
    if not (value.isascii() and value.isdigit() and len(value) < 17 and int(value) <= most):
        raise InvalidValue(f"'{name}' is a whole number from 0 to {most}, not {value[:64]!r}.", param=name)
    return int(value)


@dataclass(frozen=True, slots=True)
class PageQuery:
    """At most `limit` items beyond the one named `after`, newest first unless asked otherwise."""

    limit: int
    after: str | None
    is_descending: bool

    @classmethod
    def of(cls, request: Request) -> "PageQuery":
        """The page that a request's query asks for."""
        limit = query_number(request, "limit", default=_DEFAULT_LIMIT, most=_MAX_LIMIT)
        if limit < 1:
            raise InvalidValue(f"'limit' is from 1 to {_MAX_LIMIT}.", param="limit")
        order = request.query_params.get("order", "desc")
        if order not in ("asc", "desc"):
            raise InvalidValue(f"'order' is asc or desc, not {order[:64]!r}.", param="order")
        return cls(limit, request.query_params.get("after"), order == "desc")

    def cut(self, items: Sequence[Item]) -> tuple[list[Item], bool]:
        """The page of a whole list, and whether more follows it."""
        ordered = list(reversed(items)) if self.is_descending else list(items)
        if self.after is not None:
            places = [place for place, item in enumerate(ordered) if item.id == self.after]
            if not places:
                raise ItemNotFound(f"There is no item {self.after[:200]!r} here.", param="after")
            ordered = ordered[places[0] + 1 :]
        return ordered[: self.limit], len(ordered) > self.limit
