"""The `[gateway]` section and the `[[nodes]]` tables of the configuration.

A field that its class docstring describes is a key of its section.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from ganglion.wire.foreign_wires import ForeignWire


class GatewaySettings(Struct, frozen=True):
    """How a gateway finds its nodes, and how long it waits for them.

    catalogue: A `models.toml`: which models may be loaded, where they fit, and which ones may stand in for
        them. In a config file, relative to that file.
    node_key: The key that it shows to our nodes: one of their `server.gateway_keys`.
    lease_s: How long a node that joined counts as present without renewing.
    poll_s: How often each node's state is polled; our own nodes also report changes at once.
    connect_s: How long connecting to a node may take.
    first_byte_s: How long a node may take to begin an answer.
    idle_s: How long an answer that has begun may be silent.
    queue_requests: Requests that may wait for a node that has its `max_in_flight` running; tenants take
        turns, and the next request is refused with 503.
    queue_s: How long each of these waits at most before it is refused with 503.
    open_answer_tokens: The longest answer of a request that sets no limit, for keys with a cap on tokens or
        cost: a request reserves what it can take. A cap that allows less bounds it further.
    tracing: Record each request as an OpenTelemetry span, where its package is installed; see
        docs/fleet.md.
    """

    catalogue: Annotated[str, Meta(extra={"is_relative_to_file": True})] | None = None
    node_key: str | None = None
    lease_s: Annotated[float, Meta(ge=0.5, le=300)] = 5.0
    poll_s: Annotated[float, Meta(ge=0.1, le=60)] = 2.0
    connect_s: Annotated[float, Meta(gt=0)] = 3.0
    first_byte_s: Annotated[float, Meta(gt=0)] = 900.0
    idle_s: Annotated[float, Meta(gt=0)] = 300.0
    queue_requests: Annotated[int, Meta(ge=0, le=1000000)] = 1024
    queue_s: Annotated[float, Meta(gt=0)] = 30.0
    open_answer_tokens: Annotated[int, Meta(ge=1)] = 4096
    has_tracing: bool = field(default=False, name="tracing")


class DeclaredNode(Struct, frozen=True, forbid_unknown_fields=True):
    """A node that is declared rather than joining by itself.

    url: `http://host:port`; for a server of another kind, everything before `/v1`.
    name: Its name in tables, metrics and session ids; left out, made from the address.
    kind: `openai` is any server that speaks chat completions.
    key_env: The environment variable that holds its key.
    key_file: The file that holds its key; in a config file, relative to that file.
    wires: What a server of another kind speaks; left out, chat, completions and embeddings. Other wires are
        translated.
    models: Only these of the models that it lists.
    vision: Models of a server of another kind that take images, `*` for all that it lists.
    max_in_flight: Requests that the gateway has running there at once.
    cool_down_after: Failures in a row after which it gets no requests for a while.
    cool_down_s: How long that is, in seconds.
    """

    url: str
    name: str | None = None
    kind: Literal["ganglion", "openai"] = "ganglion"
    key_env: str | None = None
    key_file: Annotated[str, Meta(extra={"is_relative_to_file": True})] | None = None
    wires: tuple[ForeignWire, ...] | None = None
    models: tuple[str, ...] | None = None
    vision: tuple[str, ...] = ()
    max_in_flight: Annotated[int, Meta(ge=1)] | None = None
    cool_down_after: Annotated[int, Meta(ge=1)] = 3
    cool_down_s: Annotated[float, Meta(ge=0)] = 10.0
