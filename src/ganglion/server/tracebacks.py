"""What an error that was told still holds on to.

A traceback holds every frame of its request, and frames hold the error: a circle around all that the request
was, which only a full collection finds, and that is rare. A node's memory grew by these.
"""


def drop_tracebacks(error: BaseException) -> None:
    """Let go of the frames that an error and its causes came through; for errors that nobody raises again."""
    pending: list[BaseException] = [error]
    while pending:
        each = pending.pop()
        if each.__traceback__ is not None:
            each.__traceback__ = None
            pending += [cause for cause in (each.__cause__, each.__context__) if cause is not None]
