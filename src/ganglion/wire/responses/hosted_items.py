"""Items of tools that other servers run: kept as they came, and shown to the model as far as they are text.

Law: what was done elsewhere never ends a conversation here. A call whose words stand in its item is told as a
call, and what came of it as its answer; where only a picture or nothing at all came of it, or the item is not
as its type has it, it is left out, with a warning.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Raw, Struct

from ganglion.wire.responses.items import ForeignItem

_T = TypeVar("_T")

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class HostedCall:
    """A call that an item tells of; its arguments are JSON."""

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class HostedResult:
    """The result of a call."""

    call_id: str
    text: str


_HostedSteps = Sequence[HostedCall | HostedResult]


class _FileExcerpt(Struct):
    text: str | None = None
    filename: str | None = None


class _FileSearch(Struct):
    id: str
    queries: list[str] = []
    results: list[_FileExcerpt] | None = None


class _Logs(Struct):
    logs: str | None = None


class _CodeInterpreter(Struct):
    id: str
    code: str | None = None
    outputs: list[_Logs] | None = None


class _McpCall(Struct):
    id: str
    name: str
    arguments: str
    output: str | None = None
    error: Any = None


class _Program(Struct):
    call_id: str
    code: str


class _ProgramOutput(Struct):
    call_id: str
    result: str


class _Acted(Struct):
    """A call of a shell or of a patch; what it does is JSON of its own."""

    call_id: str
    action: Raw = Raw(b"{}")
    operation: Raw = Raw(b"{}")


class _ShellOutcome(Struct):
    type: str = ""
    exit_code: int | None = None


class _Ran(Struct):
    stdout: str = ""
    stderr: str = ""
    outcome: _ShellOutcome | None = None


class _ShellOutput(Struct):
    call_id: str
    output: str | list[_Ran]


class _LocalShellOutput(Struct):
    """Its id is the id of the call, in OpenAI's own words."""

    output: str
    id: str = ""
    call_id: str | None = None


class _PatchOutput(Struct):
    call_id: str
    output: str | None = None
    status: str | None = None


class _CallOf(Struct):
    call_id: str | None = None


def _file_search(raw: Raw) -> _HostedSteps:
    item = _read(_FileSearch, raw)
    found = [each for each in item.results or () if each.text]
    if not found:
        return ()
    text = "\n\n".join("\n".join(filter(None, (each.filename, each.text))) for each in found)
    return HostedCall(item.id, "file_search", _json({"queries": item.queries})), HostedResult(item.id, text)


def _code_interpreter(raw: Raw) -> _HostedSteps:
    item = _read(_CodeInterpreter, raw)
    if item.code is None or item.outputs is None:
        return ()
    logs = "\n".join(each.logs for each in item.outputs if each.logs)
    return HostedCall(item.id, "code_interpreter", _json({"code": item.code})), HostedResult(item.id, logs)


def _mcp_call(raw: Raw) -> _HostedSteps:
    item = _read(_McpCall, raw)
    if item.output is None and item.error is None:
        return ()
    error = item.error if isinstance(item.error, str) else _json(item.error)
    text = item.output if item.output is not None else f"Error: {error}"
    return HostedCall(item.id, item.name, item.arguments), HostedResult(item.id, text)


def _acted(name: str, field: str, raw: Raw) -> _HostedSteps:
    item = _read(_Acted, raw)
    action: Raw = getattr(item, field)
    return (HostedCall(item.call_id, name, bytes(action).decode()),)


def _shell_output(raw: Raw) -> _HostedSteps:
    item = _read(_ShellOutput, raw)
    text = item.output if isinstance(item.output, str) else "\n".join(map(_ran, item.output))
    return (HostedResult(item.call_id, text),)


def _ran(ran: _Ran) -> str:
    outcome = ran.outcome
    ended = None
    if outcome is not None:
        ended = outcome.type if outcome.exit_code is None else f"exit code {outcome.exit_code}"
    return "\n".join(filter(None, (ran.stdout.rstrip("\n"), ran.stderr.rstrip("\n"), ended)))


def _local_shell_output(raw: Raw) -> _HostedSteps:
    item = _read(_LocalShellOutput, raw)
    return (HostedResult(item.call_id or item.id, item.output),)


def _patch_output(raw: Raw) -> _HostedSteps:
    item = _read(_PatchOutput, raw)
    return (HostedResult(item.call_id, item.output or item.status or ""),)


def _program(raw: Raw) -> _HostedSteps:
    item = _read(_Program, raw)
    return (HostedCall(item.call_id, "program", _json({"code": item.code})),)


def _program_output(raw: Raw) -> _HostedSteps:
    item = _read(_ProgramOutput, raw)
    return (HostedResult(item.call_id, item.result),)


def _nothing(raw: Raw) -> _HostedSteps:
    return ()


_STEPS_BY_TYPE: Final[Mapping[str, tuple[str, Callable[[Raw], _HostedSteps]]]] = {
    "file_search_call": ("fs", _file_search),
    "code_interpreter_call": ("ci", _code_interpreter),
    "mcp_call": ("mcp", _mcp_call),
    "local_shell_call": ("lsh", partial(_acted, "local_shell", "action")),
    "local_shell_call_output": ("lsho", _local_shell_output),
    "shell_call": ("sh", partial(_acted, "shell", "action")),
    "shell_call_output": ("sho", _shell_output),
    "apply_patch_call": ("apc", partial(_acted, "apply_patch", "operation")),
    "apply_patch_call_output": ("apco", _patch_output),
    "program": ("prog", _program),
    "program_output": ("progo", _program_output),
    # Of a search, a list or a consent the item holds no words that a model could go on from, and of these
    # two only pictures.
    "web_search_call": ("ws", _nothing),
    "mcp_list_tools": ("mcpl", _nothing),
    "mcp_approval_request": ("mcpr", _nothing),
    "mcp_approval_response": ("mcpa", _nothing),
    "tool_search_call": ("tsc", _nothing),
    "tool_search_output": ("tso", _nothing),
    "image_generation_call": ("ig", _nothing),
    "computer_call": ("cu", _nothing),
    "computer_call_output": ("cuo", _nothing),
}
"""By type: what an id begins with, and how the item is told."""
FOREIGN: Final = tuple(_STEPS_BY_TYPE)
PREFIXES: Final = {kind: prefix for kind, (prefix, _) in _STEPS_BY_TYPE.items()}


def hosted_steps(item: ForeignItem) -> _HostedSteps:
    """The steps that an item becomes in the prompt; none where it is left out."""
    try:
        return _STEPS_BY_TYPE[item.type][1](item.raw)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return ()


def call_id_of(item: ForeignItem) -> str | None:
    """The call that an item makes or answers, where it names one."""
    try:
        return msgspec.json.decode(item.raw, type=_CallOf).call_id
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def _read(shape: type[_T], raw: Raw) -> _T:
    return msgspec.json.decode(raw, type=shape)


def _json(value: object) -> str:
    return _encode(value).decode()
