"""Errors as this wire tells them: in OpenAI's envelope, with the names that its own fields have."""

from ganglion.core.errors import GanglionError, UnsupportedParameter
from ganglion.wire import errors


def envelope(error: GanglionError) -> bytes:
    """The body of a failed response."""
    # An engine speaks of messages, which are `input` here; a client that wrote `messages` is told of those.
    if error.param == "messages" and not isinstance(error, UnsupportedParameter):
        return errors.envelope(error, param="input")
    return errors.envelope(error)


def socket_error(error: GanglionError) -> bytes:
    """An error as a message of a socket."""
    return b'{"type":"error","status":%d,%b' % (error.status, envelope(error)[1:])
