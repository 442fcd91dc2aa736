"""Builds the messages of a prompt from kept items.

A turn of the assistant is one message: its reasoning, then its text, then its calls, for as long as the items
follow in that order. Anything else begins a new one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never

from ganglion.core.errors import InvalidValue, MissingParameter, UnsupportedParameter
from ganglion.core.request import ChatPrompt, Message, Role, ToolCall
from ganglion.wire.attached_files import MessageContent, check_attachment_count
from ganglion.wire.responses import hosted_items
from ganglion.wire.responses.compaction import open_compaction, open_reasoning
from ganglion.wire.responses.hosted_items import call_id_of
from ganglion.wire.responses.items import (
    AdditionalToolsItem,
    CompactionItem,
    CustomToolCallItem,
    CustomToolCallOutputItem,
    ForeignItem,
    FunctionCallItem,
    FunctionCallOutputItem,
    InputAudio,
    InputFile,
    InputImage,
    InputText,
    Item,
    MessageItem,
    OutputText,
    Part,
    ReasoningItem,
    Refusal,
)
from ganglion.wire.responses.responses_tools import model_name
from ganglion.wire.seal import Seal

_KEPT = ("system", "developer")


def without_oldest_turns(prompt: ChatPrompt, most: float | None = None) -> ChatPrompt | None:
    """The prompt without its oldest turn, and without the next ones until it has at most `most` characters.

    None when only the last turn is left. A turn begins with a user's message and reaches to the next one, so
    that no answer of a tool is left without its call. What systems and developers said stays.
    """
    messages = prompt.messages
    following: int | None = None
    left = prompt_characters(prompt)
    has_user = False
    for place, message in enumerate(messages):
        if message.role == "user":
            if has_user:
                following = place
                if most is None or left <= most:
                    break
            has_user = True
        if message.role not in _KEPT:
            left -= _length(message)
    if following is None:
        return None
    kept = tuple(message for message in messages[:following] if message.role in _KEPT)
    return replace(prompt, messages=(*kept, *messages[following:]))


def prompt_characters(prompt: ChatPrompt) -> int:
    """The characters of a prompt's messages, and one for what stands around each."""
    return 1 + sum(map(_length, prompt.messages))


def _length(message: Message) -> int:
    called = sum(len(call.arguments) for call in message.tool_calls)
    return len(message.content) + len(message.reasoning or "") + called


def check_outputs_have_calls(history: Sequence[Item], items: Sequence[Item]) -> None:
    """Raise where the input answers a call that nobody made; what was compacted may have held one."""
    everything = (*history, *items)
    if any(isinstance(item, CompactionItem) for item in everything):
        return
    calls = _calls_of(everything)
    for place, item in enumerate(items):
        match item:
            case FunctionCallOutputItem(call_id=call_id) | CustomToolCallOutputItem(call_id=call_id):
                if call_id not in calls:
                    raise InvalidValue(
                        f"No tool call found for the output with call_id {call_id[:200]!r}.",
                        param=f"input[{place}].call_id",
                        hint="Send the call before its output.",
                    )
            case _:
                pass


def _calls_of(items: Iterable[Item]) -> set[str | None]:
    calls: set[str | None] = set()
    for item in items:
        match item:
            case FunctionCallItem(call_id=call_id) | CustomToolCallItem(call_id=call_id):
                calls.add(call_id)
            case ForeignItem():
                calls.add(call_id_of(item))
            case _:
                pass
    return calls


