"""New turns behind old ones: with real templates, and where a turn is closed, as texts."""

import base64
import json
from datetime import datetime
from pathlib import Path

import pytest

from ganglion.core.engine import ReadPrompt, TokenizerInfo
from ganglion.core.errors import InvalidValue, UnsupportedParameter
from ganglion.core.request import ChatPrompt, Request, TextPrompt
from ganglion.server.grpc.chat_rendering import NewMessages, render_messages, without_closed_part
from ganglion.text import template

END = "<|im_end|>"
TEMPLATES = Path(__file__).parents[1] / "text" / "templates"
ENDS = {"smollm2": END, "qwen3": END, "llama3": "<|eot_id|>", "gemma2": "<end_of_turn>"}
NOON = datetime(2026, 1, 1, 12)
END_ID = 2**20


class Reading:
    """A PromptReader with a model's template, whose tokens are characters and one end."""

    def __init__(self, source: str, end: str) -> None:
        self.source, self.end = source, end

    async def read(self, request: Request) -> ReadPrompt:
        match request.prompt:
            case ChatPrompt() as prompt:
                text = template.render(self.source, prompt, bos_token="<s>", eos_token=self.end, now=NOON)
            case TextPrompt(text=text):
                pass
            case _:
                raise AssertionError
        return ReadPrompt(self.tokens(text), text)

    def tokens(self, text: str) -> tuple[int, ...]:
        parts = text.split(self.end)
        return tuple(token for part in parts for token in (*map(ord, part), END_ID))[:-1]

    async def detokenize(self, _: str, tokens: tuple[int, ...], *, tenant: str = "") -> str:
        return "".join(self.end if token == END_ID else chr(token) for token in tokens)

    async def pieces(self, _: str, tokens: tuple[int, ...], *, tenant: str = "") -> tuple[bytes, ...]:
        return tuple([(await self.detokenize("", (token,))).encode() for token in tokens])

    async def tokenizer_info(self, _: str) -> TokenizerInfo:
        return TokenizerInfo(2**21, 8192, self.source, "<s>", self.end, end_ids=(END_ID,))


class Talk:
    """A session's tokens as a client makes them, turn by turn."""

    def __init__(self, reader: Reading) -> None:
        self.reader = reader
        self.tokens: tuple[int, ...] = ()

    async def say(self, *messages: dict[str, object], **more: object) -> None:
        chat = json.dumps({"messages": messages, **more}).encode()
        turns = NewMessages("model", chat, bool(self.tokens), self.tokens[-64:])
        rendered = await render_messages(self.reader, turns, request_id="r", tenant="", is_strict=False)
        assert rendered.tokens == self.reader.tokens(rendered.text)
        self.tokens += rendered.tokens

    async def answer(self, text: str, *, is_cut: bool = False) -> None:
        self.tokens += (*map(ord, text), *(() if is_cut else (END_ID,)))

    async def text(self) -> str:
        return await self.reader.detokenize("", self.tokens)


def user(text: str) -> dict[str, object]:
    return {"role": "user", "content": text}


@pytest.mark.parametrize("name", ENDS)
async def test_turn_by_turn_a_session_is_the_templates_rendering_of_the_whole(name: str) -> None:
    reader = Reading((TEMPLATES / f"{name}.jinja").read_text(), ENDS[name])
    talk, whole = Talk(reader), Talk(reader)
    await talk.say(user("Name a colour."))
    await talk.answer("Red.")
    await talk.say(user("And another."))
    await talk.answer("Blue is", is_cut=True)
    await talk.say(user("Why?"))
    said = [user("Name a colour."), {"role": "assistant", "content": "Red."}, user("And another.")]
    await whole.say(*said, {"role": "assistant", "content": "Blue is"}, user("Why?"))
    if name == "qwen3":
        # It begins every answer itself, and leaves that out of earlier turns.
        assert (await talk.text()).count("<|im_start|>") == (await whole.text()).count("<|im_start|>")
    else:
        assert talk.tokens == whole.tokens


async def test_the_result_of_a_tool_follows_the_call_that_asked_for_it() -> None:
    reader = Reading((TEMPLATES / "qwen3.jinja").read_text(), END)
    talk = Talk(reader)
    tool = {"type": "function", "function": {"name": "sky", "parameters": {"type": "object"}}}
    await talk.say(user("Is it blue?"), tools=[tool])
    assert '"sky"' in await talk.text()
    await talk.answer('<tool_call>\n{"name": "sky", "arguments": {}}\n</tool_call>')
    before = await talk.text()
    result = {"role": "tool", "tool_call_id": "call_1", "content": "grey"}
    await talk.say(result, tools=[tool])
    added = (await talk.text()).removeprefix(before)
    assert added.startswith("\n<|im_start|>user\n<tool_response>\ngrey\n</tool_response><|im_end|>\n")
    assert added.endswith("<|im_start|>assistant\n") or "<think>" in added
    assert "sky" not in added and "mark" not in added


async def test_an_image_among_the_messages_is_refused_by_name() -> None:
    url = "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()
    image = {"type": "image_url", "image_url": {"url": url}}
    with pytest.raises(UnsupportedParameter, match="image") as raised:
        await Talk(Reading((TEMPLATES / "smollm2.jinja").read_text(), END)).say(
            {"role": "user", "content": [image]}
        )
    assert "AppendImage" in (raised.value.hint or "")


async def test_a_template_that_hides_earlier_turns_is_refused_by_name() -> None:
    talk = Talk(Reading("{{ messages[-1]['content'] }}", END))
    await talk.say(user("one"))
    with pytest.raises(InvalidValue, match="earlier turns") as refused:
        await talk.say(user("two"))
    assert refused.value.param == "chat"


@pytest.mark.parametrize(
    ("after", "before", "expected"),
    [
        (f"{END}\n<|user|>", f"the answer{END}", "\n<|user|>"),
        (f"{END}\n<|user|>", f"the answer{END}\n", "<|user|>"),
        (f"{END}\n<|user|>", "the answer was cut", f"{END}\n<|user|>"),
        (f"{END}\n<|user|>", "", f"{END}\n<|user|>"),
        (f" {END}<|user|>", f"the answer{END}", "<|user|>"),
        (f'"}}}}</call>{END}\n<|tool|>', f"<call>{END}", "\n<|tool|>"),
        ("\nuser: ", "the answer", "\nuser: "),
        ("\nuser: ", "the answer\n", "user: "),
    ],
)
def test_a_turn_is_closed_once(after: str, before: str, expected: str) -> None:
    assert without_closed_part(after, before, [END, ""]) == expected
