"""Which node answers, case by case."""

from dataclasses import dataclass, field, replace

import pytest
from made_nodes import StillLoads, held, node, nodes

from ganglion.core.errors import (
    GanglionError,
    InsufficientMemory,
    InsufficientVideoMemory,
    ModelLoading,
    ModelNotFound,
    ModelRecovering,
    ModelUnavailable,
    Overloaded,
    ShuttingDown,
    UpstreamUnavailable,
    WireUnsupported,
)
from ganglion.gateway.fleet.fleet import Fleet
from ganglion.gateway.node import DeviceMemory, NodeSpec, NodeView
from ganglion.gateway.placing.catalogue import CatalogueModel, FleetCatalogue
from ganglion.gateway.routing.decision import (
    ChosenNode,
    ColdModel,
    NoRoute,
    RoutingDecision,
    RoutingRequest,
    TranslatedNode,
)
from ganglion.gateway.routing.policies import route
from ganglion.gateway.routing.router import Router
from ganglion.gateway.routing.table import RoutingTable
from ganglion.wire.dialect import Wire


@dataclass
class Case:
    """A fleet, what is asked of it, and `chosen NODE MODEL`, `translated …`, `cold MODEL` or an error."""

    says: str
    views: list[NodeView]
    expected: str | type[GanglionError]
    asked: str = "m"
    wire: Wire = "chat"
    affinity: str = ""
    tried: frozenset[str] = frozenset()
    models: list[CatalogueModel] = field(default_factory=list)
    loads: StillLoads = field(default_factory=StillLoads)
    is_alone: bool = False


def model(model_id: str = "m", **fields: object) -> CatalogueModel:
    return CatalogueModel(id=model_id, **fields)  # type: ignore[arg-type]


def one_of(*names: str) -> frozenset[str]:
    return frozenset(names)


