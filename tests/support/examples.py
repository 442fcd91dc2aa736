"""How many examples a property test tries where the profile's own number does not fit it."""

from hypothesis import settings


def examples(count: int) -> int:
    """That many in the default profile, and in proportion fewer in one that tries fewer."""
    return max(1, count * settings().max_examples // 100)
