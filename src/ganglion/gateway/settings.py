"""The `[gateway]` section and the `[[nodes]]` tables of the configuration.

A field with a description is a key of its section.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from ganglion.wire.foreign_wires import ForeignWire


class GatewaySettings(Struct, frozen=True):
    """How a gateway finds its nodes, and how long it waits for them."""

    catalogue: (
        Annotated[
            str,
            Meta(
                description="A `models.toml`: which models may be loaded, where they fit, and which ones may "
                "stand in for them. In a config file, relative to that file.",
                extra={"is_relative_to_file": True},
            ),
        ]
        | None
    ) = None
    node_key: (
        Annotated[
            str,
            Meta(description="The key that it shows to our nodes: one of their `server.gateway_keys`."),
        ]
        | None
    ) = None
    lease_s: Annotated[
        float,
        Meta(ge=0.5, le=300, description="How long a node that joined counts as present without renewing."),
    ] = 5.0
    poll_s: Annotated[
        float,
        Meta(
            ge=0.1,
            le=60,
            description="How often each node's state is polled; our own nodes also report changes at once.",
        ),
    ] = 2.0
    connect_s: Annotated[float, Meta(gt=0, description="How long connecting to a node may take.")] = 3.0
    first_byte_s: Annotated[float, Meta(gt=0, description="How long a node may take to begin an answer.")] = (
        900.0
    )
    idle_s: Annotated[float, Meta(gt=0, description="How long an answer that has begun may be silent.")] = (
        300.0
    )
    queue_requests: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000_000,
            description="Requests that may wait for a node that has its `max_in_flight` running; "
            "tenants take turns, and the next request is refused with 503.",
        ),
    ] = 1024
    queue_s: Annotated[
        float, Meta(gt=0, description="How long each of these waits at most before it is refused with 503.")
    ] = 30.0
    open_answer_tokens: Annotated[
        int,
        Meta(
            ge=1,
            description="The longest answer of a request that sets no limit, for keys with a cap on tokens "
            "or cost: a request reserves what it can take. A cap that allows less bounds it further.",
        ),
    ] = 4096
    has_tracing: Annotated[
        bool,
        Meta(
            description="Record each request as an OpenTelemetry span, where its package is installed; see "
            "docs/fleet.md."
        ),
    ] = field(default=False, name="tracing")


class DeclaredNode(Struct, frozen=True, forbid_unknown_fields=True):
    """A node that is declared rather than joining by itself."""

    url: Annotated[
        str,
        Meta(description="`http://host:port`; for a server of another kind, everything before `/v1`."),
    ]
    name: (
        Annotated[
            str,
            Meta(description="Its name in tables, metrics and session ids; left out, made from the address."),
        ]
        | None
    ) = None
    kind: Annotated[
        Literal["ganglion", "openai"],
        Meta(description="`openai` is any server that speaks chat completions."),
    ] = "ganglion"
    key_env: Annotated[str, Meta(description="The environment variable that holds its key.")] | None = None
    key_file: (
        Annotated[
            str,
            Meta(
                description="The file that holds its key; in a config file, relative to that file.",
                extra={"is_relative_to_file": True},
            ),
        ]
        | None
    ) = None
    wires: (
        Annotated[
            tuple[ForeignWire, ...],
            Meta(
                description="What a server of another kind speaks; left out, chat, completions and "
                "embeddings. Other wires are translated."
            ),
        ]
        | None
    ) = None
    models: Annotated[tuple[str, ...], Meta(description="Only these of the models that it lists.")] | None = (
        None
    )
    max_in_flight: (
        Annotated[int, Meta(ge=1, description="Requests that the gateway has running there at once.")] | None
    ) = None
    cool_down_after: Annotated[
        int, Meta(ge=1, description="Failures in a row after which it gets no requests for a while.")
    ] = 3
    cool_down_s: Annotated[float, Meta(ge=0, description="How long that is, in seconds.")] = 10.0
