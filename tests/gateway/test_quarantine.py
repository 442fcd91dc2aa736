"""Which requests are refused for what happened to nodes under them."""

from ganglion.gateway.quarantine import MAX_REMEMBERED, REMEMBERED_S, SUSPECTED_S, Quarantine

PATH, BODY = b"/v1/chat/completions", b'{"model": "m"}'


def test_two_different_nodes_are_enough_and_one_is_not_however_often() -> None:
    quarantine = Quarantine()
    quarantine.blame("a", "ann", PATH, BODY)
    quarantine.blame("a", "ann", PATH, BODY)
    assert not quarantine.holds("ann", PATH, BODY)
    quarantine.blame("b", "ann", PATH, BODY)
    assert quarantine.holds("ann", PATH, BODY)
    assert not quarantine.holds("bob", PATH, BODY)
    assert not quarantine.holds("ann", PATH, BODY + b" ")


def test_an_answer_in_between_clears_a_request() -> None:
    quarantine = Quarantine()
    quarantine.blame("a", "ann", PATH, BODY)
    quarantine.acquit("ann", PATH, BODY)
    assert quarantine.is_empty
    quarantine.blame("b", "ann", PATH, BODY)
    assert not quarantine.holds("ann", PATH, BODY)


def test_it_is_over_after_a_while() -> None:
    now_s = [0.0]
    quarantine = Quarantine(clock=lambda: now_s[0])
    quarantine.blame("a", "ann", PATH, BODY)
    now_s[0] = SUSPECTED_S + 1
    quarantine.blame("b", "ann", PATH, BODY)
    assert not quarantine.holds("ann", PATH, BODY)  # the first one is long ago
    now_s[0] += SUSPECTED_S - 1
    quarantine.blame("a", "ann", PATH, BODY)
    now_s[0] += REMEMBERED_S - 1
    assert quarantine.holds("ann", PATH, BODY)
    now_s[0] += 2
    assert not quarantine.holds("ann", PATH, BODY)
    quarantine.blame("c", "ann", PATH, BODY)
    assert not quarantine.holds("ann", PATH, BODY)


def test_no_more_than_so_many_are_remembered() -> None:
    quarantine = Quarantine()
    for number in range(MAX_REMEMBERED + 1):
        for node in ("a", "b"):
            quarantine.blame(node, "ann", PATH, b"%d" % number)
    assert not quarantine.holds("ann", PATH, b"0")
    assert quarantine.holds("ann", PATH, b"1")
