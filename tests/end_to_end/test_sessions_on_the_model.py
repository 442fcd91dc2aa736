"""Token sessions on the embedded model: the client library, and a node started as a person starts it."""

import json
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from ganglion.client import Client, Disconnected, Done, GanglionError, Session, TokenEvent
from ganglion.core.errors import EngineFailed, SessionNotFound
from support.ports import free_port
from support.real_node import MODEL, Node, running_node

pytestmark = pytest.mark.model

TEXT = (
    "The river rises in the mountains, where snow lies until June, and runs for six hundred kilometres "
    "through forests, vineyards and three large towns before it meets the sea. Ships have used it since "
    "Roman times. "
)
GREEDY = {"temperature": 0.0, "ignore_eos": True}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    flags = ("--context", "2048", "--port", str(free_port()))
    with running_node(tmp_path_factory.mktemp("home"), *flags) as running:
        yield running


@pytest.fixture
def client(node: Node) -> Iterator[Client]:
    with Client(node.url) as client:
        yield client


def post(node: Node, path: str, body: dict[str, object]) -> dict[str, object]:
    request = urllib.request.Request(
        node.url + path, json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        answer: dict[str, object] = json.load(response)
    return answer


def tail_of(session: Session, count: int) -> list[float]:
    """The logprobs of a session's last tokens, computed now."""
    ranges = [(session.length - count, None)]
    events = session.generate(max_tokens=0, logprobs=ranges)
    return [event.logprob for event in events if isinstance(event, TokenEvent) and event.logprob is not None]


def test_a_session_goes_on_as_completions_do(node: Node, client: Client) -> None:
    with client.session(MODEL) as session:
        session.append(TEXT)
        prompt = list(session.tokens)
        text = session.generate(max_tokens=12, **GREEDY).text()
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    (choice,) = post(node, "/v1/completions", body)["choices"]  # type: ignore[misc]
    assert text == choice["text"]  # type: ignore[index]


def test_scores_are_those_of_the_score_route(node: Node, client: Client) -> None:
    with client.session(MODEL) as session:
        session.append(TEXT)
        scored = session.score(" It is called the Drin.", top=3)
        tokens = [*session.tokens, *(token.id for token in scored.tokens)]
        start = session.length
    body = {"model": MODEL, "prompt": tokens, "score_ranges": [[start, None]], "top_k": 3}
    (told,) = post(node, "/v1/score", body)["scores"]  # type: ignore[misc]
    assert scored.total == pytest.approx(told["total_logprob"], abs=1e-3)  # type: ignore[index]
    for ours, theirs in zip(scored.tokens, told["tokens"], strict=True):  # type: ignore[index]
        assert (ours.id, ours.position) == (theirs["id"], theirs["position"])
        assert [each.id for each in ours.top] == [each["id"] for each in theirs["top"]]


def test_one_more_token_costs_one_token_and_a_fork_none(client: Client) -> None:
    with client.session(MODEL) as session:
        session.append(TEXT * 14)
        length = session.length
        assert length > 500
        done = session.generate(max_tokens=1, **GREEDY).result().done
        assert done.prompt_tokens - done.cached_tokens <= 1
        session.append([session.tokens[5]])
        done = session.generate(max_tokens=1, **GREEDY).result().done
        assert done.prompt_tokens - done.cached_tokens <= 2
        with session.fork(length) as fork:
            done = fork.generate(max_tokens=1, **GREEDY).result().done
            assert done.prompt_tokens - done.cached_tokens <= 1


def test_progress_is_told_while_a_long_text_is_read(client: Client) -> None:
    with client.session(MODEL) as session:
        tokens = client.tokenize(MODEL, "A fresh beginning. " + TEXT * 30)[:1500]
        kinds = [event.kind for event in session.run([tokens], max_tokens=1)]
        assert kinds.count("progress") >= 2
        assert kinds[-1] == "done"


def test_a_session_whose_kv_was_evicted_is_computed_again(tmp_path: Path) -> None:
    flags = ("--context", "512", "--kv-tokens", "512", "--port", str(free_port()))
    with (
        running_node(tmp_path, *flags) as small,
        Client(small.url) as client,
        client.session(MODEL) as session,
    ):
        session.append(TEXT * 4)
        before = tail_of(session, 80)
        for number in range(6):
            with client.session(MODEL) as other:
                other.append(f"Number {number}. " + TEXT * 5)
                tail_of(other, 80)  # it is scored where the first one was
        done = session.generate(max_tokens=0).result().done
        assert done.cached_tokens < done.prompt_tokens // 2
        # What stands before is computed in other batches now; an order of magnitude less than a wrong token.
        assert tail_of(session, 80) == pytest.approx(before, abs=0.4)


def test_another_key_finds_nothing_cached_and_no_session(tmp_path: Path) -> None:
    flags = ("--context", "1024", "--api-key", "one", "--api-key", "two", "--port", str(free_port()))
    with running_node(tmp_path, *flags) as closed:
        with (
            Client(closed.url, api_key="one") as one,
            Client(closed.url, api_key="two") as two,
            one.session(MODEL) as session,
            two.session(MODEL) as foreign,
        ):
            session.append(TEXT)
            tokens = session.tokens
            assert foreign.run([tokens], max_tokens=1).result().done.cached_tokens == 0
            assert [info.session_id for info in two.sessions()] == [foreign.id]
            with pytest.raises(SessionNotFound):
                two.attach(session.id or "")
        with pytest.raises(GanglionError), Client(closed.url, api_key="three") as stranger:
            stranger.sessions()


def test_an_urgent_call_goes_first_and_the_other_loses_nothing(tmp_path: Path) -> None:
    flags = ("--context", "1024", "--parallel", "1", "--port", str(free_port()))
    with running_node(tmp_path, *flags) as narrow, Client(narrow.url) as client:
        ended: list[str] = []
        patient_answers: list[int] = []
        with client.session(MODEL) as patient, client.session(MODEL) as urgent:
            patient.append(TEXT)
            urgent.append("Quick: ")

            def wait() -> None:
                result = patient.generate(max_tokens=150, priority=5, **GREEDY).result()
                patient_answers.append(len(result.tokens))
                ended.append("patient")

            thread = threading.Thread(target=wait)
            thread.start()
            time.sleep(0.4)
            urgent.generate(max_tokens=4, priority=-5, **GREEDY).result()
            ended.append("urgent")
            thread.join(60)
        assert ended == ["urgent", "patient"]
        assert patient_answers == [150]


def test_a_worker_that_dies_is_told_and_the_session_goes_on(tmp_path: Path) -> None:
    flags = ("--context", "1024", "--port", str(free_port()))
    with (
        running_node(tmp_path, *flags) as node,
        Client(node.url) as client,
        client.session(MODEL) as session,
    ):
        session.append(TEXT)
        length = session.length
        heard: list[int] = []
        with pytest.raises(EngineFailed) as failed:
            for event in session.generate(max_tokens=800, **GREEDY):
                if isinstance(event, TokenEvent):
                    heard.append(event.id)
                if len(heard) == 5:
                    node.worker().kill()
        told = int(str(failed.value.extras["session_length"]))
        assert told >= length + 5
        deadline_s = time.monotonic() + 30
        while node.health()["status"] != "loaded":
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
        (info,) = client.sessions()
        assert info.total_tokens == told
        assert len(session.generate(max_tokens=3, **GREEDY).result().tokens) == 3


def test_a_node_that_dies_is_told_and_the_next_run_sends_everything_again(tmp_path: Path) -> None:
    flags = ("--context", "1024", "--port", str(free_port()))
    with running_node(tmp_path, *flags) as first:
        client = Client(first.url, timeout_s=30)
        session = client.session(MODEL)
        answer = session.run([TEXT], max_tokens=4, **GREEDY).result()
        chunks = [TEXT, answer.tokens, " And then"]
        with pytest.raises(Disconnected):
            for event in session.run(chunks, max_tokens=500, **GREEDY):
                if isinstance(event, TokenEvent):
                    first.process.send_signal(signal.SIGKILL)
    with running_node(tmp_path, *flags):
        events = list(session.run(chunks, max_tokens=4, **GREEDY))
        done = events[-1]
        assert isinstance(done, Done)
        assert done.prompt_tokens == len(client.tokenize(MODEL, TEXT)) + 4 + 2
        assert session.length == done.total_tokens
        session.close()
        client.close()


def test_suspended_and_kept_sessions_come_back_after_a_restart(tmp_path: Path) -> None:
    flags = ("--context", "1024", "--keep-sessions", "--port", str(free_port()))
    with running_node(tmp_path, *flags) as node, Client(node.url) as client:
        asleep, awake = client.session(MODEL), client.session(MODEL)
        for session in (asleep, awake):
            session.append(TEXT)
        suspended = asleep.suspend()
        assert suspended.size_bytes > 1000 * suspended.total_tokens
        names = asleep.id, awake.id
    with running_node(tmp_path, *flags) as node, Client(node.url) as client:
        assert {info.session_id for info in client.sessions()} == set(names)
        assert all(info.is_suspended for info in client.sessions())
        for name in names:
            session = client.attach(name or "")
            done = session.generate(max_tokens=2, **GREEDY).result().done
            assert done.prompt_tokens == suspended.total_tokens
            assert done.cached_tokens >= done.prompt_tokens - 16
            session.close()
        assert client.sessions() == ()


def test_a_session_moves_to_another_node_with_its_kv(node: Node, client: Client, tmp_path: Path) -> None:
    with client.session(MODEL) as session:
        session.append(TEXT * 3)
        saved = session.save()
        expected = session.generate(max_tokens=8, **GREEDY).result()
    assert len(saved) > 10_000 * 100
    flags = ("--context", "1024", "--port", str(free_port()))
    with (
        running_node(tmp_path, *flags) as other,
        Client(other.url) as elsewhere,
        elsewhere.restore(saved) as moved,
    ):
        result = moved.generate(max_tokens=8, **GREEDY).result()
    assert result.done.cached_tokens == result.done.prompt_tokens - 1
    assert result.tokens[:4] == expected.tokens[:4]


VANISHING = """
import sys
from ganglion import Client
client = Client(sys.argv[1])
session = client.session("smollm2", ttl_s=1.0)
session.append("Once upon a time")
for event in session.generate(max_tokens=2000, ignore_eos=True):
    print(event.kind, flush=True)
"""


def test_a_client_that_vanishes_is_collected_within_its_time(node: Node) -> None:
    before = node.gauge("ganglion_sessions_open")
    command = [sys.executable, "-c", VANISHING, node.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as vanishing:
        assert vanishing.stdout is not None
        for line in vanishing.stdout:
            if "token" in line:
                break
        assert node.gauge("ganglion_sessions_open") == before + 1
        vanishing.kill()
    deadline_s = time.monotonic() + 10
    while node.gauge("ganglion_sessions_open") > before or node.health()["in_flight"]:
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
