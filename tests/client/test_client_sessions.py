"""Sessions through both clients: what each call means, and what is true after it went wrong."""

import asyncio
import gc
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from both import KINDS, Kind, client_of, done, every, some

from ganglion.client import (
    PLACEHOLDER,
    Done,
    GanglionError,
    Image,
    ImageAppended,
    Progress,
    SessionBusy,
    SessionDrift,
    SessionNotFound,
    Steer,
    TokenEvent,
)
from ganglion.client.fake import MANIFEST, FakeNode
from ganglion.client.fake_vocabulary import BOS, EOS, logprob_of, readout_of
from ganglion.core.errors import (
    ContextLengthExceeded,
    EngineFailed,
    InvalidValue,
    ReadoutNotFound,
    ReadoutUnavailable,
    UnknownParameter,
    VisionUnsupported,
)

pytestmark = pytest.mark.parametrize("kind", KINDS)


async def test_text_is_appended_with_its_first_sign_once_and_continued(kind: Kind) -> None:
    node = FakeNode(replies=[" Paris."])
    session = client_of(node, kind).session("fake")
    assert session.id is None and node.calls == []
    assert await done(session.append("The capital of France")) == 5
    assert await done(session.append(" is")) == 6
    assert session.tokens[0] == BOS and BOS not in session.tokens[1:]
    events = await every(session.generate(max_tokens=8))
    assert [type(event) for event in events] == [Progress, TokenEvent, TokenEvent, Done]
    assert isinstance(events[1], TokenEvent) and (events[1].text, events[1].position) == (" Paris.", 6)
    assert events[-1] == Done(6, 2, 6, 8, "stop", stop_token=EOS)
    assert session.tokens == node.tokens(session.id) and session.tokens[-1] == EOS
    assert session.length == 8


async def test_the_whole_of_a_generation_leaves_out_the_token_that_ended_it(kind: Kind) -> None:
    node = FakeNode(replies=[" one two", " one two"])
    session = client_of(node, kind).session("fake")
    assert await done(session.generate().text()) == " one two"
    result = await done(session.generate(max_tokens=2).result())
    assert (result.text, len(result.tokens), result.done.finish_reason) == (" one two", 2, "length")


async def test_special_tokens_are_read_from_text_unless_told_otherwise(kind: Kind) -> None:
    session = client_of(FakeNode(), kind).session("fake")
    await done(session.append("a"))
    await done(session.append("</s>"))
    assert session.tokens[-1] == EOS
    await done(session.append("</s>", parse_special=False))
    assert session.tokens[-1] != EOS


async def test_an_iteration_that_is_left_keeps_what_was_seen_and_cuts_what_was_not(kind: Kind) -> None:
    node = FakeNode(replies=[" one two three four five", " six"], runs_ahead=3)
    session = client_of(node, kind).session("fake")
    await done(session.append("zero"))
    generation = session.generate(max_tokens=8)
    await some(generation, 3)
    await done(generation.close())  # type: ignore[func-returns-value]
    await done(generation.close())  # type: ignore[func-returns-value]
    assert await every(generation) == []
    assert session.length == 4 and len(node.tokens(session.id) or ()) == 7
    assert await done(session.generate().text()) == " six"
    assert session.tokens == node.tokens(session.id)


async def test_dropping_an_iteration_or_calling_again_cancels_it(kind: Kind) -> None:
    node = FakeNode(runs_ahead=1)
    session = client_of(node, kind).session("fake")
    generation = session.generate()
    await some(generation, 2)
    del generation
    assert not next(iter(node.sessions.sessions.values())).is_busy
    generation = session.generate()
    await some(generation, 2)
    assert next(iter(node.sessions.sessions.values())).is_busy
    assert await done(session.append("more")) == 3
    assert await every(generation) == []
    assert session.tokens == node.tokens(session.id)


async def test_a_call_that_raises_changes_nothing(kind: Kind) -> None:
    node = FakeNode()
    session = client_of(node, kind).session("fake")
    await done(session.append("one two"))
    before = session.tokens
    for after in (0, 1, 2):
        node.fail_next(EngineFailed("The engine died."), rpc="Generate", after=after)
        with pytest.raises(EngineFailed, match="died"):
            await every(session.generate())
        assert session.tokens == before
    node.fail_next(EngineFailed("The engine died."), rpc="Generate", after=1)
    with pytest.raises(EngineFailed):
        await done(session.append(" three"))
    assert session.tokens == before
    await done(session.append(" three"))
    assert session.tokens == node.tokens(session.id) and session.length == 4


