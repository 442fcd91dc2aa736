"""The whole answer is the stream, folded."""

import pytest

from ganglion.core.errors import EngineFailed, Overloaded
from ganglion.core.events import Closed, Delta, Failed, Finished, Opened, Progress, Started, Token, Usage
from ganglion.core.fold import Block, fold

FINISHED = Finished("tool_calls", Usage(3, 4))


def test_blocks_keep_their_text_tokens_and_names() -> None:
    token = Token(5, b" b", 3)
    answer = fold(
        [
            Progress("queued", 0, 1),
            Started(3),
            Opened(0, "text"),
            Delta(0, "a"),
            Delta(0, " b", (token,)),
            Closed(0),
            Opened(1, "tool_call", "call_1", "look"),
            Delta(1, "{}"),
            Closed(1),
            FINISHED,
        ]
    )
    assert answer.blocks == (Block("text", "a b", (token,)), Block("tool_call", "{}", (), "call_1", "look"))
    assert answer.finished is FINISHED
    assert (answer.text("text"), answer.text("reasoning")) == ("a b", "")


def test_a_failed_stream_raises_its_own_error() -> None:
    error = Overloaded("full")
    with pytest.raises(Overloaded) as raised:
        fold([Started(1), Opened(0, "text"), Delta(0, "a"), Failed(error)])
    assert raised.value is error


def test_a_stream_without_an_end_is_an_engine_failure() -> None:
    with pytest.raises(EngineFailed):
        fold([Started(1), Opened(0, "text"), Delta(0, "a"), Closed(0)])
