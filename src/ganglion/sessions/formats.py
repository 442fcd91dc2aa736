"""What the text of a generation is held to, as one grammar, and which field of the wire is meant. Pure."""

from ganglion.core.errors import GanglionError
from ganglion.core.request import Choice, Constraint, Gbnf, JsonSchema, Lark, Regex
from ganglion.sessions.values import Asked
from ganglion.text.constraint import compose, continuing

ENGINES_FIELD = "response_format"
"""What constraints are called below: by their first wire's name."""

_FIELDS: dict[type[Constraint], str] = {
    JsonSchema: "json_schema",
    Regex: "pattern",
    Choice: "choice",
    Lark: "lark",
    Gbnf: "gbnf",
}


def grammar_of(asked: Asked) -> str | None:
    """The grammar of a call, None where nothing holds it; raises InvalidValue."""
    # A session has no template, so nothing knows of reasoning: the format begins at once.
    try:
        source = compose(asked.constraint, body=None, family=None, is_open=False, may_reason=False)
        return continuing(asked.prefix, source) if asked.prefix else source
    except GanglionError as error:
        raise named(error, asked) from None


def named(error: GanglionError, asked: Asked) -> GanglionError:
    """The error, with the field's name of this wire where it is about the format."""
    if error.param == ENGINES_FIELD:
        error.param = "prefix" if asked.constraint is None else _FIELDS[type(asked.constraint)]
    return error
