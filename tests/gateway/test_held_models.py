"""The models of a fleet and of its catalogue as one list, each under all of its names and once."""

from functools import partial

from made_nodes import held, node

from ganglion.gateway.node import NodeView, Replica
from ganglion.gateway.placing.catalogue import parse_catalogue
from ganglion.gateway.placing.catalogue_view import listing_of
from ganglion.gateway.placing.held_models import NOTHING_LEARNED, LearnedNames, merge_models
from ganglion.gateway.routing.table import RoutingTable

CATALOGUE = parse_catalogue("""
[[models]]
id = "small"
source = "org/small:Q4"
aliases = ["gpt"]

[[models]]
id = "cold"
source = "org/cold"
""")


def listed_as(view: NodeView, replica: Replica, learned: LearnedNames = NOTHING_LEARNED) -> str:
    return RoutingTable({view.name: view}, CATALOGUE, learned).booked_as(view, replica)


def test_what_a_node_holds_of_the_catalogue_is_listed_once_by_all_names() -> None:
    nodes = [node("a", held("org/small:Q4", aliases=("tiny",))), node("b", "own")]
    listed = {model.id: model for model in merge_models(nodes, listing_of(CATALOGUE), listed_as)}
    assert sorted(listed) == ["cold", "own", "small"]
    assert listed["small"].status == "loaded"
    assert listed["small"].aliases == ("org/small:Q4", "tiny", "gpt")
    assert (listed["cold"].status, listed["cold"].aliases) == ("unloaded", ("org/cold",))


def test_a_node_that_calls_it_by_an_alias_is_understood() -> None:
    nodes = [node("a", held("small-135m", aliases=("SMALL", "small-135m")))]
    (first, _) = merge_models(nodes, listing_of(CATALOGUE), listed_as)[::-1]
    assert (first.id, first.aliases) == ("small", ("small-135m", "gpt", "org/small:Q4"))


def test_a_name_that_only_a_load_taught_is_listed_under_the_catalogues_too() -> None:
    taught = partial(listed_as, learned={("a", "file-q4"): "small"})
    (first, _) = merge_models([node("a", "file-q4")], listing_of(CATALOGUE), taught)[::-1]
    assert (first.id, first.status, first.aliases) == ("small", "loaded", ("file-q4", "gpt", "org/small:Q4"))
