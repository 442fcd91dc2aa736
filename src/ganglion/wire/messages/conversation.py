"""Turns the messages of a body into turns of a conversation.

Law: nothing is added and nothing reordered. Blocks of one message are put together as they stand, a tool's
result becomes a turn of its own in its place, and neighbours of one role are one turn, as this API has it.
What a tool of another server did is told as a call and its answer where it has words, and left out otherwise.
Reasoning counts only under our own seal: what a client changed, or another server wrote, is left out, so that
a conversation can move between backends and a model is never told thoughts that it did not have.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import assert_never

from ganglion.core.attachments import joined_content
from ganglion.core.errors import InvalidValue, UnsupportedParameter
from ganglion.core.request import Message, ToolCall
from ganglion.wire.attached_files import MessageContent, check_attachment_count
from ganglion.wire.decode import read_object
from ganglion.wire.messages.hosted_blocks import (
    CompactionBlock,
    ContainerUploadBlock,
    FallbackBlock,
    HostedToolResult,
    HostedToolUse,
    McpListingBlock,
    McpToolUseBlock,
    ServerToolUseBlock,
    Wordless,
    hosted_result_text,
)
from ganglion.wire.messages.messages_tools import call_id
from ganglion.wire.messages.schema import (
    AssistantBlock,
    Base64Source,
    Citations,
    ContentSource,
    DocumentBlock,
    ImageAddress,
    ImageBytes,
    ImageFile,
    MessagesAssistantMessage,
    MessagesImageBlock,
    MessagesMessageParam,
    MessagesSystemMessage,
    MessagesUserMessage,
    RedactedThinkingBlock,
    SearchResultBlock,
    TextBlock,
    TextSource,
    ThinkingBlock,
    ToolReferenceBlock,
    ToolResultBlock,
    ToolUseBlock,
    UploadedFileSource,
    UrlSource,
    UserBlock,
)
from ganglion.wire.seal import HmacSeal

_MAX_INPUT_BYTES = 2**20
_BETWEEN_TURNS = "\n\n"

_ReadableBlock = TextBlock | MessagesImageBlock | DocumentBlock | SearchResultBlock | ToolReferenceBlock


@dataclass(frozen=True, slots=True)
class MessagesConversation:
    """A conversation, and how many of its thoughts were left out."""

    messages: tuple[Message, ...]
    is_continued: bool
    unsealed: int
    left_out: tuple[str, ...] = ()
    """What else was, for the log."""


def conversation_of(
    system: str | list[TextBlock] | None,
    messages: list[MessagesMessageParam],
    *,
    tenant: str,
    seal: HmacSeal,
) -> MessagesConversation:
    """Read the conversation, or raise the InvalidRequest that names the block which cannot be read."""
    reader = _Reader(tenant, seal)
    if system:
        reader.turns.append(Message("system", _blocks(system)))
    for place, message in enumerate(messages):
        reader.read(message, f"messages[{place}]")
    turns, left_out = _merged(reader.turns), reader.left_out()
    check_attachment_count(turns)
    last = turns[-1] if turns else None
    if last is None or last.role != "assistant":
        return MessagesConversation(turns, False, reader.unsealed, left_out)
    if last.tool_calls:
        path = f"messages[{len(messages) - 1}]"
        raise InvalidValue(f"'{path}' ends in a 'tool_use' without its 'tool_result'.", param=path)
    if last.content or last.reasoning:
        return MessagesConversation(turns, True, reader.unsealed, left_out)
    return MessagesConversation(turns[:-1], False, reader.unsealed, left_out)


@dataclass(slots=True)
class _Reader:
    """The conversation as far as it is read."""

    tenant: str
    seal: HmacSeal
    turns: list[Message] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    """Which tool each call called."""
    unsealed: int = 0
    uses: dict[str, HostedToolUse] = field(default_factory=dict)
    """Calls of tools that another server ran, until their results are read."""
    skipped: list[str] = field(default_factory=list)

    def left_out(self) -> tuple[str, ...]:
        """The blocks that the model cannot be shown, each once."""
        unanswered = [f"a call of {use.name!r} that another server made" for use in self.uses.values()]
        return tuple(dict.fromkeys((*self.skipped, *unanswered)))

    def read(self, message: MessagesMessageParam, path: str) -> None:
        match message:
            case MessagesSystemMessage(content=content):
                self.turns.append(Message("system", _text(content)))
            case MessagesUserMessage(content=content):
                if isinstance(content, str):
                    self.turns.append(Message("user", content))
                else:
                    self._user(content, path)
            case MessagesAssistantMessage(content=content):
                if isinstance(content, str):
                    self.turns.append(Message("assistant", content))
                else:
                    self._assistant(content, path)
            case _:
                assert_never(message)

    def _user(self, blocks: list[UserBlock], path: str) -> None:
        content = MessageContent()
        is_said = not blocks
        for place, block in enumerate(blocks):
            inside = f"{path}.content[{place}]"
            if isinstance(block, ToolResultBlock):
                if is_said:
                    self._say(content)
                content, is_said = MessageContent(), False
                self._result(block, inside)
            elif isinstance(block, ContainerUploadBlock):
                self._skip(block)
            elif isinstance(block, CompactionBlock):
                content.say(block.content or "")
                is_said = True
            else:
                self._read_block(block, inside, content)
                is_said = True
        if is_said:
            self._say(content)

    def _say(self, content: MessageContent) -> None:
        self.turns.append(Message("user", content.text, attachments=tuple(content.attachments)))

    def _result(self, block: ToolResultBlock, path: str) -> None:
        content = MessageContent()
        # A turn of a tool has no place for its failure but its words.
        if block.is_error:
            content.say("Error: ")
        self._read_blocks(block.content or "", f"{path}.content", content)
        self.turns.append(
            Message(
                "tool",
                content.text,
                name=self.names.get(block.tool_use_id),
                tool_call_id=call_id(block.tool_use_id),
                attachments=tuple(content.attachments),
            )
        )

    def _assistant(self, blocks: list[AssistantBlock], path: str) -> None:
        first = part = _AssistantPart()
        for place, block in enumerate(blocks):
            match block:
                case TextBlock(text=text):
                    part.said.append(text)
                case ThinkingBlock():
                    part.thoughts += self._thoughts(block)
                case RedactedThinkingBlock():
                    self.unsealed += 1
                case ToolUseBlock(id=identity, name=name, input=raw):
                    read_object(raw, f"{path}.content[{place}].input", _MAX_INPUT_BYTES)
                    part.calls.append(ToolCall(call_id(identity), name, bytes(raw).decode()))
                    self.names[identity] = name
                case CompactionBlock(content=content):
                    part.said.append(content or "")
                case ServerToolUseBlock() | McpToolUseBlock():
                    self.uses[block.id] = block
                case ContainerUploadBlock() | McpListingBlock() | FallbackBlock():
                    self._skip(block)
                case _:
                    part = self._done_elsewhere(block, part)
        if part.has_words or part is first:
            self.turns.append(part.message())

    def _done_elsewhere(self, block: HostedToolResult, part: "_AssistantPart") -> "_AssistantPart":
        """A call that another server made and answered itself: told as a call, and its answer as a tool's."""
        use = self.uses.pop(block.tool_use_id, None)
        words = hosted_result_text(block)
        if use is None or words is None:
            self._skip(block)
            return part
        is_told = bytes(use.input).startswith(b"{") and len(bytes(use.input)) <= _MAX_INPUT_BYTES
        arguments = bytes(use.input).decode() if is_told else "{}"
        part.calls.append(ToolCall(call_id(use.id), use.name, arguments))
        self.turns.append(part.message())
        self.turns.append(Message("tool", words, name=use.name, tool_call_id=call_id(use.id)))
        return _AssistantPart()

    def _skip(self, block: HostedToolResult | Wordless) -> None:
        self.skipped.append(f"a block of the type {block.__struct_config__.tag!r}, which another server made")

    def _thoughts(self, block: ThinkingBlock) -> list[str]:
        if self.seal.verify(self.tenant, block.thinking, block.signature or ""):
            return [block.thinking] if block.thinking else []
        self.unsealed += 1
        return []

    def _read_blocks(
        self, blocks: str | Sequence[_ReadableBlock], path: str, content: MessageContent
    ) -> None:
        if isinstance(blocks, str):
            content.say(blocks)
            return
        for place, block in enumerate(blocks):
            self._read_block(block, f"{path}[{place}]", content)

    def _read_block(self, block: _ReadableBlock, path: str, content: MessageContent) -> None:
        match block:
            case TextBlock(text=text):
                content.say(text)
            case ToolReferenceBlock(tool_name=name):
                content.say(name)
            case SearchResultBlock(content=found):
                self._note_citations(block.citations)
                content.say("\n".join(filter(None, (block.title, block.source, _text(found)))))
            case DocumentBlock():
                self._document(block, path, content)
            case MessagesImageBlock(source=source):
                _show(source, path, content)
            case _:
                assert_never(block)

    def _note_citations(self, citations: Citations | None) -> None:
        if citations is not None and citations.enabled:
            self.skipped.append("citations, which no model makes here")

    def _document(self, block: DocumentBlock, path: str, content: MessageContent) -> None:
        self._note_citations(block.citations)
        said = MessageContent()
        match block.source:
            case TextSource(data=text):
                said.say(text)
            case ContentSource(content=blocks):
                self._read_blocks(blocks, f"{path}.source.content", said)
            case Base64Source() | UrlSource() | UploadedFileSource():
                param = f"{path}.source"
                raise UnsupportedParameter(
                    f"'{param}' is not text, and only documents of text can be read.", param=param
                )
            case _:
                assert_never(block.source)
        headings = [each for each in (block.title, block.context) if each]
        has_body = bool(said.text or said.attachments)
        content.say("\n".join([*headings, ""] if has_body else headings) if headings else "")
        content.extend(said)