BUSY = StillLoads({"a": 5, "b": 1})
CASES = [
    Case("the only one that holds it", [node("a"), node("b", "m")], "chosen b m"),
    Case("an id is exact", [node("a", "m")], ModelNotFound, asked="M"),
    Case(
        "a node's alias in any case", [node("a", held("x", aliases=("Large",)))], "chosen a x", asked="LARGE"
    ),
    Case("an id before an alias", [node("a", held("x", aliases=("m",))), node("b", "m")], "chosen b m"),
    Case("a tag is tried without it", [node("a", "m")], "chosen a m", asked="m:latest"),
    Case("a port is no tag", [node("a", "host")], ModelNotFound, asked="host:80/m"),
    Case("a star catches all", [node("a", held("x", aliases=("*",)))], "chosen a x", asked="gpt-4o"),
    Case("the catalogue's star", [node("a", "m")], "chosen a m", asked="z", models=[model(aliases=("*",))]),
    Case(
        "the catalogue's alias", [node("a", "m")], "chosen a m", asked="Big", models=[model(aliases=("big",))]
    ),
    Case(
        "a source as nodes list it",
        [node("a", "o/r:Q8_0")],
        "chosen a o/r:Q8_0",
        models=[model(source="o/r:q8_0")],
    ),
    Case(
        "a quant beside the source",
        [node("a", "o/r:Q8")],
        "chosen a o/r:Q8",
        models=[model(source="o/r", quant="Q8")],
    ),
    Case(
        "what nodes list it as",
        [node("a", "file")],
        "chosen a file",
        models=[model(source="o/r", served_as="file")],
    ),
    Case("the least loaded", [node("a", "m"), node("b", "m")], "chosen b m", loads=BUSY),
    Case(
        "what a node tells counts too",
        [node("a", held("m", in_flight=1)), node("b", held("m", in_flight=2, queued=7))],
        "chosen a m",
        loads=StillLoads({"a": 5, "b": 1}),
    ),
    Case(
        "ours are not counted twice",
        [node("a", held("m", in_flight=5)), node("b", "m")],
        "chosen a m",
        loads=StillLoads({"a": 5, "b": 6}),
    ),
    Case("not one that was tried", [node("a", "m"), node("b", "m")], "chosen b m", tried=one_of("a")),
    Case(
        "not one that cools",
        [node("a", "m"), node("b", "m")],
        "chosen b m",
        loads=StillLoads(cooling=one_of("a")),
    ),
    Case("not one that drains", [node("a", "m", is_draining=True), node("b", "m")], "chosen b m"),
    Case("not one that is ill", [node("a", "m", is_healthy=False), node("b", "m")], "chosen b m"),
    Case(
        "not one at its cap",
        [node("a", "m", max_in_flight=1), node("b", "m")],
        "chosen b m",
        loads=StillLoads({"a": 1, "b": 9}),
    ),
    Case(
        "not a replica that is still loading", [node("a", held("m", "loading")), node("b", "m")], "chosen b m"
    ),
    Case(
        "not a replica with as many as the catalogue allows",
        [
            node("a", held("m", in_flight=2, queued=1)),
            node("b", held("m", in_flight=2), held("n", in_flight=9)),
        ],
        "chosen b m",
        models=[model(max_in_flight=3)],
    ),
    Case(
        "who knows the conversation",
        [node("a", "m"), node("b", "m", digest=("x",)), node("c", "m")],
        "chosen b m",
        affinity="x",
    ),
    Case(
        "who knows it and is overloaded does not get it",
        [node("a", "m", is_draining=True), node("b", "m", digest=("x",)), node("c", "m")],
        "chosen c m",
        affinity="x",
        loads=StillLoads({"b": 9, "c": 1}),
    ),
    Case(
        "a foreign wire is kept where it is spoken",
        [node("a", "m", is_foreign=True), node("b", "m")],
        "chosen b m",
        wire="messages",
    ),
    Case(
        "translated where only chat is spoken",
        [node("a", "m", is_foreign=True)],
        "translated a m",
        wire="messages",
    ),
    Case("responses too", [node("a", "m", is_foreign=True)], "translated a m", wire="responses"),
    Case("ollama too", [node("a", "m", is_foreign=True)], "translated a m", wire="ollama"),
    Case(
        "translated when those who speak it were tried",
        [node("a", "m", is_foreign=True), node("b", "m")],
        "translated a m",
        wire="messages",
        tried=one_of("b"),
    ),
    Case("prompts in its own words", [node("a", "m", is_foreign=True)], "translated a m", wire="prompt"),
    Case("rankings too", [node("a", "m", is_foreign=True)], "translated a m", wire="rerank"),
    Case(
        "not one that another has to itself",
        [node("a", "m"), node("b", "m")],
        "chosen b m",
        loads=StillLoads(reserved=frozenset("a")),
    ),
    Case(
        "alone, where nothing runs",
        [node("a", "m"), node("b", "m")],
        "chosen b m",
        loads=StillLoads({"a": 1}),
        is_alone=True,
    ),
    Case(
        "alone, and something runs everywhere",
        [node("a", "m"), node("b", "m", "f")],
        Overloaded,
        models=[model("m", fallbacks=("f",))],
        loads=StillLoads({"a": 1, "b": 1}),
        is_alone=True,
    ),
    Case("scores cannot be carried", [node("a", "m", is_foreign=True)], WireUnsupported, wire="score"),
    Case(
        "nor can completions",
        [node("a", "m", wires=frozenset(("chat",)))],
        WireUnsupported,
        wire="completions",
    ),
    Case("recovering", [node("a", held("m", "recovering"))], ModelRecovering),
    Case(
        "recovering comes before a load",
        [node("a", held("m", "recovering")), node("b")],
        ModelRecovering,
        models=[model()],
    ),
    Case("loading", [node("a", held("m", "loading"))], ModelLoading),
    Case("downloading", [node("a", held("m", "downloading"))], ModelLoading),
    Case(
        "loading because we asked for it is waited for",
        [node("a", held("m", "loading"))],
        "cold m",
        models=[model()],
        loads=StillLoads(loading=one_of("m")),
    ),
    Case(
        "also where only nodes know it",
        [node("a", held("x", "loading", aliases=("m",)))],
        "cold x",
        loads=StillLoads(loading=one_of("x")),
    ),
    Case("cold from the catalogue", [node("a")], "cold m", asked="M1", models=[model(aliases=("m1",))]),
    Case(
        "cold when its node is gone",
        [node("a", "m", is_healthy=False), node("b")],
        "cold m",
        models=[model()],
    ),
    Case("cold because a node lists it", [node("a", held("m", "unloaded"))], "cold m"),
    Case("a failed load may be tried again", [node("a", held("m", "failed"))], "cold m"),
    Case(
        "a foreign server loads nothing", [node("a", held("m", "unloaded"), is_foreign=True)], ModelNotFound
    ),
    Case(
        "cold when only busy ones are in the way",
        [node("a", held("x", memory_mb=4000, in_flight=1), free_mb=10)],
        "cold m",
        models=[model(memory_mb=4000)],
    ),
    Case(
        "too large for all", [node("a", free_mb=10)], InsufficientVideoMemory, models=[model(memory_mb=4000)]
    ),
    Case(
        "too large, with a fallback",
        [node("a", "n", free_mb=10)],
        "chosen a n",
        models=[model(memory_mb=4000, fallbacks=("n",)), model("n")],
    ),
    Case(
        "a fallback that is loaded before one that is not",
        [node("a", "o", free_mb=900)],
        "chosen a o",
        models=[model(memory_mb=4000, fallbacks=("n", "o")), model("n"), model("o")],
    ),
    Case(
        "a cold fallback is better than none",
        [node("a", free_mb=900)],
        "cold n",
        models=[model(memory_mb=4000, fallbacks=("n",)), model("n", memory_mb=500)],
    ),
    Case(
        "a fallback's fallback",
        [node("a", "o", free_mb=10)],
        "chosen a o",
        models=[
            model(memory_mb=4000, fallbacks=("n",)),
            model("n", memory_mb=4000, fallbacks=("o",)),
            model("o"),
        ],
    ),
    Case(
        "full, with a fallback",
        [node("a", "m", max_in_flight=1), node("b", "n")],
        "chosen b n",
        loads=StillLoads({"a": 1}),
        models=[model(fallbacks=("n",)), model("n")],
    ),
    Case(
        "a fallback that was tried is not one",
        [node("a", "m"), node("b", "n")],
        UpstreamUnavailable,
        tried=one_of("a", "b"),
        models=[model(fallbacks=("n",)), model("n")],
    ),
    Case(
        "not loadable, and nobody has it",
        [node("a", "n")],
        ModelUnavailable,
        models=[model(loadable=False)],
    ),
    Case(
        "not loadable, with a fallback",
        [node("a", "n")],
        "chosen a n",
        models=[model(loadable=False, fallbacks=("n",)), model("n")],
    ),
    Case("all at their cap", [node("a", "m", max_in_flight=1)], Overloaded, loads=StillLoads({"a": 1})),
    Case(
        "all at their cap is not a reason to load it again",
        [node("a", "m", max_in_flight=1), node("b")],
        Overloaded,
        loads=StillLoads({"a": 1}),
        models=[model()],
    ),
    Case("all were tried", [node("a", "m")], UpstreamUnavailable, tried=one_of("a")),
    Case(
        "tried here, recovering there",
        [node("a", "m"), node("b", held("m", "recovering"))],
        ModelRecovering,
        tried=one_of("a"),
    ),
    Case("all are ill", [node("a", "m", is_healthy=False)], ModelUnavailable),
    Case("all drain", [node("a", "m", is_draining=True)], ShuttingDown),
    Case("unknown", [node("a", "n")], ModelNotFound),
    Case("an empty name", [node("a", "n")], ModelNotFound, asked=""),
    Case("no node at all", [], ModelNotFound),
]


