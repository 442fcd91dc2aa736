"""A session against a plain list: whatever is done to it and to its forks, each holds what it should."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from ganglion.core.errors import ContextLengthExceeded, ImageBlockCut, InvalidValue, SessionDrift
from ganglion.core.request import PLACEHOLDER, ImageBlock
from ganglion.sessions.token_session import TokenList, TokenSession
from support.examples import examples

CONTEXT = 48
TOKENS = st.lists(st.integers(0, 9), max_size=8).map(tuple)


class Model:
    """What a session must hold: positions, each a token or an image's number."""

    def __init__(self, places: list[tuple[int, int]]) -> None:
        self.places = places

    def cuts_image(self, at: int) -> bool:
        inside = 0 < at < len(self.places)
        return inside and self.places[at][1] != 0 and self.places[at][1] == self.places[at - 1][1]


class Sessions(RuleBasedStateMachine):
    """Several sessions, forked from each other, each beside its model."""

    pairs = Bundle("pairs")

    def __init__(self) -> None:
        super().__init__()
        self.all: list[tuple[TokenSession, Model]] = []
        self.images = 0

    @rule(target=pairs)
    def open(self) -> tuple[TokenSession, Model]:
        pair = TokenSession(), Model([])
        self.all.append(pair)
        return pair

    @rule(
        pair=pairs, append=TOKENS, back=st.integers(-2, 12), truncating=st.booleans(), room=st.integers(0, 1)
    )
    def generate(
        self,
        pair: tuple[TokenSession, Model],
        append: tuple[int, ...],
        back: int,
        truncating: bool,
        room: int,
    ) -> None:
        session, model = pair
        offset = max(len(model.places) - back, 0)
        before = session.tokens()
        is_drift = offset > len(before) or (offset < len(before) and not truncating)
        expected = (
            SessionDrift
            if is_drift
            else ImageBlockCut
            if model.cuts_image(offset)
            else ContextLengthExceeded
            if offset + len(append) + room > CONTEXT
            else InvalidValue
            if offset + len(append) == 0 and room
            else None
        )
        try:
            change = session.propose(
                append, offset=offset, is_truncating=truncating, context_length=CONTEXT, room=room
            )
        except (SessionDrift, ImageBlockCut, ContextLengthExceeded, InvalidValue) as error:
            assert type(error) is expected
            assert session.tokens() == before
            return
        assert expected is None
        after = [*model.places[:offset], *((token, 0) for token in append)]
        assert session.after(change) == tuple(token for token, _ in after)
        assert session.tokens() == before
        session.apply(change)
        model.places = after

    @rule(pair=pairs, token=st.integers(0, 9))
    def commit(self, pair: tuple[TokenSession, Model], token: int) -> None:
        session, model = pair
        session.commit(token)
        model.places = [*model.places, (token, 0)]

    @rule(pair=pairs, count=st.integers(1, 5))
    def place(self, pair: tuple[TokenSession, Model], count: int) -> None:
        session, model = pair
        self.images += 1
        session.append_image(ImageBlock(session.length, count, str(self.images)))
        model.places = [*model.places, *[(PLACEHOLDER, self.images)] * count]

    @rule(target=pairs, pair=pairs, at=st.integers(0, 60))
    def fork(self, pair: tuple[TokenSession, Model], at: int) -> tuple[TokenSession, Model]:
        session, model = pair
        at = min(at, len(model.places))
        if model.cuts_image(at):
            with pytest.raises(ImageBlockCut):
                session.fork(at)
            return pair
        forked = session.fork(at), Model(model.places[:at])
        self.all.append(forked)
        return forked

    @rule(pair=pairs, at=st.integers(0, 60))
    def truncate(self, pair: tuple[TokenSession, Model], at: int) -> None:
        session, model = pair
        if at > len(model.places):
            with pytest.raises(SessionDrift) as drift:
                session.truncate(at)
            assert drift.value.extras["session_length"] == len(model.places)
        elif model.cuts_image(at):
            with pytest.raises(ImageBlockCut):
                session.truncate(at)
        else:
            session.truncate(at)
            model.places = model.places[:at]

    @rule(pair=consumes(pairs))
    def close(self, pair: tuple[TokenSession, Model]) -> None:
        self.all = [each for each in self.all if each is not pair]

    @invariant()
    def each_holds_what_it_should(self) -> None:
        for session, model in self.all:
            assert session.tokens() == tuple(token for token, _ in model.places)
            numbers = sorted({number for _, number in model.places if number})
            assert [int(image.digest) for image in session.images] == numbers
            for image in session.images:
                held = model.places[image.start : image.start + image.count]
                assert held == [(PLACEHOLDER, int(image.digest))] * image.count


TestSessions = Sessions.TestCase
TestSessions.settings = settings(max_examples=examples(150), stateful_step_count=40)


def test_a_fork_shares_its_tokens_until_it_differs() -> None:
    tokens = TokenList(range(2000))
    forks = [tokens.fork(2000) for _ in range(1000)]
    assert all(fork._trunk is tokens._trunk for fork in forks)
    forks[0].extend((1,))
    tokens.extend((2,))
    assert (len(forks[0]), len(tokens), len(forks[1])) == (2001, 2001, 2000)
    assert forks[0].first(2001)[-1] == 1
    assert tokens.first(2001)[-1] == 2
    assert forks[1].first(2001) == tuple(range(2000))
