"""What the text of a generation is held to, as one grammar, and which field of the wire is meant. Pure."""

from dataclasses import replace

from ganglion.core.errors import GanglionError, InvalidValue
from ganglion.core.events import Token
from ganglion.core.request import Choice, Constraint, Gbnf, JsonSchema, Lark, Ranges, Regex
from ganglion.sessions.values import GenerationRequest
from ganglion.text.constraint import compose, continuing


class LogprobFilter:
    """Keeps what was asked for and takes away the rest: engines report logprobs of all or none."""

    def __init__(self, logprobs: Ranges) -> None:
        self._logprobs = logprobs

    def only(self, token: Token) -> Token:
        """The token without what nobody asked of its position."""
        if token.logprob is None or _contains(self._logprobs, token.position):
            return token
        return replace(token, logprob=None, top=())


def check_ranges(name: str, ranges: Ranges, reach: int) -> None:
    """Whether ranges lie where the session may come to; raises InvalidValue, as `/v1/score` does."""
    for place, (start, end) in enumerate(ranges):
        if max(start, end or 0) > reach:
            raise InvalidValue(
                f"The range [{start}, {'open' if end is None else end}) reaches beyond the {reach} tokens "
                "that the session can have after this call.",
                param=f"{name}[{place}]",
                hint="An end of 2^32-1 is open.",
            )


def _contains(ranges: Ranges, position: int) -> bool:
    return any(start <= position and (end is None or position < end) for start, end in ranges)


class StopTextLocator:
    """Follows the tokens of one answer, where it may be ended by a text."""

    def __init__(self, strings: tuple[str, ...]) -> None:
        self._is_asked = bool(strings)
        self._pieces: list[tuple[int, bytes]] = []
        """Positions and what stands there."""

    def feed(self, token: Token) -> None:
        """One more token."""
        if self._is_asked:
            self._pieces.append((token.position, token.piece))

    def start(self, matched: str | None) -> int | None:
        """The position of the first token that has a part of it; None where no text ended the answer.

        The first place where it stands is meant: there it was complete for the first time.
        """
        if matched is None:
            return None
        at = b"".join(piece for _, piece in self._pieces).find(matched.encode("utf-8", "surrogatepass"))
        for position, piece in self._pieces if at >= 0 else ():
            at -= len(piece)
            if at < 0:
                return position
        return None


ENGINES_FIELD = "response_format"
"""What constraints are called below: by their first wire's name."""

_FIELDS: dict[type[Constraint], str] = {
    JsonSchema: "json_schema",
    Regex: "pattern",
    Choice: "choice",
    Lark: "lark",
    Gbnf: "gbnf",
}


def grammar_for(asked: GenerationRequest) -> str | None:
    """The grammar of a call, None where nothing holds it; raises InvalidValue."""
    # A session has no template, so nothing knows of reasoning: the format begins at once.
    try:
        source = compose(asked.constraint, body=None, family=None, is_open=False, may_reason=False)
        return continuing(asked.prefix, source) if asked.prefix else source
    except GanglionError as error:
        raise with_wire_field(error, asked) from None


def with_wire_field(error: GanglionError, asked: GenerationRequest) -> GanglionError:
    """The error, with the field's name of this wire where it is about the format."""
    if error.param == ENGINES_FIELD:
        error.param = "prefix" if asked.constraint is None else _FIELDS[type(asked.constraint)]
    return error
