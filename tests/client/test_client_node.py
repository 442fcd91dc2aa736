"""The client against real nodes: the echo for the protocol, the embedded model for what is true of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from both import KINDS, AnyClient, Kind, done, every, some
from tests.door.node import MODEL, Node, running_node
from tests.ports import free_port

from ganglion.client import (
    AsyncClient,
    Client,
    Disconnected,
    Image,
    SessionDivergence,
    SessionDrift,
    SessionNotFound,
    TokenEvent,
)
from ganglion.core.errors import InvalidApiKey, ModelNotFound, ReadoutNotFound

KEY = "key-of-one"
PROMPT = (
    "Every country has a capital, where its government sits. The capital of Germany is Berlin, the capital "
    "of Italy is Rome, the capital of Spain is Madrid, and the capital of France is"
)


def client_of(grpc_address: str, kind: Kind, **options: str | float) -> AnyClient:
    kinds: dict[Kind, type[AnyClient]] = {"blocking": Client, "awaiting": AsyncClient}
    return kinds[kind](grpc_address=grpc_address, **options)  # type: ignore[arg-type]


@contextmanager
def serving(home: Path, *flags: str, port: int = 0) -> Iterator[tuple[Node, str]]:
    """A node, and where its gRPC door is."""
    port = port or free_port()
    with running_node(home, "--grpc-port", str(port), *flags) as node:
        yield node, f"127.0.0.1:{port}"


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    flags = ("--engine", "echo", "--api-key", KEY)
    with serving(tmp_path_factory.mktemp("echo"), *flags) as (_, address):
        yield address


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("model"), "--context", "1024") as (_, address):
        yield address


@pytest.mark.parametrize("kind", KINDS)
async def test_every_call_of_a_session_works_on_a_node(kind: Kind, echo: str, tmp_path: Path) -> None:
    client = client_of(echo, kind, api_key=KEY)
    session = client.session("echo", ttl_s=60)
    assert await done(session.append("one two three")) == 3
    assert await done(client.detokenize("echo", session.tokens)) == "one two three"
    assert await done(session.generate(max_tokens=8).text()) == "one two three"
    assert session.length == 6 and session.context_length
    before = session.tokens
    score = await done(session.score(" four five", top=2))
    assert [(token.text, len(token.top)) for token in score.tokens] == [(" four", 2), (" five", 2)]
    assert score.total < 0 and session.tokens == before
    await some(session.generate(logprobs="all"), 1)
    assert session.tokens == before
    assert await done(session.append([7, 8])) == 8
    info = next(info for info in await done(client.sessions()) if info.session_id == session.id)
    assert (info.total_tokens, info.ttl_s, info.model) == (8, 60, "echo")
    fork = await done(session.fork(3))
    assert await done(fork.truncate(2)) == 2
    with pytest.raises(SessionDrift) as drift:
        await done((await done(client.attach(fork.id or ""))).append("x"))
        await done(fork.append("y"))
    assert drift.value.extras == {"session_length": 3}
    saved = await done(session.save(tmp_path / "saved"))
    assert (await done(client.restore(saved))).length == 8
    for each in (session, fork):
        await done(each.close())
    with pytest.raises(SessionNotFound):
        await done(client.attach(info.session_id))
    with pytest.raises(ModelNotFound):
        await done(client.session("nothing").append("x"))
    with pytest.raises(ReadoutNotFound):
        await done(client.readout_manifest("echo"))
    await done(client.close())


@pytest.mark.parametrize("kind", KINDS)
async def test_a_conversation_with_images_runs_on_a_node_and_sends_only_what_is_new(
    kind: Kind, echo: str
) -> None:
    client = client_of(echo, kind, api_key=KEY)
    session = client.session("echo")
    chunks = ["What is this?", Image(b"\x89PNG\r\n\x1a\n a cat"), " Say."]
    events = await every(session.run(chunks, max_tokens=2))
    assert [event.kind for event in events if event.kind != "progress"] == ["image", "token", "token", "done"]
    told = tuple(event.id for event in events if isinstance(event, TokenEvent))
    length = session.length
    answer = await done(session.run([*chunks, told, " Again."], max_tokens=1).result())
    assert answer.done.prompt_tokens == length + 1 and answer.done.cached_tokens >= length - 1
    with pytest.raises(SessionDivergence):
        await done(session.run(chunks).result())
    stranger = client_of(echo, kind, api_key="another")
    with pytest.raises(InvalidApiKey):
        await done(stranger.sessions())
    for each in (client, stranger):
        await done(each.close())


async def test_a_node_that_was_killed_costs_one_error_and_one_full_prompt(tmp_path: Path) -> None:
    with serving(tmp_path, "--engine", "echo") as (node, address):
        client = AsyncClient(grpc_address=address)
        session = client.session("echo")
        first = await session.run(["one two"], max_tokens=2).result()
        node.process.kill()
        node.process.wait(5)
    chunks = ["one two", first.tokens, " three"]
    with pytest.raises(Disconnected, match="cannot be reached"):
        await session.run(chunks, max_tokens=2).result()
    assert session.length == 0
    with serving(tmp_path, "--engine", "echo", port=int(address.rpartition(":")[2])):
        answer = await session.run(chunks, max_tokens=1).result()
        assert answer.done.prompt_tokens == 5
        await session.close()
    await client.close()


@pytest.mark.model
@pytest.mark.parametrize("kind", KINDS)
async def test_the_embedded_model_continues_scores_and_remembers(kind: Kind, model: str) -> None:
    client = client_of(model, kind)
    session = client.session(MODEL)
    await done(session.append(PROMPT))
    result = await done(session.generate(max_tokens=4, temperature=0.0, logprobs="generated").result())
    assert "Paris" in result.text
    assert all(event.logprob is not None and event.logprob <= 0 for event in result.events)
    whole = await done(client.score(MODEL, PROMPT, result.tokens))
    generated = [event.logprob or 0.0 for event in result.events]
    assert [token.logprob for token in whole.tokens] == pytest.approx(generated, abs=0.05)
    question = await done(session.fork(session.length - len(result.tokens)))
    scores = {word: (await done(question.score(word))).total for word in (" Paris", " Banana")}
    assert scores[" Paris"] > scores[" Banana"] + 2
    again = await done(question.generate(max_tokens=4, temperature=0.0).result())
    assert again.tokens == result.tokens
    assert again.done.cached_tokens >= again.done.prompt_tokens - 1
    for each in (session, question):
        await done(each.close())
    await done(client.close())


@pytest.mark.model
@pytest.mark.parametrize("kind", KINDS)
async def test_leaving_an_answer_of_the_embedded_model_keeps_what_was_seen(kind: Kind, model: str) -> None:
    client = client_of(model, kind)
    session = client.session(MODEL)
    await done(session.append("Once upon a time"))
    before = session.length
    generation = session.generate(max_tokens=400, temperature=0.0, ignore_eos=True)
    seen = [event.id for event in await some(generation, 6) if isinstance(event, TokenEvent)]
    await done(generation.close())  # type: ignore[func-returns-value]
    assert session.tokens[before:] == tuple(seen)
    answer = await done(session.generate(max_tokens=2, temperature=0.0).result())
    assert answer.done.prompt_tokens == before + len(seen)
    infos = {info.session_id: info for info in await done(client.sessions())}
    assert infos[session.id or ""].total_tokens == session.length
    await done(session.close())
    await done(client.close())
