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
from ganglion.wire.operation import Operation, Shapes, json_answer

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

SHAPES: Shapes = (
    *node_routes.SHAPES,
    FleetOverview,
    GatewayHealth,
    Drain,
    Move,
    FleetLoadBody,
    FleetActionDone,
    Join,
    Lease,
    Leave,
)

OPERATIONS: tuple[Operation, ...] = (
    *(operation for operation in node_routes.OPERATIONS if operation.path not in _OF_NODES_ONLY),
    Operation(
        "get",
        "/fleet",
        "List the nodes, what each holds and how it is.",
        {"200": json_answer("The fleet.", FleetOverview)},
    ),
    Operation(
        "get", "/health", "Say how the fleet is doing.", {"200": json_answer("Its health.", GatewayHealth)}
    ),
    Operation(
        "post",
        "/fleet/join",
        "Join the fleet as a node, or renew a lease.",
        {"200": json_answer("The lease.", Lease)},
        body="Join",
    ),
    Operation(
        "post", "/fleet/leave", "Leave it.", {"200": json_answer("Left.", FleetActionDone)}, body="Leave"
    ),
    Operation(
        "post",
        "/fleet/drain",
        "Give a node no new work, or give it some again.",
        {"200": json_answer("It is so.", FleetActionDone)},
        body="Drain",
    ),
    Operation(
        "post",
        "/fleet/move",
        "Load a model on a node, then let the others go of it.",
        {"200": json_answer("It has moved.", FleetActionDone)},
        body="Move",
    ),
    Operation(
        "post",
        "/fleet/load",
        "Have a model of the catalogue loaded where it fits best.",
        {"200": json_answer("It is loaded.", FleetActionDone)},
        body="FleetLoadBody",
    ),
)
