"""Blocks of tools that other servers run, and the text of each.

Law: what was done elsewhere never ends a conversation here. What is not as its type has it says nothing.
"""

from typing import Annotated

import msgspec
from msgspec import Meta, Raw, Struct, field

_BlockId = Annotated[str, Meta(min_length=1, max_length=256)]
_BlockName = Annotated[str, Meta(min_length=1, max_length=256)]


class ServerToolUseBlock(Struct, frozen=True, tag_field="type", tag="server_tool_use"):
    """A call of a tool that the other server ran."""

    id: _BlockId
    name: _BlockName
    input: Raw = field(default_factory=lambda: Raw(b"{}"))


class McpToolUseBlock(Struct, frozen=True, tag_field="type", tag="mcp_tool_use"):
    """A call of a tool that the server reached over MCP."""

    id: _BlockId
    name: _BlockName
    input: Raw = field(default_factory=lambda: Raw(b"{}"))


class _HostedResult(Struct, frozen=True, tag_field="type"):
    tool_use_id: _BlockId
    content: Raw = field(default_factory=lambda: Raw(b"null"))


class WebSearchResultBlock(_HostedResult, frozen=True, tag="web_search_tool_result"):
    """Pages that a search found."""


class WebFetchResultBlock(_HostedResult, frozen=True, tag="web_fetch_tool_result"):
    """A page."""


class CodeResultBlock(_HostedResult, frozen=True, tag="code_execution_tool_result"):
    """The output of code."""


class BashResultBlock(_HostedResult, frozen=True, tag="bash_code_execution_tool_result"):
    """The output of a command."""


class EditorResultBlock(_HostedResult, frozen=True, tag="text_editor_code_execution_tool_result"):
    """The output of an editor."""


class ToolSearchResultBlock(_HostedResult, frozen=True, tag="tool_search_tool_result"):
    """Tools that a search found."""


class AdvisorResultBlock(_HostedResult, frozen=True, tag="advisor_tool_result"):
    """The words of an advisor."""


class McpResultBlock(_HostedResult, frozen=True, tag="mcp_tool_result"):
    """The answer of a tool over MCP."""

    is_error: bool | None = None


class ContainerUploadBlock(Struct, frozen=True, tag_field="type", tag="container_upload"):
    """A file in somebody's container."""


class McpListingBlock(Struct, frozen=True, tag_field="type", tag="mcp_tool_listing"):
    """Tools of somebody's server."""


class FallbackBlock(Struct, frozen=True, tag_field="type", tag="fallback"):
    """Another model went on."""


class CompactionBlock(Struct, frozen=True, tag_field="type", tag="compaction"):
    """Another server's summary of what came before."""

    content: str | None = None


HostedToolUse = ServerToolUseBlock | McpToolUseBlock
HostedToolResult = (
    WebSearchResultBlock
    | WebFetchResultBlock
    | CodeResultBlock
    | BashResultBlock
    | EditorResultBlock
    | ToolSearchResultBlock
    | AdvisorResultBlock
    | McpResultBlock
)
Wordless = ContainerUploadBlock | McpListingBlock | FallbackBlock
"""Blocks that hold no words at all."""


class _ListedResult(Struct):
    """One of whatever a result lists: a page, a text, a tool."""

    title: str | None = None
    url: str | None = None
    text: str | None = None
    tool_name: str | None = None


class _Source(Struct):
    type: str = ""
    data: str = ""


class _Document(Struct):
    title: str | None = None
    source: _Source | None = None


class _Fetched(Struct):
    url: str | None = None
    content: _Document | None = None


class _BlockOutcome(Struct):
    """Everything that the other results may say."""

    error_code: str | None = None
    stdout: str | None = None
    stderr: str | None = None
    return_code: int | None = None
    text: str | None = None
    content: str | list[Raw] | None = None
    tool_references: list[_ListedResult] = []


_found = msgspec.json.Decoder(str | list[_ListedResult])
_fetched = msgspec.json.Decoder(_Fetched)
_outcome = msgspec.json.Decoder(_BlockOutcome)


def hosted_result_text(block: HostedToolResult) -> str | None:
    """The result of a call as text; None where it has none."""
    try:
        told = _plain_text(block)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    if told and isinstance(block, McpResultBlock) and block.is_error:
        return f"Error: {told}"
    return told or None


def _plain_text(block: HostedToolResult) -> str:
    raw = block.content
    if isinstance(block, McpResultBlock) or bytes(raw).startswith((b"[", b'"')):
        found = _found.decode(raw)
        return found if isinstance(found, str) else "\n".join(filter(None, map(_line, found)))
    if isinstance(block, WebFetchResultBlock):
        return _page(raw)
    outcome = _outcome.decode(raw)
    if outcome.error_code is not None:
        return f"Error: {outcome.error_code}"
    code = outcome.return_code
    parts = (
        outcome.stdout,
        outcome.stderr,
        None if not code else f"exit code {code}",
        outcome.text,
        outcome.content if isinstance(outcome.content, str) else None,
        *map(_line, outcome.tool_references),
    )
    return "\n".join(part.rstrip("\n") for part in parts if part)


def _page(raw: Raw) -> str:
    fetched = _fetched.decode(raw)
    document = fetched.content
    if document is None:
        error = _outcome.decode(raw).error_code
        return "" if error is None else f"Error: {error}"
    source = document.source
    text = source.data if source is not None and source.type == "text" else ""
    return "\n".join(filter(None, (document.title, fetched.url, text)))


def _line(found: _ListedResult) -> str:
    return " ".join(filter(None, (found.title, found.url, found.text, found.tool_name)))
