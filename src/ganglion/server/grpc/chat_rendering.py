"""Chat messages as the tokens that continue a session, by the model's own template.

A template writes whole conversations, and a session holds the turns that were. So new messages are rendered
after an earlier turn that contains a mark, and the text after the mark is theirs: the text that closes the
turn before them, where that is still open, and then they themselves.

Law: what a session holds is never rewritten. A template that writes earlier turns otherwise once others
follow (that leaves their reasoning out, say) is given the new ones alone.
"""

import secrets
from dataclasses import dataclass, replace
from typing import Final

from ganglion.core.attachments import attachments_of
from ganglion.core.engine import PromptReader
from ganglion.core.errors import InvalidValue, UnsupportedParameter
from ganglion.core.request import ChatPrompt, Message, Request, TextPrompt, ToolCall
from ganglion.wire import chat, tokenizer
from ganglion.wire.answer_format import ParseContext
from ganglion.wire.decode import with_model

_MAX_CLOSING_CHARACTERS: Final = 64
"""Characters of a turn's closing text that are looked for at the end of the tokens before."""


@dataclass(frozen=True, slots=True)
class NewMessages:
    """New messages, and the tokens before them."""

    model: str
    chat: bytes
    is_continued: bool
    preceding: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _RenderedMessages:
    """Tokens to append, and their text."""

    tokens: tuple[int, ...]
    text: str


async def render_messages(
    reader: PromptReader, new: NewMessages, *, request_id: str, tenant: str, is_strict: bool
) -> _RenderedMessages:
    """Render new messages; raises what the chat wire would, and InvalidValue where a template hides them."""
    body = with_model(tokenizer.parse_template(new.chat).chat or b"{}", new.model)
    context = ParseContext(request_id, 0, tenant=tenant, is_strict=is_strict)
    request = chat.parse(body, context).requests[0]
    if attachments_of(request.prompt):
        raise UnsupportedParameter(
            "Messages are rendered to tokens, and an image or a sound is none.",
            param="chat",
            hint="Render the text around it, and append an image itself with AppendImage.",
        )
    if not new.is_continued:
        read = await reader.read(request)
        return _RenderedMessages(read.tokens, read.text or "")
    text = await _following(reader, new, request)
    prompt = TextPrompt(text, adds_special=False)
    return _RenderedMessages(
        (await reader.read(replace(request, prompt=prompt))).tokens if text else (), text
    )


async def _following(reader: PromptReader, new: NewMessages, request: Request) -> str:
    assert isinstance(request.prompt, ChatPrompt)
    mark = f"turn-{secrets.token_hex(12)}"
    prompt = request.prompt
    behind = replace(prompt, messages=(*_earlier(mark, prompt.messages[0]), *prompt.messages))
    text = (await reader.read(replace(request, prompt=behind))).text or ""
    _, found, after = text.rpartition(mark)
    if not found:
        raise InvalidValue(
            "The model's chat template leaves earlier turns out, so that nothing can be appended to them.",
            param="chat",
            hint="Render the whole conversation with POST /apply_template and append it as text.",
        )
    info = await reader.tokenizer_info(new.model)
    pieces = await reader.pieces(new.model, info.end_ids, tenant=request.tenant)
    ends = [piece.decode(errors="replace") for piece in pieces]
    before = ""
    if new.preceding:
        before = await reader.detokenize(new.model, new.preceding, tenant=request.tenant)
    return without_closed_part(after, before, ends)


def _earlier(mark: str, first: Message) -> tuple[Message, ...]:
    """Turns before the first new message, as a template expects them, whose last one ends with the mark."""
    if first.role == "assistant":
        return (Message("user", mark),)
    calls: tuple[ToolCall, ...] = ()
    if first.role == "tool":
        # Templates refuse a result without a call, and some leave out the text beside a call.
        calls = (ToolCall(first.tool_call_id or "call_1", first.name or "tool", f'{{"mark": "{mark}"}}'),)
    return (Message("user", "."), Message("assistant", mark, tool_calls=calls))


def without_closed_part(after: str, before: str, ends: list[str]) -> str:
    """The text after a turn, without the part of its closing text that is already before it.

    The closing text begins with the model's own end token, where the template writes one: what is between the
    turn's text and that, as the rest of a call, belongs to the earlier turn.
    """
    positions = [position for end in ends if end and (position := after.find(end)) >= 0]
    sign = after[min(positions) :] if positions else after
    for count in range(min(len(sign), _MAX_CLOSING_CHARACTERS), 0, -1):
        if before.endswith(sign[:count]):
            return sign[count:]
    return sign