async def test_scoring_tells_logprobs_and_leaves_the_session_as_it_is(kind: Kind) -> None:
    node = FakeNode()
    client = client_of(node, kind)
    session = client.session("fake")
    await done(session.append("yes or"))
    before = session.tokens
    score = await done(session.score(" no thanks", top=3))
    assert [token.text for token in score.tokens] == [" no", " thanks"]
    assert score.total == sum(logprob_of(token.id) for token in score.tokens)
    assert score.mean == score.total / 2
    assert [len(token.top) for token in score.tokens] == [3, 3]
    assert session.tokens == before
    assert (await done(session.score(" no thanks"))).total == score.total
    assert (await done(session.score([]))).tokens == ()
    await done(session.append("!"))
    assert session.tokens == node.tokens(session.id)
    assert (await done(client.score("fake", "yes or", " no thanks"))).total == score.total
    assert [info.session_id for info in await done(client.sessions())] == [session.id]


async def test_a_first_token_has_no_logprob_and_does_not_count(kind: Kind) -> None:
    score = await done(client_of(FakeNode(), kind).session("fake").score("one two"))
    assert [token.logprob is None for token in score.tokens] == [True, False, False]
    assert score.total == sum(logprob_of(token.id) for token in score.tokens[1:])


async def test_logprobs_and_readouts_come_where_they_are_asked_for(kind: Kind) -> None:
    node = FakeNode(replies=[" four"] * 4)
    session = client_of(node, kind).session("fake")
    await done(session.append("one two three"))
    result = await done(session.generate(logprobs="all", top_k_logprobs=2, readout="generated").result())
    assert [event.is_prefill for event in result.events] == [True] * 4 + [False] * 2
    assert [event.logprob for event in result.events[1:]] == [logprob_of(t) for t in session.tokens[1:]]
    assert [event.readout is None for event in result.events] == [True] * 4 + [False] * 2
    readout = result.events[-1].readout
    assert readout is not None and list(readout.values) == readout_of(EOS, MANIFEST)
    assert readout.layer(2) == dict(zip(("calm", "formal"), readout.values[2:4], strict=True))
    assert readout.concept("formal") == dict(zip((1, 2, 3), readout.values[1::2], strict=True))
    with pytest.raises(ReadoutNotFound):
        readout.concept("angry")
    result = await done(session.generate(max_tokens=0, readout=[(1, 3)], logprobs=[(2, None)]).result())
    assert [event.position for event in result.events] == [1, 2, 3, 4, 5]
    assert [event.readout is not None for event in result.events] == [True, True, False, False, False]


async def test_forks_and_cuts_share_what_came_before(kind: Kind) -> None:
    node = FakeNode(runs_ahead=2)
    session = client_of(node, kind).session("fake")
    await done(session.append("one two three"))
    await some(session.generate(), 2)
    whole, part = await done(session.fork()), await done(session.fork(2))
    assert whole.tokens == session.tokens == node.tokens(whole.id) == node.tokens(session.id)
    assert part.tokens == session.tokens[:2] == node.tokens(part.id)
    await done(part.append(" else"))
    assert await done(session.truncate(1)) == 1
    assert node.tokens(session.id) == (BOS,) and node.tokens(part.id) == part.tokens
    for length in (-1, 2):
        with pytest.raises(InvalidValue):
            await done(session.truncate(length))


async def test_images_take_positions_and_cannot_be_cut(kind: Kind) -> None:
    node = FakeNode()
    session = client_of(node, kind).session("fake")
    await done(session.append("look: "))
    assert await done(session.append(Image(b"cat"))) == 7
    assert session.tokens[3:] == (PLACEHOLDER,) * 4
    with pytest.raises(GanglionError, match="inside an image"):
        await done(session.truncate(5))
    assert session.length == 7
    events = await every(session.run(["look: ", Image(b"cat"), " and ", Image(b"dog")], max_tokens=1))
    assert [e for e in events if isinstance(e, ImageAppended)] == [ImageAppended(4, 13)]
    blind = client_of(FakeNode(sees_images=False), kind).session("fake")
    with pytest.raises(VisionUnsupported) as caught:
        await done(blind.append(Image(b"cat")))
    assert caught.value.code == "vision_unsupported"


