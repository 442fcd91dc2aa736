"""Finding the cached list that begins like this one."""

from hypothesis import given
from hypothesis import strategies as st

from ganglion.scheduler.prefix import (
    BLOCK,
    CANDIDATES,
    PrefixIndex,
    common_blocks,
    common_length,
    covered,
    digests,
    whole_blocks,
)

TOKENS = st.lists(st.integers(0, 2), max_size=80)
FAMILIES = st.lists(
    st.tuples(st.integers(0, 70), TOKENS).map(lambda pair: [1] * pair[0] + pair[1]), min_size=1, max_size=12
)


def shared(left: list[int], right: list[int]) -> int:
    """The obvious way to count."""
    count = 0
    while count < min(len(left), len(right)) and left[count] == right[count]:
        count += 1
    return count


@given(TOKENS, TOKENS, TOKENS)
def test_the_common_length_is_what_counting_finds(prefix, left, right):
    assert common_length(prefix + left, prefix + right) == shared(prefix + left, prefix + right)


@given(TOKENS, TOKENS, TOKENS)
def test_common_blocks_are_the_whole_blocks_of_the_common_length(prefix, left, right):
    one, other = prefix + left, prefix + right
    expected = whole_blocks(shared(one, other))
    assert common_blocks(digests("", one), digests("", other)) == expected
    assert common_blocks(digests("a", one), digests("b", other)) == 0


def test_blocks_are_small_at_the_start_and_cover_what_they_say():
    assert [covered(blocks) for blocks in range(6)] == [0, 4, 8, 16, 32, 48]
    assert [length for length in range(50) if whole_blocks(length) > whole_blocks(length - 1)] == [
        covered(blocks) for blocks in range(1, 6)
    ]


@given(TOKENS, TOKENS)
def test_digests_go_on_from_those_already_known(first, more):
    assert digests("salt", first + more, digests("salt", first)) == digests("salt", first + more)


@given(FAMILIES, st.data())
def test_the_nominees_share_the_most_whole_blocks_and_nobody_who_left_is_named(lists, data):
    index = PrefixIndex()
    for key, tokens in enumerate(lists):
        index.put(key, digests("", tokens))
    gone = data.draw(st.sets(st.sampled_from(range(len(lists)))))
    for key in gone:
        index.remove(key)
    kept = {key: tokens for key, tokens in enumerate(lists) if key not in gone}
    wanted = data.draw(st.sampled_from(lists))
    nominees = index.nominate(digests("", wanted))
    most = max((whole_blocks(shared(tokens, wanted)) for tokens in kept.values()), default=0)
    best = [key for key, tokens in kept.items() if most and whole_blocks(shared(tokens, wanted)) == most]
    assert set(nominees) <= set(best)
    assert len(nominees) == min(len(best), CANDIDATES)


def test_an_entry_is_found_only_by_what_is_left_of_it():
    index, tokens = PrefixIndex(), list(range(4 * BLOCK))
    chain = digests("", tokens)
    index.put(1, chain)
    index.cut(1, 2)
    assert index.chain(1) == chain[:2]
    assert index.nominate(chain) == (1,)
    assert index.nominate(digests("", [*tokens[:BLOCK], *[9] * BLOCK])) == (1,)
    index.put(2, chain)
    assert index.nominate(chain) == (2,)
    index.remove(2)
    index.remove(1)
    assert index.nominate(chain) == ()
