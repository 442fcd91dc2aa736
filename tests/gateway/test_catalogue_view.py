from ganglion.gateway.placing.catalogue import parse_catalogue
from ganglion.gateway.placing.catalogue_view import CatalogueView

PRICED = """
[[models]]
id = "large"
aliases = ["best"]
cost = { prompt = 2.0, completion = 4.0 }
"""


def test_what_was_offered_before_is_neither_promised_nor_listed_nor_priced() -> None:
    offer = CatalogueView(parse_catalogue(PRICED))
    assert offer.promised == {"large"}
    price = offer.price("best")
    assert price is not None and price == offer.price("large")
    offer.replace(parse_catalogue('[[models]]\nid = "small"\n'))
    assert offer.promised == {"small"}
    assert [model.id for model in offer.listed] == ["small"]
    assert offer.price("best") is None
