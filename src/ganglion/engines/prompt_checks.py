"""Checks every engine makes of a prompt: its tokens exist, it fits the context, and the answer has room."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from ganglion.core.errors import ContextLengthExceeded, InvalidValue
from ganglion.core.request import Request, TokenRequest

_DEFAULT_MAX_TOKENS: Final = 2048


def check_tokens(tokens: Iterable[int], vocabulary_size: int, param: str) -> None:
    """Raise InvalidValue for the first token id that the vocabulary does not have."""
    for token in tokens:
        if not 0 <= token < vocabulary_size:
            raise InvalidValue(
                f"Token {token} is not in the vocabulary of {vocabulary_size} tokens.", param=param
            )


def fitted(tokens: tuple[int, ...], request: Request, context: int) -> tuple[tuple[int, ...], int]:
    """The prompt, truncated where the request allows it, and how many tokens its answer may have.

    Raises ContextLengthExceeded where the answer would have no room.
    """
    answer = _DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens
    tokens = truncated(tokens, request.truncate_prompt, context, answer)
    return tokens, min(answer, _room(tokens, answer, context))


def bounded(request: TokenRequest, context: int) -> TokenRequest:
    """A token list to continue, by no more than there is room for; raises where there is none."""
    room = _room(request.tokens, request.max_tokens, context)
    if not request.tokens:
        raise InvalidValue("There is no token to continue; give at least one.", param="tokens")
    return replace(request, max_tokens=min(request.max_tokens, room))


def _room(tokens: tuple[int, ...], answer: int, context: int) -> int:
    room = context - len(tokens)
    if room < min(answer, 1):
        raise ContextLengthExceeded(len(tokens), context)
    return room


def truncated(tokens: tuple[int, ...], kept_tokens: int | None, context: int, answer: int) -> tuple[int, ...]:
    """The prompt's last tokens: as many as asked for, or with -1 what leaves the answer its room.

    An answer that asks for more than half of the context has half of it.
    """
    if kept_tokens is None:
        return tokens
    kept = kept_tokens if kept_tokens > 0 else context - min(answer, context // 2)
    return tokens[-max(kept, 1) :]
