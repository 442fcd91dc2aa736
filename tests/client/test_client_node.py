"""The client against real nodes: the echo for the protocol, the embedded model for what is true of it."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from both import KINDS, AnyClient, Kind, done, every, some

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
from ganglion.core.errors import InvalidApiKey, InvalidValue, ModelNotFound, ReadoutNotFound
from support.ports import free_port
from support.real_node import MODEL, Node, running_node

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
    """A node, and where its gRPC server is."""
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


LEAVING = """
import os, signal, sys
from ganglion import Client
client = Client(grpc_address=sys.argv[1])
sessions = [client.session("echo") for _ in range(3)]
for session in sessions:
    session.append("one two")
print(len(client.sessions()))
if sys.argv[2]:
    os.kill(int(sys.argv[2]), signal.SIGSTOP)
"""


def test_a_program_that_ends_closes_its_sessions_and_does_not_wait_for_a_node_that_hangs(
    tmp_path: Path,
) -> None:
    with serving(tmp_path, "--engine", "echo") as (node, address), Client(grpc_address=address) as client:
        for pid in ("", str(node.process.pid)):
            ran = subprocess.run(
                [sys.executable, "-c", LEAVING, address, pid],
                capture_output=True,
                text=True,
                timeout=30,
                check=False,
            )
            assert (ran.stdout, ran.stderr, ran.returncode) == ("3\n", "", 0)
            if not pid:
                assert client.sessions() == ()
        node.process.send_signal(signal.SIGCONT)
        for info in client.sessions():
            client.attach(info.session_id).close()


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


async def test_a_node_that_was_killed_and_started_again_costs_no_error_and_one_full_prompt(
    tmp_path: Path,
) -> None:
    with serving(tmp_path, "--engine", "echo") as (node, address):
        clients = [client_of(address, kind) for kind in KINDS]
        led = [[client.session("echo") for _ in range(4)] for client in clients]
        for session in (session for sessions in led for session in sessions):
            first = await done(session.run(["one two"], max_tokens=2).result())
        left = [sessions[0].generate(max_tokens=8000, ignore_eos=True) for sessions in led]
        for generation in left:
            await some(generation, 2)
        node.process.kill()
        node.process.wait(5)
        for generation, sessions in zip(left, led, strict=True):
            with pytest.raises(Disconnected):
                await every(generation)
            with pytest.raises(Disconnected, match="cannot be reached"):
                await done(sessions[3].generate(max_tokens=1).result())
    with serving(tmp_path, "--engine", "echo", port=int(address.rpartition(":")[2])):
        for client, (generating, appending, running, late) in zip(clients, led, strict=True):
            answer = await done(generating.generate(max_tokens=2).result())
            assert (answer.done.prompt_tokens, len(answer.tokens)) == (4, 2)
            assert await done(appending.append(" three")) == 5
            chunks = ["one two", first.tokens, " three"]
            assert (await done(running.run(chunks, max_tokens=1).result())).done.prompt_tokens == 5
            assert (await done(late.score(" three"))).tokens[0].position == 4
            held = {info.session_id: info.total_tokens for info in await done(client.sessions())}
            sessions = (generating, appending, running)
            assert [held[session.id or ""] for session in sessions] == [6, 5, 6]
            await done(client.close())


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


@pytest.mark.model
@pytest.mark.parametrize("kind", KINDS)
async def test_the_embedded_models_answers_are_held_to_formats_and_stops(kind: Kind, model: str) -> None:
    client = client_of(model, kind)
    session = client.session(MODEL)
    length = await done(session.append("A person in JSON:\n"))
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "maximum": 99}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    for options, fits in (
        ({"json_schema": schema}, lambda text: set(json.loads(text)) == {"name", "age"}),
        ({"pattern": r"[a-f]{3}-\d{2}"}, lambda text: re.fullmatch(r"[a-f]{3}-[0-9]{2}", text)),
        ({"choice": ["maybe so", "never"]}, lambda text: text in ("maybe so", "never")),
        ({"lark": 'start: ("ab" | "cd") "!"'}, lambda text: text in ("ab!", "cd!")),
        ({"gbnf": 'root ::= "x" [0-9] "y"'}, lambda text: re.fullmatch("x[0-9]y", text)),
        ({"prefix": "The per", "max_tokens": 6}, lambda text: text.startswith("The per")),
        ({"prefix": "so: ", "choice": ["yes", "no"]}, lambda text: text in ("so: yes", "so: no")),
    ):
        result = await done(session.generate(**{"max_tokens": 64, "temperature": 0.8, **options}).result())
        assert fits(result.text), (options, result.text)
        assert session.tokens[length:] == result.tokens, "every committed token was told"
        await done(session.truncate(length))
    for options, param in (({"lark": "start: ("}, "lark"), ({"pattern": "("}, "pattern")):
        with pytest.raises(InvalidValue) as refused:
            await done(session.generate(**options).result())
        assert refused.value.param == param and session.length == length
    await done(session.append("One, two, three, four,"))
    before = session.length
    result = await done(session.generate(max_tokens=32, temperature=0.0, stop=[" six", "seven"]).result())
    assert result.done.stop_text == " six" and result.text == " five,"
    assert session.length == before + len(result.tokens)
    assert await done(client.detokenize(MODEL, session.tokens[before : result.done.stop_start])) == " five,"
    await done(session.truncate(before))
    free = await done(session.generate(max_tokens=24, temperature=0.0).result())
    await done(session.truncate(before))
    options = {"presence_penalty": 2.0, "frequency_penalty": 2.0, "repetition_penalty": 1.5}
    held = await done(session.generate(max_tokens=24, temperature=0.0, **options).result())
    assert len(set(held.tokens)) > len(set(free.tokens))
    await done(session.close())
    await done(client.close())


@pytest.mark.model
@pytest.mark.parametrize("kind", KINDS)
async def test_a_chat_turn_by_turn_is_what_the_template_makes_of_the_whole(kind: Kind, model: str) -> None:
    client = client_of(model, kind)
    session, whole = client.session(MODEL), client.session(MODEL)
    first = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Name a colour."}]
    await done(session.append_messages(first))
    answer = await done(session.generate(max_tokens=24, temperature=0.0).result())
    assert answer.done.stop_token is not None
    await done(session.append_messages([{"role": "user", "content": "And another."}]))
    said = [
        *first,
        {"role": "assistant", "content": answer.text},
        {"role": "user", "content": "And another."},
    ]
    await done(whole.append_messages(said))
    assert session.tokens == whole.tokens
    cut = await done(session.generate(max_tokens=2, temperature=0.0, ignore_eos=True).result())
    found = await done(client.attach(session.id or ""))
    await done(found.append_messages([{"role": "user", "content": "Why?"}]))
    text = await done(client.detokenize(MODEL, found.tokens))
    assert text.endswith(f"{cut.text}<|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n")
    for each in (session, whole):
        await done(each.close())
    await done(client.close())


@pytest.mark.model
async def test_searches_heal_words_find_what_is_likelier_and_reuse_short_beginnings(model: str) -> None:
    client = AsyncClient(grpc_address=model)
    session = client.session(MODEL)
    length = await session.append("See http:")
    before = session.tokens
    assert not (await session.generate(max_tokens=2, temperature=0.0).result()).text.startswith("//")
    await session.truncate(length)
    result = await session.generate(max_tokens=4, temperature=0.0, heal=True).result()
    assert result.done.healed == ":" and result.text.startswith("//")
    assert session.tokens[: length - 1] == before[:-1] and session.tokens[length - 1] != before[-1]
    assert await client.detokenize(MODEL, session.tokens[length - 1 :]) == f":{result.text}"
    await session.reset()
    length = await session.append(PROMPT)
    greedy = await session.generate(max_tokens=5, temperature=0.0, logprobs="generated").result()
    await session.truncate(length)
    beams = await session.beam(3, max_tokens=5, length_penalty=0.0)
    assert beams[0].logprob >= sum(token.logprob or 0.0 for token in greedy.events) - 0.05
    assert session.tokens[length:] == beams[0].tokens and "Paris" in beams[0].text
    await session.truncate(length)
    branches = await session.best_of(4, max_tokens=5, temperature=1.0, seed=7)
    assert session.tokens[length:] == branches[0].tokens
    assert [info.session_id for info in await client.sessions()] == [session.id], "no fork is left"
    await client.close()


@pytest.mark.model
@pytest.mark.parametrize("length", [8, 16])
async def test_a_session_of_a_few_tokens_goes_on_from_its_kv(model: str, length: int) -> None:
    client = AsyncClient(grpc_address=model)
    async with client.session(MODEL) as session:
        await session.append(list(range(5000 + length, 5000 + 2 * length)))
        again = await session.generate(max_tokens=2, temperature=0.0, ignore_eos=True).result()
        assert again.done.cached_tokens == length - 1
        further = await session.generate(max_tokens=1, temperature=0.0).result()
        assert further.done.cached_tokens == length + 1
    await client.close()
