"""What may be a tenant or an id: text that every database can hold as a key."""

from ganglion.core.errors import InvalidValue
from ganglion.store.port import MAX_NAME_BYTES


def is_name(*texts: str) -> bool:
    """Whether each could ever have been kept; what could not is unknown, whoever asks."""
    return all(_is_name(text) for text in texts)


def check_names(**texts: str | None) -> None:
    """Refuse to keep something under a name that cannot be a key; the keywords name the fields."""
    for param, text in texts.items():
        if text is not None and not _is_name(text):
            raise InvalidValue(
                f"{param} must be text of at most {MAX_NAME_BYTES} bytes without NUL, found {text[:64]!r}.",
                param=param,
            )


def _is_name(text: str) -> bool:
    try:
        return "\0" not in text and len(text.encode()) <= MAX_NAME_BYTES
    except UnicodeEncodeError:
        return False
