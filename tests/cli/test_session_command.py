"""`ganglion session`: lines in, tokens out, against a node of its own."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ganglion.cli.inference.session_repl import bar
from ganglion.engines.concepts.pack import ConceptPack, PackManifest, PackModel, write_pack
from support.ports import free_port
from support.real_node import Node, running_node


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    home = tmp_path_factory.mktemp("home")
    with running_node(home, "--engine", "echo", "--port", str(free_port())) as node:
        yield node


def said(node: Node, *lines: str, flags: tuple[str, ...] = ()) -> tuple[str, str]:
    """What the program prints and what it tells, for some lines typed into it."""
    done = subprocess.run(
        [sys.executable, "-m", "ganglion.cli.main", "session", "--url", node.url, *flags],
        input="".join(f"{line}\n" for line in lines),
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "120"},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_text_is_appended_and_gone_on_from(echo: Node) -> None:
    out, talk = said(echo, "one two three", "/generate 8")
    assert out.strip() == "one two three"
    assert "3 tokens, 3 in all" in talk
    assert "3 tokens (stop), 6 in all; 2 of 3 were cached" in talk


def test_a_picture_is_appended_and_one_that_is_none_is_refused(echo: Node, tmp_path: Path) -> None:
    cat = tmp_path / "a cat.png"
    cat.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(392))
    _, talk = said(echo, "one two", f"/image '{cat}'", "/cut 3", f"/image {tmp_path}/none.png", "/image")
    assert "a cat.png: PNG, 1 KiB; 4 positions, 6 in all" in talk
    assert "error: Position 3 lies inside the image at 2 to 6." in talk
    assert "There is no file" in talk
    assert "Say which: /image PATH." in talk


def test_a_fork_goes_its_own_way_and_one_can_return(echo: Node) -> None:
    _, talk = said(echo, "one two", "/fork", " three", "/sessions", "/use 1", "/cut 1", "/sessions")
    assert "session 2, 2 tokens in all" in talk
    first, second = talk.split("1 tokens in all")
    assert "* 2  3 tokens" in first
    assert "* 1  1 tokens" in second


def test_a_chat_goes_by_the_template_the_best_is_kept_and_a_text_ends_an_answer(echo: Node) -> None:
    out, talk = said(
        echo,
        "/user one two three",
        "/best 2",
        "/set stop  two",
        "/cut 3",
        "/generate 8",
        "/set stop",
        "/user",
    )
    assert out.split() == ["one", "two", "three", "one", "two"]
    assert "3 tokens, 3 in all" in talk and "6 in all" in talk
    assert "2 tokens (stop), 5 in all" in talk
    assert talk.count("stop               the model decides") == 1
    assert "error: Say what the user says" in talk


def test_scores_and_tokens_are_shown_with_their_logprobs(echo: Node) -> None:
    out, talk = said(echo, "one two", "/score  three", "/tokens", "/top 2")
    assert "perplexity" in talk
    assert "' three'" in out
    assert out.count("'one'") >= 1
    assert " other1" in out


def test_a_session_is_saved_and_restored(echo: Node, tmp_path: Path) -> None:
    file = tmp_path / "kept"
    _, talk = said(echo, "one two three", f"/save {file}", f"/restore {file}", "/sessions")
    assert file.stat().st_size > 0
    assert "session 2, 3 tokens in all" in talk


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("/nothing", "There is no /nothing."),
        ("/cut x", "error: Expected a number, found 'x'."),
        ("/tokens", "error: The session is empty."),
        ("/use 9", "error: There are sessions 1 to 1."),
        ("/set colour 1", "error: There is no colour"),
        ("/set temperature warm", "error: Expected a number for temperature"),
        ("/restore /nowhere", "error: /nowhere could not be read"),
        ("/read", "error: The session is empty."),
        ("/help", "/generate [N]"),
    ],
)
def test_a_line_that_cannot_be_done_says_why_and_the_next_one_works(echo: Node, line: str, told: str) -> None:
    _, talk = said(echo, line, "one two")
    assert told in talk
    assert "2 tokens, 2 in all" in talk


def test_readouts_need_concepts_and_say_so(echo: Node) -> None:
    _, talk = said(echo, "one two", "/read", flags=())
    assert "error: " in talk
    assert "concepts" in talk


def test_without_a_node_it_says_how_to_start_one(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    for arguments in ([], ["smollm2"]):
        done = subprocess.run(
            [sys.executable, "-m", "ganglion.cli.main", "session", *arguments, "--url", url],
            input="hello\n",
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert "ganglion serve" in done.stderr


def test_a_bar_reaches_as_far_as_its_value() -> None:
    assert bar(0.0) == " " * 12
    assert bar(1.0) == " " * 6 + "█" * 6
    assert bar(-1.0) == "█" * 6 + " " * 6
    assert bar(0.5).count("█") == 3
    assert {len(bar(share / 10)) for share in range(-20, 21)} == {12}


@pytest.mark.model
def test_concepts_are_read_and_steered_by(tmp_path: Path) -> None:
    drawn = np.random.default_rng(7).standard_normal((2, 2, 576)).astype(np.float32)
    vectors = {
        layer: each / np.linalg.norm(each, axis=1)[:, None]
        for layer, each in zip((9, 19), drawn, strict=True)
    }
    model = PackModel("SmolLM2", "llama", hidden_size=576, block_count=30)
    pack = ConceptPack(PackManifest("moods", ["calm", "keen"], [9, 19], model), vectors)
    write_pack(pack, tmp_path / "concepts" / "moods.safetensors")
    flags = ("--concepts", "moods", "--context", "512", "--port", str(free_port()))
    with running_node(tmp_path, *flags) as node:
        out, _ = said(node, "The sea is", "/generate 4", "/read", flags=("--steer", "calm=1.5"))
        assert "calm" in out
        assert "keen" in out
        assert len([line for line in out.splitlines() if "'" in line]) == 7
        done = subprocess.run(
            [sys.executable, "-m", "ganglion.cli.main", "session", "--url", node.url, "--steer", "joy"],
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
        assert (done.returncode, "--steer formal=1.5" in done.stderr) == (2, True)