async def test_a_session_is_saved_restored_suspended_and_found_again(kind: Kind, tmp_path: Path) -> None:
    node = FakeNode()
    client = client_of(node, kind)
    session = client.session("fake")
    await done(session.append("one two three"))
    await done(session.score(" four"))
    saved = await done(session.save(tmp_path / "session.bin"))
    assert (tmp_path / "session.bin").read_bytes() == saved
    for source in (saved, tmp_path / "session.bin"):
        restored = await done(client.restore(source))
        assert restored.length == 4 and set(restored.tokens) == {PLACEHOLDER}
        assert node.tokens(restored.id) == session.tokens
        answer = await done(restored.run([session.tokens, " four"], max_tokens=1).result())
        assert node.tokens(restored.id) == (*session.tokens, *restored.tokens[4:5], *answer.tokens)
    assert (await done(session.suspend())).total_tokens == 4
    await done(session.close())
    found = await done(client.attach(session.id or ""))
    assert await done(found.append(" four")) == 5
    await done(found.close())  # type: ignore[func-returns-value]
    with pytest.raises(SessionNotFound):
        await done(client.attach(found.id or session.id or ""))
    with pytest.raises(GanglionError):
        await done(client.restore(b"no session"))


async def test_closing_forgets_the_session_on_the_node_and_is_final(kind: Kind) -> None:
    node = FakeNode()
    client = client_of(node, kind)
    session = client.session("fake", ttl_s=5, steering=[Steer("calm", -1.5, (2,))])
    await done(session.append("one"))
    (info,) = await done(client.sessions())
    assert (info.ttl_s, info.steering, info.total_tokens) == (5, (Steer("calm", -1.5, (2,)),), 2)
    await done(session.close())
    await done(session.close())
    assert await done(client.sessions()) == () and node.count("CloseSession") == 1
    with pytest.raises(InvalidValue, match="closed"):
        await done(session.append("two"))
    never_used = client.session("fake")
    await done(never_used.close())
    assert node.count("OpenSession") == 1


async def test_refusals_are_the_wires_own_errors(kind: Kind) -> None:
    node = FakeNode(context_length=8, manifest=None)
    client = client_of(node, kind)
    session = client.session("fake")
    await done(session.append("one two"))
    other = await done(client.attach(session.id or ""))
    await done(other.append(" three"))
    with pytest.raises(SessionDrift) as drift:
        await done(session.append(" four"))
    assert drift.value.extras == {"session_length": 4} and drift.value.param == "offset" and drift.value.hint
    with pytest.raises(SessionDrift):
        await every(session.generate())
    with pytest.raises(ContextLengthExceeded):
        await done(other.append("1 2 3 4 5 6"))
    with pytest.raises((ReadoutNotFound, ReadoutUnavailable)):
        await every(other.generate(readout="all"))
    generation = other.generate()
    await some(generation, 1)
    late = await done(client.attach(session.id or ""))
    with pytest.raises(SessionBusy):
        await done(late.append("x"))
    assert node.count("Generate") == 7
    with pytest.raises(SessionNotFound):
        await done(client_of(node, kind, api_key="another").attach(session.id or ""))
    with pytest.raises(UnknownParameter):
        session.generate(temprature=1)  # type: ignore[call-arg]
    for tokens in ([-5], [PLACEHOLDER], [2**32], b"ab", [1.5]):
        with pytest.raises(InvalidValue):
            await done(session.append(tokens))  # type: ignore[arg-type]
    with pytest.raises(InvalidValue):
        await every(session.generate(max_tokens=-1))
    with pytest.raises(InvalidValue):
        await done(session.append("\ud800"))


async def test_a_node_that_has_not_noticed_that_we_left_is_waited_for(kind: Kind) -> None:
    node = FakeNode()
    session = client_of(node, kind).session("fake")
    await some(session.generate(), 2)
    for _ in range(2):
        node.fail_next(SessionBusy("Another call."), rpc="Generate")
    assert await done(session.append("more")) == 2
    assert node.count("Generate") == 4


