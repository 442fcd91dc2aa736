"""One wire as a value: its routes, its errors, how its calls are answered, and what a proxy must know of it.

Law: whoever handles calls asks the value and names no wire. Reason for the properties: the table of all
dialects is read by commands too, so that a dialect's own modules are imported when somebody first needs them.
"""

from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, cast

from ganglion.wire import openai_errors
from ganglion.wire.error_format import ErrorFormat

if TYPE_CHECKING:
    from ganglion.wire.answer_format import AnswerFormat
    from ganglion.wire.operation import Operation
    from ganglion.wire.proxy_dialect import ProxyDialect

Wire = str
"""The name of a dialect, as routing, configuration and metrics use it."""
_RouteAccess = Literal["key", "admin"]


@dataclass(frozen=True, slots=True)
class WireRoute:
    """One call of a wire that a model answers, or that changes the server."""

    path: str
    method: str = "POST"
    generates: bool = False
    """Whether an answer is as long as the client lets it be."""
    runs_model: bool = True
    """Whether tokens are spent; counting and tokenizing spend none."""
    is_stored: bool = False
    """Whether the answer may be kept, so that a gateway handles the call itself."""
    may_outlast: bool = False
    """Whether an answer may run on after its request."""
    access: _RouteAccess = "key"


@dataclass(frozen=True)
class Dialect:
    """All that anybody must know of one wire."""

    name: Wire
    module: str
    """Where its own code is."""
    routes: tuple[WireRoute, ...] = ()
    is_folder: bool = True
    """Whether that is a package; a wire that only answers whole may be one module."""
    proxy_at: str | None = None
    """Where a proxy's knowledge of it is, as `module:name`; None for `PROXY` in the folder's `proxy`."""
    prefix: str | None = None
    """Whatever is below fails in the words of this wire; None where those are OpenAI's."""
    client_header: str | None = None
    """A header by which clients of this wire are known on routes that belong to no wire."""
    passed_headers: tuple[str, ...] = ()
    """What a foreign server is told of a client's headers, beside what is told on every wire."""
    is_usual: bool = False
    """Whether a foreign server is taken to speak it unless its declaration says otherwise."""
    is_translatable: bool = False
    """Whether its calls are put to a server that lacks it as chat completions."""

    @property
    def keeps_answers(self) -> bool:
        """Whether answers can be asked for again, below its prefix."""
        return any(route.is_stored for route in self.routes)

    @cached_property
    def answers(self) -> "tuple[AnswerFormat[Any], ...]":
        """The answer formats of its routes; none for a wire without answers, or with a service of its own."""
        return getattr(import_module(self.module), "ANSWERS", ())

    @cached_property
    def proxy(self) -> "ProxyDialect":
        """What whoever passes its calls on must know."""
        module, _, name = (self.proxy_at or f"{self.module}.proxy:PROXY").partition(":")
        return cast("ProxyDialect", getattr(import_module(module), name))

    @property
    def has_operations(self) -> bool:
        """Whether it describes its own routes."""
        return self.is_folder and bool(self.routes)

    @cached_property
    def operations(self) -> "tuple[Operation, ...]":
        """What a document says of its routes."""
        return cast("tuple[Operation, ...]", import_module(f"{self.module}.operations").OPERATIONS)

    @cached_property
    def errors(self) -> ErrorFormat:
        """How it says that a request failed."""
        if self.prefix is None:
            return openai_errors.ERRORS
        return cast("ErrorFormat", import_module(f"{self.module}.errors").ERRORS)
