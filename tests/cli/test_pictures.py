"""Pictures on the command line: shown to a model that sees, and refused with a reason."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SEEING = "echo-vision"
CAT = b"\x89PNG\r\n\x1a\n" + b"cat " * 60
DOG = b"\xff\xd8\xff" + b"dog " * 30


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "cat.png").write_bytes(CAT)
    (tmp_path / "a dog.jpg").write_bytes(DOG)
    (tmp_path / "notes.png").write_text("no picture")
    return tmp_path


def chat(folder: Path, *arguments: str, model: str = SEEING, stdin: bytes = b"") -> tuple[int, str, str]:
    """The exit status, what is printed, and what is told."""
    done = subprocess.run(
        [sys.executable, "-m", "ganglion.cli.main", "chat", model, "--engine", "echo", *arguments],
        input=stdin,
        env={**os.environ, "GANGLION_HOME": str(folder / "home"), "NO_COLOR": "1"},
        cwd=folder,
        capture_output=True,
        check=False,
        timeout=60,
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def test_pictures_of_the_command_line_are_shown_with_the_first_message(folder: Path) -> None:
    arguments = ("--image", "cat.png", "--image", "a dog.jpg")
    status, out, talk = chat(folder, *arguments, stdin=b"what is it\nand now\n")
    assert status == 0
    first, second = out.splitlines()
    assert first.startswith("[image 1: ") and "[image 2: " in first and first.endswith("what is it")
    assert second.endswith("and now") and "[image 3: " not in second
    assert "cat.png: PNG, 1 KiB" in talk and "a dog.jpg: JPEG" in talk


def test_a_picture_is_shown_in_the_middle_of_a_conversation(folder: Path) -> None:
    lines = b"hello\n/image a dog.jpg\nwhat is it\n/image\n/image nothing.png\nstill here\n"
    status, out, talk = chat(folder, stdin=lines)
    assert status == 0
    first, second, third = out.splitlines()
    assert "image" not in first
    assert "[image 1: " in second
    assert third.endswith("still here")
    assert "Say which: /image PATH." in talk
    assert "error: There is no file nothing.png." in talk


def test_one_question_about_a_picture_from_stdin_is_answered_as_data(folder: Path) -> None:
    status, out, _ = chat(folder, "--image", "-", "--ask", "what is it", stdin=CAT)
    assert (status, out.startswith("[image 1: "), out.endswith("what is it\n")) == (0, True, True)


def test_a_model_that_does_not_see_says_so(folder: Path) -> None:
    status, out, talk = chat(folder, "--image", "cat.png", "--ask", "what is it", model="echo")
    assert (status, out) == (1, "")
    assert "reads text only" in talk
    status, out, talk = chat(folder, "--image", "cat.png", model="echo", stdin=b"what is it\nhello\n")
    assert (status, out) == (0, "hello\n"), "the conversation goes on without it"
    assert "The pictures were not kept" in talk


@pytest.mark.parametrize(
    ("arguments", "error", "hint"),
    [
        (("--image", "nothing.png"), "There is no file nothing.png.", "Paths are read from "),
        (("--image", "notes.png"), "notes.png is not a picture.", "PNG, JPEG, WebP, GIF and BMP are read."),
        (("--image", "."), ". cannot be read: Is a directory.", ""),
        (("--image", "-"), "A picture from stdin leaves no place to type.", "--image - --ask TEXT"),
        (("--image", "-", "--image", "-", "--ask", "x"), "Only one picture can come through stdin.", ""),
        (("--image", "-", "--ask", "x"), "stdin is not a picture.", "PNG, JPEG"),
        (("--image", "--sytem", "x"), "There is no such flag", "ganglion chat --help"),
    ],
)
def test_what_is_no_picture_is_refused_before_a_model_is_loaded(
    folder: Path, arguments: tuple[str, ...], error: str, hint: str
) -> None:
    status, out, talk = chat(folder, *arguments)
    assert status != 0 and not out
    assert error in talk and hint in talk


def test_a_file_that_is_too_large_is_not_read_whole(folder: Path) -> None:
    with (folder / "huge.png").open("wb") as file:
        file.write(CAT)
        file.truncate(1 << 40)
    status, _, talk = chat(folder, "--image", "huge.png", "--ask", "x")
    assert status == 2
    assert "huge.png is larger than 20 MiB." in talk and "Save it smaller." in talk