async def test_a_session_is_one_callers_at_a_time(kind: Kind) -> None:
    node = FakeNode()
    session = client_of(node, kind).session("fake")
    entered, leave = threading.Event(), threading.Event()
    answer = node.answer

    def slow(*arguments: object) -> object:
        entered.set()
        assert leave.wait(5) or True
        return answer(*arguments)  # type: ignore[arg-type]

    if kind == "blocking":
        node.answer = slow  # type: ignore[method-assign,assignment]
        thread = threading.Thread(target=lambda: session.append("one"))
        thread.start()
        entered.wait(5)
        with pytest.raises(SessionBusy):
            session.append("two")
        leave.set()
        thread.join(5)
    else:
        task = asyncio.ensure_future(done(session.append("one")))
        await asyncio.sleep(0)
        with pytest.raises(SessionBusy):
            await done(session.append("two"))
        await task
    assert session.length == 2


async def test_a_node_that_forgot_the_session_is_told_all_of_it_again_by_any_call(kind: Kind) -> None:
    node = FakeNode(replies=[" four"], runs_ahead=2)
    session = client_of(node, kind).session("fake")
    await done(session.append("one two"))
    calls: list[tuple[str, Callable[[], object]]] = [
        ("append", lambda: session.append(" three")),
        ("generate", lambda: session.generate(max_tokens=2).result()),
        ("score", lambda: session.score(" five")),
        ("fork", session.fork),
        ("truncate", lambda: session.truncate(3)),
        ("save", session.save),
        ("suspend", session.suspend),
        ("append", lambda: session.append(" six")),
    ]
    for number, (name, call) in enumerate(calls, 2):
        node.restart()
        await done(call())
        if name not in ("score", "truncate"):
            assert node.tokens(session.id) == session.tokens, name
        await done(session.append(f" {name}"))
        assert node.tokens(session.id) == session.tokens, name
        assert node.count("OpenSession") == number, "once a call"


async def test_nothing_is_told_twice_when_the_node_forgets_under_an_answer(kind: Kind) -> None:
    node = FakeNode(replies=[" three four", " five"])
    session = client_of(node, kind).session("fake")
    await done(session.append("one two"))
    before = session.tokens
    node.fail_next(SessionNotFound(session.id or ""), rpc="Generate", after=2)
    with pytest.raises(SessionNotFound):
        await every(session.generate())
    assert session.tokens == before and node.count("OpenSession") == 1
    node.restart()
    assert await done(session.generate().text()) == " five"
    assert node.tokens(session.id) == session.tokens and node.count("OpenSession") == 2


async def test_a_session_that_cannot_be_told_again_stays_not_found(kind: Kind) -> None:
    node = FakeNode()
    client = client_of(node, kind)
    seeing, session = client.session("fake"), client.session("fake")
    await done(seeing.append(Image(b"cat")))
    await done(session.append("one two"))
    attached = await done(client.attach(session.id or ""))
    node.restart()
    for each in (seeing, attached):
        with pytest.raises(SessionNotFound):
            await done(each.append(" three"))
    node.fail_next(SessionNotFound("x"), rpc="Generate")
    node.fail_next(SessionNotFound("x"), rpc="Generate")
    with pytest.raises(SessionNotFound):
        await done(session.append(" three"))
    assert session.length == 3


async def test_a_session_that_nobody_holds_is_closed_on_the_node(kind: Kind) -> None:
    node = FakeNode()
    client = client_of(node, kind)
    session = client.session("fake")
    await done(session.append("one two"))
    attached = await done(client.attach(session.id or ""))
    fork = await done(session.fork())
    kept = await done(session.fork())
    await done(kept.suspend())
    await done(attached.suspend())
    await done(attached.truncate(attached.length))
    assert len(node.sessions.sessions) == 3

    async def closed(count: int) -> None:
        for _ in range(500):
            if node.count("CloseSession") == count:
                break
            await asyncio.sleep(0.01)
        assert node.count("CloseSession") == count

    cycle = [fork]
    cycle.append(cycle)  # type: ignore[arg-type]
    del fork, cycle, attached, kept
    gc.collect()
    await closed(1)
    assert len(node.sessions.sessions) == 2, "what was suspended or attached to stays"
    generation = session.generate(max_tokens=2)
    await some(generation, 1)
    del session
    assert len(await every(generation)) == 3, "whoever reads its answer holds the session"
    del generation
    gc.collect()
    await closed(2)
    dropped = client.session("fake")
    await done(dropped.append("one"))
    del dropped
    gc.collect()
    await asyncio.sleep(0)
    await done(client.close())
    assert node.count("CloseSession") == 3, "closing the client waits for them"
    assert not [thread for thread in threading.enumerate() if thread.name == "ganglion-dropped"]
