r"""The table of reasoning markers that each family of models writes around its thoughts.

Two shapes. A *tag* is one string that opens reasoning and one that closes it: `<think>…</think>`. A
*channel* is opened by a string, a header whose first word names it, and the header's end, and the name
decides what the block is: `<|channel>thought\n…<channel|>` is reasoning, `<|channel|>final<|message|>…` is
text. Channel markers are control tokens that nobody writes in prose; tags are words a model may well
explain in its answer, and the rules differ. So a channel's opening is obeyed wherever it stands, also where a
model writes it as plain text, and a tag only where an answer begins.
"""

import re
from collections.abc import Container
from dataclasses import dataclass
from typing import Literal

Shown = Literal["text", "reasoning"]


@dataclass(frozen=True, slots=True)
class CallTo:
    """A channel whose text is the arguments of a call."""

    name: str


Kind = Shown | CallTo

WHITESPACE = " \t\r\n"
_RECIPIENT = re.compile(r"to=functions\.([\w.-]+)")
REASONING_CHANNELS = frozenset({"thought", "thinking", "analysis"})
NAME_CHARACTER = re.compile(r"[A-Za-z0-9_-]")


@dataclass(frozen=True, slots=True)
class ChannelHeader:
    """The header between a channel's opening and its text: a pattern whose first group is the name.

    Without an `end` of its own the header ends with the name.
    """

    pattern: re.Pattern[str]
    end: str | None = None


@dataclass(frozen=True, slots=True)
class MarkerFamily:
    """One way to mark reasoning. A template that contains any of `signs` belongs to the family."""

    name: str
    opening: tuple[str, ...]
    closing: tuple[str, ...]
    signs: tuple[str, ...]
    header: ChannelHeader | None = None

    @property
    def is_channel(self) -> bool:
        """Whether blocks are named channels rather than a tag's pair."""
        return self.header is not None

    @property
    def anywhere(self) -> tuple[str, ...]:
        """The openings that are obeyed also in the middle of a block."""
        return tuple(opening for opening in self.opening if opening[0] == "<") if self.is_channel else ()


def _tag(name: str, opening: str, closing: str) -> MarkerFamily:
    return MarkerFamily(name, (opening,), (closing,), (opening, closing))


THINK = _tag("think", "<think>", "</think>")

# The name is one word and whatever cannot be part of it ends it: a line end by the book, a blank in the wild.
GEMMA = MarkerFamily(
    "gemma",
    ("<|channel>",),
    ("<channel|>",),
    ("<|channel>",),
    ChannelHeader(re.compile(r"[ \t]*([A-Za-z0-9_-]{0,32})")),
)

# A header may carry a recipient and a content type: `commentary to=functions.f <|constrain|>json`.
# The recipient may also come before the channel, and at the answer's beginning `<|start|>assistant` is the
# prompt's. `<|end|>` is no sign: other templates end their turns with it.
HARMONY = MarkerFamily(
    "harmony",
    ("<|start|>assistant<|channel|>", "<|start|>assistant to=", "<|channel|>", "to=functions."),
    ("<|end|>", "<|return|>", "<|call|>"),
    ("<|channel|>",),
    ChannelHeader(re.compile(r"[ \t]*([\w-]{0,32})[^\n]{0,224}"), "<|message|>"),
)

FAMILIES = (
    HARMONY,
    GEMMA,
    _tag("bracket_think", "[THINK]", "[/THINK]"),
    _tag("seed", "<seed:think>", "</seed:think>"),
    _tag("command", "<|START_THINKING|>", "<|END_THINKING|>"),
    _tag("kimi", "◁think▷", "◁/think▷"),
    _tag("apertus", "<|inner_prefix|>", "<|inner_suffix|>"),
    THINK,
    _tag("thinking", "<thinking>", "</thinking>"),
    _tag("thought", "<thought>", "</thought>"),
    _tag("reasoning", "<reasoning>", "</reasoning>"),
)
"""In the order they are looked for: what no other model would write first."""


def family_of(chat_template: str | None) -> MarkerFamily:
    """The family whose markers the template mentions; `<think>` when it mentions none.

    Many fine-tunes emit `<think>` under a template that never heard of it. The opening is obeyed only where
    an answer begins, so assuming it costs an ordinary model nothing.
    """
    template = chat_template or ""
    for family in FAMILIES:
        if any(sign in template for sign in family.signs):
            return family
    return THINK


def opens_reasoning(prompt: str, family: MarkerFamily | None) -> bool:
    """Whether the rendered prompt ends inside a reasoning block that it opened itself, whitespace aside."""
    if family is None:
        return False
    end = prompt.rstrip(WHITESPACE)
    if family.header is None:
        return end.endswith(family.opening)
    start = max(end.rfind(opening) + len(opening) if opening in end else -1 for opening in family.opening)
    if start < 0:
        return False
    header_end = family.header.end or ""
    if not end.endswith(header_end):
        return False
    header = family.header.pattern.fullmatch(end[start : len(end) - len(header_end)])
    return header is not None and kind_of(header[1]) == "reasoning"


def callee_of(header: str, names: Container[str]) -> CallTo | None:
    """The call that a channel's opening and header address, if there is such a tool."""
    recipient = _RECIPIENT.search(header)
    return CallTo(recipient[1]) if recipient is not None and recipient[1] in names else None


def kind_of(channel: str) -> Shown:
    """The kind of text in a channel of this name."""
    return "reasoning" if channel.lower() in REASONING_CHANNELS else "text"
