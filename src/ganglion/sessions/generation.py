"""One generation in a session: its request to the engine, and the engine's events as the session's own."""

import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from ganglion.core.engine import SessionEngine
from ganglion.core.errors import GanglionError, InvalidValue, SessionNotFound
from ganglion.core.events import Failed, Finished, Pieces, Progress, Scored, Started, Token
from ganglion.core.request import (
    Choice,
    Constraint,
    Gbnf,
    JsonSchema,
    Lark,
    Ranges,
    Regex,
    Score,
    Stop,
    TokenRequest,
)
from ganglion.core.sampling import resolve
from ganglion.sessions.table import SessionRecord
from ganglion.sessions.token_session import ProposedChange, TokenSession
from ganglion.sessions.values import GenerationDone, GenerationRequest, SessionEvent, SessionToken
from ganglion.text.constraint import compose, continuing


async def run_generation(
    engine: SessionEngine,
    record: SessionRecord,
    session: TokenSession,
    change: ProposedChange,
    request: GenerationRequest,
) -> AsyncGenerator[SessionEvent, None]:
    """Apply a change and generate; closing it stops the work, and what was committed stays."""
    token_request = _token_request(record, session, change, request)
    stop_text = _StopTextLocator(request.stop_strings)
    is_applied = False
    async with aclosing(engine.continue_tokens(record.model, token_request)) as events:
        async for event in events:
            if record.is_closed:
                raise SessionNotFound(record.id)
            # Until the engine has begun, a refused call has changed nothing and can be sent again.
            if not is_applied and not isinstance(event, Progress | Failed):
                session.apply(change)
                is_applied = True
            match event:
                case Progress(stage="prefilled"):
                    yield event
                case Scored(tokens=tokens):
                    for token in tokens:
                        yield SessionToken(token, is_prefill=True)
                case Pieces(pieces=pieces):
                    for piece in pieces:
                        for token in piece.tokens:
                            session.commit(token.id)
                            stop_text.feed(token)
                            yield SessionToken(_with_requested(token, request.logprobs), is_prefill=False)
                case Finished(usage=usage):
                    yield GenerationDone(
                        prompt_tokens=change.length,
                        completion_tokens=usage.completion_tokens,
                        cached_tokens=usage.cached_tokens,
                        total_tokens=session.length,
                        reason=event.reason,
                        stop_token=event.stop_token,
                        stop_text=event.stop_sequence,
                        stop_start=stop_text.start(event.stop_sequence),
                    )
                case Failed(error=error):
                    raise _with_wire_field(error, request)
                case Progress() | Started():
                    pass


def _token_request(
    record: SessionRecord, session: TokenSession, change: ProposedChange, request: GenerationRequest
) -> TokenRequest:
    score = tuple(span for span in request.logprobs if span[0] < change.length)
    reaches_generated = any(end is None or end > change.length for _, end in request.logprobs)
    return TokenRequest(
        id=f"gen_{secrets.token_hex(12)}",
        tokens=session.after(change),
        max_tokens=request.max_tokens,
        grammar=_grammar(request) if request.max_tokens else None,
        score=Score(score, request.top) if score else None,
        sampling=resolve(request.sampling, record.sampling),
        stop=Stop(request.stop_strings, request.stop_token_ids, request.ignore_eos),
        top_logprobs=request.top if reaches_generated and request.max_tokens else None,
        priority=request.priority,
        salt=record.salt,
        in_tokens=True,
        readout=request.readout,
        steering=record.steering,
        images=session.images_before(change.keep),
    )


def _with_requested(token: Token, ranges: Ranges) -> Token:
    """The token without logprobs that were not requested: engines report those of all tokens or of none."""
    position = token.position
    if token.logprob is None or any(
        start <= position and (end is None or position < end) for start, end in ranges
    ):
        return token
    return replace(token, logprob=None, top=())


def check_ranges(name: str, ranges: Ranges, reach: int) -> None:
    """Check that ranges lie within what the session may hold; raises InvalidValue, as `/v1/score` does."""
    for index, (start, end) in enumerate(ranges):
        if max(start, end or 0) > reach:
            raise InvalidValue(
                f"The range [{start}, {'open' if end is None else end}) reaches beyond the {reach} tokens "
                "that the session can have after this call.",
                param=f"{name}[{index}]",
                hint="An end of 2^32-1 is open.",
            )


class _StopTextLocator:
    """Finds the first token of the text that ended an answer."""

    def __init__(self, strings: tuple[str, ...]) -> None:
        self._has_strings = bool(strings)
        self._pieces: list[tuple[int, bytes]] = []
        """The positions of the tokens, and their bytes."""

    def feed(self, token: Token) -> None:
        """One more token."""
        if self._has_strings:
            self._pieces.append((token.position, token.piece))

    def start(self, matched: str | None) -> int | None:
        """The position of the first token that has a part of it; None where no text ended the answer.

        Its first occurrence is meant: there it was complete for the first time.
        """
        if matched is None:
            return None
        at = b"".join(piece for _, piece in self._pieces).find(matched.encode("utf-8", "surrogatepass"))
        for position, piece in self._pieces if at >= 0 else ():
            at -= len(piece)
            if at < 0:
                return position
        return None


_ENGINES_FIELD = "response_format"
"""The name of constraints in the engine's errors, which is that of the chat wire."""

_FIELDS: dict[type[Constraint], str] = {
    JsonSchema: "json_schema",
    Regex: "pattern",
    Choice: "choice",
    Lark: "lark",
    Gbnf: "gbnf",
}


def _grammar(request: GenerationRequest) -> str | None:
    """The grammar of a call, None where it is unconstrained; raises InvalidValue."""
    # A session has no template, so nothing knows of reasoning: the format begins at once.
    try:
        source = compose(request.constraint, body=None, family=None, is_open=False, may_reason=False)
        return continuing(request.prefix, source) if request.prefix else source
    except GanglionError as error:
        raise _with_wire_field(error, request) from None


def _with_wire_field(error: GanglionError, request: GenerationRequest) -> GanglionError:
    """The error, with the name of this wire's field where it is about the format."""
    if error.param == _ENGINES_FIELD:
        error.param = "prefix" if request.constraint is None else _FIELDS[type(request.constraint)]
    return error
