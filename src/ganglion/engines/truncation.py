"""Cutting a prompt that its client would rather have cut than refused."""


def truncated(tokens: tuple[int, ...], asked: int | None, context: int, answer: int) -> tuple[int, ...]:
    """The prompt's last tokens: as many as asked for, or with -1 what leaves the answer its room.

    An answer that asks for more than half of the context has half of it.
    """
    if asked is None:
        return tokens
    kept = asked if asked > 0 else context - min(answer, context // 2)
    return tokens[-max(kept, 1) :]
