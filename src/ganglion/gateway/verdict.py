"""What an upstream's refusal means for the request: told, put to another node, or held against it."""

import enum

import msgspec

from ganglion.gateway.node import NodeKind
from ganglion.gateway.routes import Words


class Verdict(enum.Enum):
    """What is done about it."""

    TOLD = "told"
    """The client's own doing: it is passed on."""
    ELSEWHERE = "elsewhere"
    """Nothing ran there: any other node may be asked."""
    ONCE = "once"
    """It may have run: one other node may be asked, and no third."""
    CRASHED = "crashed"
    """It ran and broke what ran it: as ONCE, and remembered."""
    KEY = "key"
    """The gateway's own key is wrong there, which is not the client's to hear."""


class _Detail(msgspec.Struct):
    code: str | int | None = None


class _Envelope(msgspec.Struct):
    error: _Detail | str | None = None


_envelope = msgspec.json.Decoder(_Envelope)
_CRASHES = ("engine_failed", "interrupted")
_WORDS_WITH_CODES: tuple[Words, ...] = ("openai", "responses")


def code_of(body: bytes) -> str | None:
    """The stable code in an error's envelope, where it has one."""
    try:
        error = _envelope.decode(body).error
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return error.code if isinstance(error, _Detail) and isinstance(error.code, str) else None


def verdict_of(status: int, body: bytes, *, kind: NodeKind, words: Words) -> Verdict:
    """What a whole response means; two wires name no codes, and there the status must do."""
    if status in (503, 529):
        return Verdict.ELSEWHERE
    if status == 502:
        return Verdict.ONCE
    return _of_stranger(status) if kind == "openai" else _of_ours(status, body, words)


def _of_ours(status: int, body: bytes, words: Words) -> Verdict:
    has_codes = words in _WORDS_WITH_CODES
    if status == 404:
        return Verdict.ELSEWHERE if not has_codes or code_of(body) == "model_not_found" else Verdict.TOLD
    if status == 500:
        return Verdict.CRASHED if not has_codes or code_of(body) in _CRASHES else Verdict.TOLD
    return Verdict.KEY if status in (401, 403) else Verdict.TOLD


def _of_stranger(status: int) -> Verdict:
    if status in (401, 403):
        return Verdict.KEY
    return Verdict.ELSEWHERE if status in (404, 429) else Verdict.TOLD
