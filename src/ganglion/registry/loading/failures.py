"""Recent failures to load models: a request for the same model soon after gets the same error.

Law: a name is the client's to invent, so nothing here is listed, a tenant hears only of what it asked for
itself, and both the names of a tenant and the tenants are bounded; the oldest are forgotten first. Pure: time
is handed in.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from ganglion.core.errors import GanglionError

PAUSES_S: Final = (1.0, 2.0, 5.0, 15.0, 60.0)
"""How long after each failed load in a row a request is not tried again."""
REMEMBERED_S: Final = 300.0
"""How long after that it counts as one in a row."""
MOST_NAMES: Final = 64
"""Of one tenant; beyond these a name is tried anew each time, within the bound on loads."""
MOST_TENANTS: Final = 256


@dataclass(frozen=True, slots=True)
class RecentFailure:
    """How the last load of a model ended."""

    error: GanglionError
    count: int
    """Of failed loads in a row."""
    until_s: float
    """Not before this is it tried again for a request."""


def failed_again(error: GanglionError, before: RecentFailure | None, now_s: float) -> RecentFailure:
    """A load that just failed, after what was remembered of the one before."""
    count = 0 if before is None else before.count
    return RecentFailure(error, count + 1, now_s + PAUSES_S[min(count, len(PAUSES_S) - 1)])


class RecentFailures:
    """Recent failures of each tenant, by the model's id."""

    def __init__(self) -> None:
        self._by_tenant: OrderedDict[str, OrderedDict[str, RecentFailure]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._by_tenant.values()))

    def note(self, tenant: str, model: str, failure: RecentFailure) -> None:
        """Remember a failure for a tenant that asked for the model."""
        names = self._by_tenant.setdefault(tenant, OrderedDict())
        self._by_tenant.move_to_end(tenant)
        names[model] = failure
        names.move_to_end(model)
        while len(names) > MOST_NAMES:
            names.popitem(last=False)
        while len(self._by_tenant) > MOST_TENANTS:
            self._by_tenant.popitem(last=False)

    def of(self, tenant: str, model: str, now_s: float) -> RecentFailure | None:
        """The failure that is still remembered."""
        names = self._by_tenant.get(tenant) or OrderedDict()
        failure = names.get(model)
        if failure is not None and now_s > failure.until_s + REMEMBERED_S:
            del names[model]
            return None
        return failure

    def forget(self, model: str) -> None:
        """Drop the failures of a model that was loaded."""
        for names in self._by_tenant.values():
            names.pop(model, None)