@dataclass(slots=True)
class PromptBuilder:
    """Messages as they are collected; `warnings` say what of an item could not be used."""

    seal: Seal | None = None
    messages: list[Message] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    _names: dict[str, str] = field(default_factory=dict)
    _reasoning: list[str] = field(default_factory=list)
    _text: str | None = None
    _calls: list[ToolCall] = field(default_factory=list)

    def add(self, items: Iterable[Item], path: str) -> None:
        """Take in items in order; `path` is where they stand."""
        for place, item in enumerate(items):
            self._add(item, f"{path}[{place}]")

    def end(self) -> tuple[Message, ...]:
        """All messages, when no item follows."""
        self._end_turn()
        check_attachment_count(self.messages)
        return tuple(self.messages)

    def _add(self, item: Item, path: str) -> None:
        match item:
            case MessageItem(role="assistant", content=content):
                if self._text is not None or self._calls:
                    self._end_turn()
                self._text = _text(content, "assistant", f"{path}.content")
            case MessageItem(role=role, content=content):
                self._end_turn()
                if role != "user":
                    self.messages.append(Message(role, _text(content, role, f"{path}.content")))
                    return
                read = _content(content, f"{path}.content")
                self.messages.append(Message(role, read.text, attachments=tuple(read.attachments)))
            case FunctionCallItem(arguments=arguments):
                self._call(item, arguments)
            case CustomToolCallItem(input=text):
                self._call(item, text)
            case FunctionCallOutputItem() | CustomToolCallOutputItem():
                self._output(item, path)
            case ReasoningItem():
                self._think(item, path)
            case CompactionItem(encrypted_content=blob):
                self._unfold(blob, path)
            case AdditionalToolsItem():
                pass
            case ForeignItem():
                self._carry(item)
            case _:
                assert_never(item)

    def _carry(self, item: ForeignItem) -> None:
        """Add the results of tools that ran elsewhere, as far as they are text."""
        said = hosted_items.hosted_steps(item)
        if not said:
            self.warnings.append(f"an item of the type {item.type!r}, which another server's tool made")
        for each in said:
            match each:
                case hosted_items.HostedCall(call_id, name, arguments):
                    self._names[call_id] = name
                    self._calls.append(ToolCall(call_id, name, arguments))
                case hosted_items.HostedResult(call_id, text):
                    self._end_turn()
                    called = self._names.get(call_id)
                    self.messages.append(Message("tool", text, name=called, tool_call_id=call_id))
                case _:
                    assert_never(each)

    def _end_turn(self) -> None:
        if self._text is None and not self._calls and not self._reasoning:
            return
        self.messages.append(
            Message(
                "assistant",
                self._text or "",
                reasoning="\n\n".join(self._reasoning) if self._reasoning else None,
                tool_calls=tuple(self._calls),
            )
        )
        self._text = None
        self._calls, self._reasoning = [], []

    def _call(self, item: FunctionCallItem | CustomToolCallItem, arguments: str) -> None:
        name = model_name(item.name, item.namespace)
        self._names[item.call_id] = name
        self._calls.append(ToolCall(item.call_id, name, arguments))

    def _output(self, item: FunctionCallOutputItem | CustomToolCallOutputItem, path: str) -> None:
        self._end_turn()
        read = _content(item.output, f"{path}.output")
        self.messages.append(
            Message(
                "tool",
                read.text,
                name=self._names.get(item.call_id),
                tool_call_id=item.call_id,
                attachments=tuple(read.attachments),
            )
        )

    def _think(self, item: ReasoningItem, path: str) -> None:
        if self._text is not None or self._calls:
            self._end_turn()
        if item.content:
            self._reasoning.append("".join(part.text for part in item.content))
        elif item.encrypted_content:
            text = None if self.seal is None else open_reasoning(item.encrypted_content, self.seal)
            if text is None:
                # Reasoning of another server is no reason to end a conversation: its answers are all there.
                self.warnings.append("reasoning that was not sealed here")
            else:
                self._reasoning.append(text)

    def _unfold(self, blob: str, path: str) -> None:
        self._end_turn()
        items = None if self.seal is None else open_compaction(blob, self.seal)
        if items is None:
            raise InvalidValue(
                f"'{path}.encrypted_content' was not sealed by this server for this key.",
                param=f"{path}.encrypted_content",
                hint="Send the items that were compacted, or begin anew.",
            )
        self.add(items, f"{path}.encrypted_content")
        self._end_turn()


def _content(content: str | list[Part], path: str) -> MessageContent:
    read = MessageContent()
    if isinstance(content, str):
        read.say(content)
        return read
    for place, part in enumerate(content):
        where = f"{path}[{place}]"
        match part:
            case InputText(text=text) | OutputText(text=text) | Refusal(refusal=text):
                read.say(text)
            case InputImage():
                _show(part, where, read)
            case InputFile() | InputAudio():
                raise UnsupportedParameter(f"'{where}' is neither text nor an image.", param=where)
            case _:
                assert_never(part)
    return read


def _show(image: InputImage, path: str, read: MessageContent) -> None:
    if image.file_id is not None:
        param = f"{path}.file_id"
        raise UnsupportedParameter(
            f"'{param}' names an uploaded file, and no files are kept here.",
            param=param,
            hint="Send the image as a data URI in 'image_url'.",
        )
    if image.image_url is None:
        param = f"{path}.image_url"
        raise MissingParameter(f"The parameter '{param}' is required.", param=param)
    read.show(image.image_url, path, ".image_url", image.detail)


def _text(content: str | list[Part], role: Role, path: str) -> str:
    read = _content(content, path)
    if read.attachments:
        param = read.attachments[0].path
        raise InvalidValue(
            f"'{param}' is an image, and a message of the role {role!r} holds text.", param=param
        )
    return read.text
