"""The dashboard asks for metrics and labels that there are."""

import json
import re
from pathlib import Path
from typing import Any

from ganglion.core.engine import ModelState
from ganglion.core.events import Usage
from ganglion.gateway.fleet.fleet import Fleet
from ganglion.gateway.metrics import FleetMetrics, GatewayMetrics
from ganglion.gateway.node import NodeSpec, NodeView, Replica
from ganglion.server.prometheus import Metrics, SessionCounts

ROOT = Path(__file__).parents[2]
DASHBOARD: dict[str, Any] = json.loads((ROOT / "deploy/grafana/ganglion-fleet.json").read_text())
SCRAPED = {"job", "instance", "le"}
"""Labels that Prometheus adds, or every histogram has."""

GATEWAY: dict[str, set[str]] = {
    "ganglion_gateway_requests_total": {"wire", "status", "node"},
    "ganglion_gateway_request_seconds_bucket": {"wire"},
    "ganglion_gateway_first_byte_seconds_bucket": {"wire"},
    "ganglion_gateway_in_flight": {"node"},
    "ganglion_gateway_retries_total": {"node"},
    "ganglion_gateway_upstream_failures_total": {"node"},
    "ganglion_gateway_refusals_total": {"code"},
    "ganglion_gateway_tokens_total": {"tenant", "model", "kind"},
    "ganglion_gateway_connections": set(),
    "ganglion_gateway_node_healthy": {"node"},
    "ganglion_gateway_replicas": {"model", "status"},
}
"""What a gateway counts, and by which labels."""


def expressions() -> list[str]:
    asked = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
    variables = DASHBOARD["templating"]["list"]
    return asked + [each["query"]["query"] for each in variables if each["type"] == "query"]


async def node_metrics() -> dict[str, set[str]]:
    """What a node's page holds: each series' name and labels."""
    metrics = Metrics()
    metrics.sessions = lambda: SessionCounts(0, 0, 0)
    model = metrics.of_model("m")
    model.requests.labels("m", "stop").inc()
    model.first_token_s.observe(0.1)
    return series_of(await metrics.page([ModelState("m", "echo", "loaded", 8, 0)]))


def series_of(page: bytes) -> dict[str, set[str]]:
    """Each series of a page and its labels."""
    found: dict[str, set[str]] = {}
    for line in page.decode().splitlines():
        if series := re.match(r"(ganglion_\w+)(?:\{(.*?)\})? ", line):
            found[series[1]] = set(re.findall(r'(\w+)="', series[2] or ""))
    return found


def labels_of(expression: str) -> set[str]:
    """Every label that an expression groups by, selects by or shows."""
    grouped = {
        name.strip() for group in re.findall(r"\bby \(([^)]*)\)", expression) for name in group.split(",")
    }
    selected = set(re.findall(r'(\w+)\s*=~?"', expression))
    return grouped | selected | set(re.findall(r"label_values\(\w+, (\w+)\)", expression))


async def test_every_metric_and_label_of_the_dashboard_is_one_that_is_written() -> None:
    nodes = {name: labels | {"node"} for name, labels in (await node_metrics()).items()}  # by prometheus.yml
    known = nodes | GATEWAY
    assert len(expressions()) > 30
    for expression in expressions():
        names = set(re.findall(r"ganglion_\w+", expression))
        assert names, expression
        assert names <= set(known), expression
        labels = set().union(*(known[name] for name in names))
        assert labels_of(expression) <= labels | SCRAPED, expression


def test_everything_a_gateway_counts_is_on_the_dashboard() -> None:
    assert {name for name in GATEWAY if not any(name in expression for expression in expressions())} == set()


async def test_the_gateway_counts_what_the_dashboard_asks_it_for() -> None:
    front = GatewayMetrics()
    node = NodeView(NodeSpec("a", "http://a"), is_healthy=True, replicas=(Replica("m", "loaded"),))
    front.in_flight = {"a": 1}
    front.ended("chat", 200, "a", 0.1)
    front.begun("chat", 0.1)
    front.spent("tenant", "m", Usage(1, 1))
    front.refused("overloaded")
    front.retried("a")
    front.failed("a")
    fleet = Fleet((node.spec,))
    fleet.put(node)
    written = series_of(await FleetMetrics(front, fleet, tuple).page())
    assert {
        name: written.get(name, set()) - {"le"} >= labels for name, labels in GATEWAY.items()
    } == dict.fromkeys(GATEWAY, True)
    assert set(GATEWAY) <= set(written)


def test_the_legend_shows_labels_that_the_expression_keeps() -> None:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            assert shown <= labels_of(target["expr"]), target["expr"]


def test_the_dashboard_belongs_to_no_instance() -> None:
    assert DASHBOARD["id"] is None
    assert DASHBOARD["schemaVersion"] >= 39
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    uids = set(re.findall(r'"uid": ?"([^"]*)"', json.dumps(DASHBOARD)))
    assert uids == {"${datasource}", "ganglion-fleet"}
    places = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(places) == len(set(places)), "no panel covers another"
    assert max(x for x, _ in places) < 24
