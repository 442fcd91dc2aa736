"""An upper bound of the tokens that a request can take, from its body alone; pure.

Laws: a tokenizer turns a text into no more tokens than it has bytes, since each token stands for at least one
of them; a body has at least the bytes of every text in it, and its JSON around each message and each input is
longer than what a template or a vocabulary puts around it. So the length of the body bounds what it says, and
what is added to that is written below. Token ids count as they are. What cannot be read is refused: a bound
that is guessed is none.

What is left out, because no gateway can know it: tokenizers that rewrite a text into a longer one before
they read it (a few signs of Unicode), and pictures that a foreign server counts as more than `MEDIA_TOKENS`.
What such a request comes to beyond its bound is owed by its key, and paid before anything else.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec
from msgspec import Raw, Struct

from ganglion.core.attachments import attachments_of
from ganglion.core.request import ChatPrompt, Request, TokenPrompt

TEMPLATE_TOKENS: Final = 512
"""What a template says by itself: the largest standing instructions of known models come close to it."""
_MESSAGE_TOKENS: Final = 32
"""What it puts around a message, where the message's own JSON is not counted."""
PAIR_TOKENS: Final = 128
"""What stands around a query and one document."""
MEDIA_TOKENS: Final = 4096
"""For each picture, sound or file."""
MAX_TOKENS: Final = 2**31
_MAX_COUNT: Final = 2**31
ANSWER_FIELDS: Final = (
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "max_new_tokens",
    "n_predict",
    "num_predict",
)
"""Names under which servers are told how long an answer may be."""

_PICTURES: Final = ("image", "image_url", "input_image", "video", "video_url")
_MEDIA: Final = frozenset((*_PICTURES, "audio", "audio_url", "input_audio", "file", "input_file", "document"))


@dataclass(frozen=True, slots=True)
class TokenBound:
    """The bound of a request, apart from answers whose length nobody stated."""

    tokens: int
    open_answers: int = 0
    """How many answers nobody has bounded."""
    answer_tokens: int | None = None
    """What each of them is by its wire's own default; None where it is as long as the model likes."""


class _Part(Struct):
    type: str = ""
    content: Raw = Raw()
    source: Raw = Raw()
    """Of a document, which may be made of parts again."""


class _PartSource(Struct):
    content: Raw = Raw()


class BoundedMessage(Struct):
    """A message, in as far as it may hold pictures."""

    content: Raw = Raw()
    output: Raw = Raw()
    """What a tool gave back, where an item is that."""
    images: Raw = Raw()


class AnswerFields(Struct):
    """The fields of every wire that generates, and the names that foreign servers have for them.

    Where a server knows two names for one thing, the larger number counts, whichever it heeds.
    """

    n: int | None = None
    best_of: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_output_tokens: int | None = None
    max_new_tokens: int | None = None
    n_predict: int | None = None
    num_predict: int | None = None
    messages: list[BoundedMessage] | None = None
    input: str | list[BoundedMessage] | None = None
    tools: Raw = Raw()

    @property
    def most(self) -> int | None:
        """Tokens of each answer; None where nobody said, or said that there is no end."""
        told: list[int] = [count for name in ANSWER_FIELDS if (count := getattr(self, name)) is not None]
        if not told or min(told) < 0:
            return None
        return min(max(told), MAX_TOKENS)

    @property
    def choices(self) -> int:
        """Answers to each prompt."""
        return max(1, min(max(self.n or 1, self.best_of or 1), _MAX_COUNT))

    @property
    def media(self) -> int:
        """Pictures and their like."""
        said = [*(self.messages or ()), *(self.input if isinstance(self.input, list) else ())]
        return sum(map(media_in_message, said))


_parts = msgspec.json.Decoder(list[_Part | str])
_list = msgspec.json.Decoder(list[Raw])
_source = msgspec.json.Decoder(_PartSource)


