"""Call ids as this wire writes them: `toolu_…` for what is `call_…` everywhere else."""

_OURS, _THEIRS = "call_", "toolu_"


def tool_use_id(call_id: str) -> str:
    """A call's id for the client."""
    return _THEIRS + call_id.removeprefix(_OURS) if call_id.startswith(_OURS) else call_id


def call_id(tool_use_id: str) -> str:
    """The call's id again, from what the client sent back."""
    return _OURS + tool_use_id.removeprefix(_THEIRS) if tool_use_id.startswith(_THEIRS) else tool_use_id
