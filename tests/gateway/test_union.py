"""The models of a fleet and of its catalogue as one list, each under all of its names and once."""

from made_nodes import held, node

from ganglion.gateway.catalogue import parse_catalogue
from ganglion.gateway.union import union
from ganglion.server.gateway.offer import listing_of

CATALOGUE = parse_catalogue("""
[[models]]
id = "small"
source = "org/small:Q4"
aliases = ["gpt"]

[[models]]
id = "cold"
source = "org/cold"
""")


def test_what_a_node_holds_of_the_catalogue_is_listed_once_by_all_names() -> None:
    nodes = [node("a", held("org/small:Q4", aliases=("tiny",))), node("b", "own")]
    listed = {model.id: model for model in union(nodes, listing_of(CATALOGUE))}
    assert sorted(listed) == ["cold", "org/small:Q4", "own"]
    assert listed["org/small:Q4"].status == "loaded"
    assert listed["org/small:Q4"].aliases == ("tiny", "small", "gpt")
    assert (listed["cold"].status, listed["cold"].aliases) == ("unloaded", ("org/cold",))


def test_a_node_that_calls_it_by_an_alias_is_understood() -> None:
    (first, _) = union(
        [node("a", held("small-135m", aliases=("SMALL", "small-135m")))], listing_of(CATALOGUE)
    )[::-1]
    assert (first.id, first.aliases) == ("small-135m", ("SMALL", "small", "gpt", "org/small:Q4"))
