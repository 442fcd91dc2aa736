"""Formats, stops, messages, tokens read back, healing and searches, through both clients over the fake."""

import json

import pytest
from both import KINDS, Kind, client_of, done, every, some

from ganglion.client import PLACEHOLDER, Branch, Done, Image, SessionNotFound, Steer, TokenEvent
from ganglion.client.fake import FakeNode
from ganglion.client.fake_vocabulary import EOS, logprob_of
from ganglion.core.errors import EngineFailed, InvalidValue

pytestmark = pytest.mark.parametrize("kind", KINDS)


async def test_what_an_answer_is_held_to_goes_on_the_wire(kind: Kind) -> None:
    node = FakeNode()
    session = client_of(node, kind).session("fake")
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    for options, field in (
        ({"json_schema": schema}, "json_schema"),
        ({"json_schema": json.dumps(schema)}, "json_schema"),
        ({"pattern": "[ab]+"}, "pattern"),
        ({"choice": ["yes", "no"]}, "choice"),
        ({"lark": 'start: "a"'}, "lark"),
        ({"gbnf": 'root ::= "a"'}, "gbnf"),
    ):
        await every(session.generate(**options))  # type: ignore[misc]
        sent = node.calls[-1].request
        assert sent.WhichOneof("format") == field  # type: ignore[attr-defined]
        if field == "json_schema":
            assert json.loads(sent.json_schema) == schema  # type: ignore[attr-defined]
    await every(
        session.generate(
            presence_penalty=0.5, frequency_penalty=-0.5, repetition_penalty=1.25, stop="x", prefix="y"
        )
    )
    sent = node.calls[-1].request
    assert (sent.presence_penalty, sent.frequency_penalty) == (0.5, -0.5)  # type: ignore[attr-defined]
    assert (sent.repetition_penalty, list(sent.stop), sent.prefix) == (1.25, ["x"], "y")  # type: ignore[attr-defined]
    with pytest.raises(InvalidValue, match="both say"):
        await every(session.generate(pattern="a", choice=["b"]))


async def test_a_stop_text_ends_the_answer_its_tokens_stay_and_the_text_ends_before_it(kind: Kind) -> None:
    node = FakeNode(replies=[" one two three four", " one two"])
    session = client_of(node, kind).session("fake")
    await done(session.append("zero"))
    result = await done(session.generate(stop=["o th", "five"]).result())
    assert result.text == " one tw"
    assert (result.done.finish_reason, result.done.stop_text) == ("stop", "o th")
    assert result.done.stop_token is None
    assert session.tokens[2:] == result.tokens and len(result.tokens) == 3
    assert node.tokens(session.id) == session.tokens
    assert result.done.stop_start == 3
    assert await done(session.truncate(result.done.stop_start)) == 3
    assert (await done(session.generate(stop="x").result())).done.stop_text is None


async def test_tokens_that_somebody_else_put_there_are_read_back(kind: Kind) -> None:
    node = FakeNode(replies=[" five"] * 3)
    client = client_of(node, kind)
    session = client.session("fake")
    await done(session.append("one two three"))
    await done(session.append(Image(b"cat")))
    attached = await done(client.attach(session.id or ""))
    await done(attached.append(" four"))
    assert attached.tokens[:8] == (PLACEHOLDER,) * 8
    assert await done(attached.read_tokens()) == attached.tokens == node.tokens(session.id)
    asked = node.count("GetTokens")
    await done(attached.read_tokens())
    assert node.count("GetTokens") == asked == 1
    text = client.session("fake", steering=[Steer("calm", 2.0)])
    await done(text.append("one two three"))
    restored = await done(client.restore(await done(text.save())))
    await done(restored.read_tokens())
    assert restored.tokens == text.tokens
    node.restart()
    assert await done(restored.generate().text()) == " five", "what is known can be told again"
    assert [info.steering for info in await done(client.sessions())] == [(Steer("calm", 2.0),)]
    with pytest.raises(SessionNotFound):
        await done(client.attach(session.id or ""))


async def test_messages_are_appended_by_the_template_one_turn_at_a_time(kind: Kind) -> None:
    node = FakeNode(replies=[" Red.", " Blue green"])
    client = client_of(node, kind)
    session = client.session("fake")
    first = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "A colour?"}]
    await done(session.append_messages(first, chat_template_kwargs={"a": 1}))
    assert json.loads(node.calls[1 - 1].request.chat)["chat_template_kwargs"] == {"a": 1}  # type: ignore[attr-defined]
    await done(session.generate().result())
    await done(session.append_messages([{"role": "user", "content": "Another?"}]))
    await done(session.generate(max_tokens=1).result())
    await done(session.append_messages([{"role": "user", "content": "Why?"}], tools=[{"type": "function"}]))
    text = await done(client.detokenize("fake", session.tokens))
    assert text == (
        "<s> system: Be brief.</s> user: A colour?</s> assistant: Red.</s>"
        " user: Another?</s> assistant: Blue</s> user: Why?</s> assistant:"
    )
    assert node.tokens(session.id) == session.tokens
    attached = await done(client.attach(session.id or ""))
    await done(attached.append([EOS]))
    await done(attached.append_messages([{"role": "user", "content": "So?"}]))
    assert (await done(client.detokenize("fake", attached.tokens))).endswith(
        " assistant:</s> user: So?</s> assistant:"
    )
    with pytest.raises(InvalidValue):
        await done(session.append_messages([{"role": object()}]))


