"""Which requests are refused for what happened to nodes under them."""

from ganglion.gateway.fleet.fleet import Fleet
from ganglion.gateway.fleet.quarantine import (
    MAX_REMEMBERED,
    REMEMBERED_S,
    SUSPECTED_S,
    LostRequest,
    Quarantine,
    Suspicion,
)
from ganglion.gateway.node import NodeSpec

PATH, BODY = b"/v1/chat/completions", b'{"model": "m"}'


class Losses:
    """Requests that are lost one after the other, each put on its node after the loss before."""

    def __init__(self) -> None:
        self.count = 0

    def alone(self, node: str) -> LostRequest:
        self.count += 1
        return LostRequest(node, self.count, began_after=self.count - 1, is_alone=True)

    def among_others(self, node: str) -> LostRequest:
        self.count += 1
        return LostRequest(node, self.count, began_after=self.count - 1, is_alone=False)

    def begun_before(self, node: str, *, is_alone: bool = True) -> LostRequest:
        """Of a request that ran when the first of all was lost."""
        self.count += 1
        return LostRequest(node, self.count, began_after=0, is_alone=is_alone)


def test_two_different_nodes_are_enough_and_one_is_not_however_often() -> None:
    quarantine, losses = Quarantine(), Losses()
    quarantine.blame(losses.alone("a"), "ann", PATH, BODY)
    quarantine.blame(losses.alone("a"), "ann", PATH, BODY)
    assert not quarantine.is_quarantined("ann", PATH, BODY)
    quarantine.blame(losses.alone("b"), "ann", PATH, BODY)
    assert quarantine.is_quarantined("ann", PATH, BODY)
    assert not quarantine.is_quarantined("bob", PATH, BODY)
    assert not quarantine.is_quarantined("ann", PATH, BODY + b" ")


def test_nodes_that_are_lost_with_other_work_on_them_refuse_nobody_before_a_run_alone() -> None:
    quarantine, losses = Quarantine(), Losses()
    quarantine.blame(losses.among_others("a"), "ann", PATH, BODY)
    assert quarantine.suspicion("ann", PATH, BODY) is Suspicion.NONE
    quarantine.blame(losses.among_others("b"), "ann", PATH, BODY)
    assert quarantine.suspicion("ann", PATH, BODY) is Suspicion.GRAVE
    quarantine.blame(losses.among_others("c"), "ann", PATH, BODY)
    assert quarantine.suspicion("ann", PATH, BODY) is Suspicion.GRAVE
    quarantine.blame(losses.alone("d"), "ann", PATH, BODY)
    assert quarantine.suspicion("ann", PATH, BODY) is Suspicion.REFUSED


def test_nodes_that_are_lost_together_are_one_loss() -> None:
    quarantine, losses = Quarantine(), Losses()
    for node in ("a", "b", "c"):
        quarantine.blame(losses.begun_before(node), "ann", PATH, BODY)
    assert quarantine.suspicion("ann", PATH, BODY) is Suspicion.SUSPECT
    quarantine.acquit("ann", PATH, BODY)
    for node in ("a", "a", "b", "b"):
        quarantine.blame(losses.begun_before(node, is_alone=False), "ann", PATH, BODY)
    assert quarantine.suspicion("ann", PATH, BODY) is Suspicion.NONE


def test_a_loss_is_a_lone_one_where_nothing_else_ran_on_the_node() -> None:
    class Work:
        last_heard_s = 0.0

        def withdraw(self) -> None: ...

    fleet = Fleet((NodeSpec("a", "http://a"), NodeSpec("b", "http://b")))
    one, two, other = Work(), Work(), Work()
    for name, work in (("a", one), ("a", two), ("b", other)):
        fleet.count_in(name, work)
    first = fleet.record_loss("a", 0)
    fleet.count_out("a", one)
    second = fleet.record_loss("a", 0)  # it is the last one there by now, and was not when the node was lost
    fleet.count_out("a", two)
    assert (first.is_alone, second.is_alone) == (False, False)
    assert fleet.record_loss("b", 0).is_alone
    fleet.count_in("a", one)
    again = fleet.record_loss("a", fleet.losses)
    assert again.is_alone
    assert again.began_after == 3 and again.number == 4


def test_an_answer_in_between_clears_a_request() -> None:
    quarantine, losses = Quarantine(), Losses()
    quarantine.blame(losses.alone("a"), "ann", PATH, BODY)
    assert quarantine.suspicion("ann", PATH, BODY) is Suspicion.SUSPECT
    quarantine.acquit("ann", PATH, BODY)
    assert quarantine.is_empty
    quarantine.blame(losses.alone("b"), "ann", PATH, BODY)
    assert not quarantine.is_quarantined("ann", PATH, BODY)


def test_it_is_over_after_a_while() -> None:
    now_s = [0.0]
    quarantine, losses = Quarantine(clock=lambda: now_s[0]), Losses()
    quarantine.blame(losses.alone("a"), "ann", PATH, BODY)
    now_s[0] = SUSPECTED_S + 1
    quarantine.blame(losses.alone("b"), "ann", PATH, BODY)
    assert not quarantine.is_quarantined("ann", PATH, BODY)  # the first one is long ago
    now_s[0] += SUSPECTED_S - 1
    quarantine.blame(losses.alone("a"), "ann", PATH, BODY)
    now_s[0] += REMEMBERED_S - 1
    assert quarantine.is_quarantined("ann", PATH, BODY)
    now_s[0] += 2
    assert not quarantine.is_quarantined("ann", PATH, BODY)
    quarantine.blame(losses.alone("c"), "ann", PATH, BODY)
    assert not quarantine.is_quarantined("ann", PATH, BODY)


def test_no_more_than_so_many_are_remembered() -> None:
    quarantine, losses = Quarantine(), Losses()
    for number in range(MAX_REMEMBERED + 1):
        for node in ("a", "b"):
            quarantine.blame(losses.alone(node), "ann", PATH, b"%d" % number)
    assert not quarantine.is_quarantined("ann", PATH, b"0")
    assert quarantine.is_quarantined("ann", PATH, b"1")
