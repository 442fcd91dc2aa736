"""How many tokens a request can take at most, from its body alone. Pure.

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

from ganglion.core.errors import InvalidValue
from ganglion.core.request import ChatPrompt, Request, TokenPrompt
from ganglion.wire.completions.parse import DEFAULT_MAX_TOKENS
from ganglion.wire.dialect import Wire

TEMPLATE_TOKENS: Final = 512
"""What a template says by itself: the largest standing instructions of known models come close to it."""
MESSAGE_TOKENS: Final = 32
"""What it puts around a message, where the message's own JSON is not counted."""
PAIR_TOKENS: Final = 128
"""What stands around a query and one document."""
MEDIA_TOKENS: Final = 4096
"""For each picture, sound or file."""
MAX_TOKENS: Final = 2**31
_MAX_COUNT: Final = 2**31

_PICTURES: Final = ("image", "image_url", "input_image", "video", "video_url")
_MEDIA: Final = frozenset((*_PICTURES, "audio", "audio_url", "input_audio", "file", "input_file", "document"))


@dataclass(frozen=True, slots=True)
class TokenBound:
    """What a request can take, besides the answers whose length nobody has said."""

    tokens: int
    open_answers: int = 0
    """How many answers nobody has bounded."""
    answer_tokens: int | None = None
    """What each of them is by its wire's own default; None where it is as long as the model likes."""


class _Part(Struct):
    type: str = ""
    content: Raw = Raw()


class _Message(Struct):
    content: Raw = Raw()
    images: Raw = Raw()


class _Answering(Struct):
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
    messages: list[_Message] | None = None
    input: str | list[_Message] | None = None
    tools: Raw = Raw()

    @property
    def most(self) -> int | None:
        """Tokens of each answer; None where nobody said, or said that there is no end."""
        said = (
            self.max_tokens,
            self.max_completion_tokens,
            self.max_output_tokens,
            self.max_new_tokens,
            self.n_predict,
            self.num_predict,
        )
        told = [count for count in said if count is not None]
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
        return sum(map(_media, said))


class _Options(Struct):
    num_predict: int | None = None


class _Ollama(_Message):
    options: _Options | None = None
    messages: list[_Message] | None = None
    tools: Raw = Raw()


class _Completions(_Answering):
    prompt: str | list[str | int | list[int]] | None = None
    suffix: str | None = None


class _Embeddings(Struct):
    input: str | list[str | int | list[int]] | None = None


class _Rerank(Struct):
    query: str = ""
    documents: list[Raw] | None = None


class _Score(Struct):
    prompt: str | list[int] | None = None


_parts = msgspec.json.Decoder(list[_Part | str])
_list = msgspec.json.Decoder(list[Raw])


def _media(message: _Message) -> int:
    return _media_in(message.content) + _length(message.images)


def _media_in(content: Raw) -> int:
    """Pictures among the parts of a content, and among those that a tool gave back."""
    if bytes(content)[:1] != b"[":
        return 0
    try:
        parts = _parts.decode(content)
    except msgspec.DecodeError:  # no list of parts, and so none of pictures
        return 0
    return sum(part.type in _MEDIA or _media_in(part.content) for part in parts if isinstance(part, _Part))


def _length(raw: Raw) -> int:
    return len(_list.decode(raw)) if bytes(raw)[:1] == b"[" else 0


def _answers(tokens: int, each: int | None, count: int, default: int | None = None) -> TokenBound:
    return TokenBound(tokens, count, default) if each is None else TokenBound(tokens + each * count)


def _chat(asked: _Answering, size: int) -> TokenBound:
    # A template may indent the tools anew, or write their signs as escapes: they count twice.
    prompt = size + len(bytes(asked.tools)) + TEMPLATE_TOKENS + MEDIA_TOKENS * asked.media
    return _answers(prompt, asked.most, asked.choices)


def _ollama(asked: _Ollama, size: int) -> TokenBound:
    most = None if asked.options is None else asked.options.num_predict
    media = sum(map(_media, asked.messages or ())) + _length(asked.images)
    prompt = size + len(bytes(asked.tools)) + TEMPLATE_TOKENS + MEDIA_TOKENS * media
    # 0 and less mean as long as there is room.
    return _answers(prompt, None if most is None or most <= 0 else min(most, MAX_TOKENS), 1)


def _completions(asked: _Completions, size: int) -> TokenBound:
    count, prompts = _inputs(asked.prompt, size)
    tokens = count + len((asked.suffix or "").encode(errors="surrogatepass"))
    return _answers(tokens, asked.most, prompts * asked.choices, DEFAULT_MAX_TOKENS)


def _embeddings(asked: _Embeddings, size: int) -> TokenBound:
    return TokenBound(_inputs(asked.input, size)[0])


def _score(asked: _Score, size: int) -> TokenBound:
    return TokenBound(len(asked.prompt) if isinstance(asked.prompt, list) else size)


def _rerank(asked: _Rerank, size: int) -> TokenBound:
    # Each document is read together with the query.
    pairs = len(asked.documents or ())
    return TokenBound(size + pairs * (len(asked.query.encode(errors="surrogatepass")) + PAIR_TOKENS))


def _inputs(given: str | list[str | int | list[int]] | None, size: int) -> tuple[int, int]:
    """The tokens of all inputs, and how many inputs there are."""
    if not isinstance(given, list) or not given:
        return size, 1
    if all(isinstance(each, int) for each in given):
        return len(given), 1
    if all(isinstance(each, list) for each in given):
        return sum(len(each) for each in given if isinstance(each, list)), len(given)
    return size, len(given)


T = TypeVar("T", bound=Struct)


def _reader(kind: type[T], bound: Callable[[T, int], TokenBound]) -> Callable[[bytes], TokenBound]:
    decode = msgspec.json.Decoder(kind).decode
    return lambda body: bound(decode(body), len(body))


_READERS: Final[dict[Wire, Callable[[bytes], TokenBound]]] = {
    "chat": _reader(_Answering, _chat),
    "messages": _reader(_Answering, _chat),
    "responses": _reader(_Answering, _chat),
    "completions": _reader(_Completions, _completions),
    "ollama": _reader(_Ollama, _ollama),
    "embeddings": _reader(_Embeddings, _embeddings),
    "rerank": _reader(_Rerank, _rerank),
    "score": _reader(_Score, _score),
}


def bound_of(wire: Wire, body: bytes, *, generates: bool) -> TokenBound:
    """What a body can take; raises InvalidValue where that cannot be read."""
    if wire == "prompt" or (wire == "responses" and not generates):
        return TokenBound(0)  # counting and tokenizing run no model, and nothing is booked for them
    try:
        bound = _READERS[wire](body) if wire in _READERS else TokenBound(len(body))
    except msgspec.ValidationError as error:
        raise InvalidValue(
            f"What the request may take cannot be told: {error}.",
            hint="The key has a limit on tokens, so that every number has to be one.",
        ) from None
    return bound if generates else TokenBound(bound.tokens)


def bound_of_request(request: Request) -> TokenBound:
    """What a request can take whose prompt is known as the model gets it."""
    prompt = request.prompt
    match prompt:
        case ChatPrompt():
            tokens = _bytes_of(prompt) + TEMPLATE_TOKENS + MESSAGE_TOKENS * len(prompt.messages)
        case TokenPrompt():
            tokens = len(prompt.tokens)
        case _:
            tokens = len(f"{prompt.text}{prompt.suffix or ''}".encode(errors="surrogatepass")) + 1
    return _answers(tokens, request.max_tokens, 1)


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