def told(decision: RoutingDecision) -> str | type[GanglionError]:
    match decision:
        case ChosenNode(node=spec, model=name):
            return f"chosen {spec.name} {name}"
        case TranslatedNode(node=spec, model=name):
            return f"translated {spec.name} {name}"
        case ColdModel(model=name):
            return f"cold {name}"
        case NoRoute(error=error):
            return type(error)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.says.replace(" ", "-"))
def test_route(case: Case) -> None:
    table = RoutingTable(nodes(*case.views), FleetCatalogue(tuple(case.models)))
    asked = RoutingRequest(case.asked, case.wire, case.affinity, case.tried, case.is_alone)
    for turn in range(3):
        assert told(route(table, asked, case.loads, turn)) == case.expected


def refusal(table: RoutingTable, asked: RoutingRequest, loads: StillLoads | None = None) -> GanglionError:
    decision = route(table, asked, loads or StillLoads())
    assert isinstance(decision, NoRoute)
    return decision.error


def test_refusals_say_when_to_come_back_and_what_is_meant() -> None:
    table = RoutingTable(
        nodes(
            node("a", held("r", "recovering"), held("l", "loading"), "f"),
            node("b", "gone", is_healthy=False),
        ),
        FleetCatalogue((model("big", memory_mb=99000),)),
    )
    assert refusal(table, RoutingRequest("r", "chat")).retry_after_s == 2
    assert refusal(table, RoutingRequest("l", "chat")).retry_after_s == 10
    gone = refusal(table, RoutingRequest("gone", "chat"))
    assert (gone.status, gone.extras) == (503, {"node": "b"})
    assert "needs 99,000 MB, 8,000 free" in refusal(table, RoutingRequest("big", "chat")).message
    processor = replace(node("a"), devices=(DeviceMemory(-1, "cpu", 9000, 8000),))
    on_processor = RoutingTable(nodes(processor), FleetCatalogue((model("big", memory_mb=99000),)))
    assert type(refusal(on_processor, RoutingRequest("big", "chat"))) is InsufficientMemory
    full = RoutingTable(nodes(node("a", "m", max_in_flight=3)), FleetCatalogue())
    assert refusal(full, RoutingRequest("m", "chat"), StillLoads({"a": 3})).extras == {"queue_depth": 3}
    lacking = refusal(
        RoutingTable(nodes(node("a", "m", is_foreign=True)), FleetCatalogue()), RoutingRequest("m", "score")
    )
    assert "score" in lacking.message
    assert (lacking.status, lacking.retry_after_s) == (501, None)
    assert len(refusal(table, RoutingRequest("z" * 9999, "chat")).message) < 300


