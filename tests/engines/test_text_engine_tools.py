"""A text engine shows tools, finds calls, and says that the answer ended with them."""

from collections.abc import AsyncGenerator, AsyncIterator

import pytest

from ganglion.core.events import Finished, Piece, Pieces, Started, Token, TokenEvent, Usage
from ganglion.core.fold import Answer, fold
from ganglion.core.grammar import Grammar
from ganglion.core.model import ModelFacts
from ganglion.core.request import ChatPrompt, Message, Request, TokenRequest, Tool, ToolUse
from ganglion.engines.rendering.renderer import Renderer
from ganglion.engines.text_engine import TextEngine, control_ids

TOOLS = (Tool("now", "The time.", {"type": "object", "properties": {}}), Tool("later"))
CALL = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'


class Scripted:
    """Tokens that are characters, and an answer that is known beforehand; `<mark>` is a control token."""

    def __init__(self, answer: str, reason: str = "stop") -> None:
        self._answer = answer
        self._reason = reason
        self.prompt = ""

    async def run(self, request: TokenRequest) -> AsyncGenerator[TokenEvent, None]:
        self.prompt = "".join(map(chr, request.tokens))
        yield Started(len(request.tokens))
        for at, char in enumerate(self._answer):
            yield Pieces((Piece(char, (Token(ord(char), char.encode(), at),)),))
        yield Finished(self._reason, Usage(len(request.tokens), len(self._answer)))  # type: ignore[arg-type]

    async def tokenize(
        self, text: str, *, add_special: bool, parse_special: bool, tenant: str = "", most: int | None = None
    ) -> tuple[int, ...]:
        return (7,) if text == "<mark>" and parse_special else tuple(map(ord, text))

    async def text_of(self, tokens: tuple[int, ...]) -> str:
        return "".join(map(chr, tokens))


@pytest.fixture
async def renderer() -> AsyncIterator[Renderer]:
    opened = Renderer(budget_s=10.0)
    await opened.open()
    yield opened
    await opened.close()


async def answered(renderer: Renderer, tokens: Scripted, use: ToolUse) -> Answer:
    facts = ModelFacts("", 0, 0, "llama", "m", 9999, 1, 1, 0x110000)
    engine = TextEngine("m", tokens, renderer, facts, context=9999, chat_template=None)
    request = Request("1", "m", ChatPrompt((Message("user", "Hi"),), tool_use=use))
    grammar = Grammar()
    events = []
    async for event in engine.generate(request):
        grammar.feed(event)
        events.append(event)
    return fold(events)


async def test_calls_are_found_and_end_the_answer(renderer: Renderer) -> None:
    tokens = Scripted(f"Let me see. {CALL}\n{CALL}")
    answer = await answered(renderer, tokens, ToolUse(TOOLS))
    assert '{"name": "now", "description": "The time."' in tokens.prompt
    assert [(block.kind, block.name, block.text) for block in answer.blocks] == [
        ("text", None, "Let me see. "),
        ("tool_call", "now", "{}"),
        ("tool_call", "now", "{}"),
    ]
    ids = [block.call_id or "" for block in answer.blocks[1:]]
    assert len(set(ids)) == 2 and all(one.startswith("call_") for one in ids)
    assert answer.finished.reason == "tool_calls"


async def test_an_answer_that_was_cut_says_so_though_it_calls(renderer: Renderer) -> None:
    answer = await answered(renderer, Scripted(CALL[:35], "length"), ToolUse(TOOLS))
    assert answer.blocks[0].name == "now"
    assert answer.finished.reason == "length"


async def test_with_none_tools_are_neither_shown_nor_called(renderer: Renderer) -> None:
    tokens = Scripted(CALL)
    answer = await answered(renderer, tokens, ToolUse(TOOLS, "none"))
    assert "now" not in tokens.prompt
    assert answer.text("text") == CALL
    assert answer.finished.reason == "stop"


async def test_what_is_not_allowed_is_text(renderer: Renderer) -> None:
    answer = await answered(renderer, Scripted(CALL), ToolUse(TOOLS, allowed=("later",)))
    assert answer.text("text") == CALL


async def test_markers_that_only_the_vocabulary_can_write_are_known() -> None:
    assert await control_ids(Scripted(""), ["<mark>", "<tool_call>", "x"]) == {"<mark>": 7}