def media_in_message(message: BoundedMessage) -> int:
    """The number of pictures and other media in a message."""
    return _media_in(message.content) + _media_in(message.output) + list_length(message.images)


def _media_in(content: Raw) -> int:
    """Pictures among the parts of a content, among those that a tool gave back and those of documents."""
    if bytes(content)[:1] != b"[":
        return 0
    try:
        parts = _parts.decode(content)
    except msgspec.DecodeError:  # no list of parts, and so none of pictures
        return 0
    return sum(_media_of(part) for part in parts if isinstance(part, _Part))


def _media_of(part: _Part) -> int:
    inside = _media_in(part.content)
    if part.type == "document" and bytes(part.source)[:1] == b"{":
        inside += _media_in(_source.decode(part.source).content)
    return inside + (part.type in _MEDIA)


def list_length(raw: Raw) -> int:
    """The number of items in a JSON list; 0 for anything else."""
    return len(_list.decode(raw)) if bytes(raw)[:1] == b"[" else 0


def bound_with_answers(tokens: int, each: int | None, count: int, default: int | None = None) -> TokenBound:
    """A prompt of so many tokens and `count` answers of `each`, or of nobody knows how many."""
    return TokenBound(tokens, count, default) if each is None else TokenBound(tokens + each * count)


def bound_prompt(size: int, tools: Raw, media: int) -> int:
    """The most tokens of a prompt that goes through a template, out of a body of this size."""
    # A template may indent the tools anew, or write their signs as escapes: they count twice.
    return size + len(bytes(tools)) + TEMPLATE_TOKENS + MEDIA_TOKENS * media


def bound_inputs(given: str | list[str | int | list[int]] | None, size: int) -> tuple[int, int]:
    """The tokens of all inputs, and how many inputs there are."""
    if not isinstance(given, list) or not given:
        return size, 1
    if all(isinstance(each, int) for each in given):
        return len(given), 1
    if all(isinstance(each, list) for each in given):
        return sum(len(each) for each in given if isinstance(each, list)), len(given)
    return size, len(given)


_T = TypeVar("_T", bound=Struct)


def bound_reader(shape: type[_T], bound: Callable[[_T, int], TokenBound]) -> Callable[[bytes], TokenBound]:
    """A function that bounds bodies of this schema; raises msgspec.ValidationError."""
    decode = msgspec.json.Decoder(shape).decode
    return lambda body: bound(decode(body), len(body))


def _bound_chat(fields: AnswerFields, size: int) -> TokenBound:
    prompt = bound_prompt(size, fields.tools, fields.media)
    return bound_with_answers(prompt, fields.most, fields.choices)


bound_chat = bound_reader(AnswerFields, _bound_chat)
"""Of any wire that has messages or items and the usual names."""


def bound_of_request(request: Request) -> TokenBound:
    """The bound of a request whose prompt is known as the model gets it."""
    prompt = request.prompt
    match prompt:
        case ChatPrompt():
            media = MEDIA_TOKENS * len(attachments_of(prompt))
            tokens = _bytes_of(prompt) + TEMPLATE_TOKENS + _MESSAGE_TOKENS * len(prompt.messages) + media
        case TokenPrompt():
            tokens = len(prompt.tokens)
        case _:
            tokens = len(f"{prompt.text}{prompt.suffix or ''}".encode(errors="surrogatepass")) + 1
    return bound_with_answers(tokens, request.max_tokens, 1)


def _bytes_of(prompt: ChatPrompt) -> int:
    texts: list[str] = []
    for message in prompt.messages:
        texts += (message.content, message.reasoning or "", message.name or "", message.tool_call_id or "")
        for call in message.tool_calls:
            texts += (call.call_id, call.name, call.arguments)
    said = sum(len(text.encode(errors="surrogatepass")) for text in texts)
    tools = msgspec.json.encode(
        [(tool.name, tool.description, tool.parameters) for tool in prompt.tool_use.tools]
    )
    return said + 2 * len(tools) + len(msgspec.json.encode(prompt.template_arguments))
