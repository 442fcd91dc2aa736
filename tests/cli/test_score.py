"""`ganglion score` as a person and a script meet it: here, on a node, with and without colours."""

import json
import math
import os
import pty
import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from commands import GANGLION, data, fresh_environment, refusal, run

from ganglion.cli.terminal.console import colour_of, legend, visible
from support.ports import free_port

Environment = dict[str, str]
ECHO = ("--engine", "echo")


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    return fresh_environment(tmp_path)


@contextmanager
def serving(environment: Environment, *arguments: str) -> Iterator[str]:
    command = [*GANGLION, "serve", "--port", "0", *arguments]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        address = next(line for line in process.stderr if line.startswith("ganglion "))
        reader = threading.Thread(target=process.stderr.read)
        reader.start()
        try:
            yield address.split()[-1]
        finally:
            process.terminate()
            process.wait(20)
            reader.join(5)


def on_terminal(environment: Environment, *arguments: str) -> str:
    """What a command writes where its stdout is a terminal."""
    ours, theirs = pty.openpty()
    shown = bytearray()
    with subprocess.Popen(
        [*GANGLION, *arguments],
        env=environment | {"TERM": "xterm-256color"},
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=subprocess.PIPE,
    ) as process:
        os.close(theirs)
        with suppress(OSError):
            while more := os.read(ours, 4096):
                shown.extend(more)
        assert process.wait(20) == 0
    os.close(ours)
    return shown.decode()


def test_sums_are_told_and_can_be_read_without_colour(environment: Environment) -> None:
    done = run(environment, "score", "one two three four", *ECHO)
    assert (done.returncode, done.stderr) == (0, "")
    facts = dict(re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in done.stdout.splitlines())
    assert facts["tokens"] == "3 scored of 4 read"
    total, mean = float(facts["total logprob"]), float(facts["mean logprob"])
    assert total == pytest.approx(3 * mean, abs=1e-3)
    assert float(facts["perplexity"]) == pytest.approx(math.exp(-mean), rel=1e-2)
    assert "at " in facts["least likely"]
    assert "\x1b" not in done.stdout


def test_every_token_is_told_as_json_and_as_a_table(environment: Environment) -> None:
    report = data(environment, "score", "one two three", *ECHO, "--top", "2")
    logprobs = [token["logprob"] for token in report["tokens"]]
    assert [token["token"] for token in report["tokens"]] == ["one", " two", " three"]
    assert logprobs[0] is None
    assert report["total_logprob"] == pytest.approx(sum(logprobs[1:]))
    assert report["perplexity"] == pytest.approx(math.exp(-report["mean_logprob"]))
    assert [len(token.get("top", [])) for token in report["tokens"]] == [0, 2, 2]
    table = run(environment, "score", "one two three", *ECHO, "--top", "2", "--tokens").stdout
    assert '" two"' in table
    assert f"{logprobs[1]:.4f}" in table
    assert '" other1"' in table
    assert "perplexity" in table
    assert "likeliest" not in run(environment, "score", "one two", *ECHO, "--tokens").stdout


def test_what_is_given_before_a_text_is_not_scored(environment: Environment) -> None:
    report = data(environment, "score", " three four", "--prompt", "one two", *ECHO)
    assert [token["token"] for token in report["tokens"]] == [" three", " four"]
    assert (report["scored_tokens"], report["prompt_tokens"]) == (2, 4)
    # A word that the text changes belongs to the text.
    report = data(environment, "score", "ve three", "--prompt", "one fi", *ECHO)
    assert [token["token"] for token in report["tokens"]] == [" five", " three"]


def test_texts_come_from_files_and_from_stdin(environment: Environment, tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text("one two three")
    expected = data(environment, "score", "one two three", *ECHO)
    assert data(environment, "score", "--file", str(file), *ECHO) == expected
    for arguments in ((), ("-",)):
        done = subprocess.run(
            [*GANGLION, "score", *arguments, *ECHO, "--json"],
            input="one two three",
            env=environment,
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
        assert json.loads(done.stdout) == expected


def test_what_is_wrong_is_said(environment: Environment, tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")
    for arguments, words in (
        (("x", "--file", str(binary)), "both given"),
        (("",), "nothing to score"),
        ((), "nothing to score"),
    ):
        error, _ = refusal(environment, "score", *arguments, *ECHO, status=2)
        assert words in error
    for arguments, words in (
        (("--file", str(binary)), "not UTF-8"),
        (("--file", str(tmp_path / "nowhere")), "could not be read"),
        (("x", "--top", "21"), "--top"),
        (("--bogus",), "no such flag"),
    ):
        done = run(environment, "score", *arguments, *ECHO)
        assert done.returncode == 2
        assert words in done.stderr
        assert "Traceback" not in done.stderr
    url = f"http://127.0.0.1:{free_port()}"
    assert f"No node at {url}" in refusal(environment, "score", "x", "--node", url)[0]


def test_a_node_scores_the_same(environment: Environment) -> None:
    arguments = ("score", " three four", "--prompt", "one two", "--top", "2")
    here = data(environment, *arguments, *ECHO)
    with serving(environment, *ECHO, "--api-key", "s3cret") as url:
        there = data(environment, *arguments, "--node", url, "--api-key", "s3cret")
        named = data(environment, *arguments, "--url", url, "--api-key", "s3cret", "--model", "echo")
        assert "key" in refusal(environment, *arguments, "--node", url)[0]
    assert there == named == here


def test_a_node_with_several_models_wants_to_know_which(environment: Environment) -> None:
    with serving(environment, *ECHO, "parrot", "magpie") as url:
        error, hint = refusal(environment, "score", "a b", "--node", url, status=2)
        assert "parrot, magpie" in error
        assert "--model" in hint
        assert data(environment, "score", "a b", "--node", url, "--model", "magpie")["model"] == "magpie"


def test_a_terminal_shows_the_text_in_colours_unless_nobody_wants_them(environment: Environment) -> None:
    colourful = {name: value for name, value in environment.items() if name != "NO_COLOR"}
    shown = on_terminal(colourful, "score", "one two \x1b[2Jthree", *ECHO)
    assert re.search(r"\x1b\[\d+m two\x1b\[0m", shown)
    assert "\x1b[2J" not in shown
    assert "\\x1b[2J" in shown
    assert "below -5" in shown
    plain = on_terminal(environment, "score", "one two three", *ECHO)
    assert not re.search(r"\x1b\[3\dm", plain)
    assert "perplexity" in plain


def test_shades_cover_every_logprob_and_the_legend_names_them() -> None:
    assert [colour_of(each) for each in (0.0, -0.5, -1.0, -4.0, -9.0, float("-inf"), None)] == [
        "green",
        "green",
        "cyan",
        "yellow",
        "red",
        "red",
        "dim",
    ]
    assert [words for words, _ in legend()] == ["from -0.5", "from -2", "from -5", "below -5"]
    assert visible("a\n\tb\x1b\x00é\u202e") == "a\n\tb\\x1b\\x00é\\x202e"


@pytest.mark.model
def test_the_model_finds_sense_likelier_than_nonsense(environment: Environment) -> None:
    asked = ("--prompt", "The capital of France is", "--context", "256", "--kv-tokens", "256")
    sense = data(environment, "score", " Paris.", *asked)
    nonsense = data(environment, "score", " turnip.", *asked)
    assert sense["perplexity"] < 3 < nonsense["perplexity"]
    assert sense["model"].startswith("smollm2")
