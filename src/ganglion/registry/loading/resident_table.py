"""The residents by their ids, and what a name means among them and beyond.

Law: a name that a request made up is held only while it is looked for.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final, Protocol

from ganglion.core.errors import InvalidValue, ModelNotFound, Overloaded
from ganglion.registry.loading.candidate import Candidate
from ganglion.registry.loading.resident import Resident
from ganglion.registry.naming.catalogue import HeldModelRef
from ganglion.registry.naming.manifest import CATCH_ALL
from ganglion.registry.naming.names import fold
from ganglion.registry.naming.resolver import nearest_names_hint

LOOKUPS: Final = 64
"""Models being loaded whose names were unknown until a request used them."""
LOOKUPS_OF_TENANT: Final = 4
"""The same for one tenant: a hub takes its time to say that it does not know a name, and others wait too."""


class NameLookup(Protocol):
    """Looks beyond what is held."""

    async def __call__(self, name: str, *, may_catch_all: bool) -> Candidate | str:
        """What a name means: another model, or the id of one that is held; raises ModelNotFound."""


async def no_lookup(name: str, *, may_catch_all: bool) -> Candidate | str:
    """Find nothing."""
    raise ModelNotFound(name)


class ResidentTable:
    """Every model that is held, was named, or is being looked for."""

    def __init__(self, find: NameLookup = no_lookup) -> None:
        self.by_id: dict[str, Resident] = {}
        self._find = find

    def __iter__(self) -> Iterator[Resident]:
        return iter(self.by_id.values())

    def configure(self, candidates: Sequence[Candidate]) -> None:
        """Hold these names from now on; what is loaded and no longer named stays until it is unloaded."""
        ids = [candidate.id for candidate in candidates]
        for model_id in ids:
            if ids.count(model_id) > 1:
                raise InvalidValue(
                    f"Two models would be served as {model_id!r}.",
                    param="model",
                    hint="Give one of them another name with --served-name.",
                )
        for model_id in [each for each in self.by_id if each not in ids]:
            if self.by_id[model_id].status in ("unloaded", "failed"):
                del self.by_id[model_id]
        for candidate in candidates:
            resident = self.by_id.setdefault(candidate.id, Resident(candidate))
            resident.candidate, resident.is_pinned = candidate, candidate.is_pinned
            resident.is_established = True

    def loaded(self) -> list[Resident]:
        """Those that hold an engine."""
        return [each for each in self if each.status in ("loaded", "draining")]

    def held(self) -> tuple[HeldModelRef, ...]:
        """The names that are taken, for whoever resolves others."""
        return tuple(HeldModelRef(each.id, each.candidate.aliases, each.candidate.path) for each in self)

    async def resolve(self, name: str, *, may_find: bool, may_catch_all: bool = False) -> Resident:
        """The resident that a name means, one that is made now if need be; raises ModelNotFound."""
        resident = self.by_id.get(name) or self._with_alias(fold(name))
        if resident is not None:
            return resident
        if may_find:
            with suppress(ModelNotFound):
                found = await self._find(name, may_catch_all=may_catch_all)
                model_id = found if isinstance(found, str) else found.id
                if isinstance(found, Candidate):
                    self.by_id.setdefault(model_id, Resident(found))
                if model_id in self.by_id:
                    return self.by_id[model_id]
        resident = self._with_alias(CATCH_ALL) if may_catch_all else None
        if resident is None:
            raise self._unknown(name)
        return resident

    async def resolve_held(self, name: str) -> Resident:
        """The resident that a name means, of those that are held; raises ModelNotFound."""
        resident = self.by_id.get(name) or self._with_alias(fold(name))
        if resident is None:
            with suppress(ModelNotFound):
                found = await self._find(name, may_catch_all=False)
                resident = self.by_id.get(found if isinstance(found, str) else found.id)
        if resident is None:
            raise self._unknown(name)
        return resident

    def _with_alias(self, alias: str) -> Resident | None:
        for resident in self:
            if alias in map(fold, resident.candidate.aliases):
                return resident
        return None

    def _unknown(self, name: str) -> ModelNotFound:
        return ModelNotFound(
            name,
            hint=nearest_names_hint(
                name, [state.id for each in self if each.is_listed for state in each.states()]
            ),
        )

    def check_lookups(self, resident: Resident, tenant: str | None) -> None:
        """Raise Overloaded where as many models are looked for as may be, for all or for one tenant."""
        if resident.is_established or resident.candidate.path is not None:
            return
        coming = [each for each in self if each.is_looked_for]
        of_tenant = sum(tenant in each.tenants for each in coming)
        if len(coming) >= LOOKUPS or of_tenant >= LOOKUPS_OF_TENANT:
            self.drop_invented(resident)
            raise Overloaded("Too many models are being looked for.", hint="Retry when they are found.")

    def drop_invented(self, resident: Resident) -> None:
        """Forget a name that was asked for in vain; callers that still wait have the resident in hand."""
        if not resident.is_established and self.by_id.get(resident.id) is resident:
            del self.by_id[resident.id]
