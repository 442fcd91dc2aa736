"""Flags that say where packages come from; left out, pip's own configuration does."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Group, Parameter

if TYPE_CHECKING:
    from ganglion.engines.installing.package_index import PackageIndex

_INDEX: Final = Group("Where packages come from (left out: as pip is configured)", sort_key=2)


@Parameter(name="*", group=_INDEX)
@dataclass(frozen=True, slots=True, kw_only=True)
class IndexFlags:
    """The package index."""

    index_url: Annotated[str | None, Parameter(help="The index that is asked.")] = None
    extra_index_url: Annotated[
        list[str] | None, Parameter(help="One that is asked besides; may be repeated.", negative=())
    ] = None

    def package_index(self) -> "PackageIndex":
        """As pip is told."""
        from ganglion.engines.installing.package_index import PackageIndex

        return PackageIndex(self.index_url, tuple(self.extra_index_url or ()))


INDEX_UNSET = IndexFlags()
