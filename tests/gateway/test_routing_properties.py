"""What holds of routing whatever the fleet looks like."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from made_nodes import StillLoads, held, node, nodes

from ganglion.gateway.node import NodeView
from ganglion.gateway.placing.catalogue import EMPTY_CATALOGUE
from ganglion.gateway.routing.decision import ChosenNode, RoutingRequest, TranslatedNode
from ganglion.gateway.routing.policies import LIGHT, LOYALTY, route, share
from ganglion.gateway.routing.table import RoutingTable

NAMES = [f"n{number}" for number in range(6)]
STATUSES = ["loaded", "loading", "unloaded", "recovering", "failed", "draining"]
affinities = st.text(st.characters(codec="utf-8"), max_size=20)


@st.composite
def views(draw: st.DrawFn, name: str) -> NodeView:
    replicas = [
        held(model, draw(st.sampled_from(STATUSES)), in_flight=draw(st.integers(0, 9)))
        for model in draw(st.sets(st.sampled_from(["m", "other"])))
    ]
    return node(
        name,
        *replicas,
        is_healthy=draw(st.booleans()),
        is_draining=draw(st.booleans()),
        is_foreign=draw(st.booleans()),
        digest=tuple(draw(st.sets(st.sampled_from(["x", "y"])))),
        max_in_flight=draw(st.none() | st.integers(0, 5)),
    )


@st.composite
def fleets(draw: st.DrawFn) -> dict[str, NodeView]:
    return nodes(*(draw(views(name)) for name in NAMES[: draw(st.integers(0, 6))]))


@given(
    fleets(),
    st.sampled_from(["chat", "messages", "score", "embeddings"]),
    st.sampled_from(["", "x", "z"]),
    st.sets(st.sampled_from(NAMES)),
    st.sets(st.sampled_from(NAMES)),
    st.dictionaries(st.sampled_from(NAMES), st.integers(0, 6)),
)
def test_only_a_node_that_can_answer_is_chosen(fleet, wire, affinity, tried, cooling, in_flight) -> None:
    loads = StillLoads(in_flight, frozenset(cooling))
    decision = route(
        RoutingTable(fleet, EMPTY_CATALOGUE), RoutingRequest("m", wire, affinity, frozenset(tried)), loads
    )

    def can(view: NodeView) -> bool:
        return (
            view.takes_work
            and any(replica.id == "m" and replica.status == "loaded" for replica in view.replicas)
            and view.name not in tried | cooling
            and (view.spec.max_in_flight is None or in_flight.get(view.name, 0) < view.spec.max_in_flight)
        )

    able = {name for name, view in fleet.items() if can(view)}
    speaking = {name for name in able if wire in fleet[name].spec.wires}
    if speaking:
        assert isinstance(decision, ChosenNode)
        assert decision.node.name in speaking
    elif able and wire == "messages":
        assert isinstance(decision, TranslatedNode)
        assert decision.node.name in able
    else:
        assert not isinstance(decision, ChosenNode | TranslatedNode)


def chosen(table: RoutingTable, affinity: str, loads: StillLoads) -> str:
    decision = route(table, RoutingRequest("m", "chat", affinity), loads)
    assert isinstance(decision, ChosenNode)
    return decision.node.name


@given(st.integers(2, 6), st.lists(affinities.filter(bool), min_size=1, max_size=30), st.integers(0, 9))
def test_a_conversation_stays_while_nodes_and_even_load_do(count, conversations, load) -> None:
    fleet = nodes(*(node(name, "m") for name in NAMES[:count]))
    loads = StillLoads(dict.fromkeys(fleet, load))
    homes = {each: chosen(RoutingTable(fleet, EMPTY_CATALOGUE), each, loads) for each in conversations}
    backwards = dict(reversed(fleet.items()))
    assert homes == {
        each: chosen(RoutingTable(backwards, EMPTY_CATALOGUE), each, loads) for each in conversations
    }


@given(st.integers(3, 6), st.lists(affinities.filter(bool), min_size=1, max_size=30), st.data())
def test_a_node_that_leaves_takes_only_its_own_conversations(count, conversations, data) -> None:
    fleet = nodes(*(node(name, "m") for name in NAMES[:count]))
    homes = {each: chosen(RoutingTable(fleet, EMPTY_CATALOGUE), each, StillLoads()) for each in conversations}
    gone = data.draw(st.sampled_from(NAMES[:count]))
    rest = RoutingTable({name: view for name, view in fleet.items() if name != gone}, EMPTY_CATALOGUE)
    for conversation, home in homes.items():
        if home != gone:
            assert chosen(rest, conversation, StillLoads()) == home


@given(
    st.integers(2, 5),
    st.lists(st.tuples(st.booleans(), st.sampled_from(["x", "y", "z"])), max_size=120),
    st.randoms(use_true_random=False),
)
def test_no_node_gets_more_than_its_share_in_any_order(count, arrivals, random) -> None:
    fleet = nodes(*(node(name, "m", digest=("x",) if name == "n0" else ()) for name in NAMES[:count]))
    table = RoutingTable(fleet, EMPTY_CATALOGUE)
    loads = StillLoads(dict.fromkeys(fleet, 0))
    for is_arrival, affinity in arrivals:
        if is_arrival:
            bound = share(sum(loads.in_flight.values()), count)
            home = chosen(table, affinity, loads)
            loads.in_flight[home] += 1
            assert loads.in_flight[home] <= bound + (LOYALTY if affinity in fleet[home].digest else 0)
        elif any(loads.in_flight.values()):
            loads.in_flight[random.choice([name for name, load in loads.in_flight.items() if load])] -= 1


def test_one_popular_conversation_fills_every_node_evenly() -> None:
    fleet = nodes(*(node(name, "m", digest=("x",) if name == "n0" else ()) for name in NAMES[:4]))
    table, loads = RoutingTable(fleet, EMPTY_CATALOGUE), StillLoads(dict.fromkeys(NAMES[:4], 0))
    for _ in range(400):
        loads.in_flight[chosen(table, "x", loads)] += 1
    assert max(loads.in_flight.values()) <= 126 + LOYALTY
    assert min(loads.in_flight.values()) >= 20


def test_conversations_spread_over_the_nodes() -> None:
    table = RoutingTable(nodes(*(node(name, "m") for name in NAMES[:4])), EMPTY_CATALOGUE)
    homes = Counter(chosen(table, f"{number:016x}", StillLoads()) for number in range(4000))
    assert min(homes.values()) > 850
    assert max(homes.values()) < 1150


def test_two_at_once_leave_a_conversation_where_it_is() -> None:
    table = RoutingTable(
        nodes(node("a", "m", digest=("x",)), node("b", "m"), node("c", "m")), EMPTY_CATALOGUE
    )
    assert chosen(table, "x", StillLoads({"a": LIGHT + LOYALTY - 1})) == "a"
    assert chosen(table, "x", StillLoads({"a": LIGHT + LOYALTY + 1})) != "a"


def test_a_conversation_goes_on_where_it_was_before_any_digest_tells() -> None:
    table = RoutingTable(nodes(node("a", "m"), node("b", "m"), node("c", "m")), EMPTY_CATALOGUE)
    for last in ("a", "b", "c"):
        decision = route(table, RoutingRequest("m", "chat", "x"), StillLoads(), last=last)
        assert isinstance(decision, ChosenNode)
        assert decision.node.name == last
