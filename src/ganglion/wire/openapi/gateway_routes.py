"""The routes of a gateway itself: its fleet, its health, and its operators' calls."""

from ganglion.wire.fleet import Join, Lease, Leave
from ganglion.wire.fleet_overview import (
    Drain,
    FleetActionDone,
    FleetLoadBody,
    FleetOverview,
    GatewayHealth,
    Move,
)
from ganglion.wire.openapi import node_routes
from ganglion.wire.operation import Operation, get, post

_OF_NODES_ONLY = frozenset(
    {
        "/health",
        "/discovery",
        "/fleet/state",
        "/models",
        "/models/load",
        "/models/unload",
        "/models/{model}/endpoint",
        "/models/{model}/capabilities",
    }
)

OPERATIONS: tuple[Operation, ...] = (
    *(operation for operation in node_routes.OPERATIONS if operation.path not in _OF_NODES_ONLY),
    get("/fleet", "List the nodes, what each holds and how it is.", "The fleet.", FleetOverview),
    get("/health", "Say how the fleet is doing.", "Its health.", GatewayHealth),
    post("/fleet/join", "Join the fleet as a node, or renew a lease.", "The lease.", Lease, body=Join),
    post("/fleet/leave", "Leave it.", "Left.", FleetActionDone, body=Leave),
    post(
        "/fleet/drain",
        "Give a node no new work, or give it some again.",
        "It is so.",
        FleetActionDone,
        body=Drain,
    ),
    post(
        "/fleet/move",
        "Load a model on a node, then let the others go of it.",
        "It has moved.",
        FleetActionDone,
        body=Move,
    ),
    post(
        "/fleet/load",
        "Have a model of the catalogue loaded where it fits best.",
        "It is loaded.",
        FleetActionDone,
        body=FleetLoadBody,
    ),
)