def _show(source: ImageBytes | ImageAddress | ImageFile, path: str, content: MessageContent) -> None:
    match source:
        case ImageBytes(data=data, media_type=media_type):
            content.show_base64(data, path, ".source.data", media_type)
        case ImageAddress(url=url):
            content.show(url, path, ".source.url")
        case ImageFile():
            param = f"{path}.source.file_id"
            raise UnsupportedParameter(
                f"'{param}' names an uploaded file, and no files are kept here.",
                param=param,
                hint="Send the image as base64.",
            )
        case _:
            assert_never(source)


@dataclass(slots=True)
class _AssistantPart:
    """An assistant's text up to a call that another server answered, or to the end."""

    said: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)

    @property
    def has_words(self) -> bool:
        return bool(self.said or self.thoughts or self.calls)

    def message(self) -> Message:
        reasoning = "\n".join(self.thoughts) or None
        return Message("assistant", "".join(self.said), reasoning, tool_calls=tuple(self.calls))


def _merged(turns: list[Message]) -> tuple[Message, ...]:
    merged: list[Message] = []
    for role, neighbours in groupby(turns, key=lambda turn: turn.role):
        same = list(neighbours)
        if len(same) == 1 or role not in ("user", "assistant"):
            merged += same
        elif role == "user":
            content, attachments = joined_content(same, _BETWEEN_TURNS)
            merged.append(Message(role, content, attachments=attachments))
        else:
            merged.append(
                Message(
                    role,
                    "".join(turn.content for turn in same),
                    "\n".join(turn.reasoning for turn in same if turn.reasoning) or None,
                    tool_calls=tuple(call for turn in same for call in turn.tool_calls),
                )
            )
    return tuple(merged)


def _blocks(system: str | list[TextBlock]) -> str:
    """A system prompt; blocks that would run into each other are set apart, as they were written."""
    if isinstance(system, str):
        return system
    text = ""
    for block in system:
        runs_on = text and block.text and not text[-1].isspace() and not block.text[0].isspace()
        text += f"\n\n{block.text}" if runs_on else block.text
    return text


def _text(content: str | list[TextBlock]) -> str:
    return content if isinstance(content, str) else "".join(block.text for block in content)