async def test_the_last_token_is_healed_and_the_text_is_what_is_new(kind: Kind) -> None:
    node = FakeNode(replies=["ld peace", " on", " on"], runs_ahead=1)
    session = client_of(node, kind).session("fake")
    await done(session.append("all the wor"))
    before = session.tokens
    node.fail_next(EngineFailed("The engine died."), rpc="Generate", after=1)
    with pytest.raises(EngineFailed):
        await every(session.generate(heal=True))
    assert session.tokens == before
    left = session.generate(heal=True, max_tokens=4)
    await some(left, 1)
    await done(left.close())  # type: ignore[func-returns-value]
    assert session.tokens == before, "nothing was seen, so nothing was taken back"
    node.sessions.replies.appendleft("ld peace")
    events = await every(session.generate(heal=True, max_tokens=2))
    told = [event for event in events if isinstance(event, TokenEvent)]
    assert [(event.position, event.text) for event in told] == [(3, " world"), (4, " peace")]
    assert isinstance(events[-1], Done) and events[-1].healed == " wor"
    assert session.tokens[:3] == before[:3] and session.length == 5
    assert node.tokens(session.id) == session.tokens
    result = await done(session.generate(heal=True).result())
    assert result.text == " on" and result.done.healed == " peace"
    # A control token is not written again.
    assert session.tokens[-1] == EOS
    assert (await done(session.generate(heal=True, max_tokens=1).result())).done.healed == ""
    with pytest.raises(InvalidValue, match="run"):
        await every(session.run(["a"], heal=True))


async def test_the_best_of_some_is_appended_and_the_forks_are_gone(kind: Kind) -> None:
    node = FakeNode(replies=[" a b", " c", " d e f"])
    session = client_of(node, kind).session("fake")
    await done(session.append("one"))
    branches = await done(session.best_of(3, score=lambda branch: len(branch.tokens), max_tokens=8, seed=5))
    (best,) = branches
    assert best.text == " d e f" and best.is_ended and best.score == 4
    assert best.logprob == sum(map(logprob_of, best.tokens)) and best.mean == best.logprob / 4
    assert session.tokens[2:] == best.tokens and node.tokens(session.id) == session.tokens
    assert list(node.sessions.sessions) == [session.id]
    seeds = {call.request.seed for call in node.calls if call.rpc == "Generate" and call.request.max_tokens}  # type: ignore[attr-defined]
    assert seeds == {5, 6, 7}
    for count in (0, 65):
        with pytest.raises(InvalidValue):
            await done(session.best_of(count))
    node.fail_next(EngineFailed("The engine died."), rpc="Generate")
    before = session.tokens
    with pytest.raises(EngineFailed):
        await done(session.best_of(2))
    with pytest.raises(KeyError):
        await done(session.best_of(2, score=lambda branch: {}[branch.text]))
    assert session.tokens == before and list(node.sessions.sessions) == [session.id]


async def test_a_tree_keeps_the_best_branches_at_each_depth(kind: Kind) -> None:
    words = {" a": 1, " b": 5, " c": 2, " d": 9}
    node = FakeNode(replies=[" a", " b", " c", " d"])
    session = client_of(node, kind).session("fake")

    def score(branch: Branch) -> float:
        return sum(words[word] for word in (f" {each}" for each in branch.text.split()))

    (branch,) = await done(session.tree(depth=2, breadth=2, max_tokens=1, score=score))
    assert (branch.text, branch.score, branch.is_ended) == (" b d", 14, False)
    assert session.tokens == branch.tokens == node.tokens(session.id)
    assert list(node.sessions.sessions) == [session.id]
    node.reply(*[" a"] * 6)
    forks = node.count("ForkSession")
    branches = await done(session.tree(depth=2, breadth=2, keep=2, max_tokens=1, score=score))
    assert [branch.text for branch in branches] == [" a a"] * 2
    assert node.count("ForkSession") == forks + 2 + 4
    node.reply(*[" a"] * 2)
    ended = await done(session.tree(depth=3, breadth=2, keep=2, max_tokens=9, score=score))
    assert all(branch.is_ended for branch in ended), "and nothing is made of what has ended"
    assert node.count("ForkSession") == forks + 2 + 4 + 2


async def test_a_beam_follows_the_likeliest_tokens(kind: Kind) -> None:
    node = FakeNode(replies=[" a", *[" b"] * 2, *[" c"] * 2])
    session = client_of(node, kind).session("fake")
    await done(session.append("one"))
    branches = await done(session.beam(2, max_tokens=3, length_penalty=0.0))
    assert len(branches) == 2 and all(len(branch.tokens) == 3 for branch in branches)
    assert branches[0].logprob >= branches[1].logprob
    # The fake's alternatives are the reply's token and such as are less likely by one each.
    replied = [node.sessions.vocabulary.tokens(text)[0] for text in (" a", " b", " c")]
    assert branches[0].tokens == tuple(replied)
    assert session.tokens[2:] == branches[0].tokens and node.tokens(session.id) == session.tokens
    assert list(node.sessions.sessions) == [session.id]
    with pytest.raises(InvalidValue):
        await done(session.beam(17))