def test_equals_take_turns() -> None:
    table = RoutingTable(nodes(node("a", "m"), node("b", "m"), node("c", "m")), FleetCatalogue())
    asked = RoutingRequest("m", "chat")
    got = [told(route(table, asked, StillLoads(), turn)) for turn in range(6)]
    assert got == ["chosen a m", "chosen b m", "chosen c m"] * 2


def test_two_models_behind_one_alias_are_both_asked() -> None:
    views = nodes(node("a", held("x", aliases=("chat",))), node("b", held("y", aliases=("chat",))))
    table = RoutingTable(views, FleetCatalogue())
    asked = RoutingRequest("chat", "chat")
    assert {told(route(table, asked, StillLoads(), turn)) for turn in range(2)} == {
        "chosen a x",
        "chosen b y",
    }


def test_a_learned_name_counts() -> None:
    views = nodes(node("a", "Qwen3-Q8"), node("b", "Qwen3-Q8"))
    table = RoutingTable(views, FleetCatalogue((model(source="o/r"),)), {("b", "Qwen3-Q8"): "m"})
    assert told(route(table, RoutingRequest("m", "chat"), StillLoads())) == "chosen b Qwen3-Q8"


def test_names_that_are_made_up_do_not_fill_the_memory() -> None:
    table = RoutingTable(nodes(node("a", held("x", aliases=("*",)))), FleetCatalogue())
    for number in range(5000):
        assert told(route(table, RoutingRequest(f"name {number}", "chat"), StillLoads())) == "chosen a x"
        route(table, RoutingRequest(f"name {number}", "score"), StillLoads())
    assert len(table._entries) <= 4096


def test_the_router_sees_what_the_fleet_hears() -> None:
    specs = (NodeSpec("a", "http://a"), NodeSpec("b", "http://b", max_in_flight=1))
    fleet = Fleet(specs)
    router = Router(fleet)
    asked = RoutingRequest("m", "chat")
    assert told(router.choose(asked)) is ModelNotFound
    fleet.put(NodeView(specs[1], is_healthy=True, replicas=(held("m"),)))
    assert told(router.choose(asked)) == "chosen b m"
    fleet.in_flight["b"] = 1
    assert told(router.choose(asked)) is Overloaded
    fleet.put(NodeView(specs[0], is_healthy=True, replicas=(held("m"),)))
    assert told(router.choose(asked)) == "chosen a m"
    for _ in range(3):
        fleet.failed("a")
    assert told(router.choose(asked)) is Overloaded
    fleet.succeeded("a")
    fleet.remove("b")
    router.replace(FleetCatalogue((model("n", aliases=("m2",)),)))
    assert told(router.choose(RoutingRequest("m2", "chat"))) == "cold n"
    fleet.learn("a", "m", "n")
    assert told(router.choose(RoutingRequest("m2", "chat"))) == "chosen a m"
