"""Reads a fleet for commands: from a gateway's `GET /fleet`, or from each node."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from ganglion.core.errors import GanglionError, InvalidApiKey, InvalidRequest, NotAllowed, UpstreamUnavailable
from ganglion.gateway.fleet.node_views import overview_view, polled_view
from ganglion.gateway.node import NodeSpec, NodeView
from ganglion.gateway.upstream.address import parse_node_url
from ganglion.gateway.upstream.node_client import NodeClient, NodeResponse
from ganglion.gateway.upstream.pool import ConnectionPools
from ganglion.wire.fleet_overview import parse_overview
from ganglion.wire.upstream.polling import parse_health, parse_models

_T = TypeVar("_T")

_TIMEOUT_S = 10.0


def node_spec(node: str, api_key: str | None) -> NodeSpec:
    """The node that `NAME=URL` or `URL` means; raises InvalidValue."""
    name, equals, url = node.partition("=")
    if not equals or "://" in name:
        name, url = "", node
    address = parse_node_url(url if "://" in url else f"http://{url}")
    name = name or f"{address.host}-{address.port}"
    return NodeSpec(name, url if "://" in url else f"http://{url}", api_key=api_key)


async def read_gateway(url: str, api_key: str | None) -> dict[str, NodeView]:
    """Every node that a gateway knows; raises where it does not answer."""
    pools = ConnectionPools()
    try:
        overview = await _get(NodeClient(pools), node_spec(url, api_key), "/fleet", parse_overview)
    finally:
        pools.close()
    return {node.name: overview_view(node) for node in overview.nodes}


async def read_nodes(specs: Sequence[NodeSpec]) -> dict[str, NodeView]:
    """Every one of these nodes; one that does not answer is unhealthy, and says why."""
    pools = ConnectionPools()
    try:
        views = await asyncio.gather(*(_read_node(NodeClient(pools), spec) for spec in specs))
    finally:
        pools.close()
    return {view.name: view for view in views}


async def _read_node(node_client: NodeClient, spec: NodeSpec) -> NodeView:
    try:
        models = await _get(node_client, spec, "/models", parse_models)
        health = await _get(node_client, spec, "/health", parse_health)
        return polled_view(spec, models, health, asyncio.get_running_loop().time())
    except InvalidApiKey:
        raise
    except GanglionError as error:
        return NodeView(spec, error=error.message)


async def _get(node_client: NodeClient, spec: NodeSpec, path: str, parse: Callable[[bytes], _T]) -> _T:
    answer: NodeResponse = await node_client.call(spec, "GET", path, timeout_s=_TIMEOUT_S)
    if answer.status == InvalidApiKey.status:
        raise InvalidApiKey(
            f"{spec.url} refuses the key.", hint="Give a key with --api-key, or in GANGLION_API_KEY."
        )
    if answer.status == NotAllowed.status:
        raise NotAllowed(f"The key may not read {path} of {spec.url}.", hint="It takes a key of role admin.")
    try:
        if answer.status != 200:
            raise InvalidRequest(f"status {answer.status}")
        return parse(answer.body)
    except InvalidRequest:
        raise UpstreamUnavailable(
            f"What {spec.url} answers to {path} is not what a node or a gateway answers."
        ) from None
