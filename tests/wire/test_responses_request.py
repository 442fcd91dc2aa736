"""What bodies of the Responses wire mean, and how the ones that mean nothing are refused."""

import itertools
import json
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai._models import validate_type
from openai.types import conversations
from openai.types.responses import (
    CompactedResponse,
    InputTokenCountResponse,
    Response,
    ResponseItemList,
)

from ganglion.core.errors import GanglionError, InvalidRequest, ShuttingDown
from ganglion.core.events import Finished, Usage
from ganglion.core.fold import Answer, Block
from ganglion.core.request import (
    ChatPrompt,
    JsonSchema,
    Lark,
    Message,
    Regex,
    Stop,
    Thinking,
    Tool,
    ToolCall,
    ToolUse,
)
from ganglion.core.sampling import Sampling
from ganglion.wire.responses import (
    Item,
    ResponsesCall,
    ResponsesParseContext,
    body,
    compact_body,
    compacted,
    encode_items,
    flat,
    items_of,
    kept_items,
    parse,
    parse_body,
    prompt_characters,
    stored,
    without_oldest_turns,
)
from ganglion.wire.responses.compaction import seal_reasoning
from ganglion.wire.responses.item_codec import read_items
from ganglion.wire.responses.items import MessageItem, ReasoningItem, ReasoningText
from ganglion.wire.seal import HmacSeal
from support.golden import GOLDEN

CODEX = GOLDEN / "responses" / "codex.json"
"""The second request of a turn of Codex, its texts shortened."""
SEAL = HmacSeal(bytes(32)).of("tenant")


def ids():
    numbers = itertools.count(1)
    return lambda prefix: f"{prefix}_{next(numbers)}"


def call(
    asked: object = "hello",
    *,
    history: Sequence[Item] = (),
    referenced: Mapping[str, Item] | None = None,
    **fields: object,
) -> ResponsesCall:
    sent = json.dumps({"model": "tiny", "input": asked, **fields}).encode()
    arrival = ResponsesParseContext("resp_1", 1700000000, ids(), tenant="tenant", seal=SEAL)
    return parse(sent, arrival, history=history, referenced=referenced)


def prompt(asked: object = "hello", **fields: object) -> ChatPrompt:
    found = call(asked, **fields).request.prompt
    assert isinstance(found, ChatPrompt)
    return found


def messages(asked: object, **fields: object) -> tuple[Message, ...]:
    return prompt(asked, **fields).messages


def refusal(asked: object = "hello", **fields: object) -> GanglionError:
    with pytest.raises(InvalidRequest) as caught:
        call(asked, **fields)
    assert caught.value.status in (400, 404)
    return caught.value


def test_everything_that_codex_sends_is_taken() -> None:
    arrival = ResponsesParseContext("resp_1", 1700000000, ids(), tenant="tenant", seal=SEAL)
    codex = parse(CODEX.read_bytes(), arrival, is_strict=True)
    assert isinstance(codex.request.prompt, ChatPrompt)
    assert (codex.is_streamed, codex.is_stored, codex.unknown_fields) == (True, False, ())
    assert codex.reply.is_reasoning_sealed
    tools = codex.request.prompt.tool_use.tools
    assert len(tools) == 12
    assert [tool.name for tool in tools if tool.name.startswith("multi")] == [
        "multi_agent_v1__close_agent",
        "multi_agent_v1__resume_agent",
        "multi_agent_v1__send_input",
        "multi_agent_v1__spawn_agent",
        "multi_agent_v1__wait_agent",
    ]
    assert codex.warnings == ("the tool 'web_search', which is not run here",)
    said = codex.request.prompt.messages
    assert [message.role for message in said] == [
        *("developer", "developer", "user", "user", "assistant", "tool"),
    ]
    assert (said[4].reasoning, said[4].content) == ("A command will tell.", "I look.")
    assert said[4].tool_calls[0].name == said[5].name == "exec_command"


FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}
CALL = {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "42"}


@pytest.mark.parametrize(
    "item",
    [
        {"role": "user", "content": "hi"},
        {"type": "message", "role": "user", "content": "hi"},
        {"type": None, "role": "user", "content": "hi"},
        {
            "role": "user",
            "content": [{"type": "input_text", "text": "h"}, {"type": "input_text", "text": "i"}],
        },
        {
            "type": "message",
            "id": "msg_7",
            "status": "completed",
            "role": "user",
            "content": [{"type": "input_text", "text": "hi"}],
        },
    ],
)
def test_a_message_is_understood_in_all_its_forms(item: object) -> None:
    assert messages([item]) == messages("hi") == (Message("user", "hi"),)


@pytest.mark.parametrize("role", ["user", "assistant", "system", "developer"])
def test_every_role_is_understood(role: str) -> None:
    assert messages([{"role": role, "content": "hi"}]) == (Message(role, "hi"),)


def test_instructions_stand_before_everything() -> None:
    said = messages(
        [{"role": "developer", "content": "b"}, {"role": "user", "content": "c"}], instructions="a"
    )
    assert said == (Message("system", "a"), Message("developer", "b"), Message("user", "c"))


def test_a_turn_of_the_assistant_is_one_message() -> None:
    assert messages(
        [
            {"role": "user", "content": "q"},
            {
                "type": "reasoning",
                "id": "rs_1",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": "hm"}],
            },
            {"role": "assistant", "content": [{"type": "output_text", "text": "I look.", "annotations": []}]},
            CALL,
            {**CALL, "call_id": "call_2", "id": "fc_2", "status": "completed"},
            OUTPUT,
            {
                **OUTPUT,
                "call_id": "call_2",
                "output": [{"type": "input_text", "text": "4"}, {"type": "input_text", "text": "3"}],
            },
            {"type": "reasoning", "summary": []},
            {"role": "assistant", "content": "a"},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "b"}]},
        ]
    ) == (
        Message("user", "q"),
        Message(
            "assistant",
            "I look.",
            reasoning="hm",
            tool_calls=(ToolCall("call_1", "f", "{}"), ToolCall("call_2", "f", "{}")),
        ),
        Message("tool", "42", name="f", tool_call_id="call_1"),
        Message("tool", "43", name="f", tool_call_id="call_2"),
        Message("assistant", "a"),
        Message("assistant", "b"),
    )


def test_custom_tool_calls_are_calls_too() -> None:
    custom = {"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": "*** Begin"}
    answered = {"type": "custom_tool_call_output", "call_id": "c", "output": "done"}
    assert messages([custom, answered]) == (
        Message("assistant", "", tool_calls=(ToolCall("c", "patch", "*** Begin"),)),
        Message("tool", "done", name="patch", tool_call_id="c"),
    )


def test_reasoning_that_we_sealed_is_opened_and_that_of_others_is_left_out_with_a_warning() -> None:
    ours = {"type": "reasoning", "summary": [], "encrypted_content": seal_reasoning("hm", SEAL)}
    theirs = {**ours, "encrypted_content": "gAAAAABoold"}
    done = {"role": "assistant", "content": "yes"}
    assert messages([ours, done]) == (Message("assistant", "yes", reasoning="hm"),)
    assert messages([theirs, done]) == (Message("assistant", "yes"),)
    assert call([theirs, done]).warnings == ("reasoning that was not sealed here",)


def test_reasoning_with_nothing_after_it_is_not_lost() -> None:
    thought = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
    assert messages([thought, {"role": "user", "content": "go on"}]) == (
        Message("assistant", "", reasoning="hm"),
        Message("user", "go on"),
    )


def test_a_reference_stands_for_the_item_that_was_kept() -> None:
    kept = MessageItem(id="msg_9", role="user", content="kept")
    for reference in ({"type": "item_reference", "id": "msg_9"}, {"id": "msg_9"}):
        assert parse_body(json.dumps({"model": "m", "input": [reference]}).encode()).references == ("msg_9",)
        assert messages([reference], referenced={"msg_9": kept}) == (Message("user", "kept"),)
        error = refusal([{"role": "user", "content": "a"}, reference])
        assert (error.code, error.param) == ("item_not_found", "input[1].id")


def test_bare_reasoning_is_remembered_by_its_id_or_left_out() -> None:
    kept = ReasoningItem(id="rs_9", content=[ReasoningText("hm")])
    done = {"role": "assistant", "content": "yes"}
    for bare in (
        {"type": "reasoning", "id": "rs_9", "summary": []},
        {"type": "reasoning", "id": "rs_9", "content": []},
    ):
        assert parse_body(json.dumps({"model": "m", "input": [bare, done]}).encode()).references == ("rs_9",)
        assert messages([bare, done], referenced={"rs_9": kept}) == (
            Message("assistant", "yes", reasoning="hm"),
        )
        assert messages([bare, done]) == (Message("assistant", "yes"),)
    own = {"type": "reasoning", "id": "rs_9", "content": [{"type": "reasoning_text", "text": "its own"}]}
    assert messages([own, done], referenced={"rs_9": kept}) == (
        Message("assistant", "yes", reasoning="its own"),
    )


def test_a_compaction_stands_for_what_it_holds() -> None:
    items = kept_items(read_items("earlier"), ids(), {})
    item = compacted(items, SEAL, "cmp_1")
    sent = json.loads(encode_items([item]))
    assert messages([*sent, {"role": "user", "content": "now"}]) == (
        Message("user", "earlier"),
        Message("user", "now"),
    )
    sent[0]["type"] = "compaction_summary"
    assert messages(sent) == (Message("user", "earlier"),)
    assert flat([item, *items], SEAL) == (*items, *items)
    error = refusal([{"type": "compaction", "encrypted_content": seal_reasoning("x", SEAL)}])
    assert error.param == "input[0].encrypted_content"


def test_history_comes_before_the_input_and_is_not_part_of_what_is_kept() -> None:
    first = call([{"role": "user", "content": "q"}], tools=[FUNCTION])
    answer = Answer((Block("tool_call", "{}", (), "call_1", "f"),), Finished("tool_calls", Usage(1, 1)))
    done = body(answer, first.reply, ids=ids(), clock_s=lambda: 1)
    history = items_of(encode_items(first.input_items), stored.output_of(done))
    second = call([OUTPUT], history=history, previous_response_id="resp_0")
    assert second.request.prompt.messages == (
        Message("user", "q"),
        Message("assistant", "", tool_calls=(ToolCall("call_1", "f", "{}"),)),
        Message("tool", "42", name="f", tool_call_id="call_1"),
    )
    assert [item.id for item in second.input_items] == ["fco_1"]
    assert second.previous_response_id == "resp_0"
    assert call(None, history=history).request.prompt.messages


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"type": "configuration_update"}, "input[1].type"),
        ({"type": "web_search_call", "id": "x" * 257}, "input[1].id"),
        (OUTPUT, "input[1].call_id"),
        ({"type": "nonsense"}, "input[1].type"),
        ({"content": "no role"}, "input[1].type"),
        ({"type": "message", "role": "robot", "content": ""}, "input[1].role"),
        ({"role": "user", "content": [{"type": "hologram"}]}, "input[1].content[0].type"),
        ({"role": "user", "content": [{"type": "input_text"}]}, "input[1].content[0].text"),
        ({"role": "user", "content": [{"type": "input_file"}]}, "input[1].content[0]"),
        ({"role": "user"}, "input[1].content"),
        ({**CALL, "call_id": ""}, "input[1].call_id"),
        ({"type": "function_call_output", "output": "x"}, "input[1].call_id"),
        ("text", "input[1]"),
        (7, "input[1]"),
    ],
)
def test_what_is_wrong_with_an_item_is_told_with_its_place(item: object, param: str) -> None:
    assert refusal([{"role": "user", "content": "a"}, item]).param == param


@pytest.mark.parametrize(
    "item",
    [
        {
            "role": "user",
            "content": [{"type": "input_text", "text": "?"}, {"type": "input_image", "image_url": "x"}],
        },
        {**OUTPUT, "output": [{"type": "input_text", "text": "?"}, {"type": "input_image", "file_id": "x"}]},
    ],
)
def test_images_that_nobody_can_read_are_refused_by_name(item: dict[str, object]) -> None:
    error = refusal([CALL, item])
    assert error.param in ("input[1].content[1].image_url", "input[1].output[1].file_id")


SHELL = {"type": "exec", "command": ["ls"], "env": {}}
ELSEWHERE: dict[str, tuple[list[dict[str, object]], list[tuple[object, ...]]]] = {
    "file search": (
        [
            {
                "type": "file_search_call",
                "id": "fs_1",
                "status": "completed",
                "queries": ["tax"],
                "results": [{"file_id": "f", "filename": "a.md", "score": 0.9, "text": "Pay it."}],
            }
        ],
        [("fs_1", "file_search", {"queries": ["tax"]}), ("fs_1", "a.md\nPay it.")],
    ),
    "code": (
        [
            {
                "type": "code_interpreter_call",
                "id": "ci_1",
                "code": "6 * 7",
                "container_id": "c",
                "outputs": [{"type": "logs", "logs": "42"}, {"type": "image", "url": "x"}],
                "status": "completed",
            }
        ],
        [("ci_1", "code_interpreter", {"code": "6 * 7"}), ("ci_1", "42")],
    ),
    "mcp": (
        [
            {
                "type": "mcp_call",
                "id": "mcp_1",
                "server_label": "s",
                "name": "roll",
                "arguments": '{"n":1}',
                "output": "4",
            }
        ],
        [("mcp_1", "roll", {"n": 1}), ("mcp_1", "4")],
    ),
    "an mcp call that failed": (
        [
            {
                "type": "mcp_call",
                "id": "mcp_1",
                "server_label": "s",
                "name": "roll",
                "arguments": "{}",
                "error": {"type": "http_error", "code": 500},
            }
        ],
        [("mcp_1", "roll", {}), ("mcp_1", 'Error: {"type":"http_error","code":500}')],
    ),
    "local shell": (
        [
            {
                "type": "local_shell_call",
                "id": "lsh_1",
                "call_id": "c",
                "action": SHELL,
                "status": "completed",
            },
            {"type": "local_shell_call_output", "id": "c", "output": "a.txt"},
        ],
        [("c", "local_shell", SHELL), ("c", "a.txt")],
    ),
    "a local shell that is answered as a function": (
        [
            {
                "type": "local_shell_call",
                "id": "lsh_1",
                "call_id": "c",
                "action": SHELL,
                "status": "completed",
            },
            {"type": "function_call_output", "call_id": "c", "output": "a.txt"},
        ],
        [("c", "local_shell", SHELL), ("c", "a.txt")],
    ),
    "shell": (
        [
            {"type": "shell_call", "call_id": "c", "action": {"commands": ["ls", "false"]}},
            {
                "type": "shell_call_output",
                "call_id": "c",
                "output": [
                    {"stdout": "a.txt\n", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}},
                    {"stdout": "", "stderr": "no", "outcome": {"type": "timeout"}},
                ],
            },
        ],
        [("c", "shell", {"commands": ["ls", "false"]}), ("c", "a.txt\nexit code 0\nno\ntimeout")],
    ),
    "patch": (
        [
            {
                "type": "apply_patch_call",
                "call_id": "c",
                "status": "completed",
                "operation": {"type": "delete_file", "path": "a"},
            },
            {"type": "apply_patch_call_output", "call_id": "c", "status": "completed"},
        ],
        [("c", "apply_patch", {"type": "delete_file", "path": "a"}), ("c", "completed")],
    ),
    "program": (
        [
            {"type": "program", "id": "p", "call_id": "c", "code": "x", "fingerprint": "f"},
            {"type": "program_output", "id": "q", "call_id": "c", "result": "1"},
        ],
        [("c", "program", {"code": "x"}), ("c", "1")],
    ),
}
SILENT: list[dict[str, object]] = [
    {
        "type": "web_search_call",
        "id": "ws_1",
        "status": "completed",
        "action": {"type": "search", "query": "x"},
    },
    {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "s", "tools": []},
    {"type": "mcp_approval_request", "id": "mcpr_1", "server_label": "s", "name": "roll", "arguments": "{}"},
    {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True},
    {"type": "mcp_call", "id": "mcp_1", "server_label": "s", "name": "roll", "arguments": "{}"},
    {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": "AAAA"},
    {
        "type": "computer_call",
        "id": "cu_1",
        "call_id": "c",
        "pending_safety_checks": [],
        "status": "completed",
    },
    {"type": "computer_call_output", "call_id": "c", "output": {"type": "computer_screenshot"}},
    {"type": "tool_search_call", "arguments": {}},
    {"type": "tool_search_output", "tools": []},
    {"type": "code_interpreter_call", "id": "ci_1", "code": None, "container_id": "c", "outputs": None},
    {"type": "shell_call", "call_id": 7, "action": "not as its type has it"},
]
ASKED = {"role": "user", "content": "q"}
GOES_ON = {"role": "user", "content": "and now?"}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_what_other_servers_tools_did_is_told_as_calls_and_answers(name: str) -> None:
    sent, expected = ELSEWHERE[name]
    made = call([ASKED, {"role": "assistant", "content": "I look."}, *sent, GOES_ON])
    first, *said, last = made.request.prompt.messages
    assert (first.content, last.content, made.warnings) == ("q", "and now?", ())
    found: list[tuple[object, ...]] = []
    for message in said:
        found += [(each.call_id, each.name, json.loads(each.arguments)) for each in message.tool_calls]
        found += [(message.tool_call_id, message.content)] if message.role == "tool" else []
    assert found == expected
    assert said[0].content == "I look.", "a turn of the assistant stays one"


@pytest.mark.parametrize("item", SILENT, ids=lambda item: item["type"])
def test_what_of_other_servers_tools_has_no_words_is_left_out_with_a_warning(item: dict[str, object]) -> None:
    made = call([ASKED, item, GOES_ON])
    assert [message.content for message in made.request.prompt.messages] == ["q", "and now?"]
    (warning,) = made.warnings
    assert str(item["type"]) in warning


def test_other_servers_items_are_kept_as_they_came_and_have_an_id() -> None:
    sent = [item for items, _ in ELSEWHERE.values() for item in items] + SILENT
    kept = call([ASKED, *sent, GOES_ON]).input_items
    assert items_of(encode_items(kept)) == kept
    listed = json.loads(stored.page(kept, has_more=False))["data"]
    assert all(item["id"] for item in listed)
    for was, now in zip(sent, listed[1:-1], strict=True):
        assert now == {"id": now["id"], **was} or was["type"] == "function_call_output"
    assert json.loads(stored.item(kept[1])) == listed[1]
    sealed = json.loads(stored.item(compacted(kept, SEAL, "cmp_1")))
    assert messages([sealed, GOES_ON])[:-1] == messages([ASKED, *sent, GOES_ON])


def test_every_tool_that_we_run_is_offered_and_the_hosted_ones_are_dropped_and_echoed() -> None:
    tools = [
        {**FUNCTION, "description": "A function."},
        {"type": "function", "name": "g"},
        {
            "type": "custom",
            "name": "patch",
            "format": {"type": "grammar", "syntax": "lark", "definition": "start: A"},
        },
        {
            "type": "custom",
            "name": "count",
            "format": {"type": "grammar", "syntax": "regex", "definition": "[0-9]+"},
        },
        {"type": "custom", "name": "say", "format": {"type": "text"}},
        {"type": "web_search", "external_web_access": False},
        {
            "type": "namespace",
            "name": "mcp__files__",
            "description": "",
            "tools": [{"type": "function", "name": "list"}, {"type": "mystery"}],
        },
        {
            "type": "namespace",
            "name": "agents",
            "description": "",
            "tools": [{"type": "custom", "name": "spawn"}],
        },
        {
            "type": "namespace",
            "name": "functions",
            "description": "",
            "tools": [{"type": "function", "name": "h"}],
        },
        {"type": "mcp", "server_label": "x", "server_url": "https://example.org"},
    ]
    found = call(tools=tools)
    assert found.request.prompt.tool_use == ToolUse(
        (
            Tool("f", "A function.", {"type": "object"}, is_strict=True),
            Tool("g"),
            Tool("patch", is_custom=True, text_format=Lark("start: A")),
            Tool("count", is_custom=True, text_format=Regex("[0-9]+")),
            Tool("say", is_custom=True),
            Tool("mcp__files__list"),
            Tool("agents__spawn", is_custom=True),
            Tool("h"),
        )
    )
    assert [warning.split(",")[0] for warning in found.warnings] == [
        "the tool 'web_search'",
        "the tool 'mystery'",
        "the tool 'mcp'",
    ]
    echoed = [json.loads(bytes(tool)) for tool in found.reply.response.tools]
    assert echoed[1] == {
        "type": "function",
        "name": "g",
        "description": None,
        "parameters": None,
        "strict": False,
    }
    assert echoed[2:] == tools[2:]


def test_tools_may_come_inside_the_input() -> None:
    more = {
        "type": "additional_tools",
        "role": "developer",
        "tools": [FUNCTION, {"type": "function", "name": "g"}],
    }
    found = prompt([more, {"role": "user", "content": "q"}], tools=[FUNCTION], tool_choice="required")
    assert [tool.name for tool in found.tool_use.tools] == ["f", "g"]
    assert found.messages == (Message("user", "q"),)


NAMESPACE = {
    "type": "namespace",
    "name": "ns",
    "description": "",
    "tools": [{"type": "function", "name": "in"}],
}


@pytest.mark.parametrize(
    ("choice", "mode", "allowed"),
    [
        ("none", "none", None),
        ("auto", "auto", None),
        ("required", "required", None),
        ({"type": "function", "name": "f"}, "required", ("f",)),
        ({"type": "custom", "name": "c"}, "required", ("c",)),
        ({"type": "function", "name": "in"}, "required", ("ns__in",)),
        ({"type": "function", "name": "in", "namespace": "ns"}, "required", ("ns__in",)),
        (
            {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "function", "name": "f"}, {"type": "mcp", "server_label": "x"}],
            },
            "auto",
            ("f",),
        ),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "custom", "name": "c"}]},
            "required",
            ("c",),
        ),
    ],
)
def test_the_choice_among_tools_is_honoured(choice: object, mode: str, allowed: object) -> None:
    use = prompt(tools=[FUNCTION, {"type": "custom", "name": "c"}, NAMESPACE], tool_choice=choice).tool_use
    assert (use.choice, use.allowed) == (mode, allowed)
    assert (
        call(
            tools=[FUNCTION, {"type": "custom", "name": "c"}, NAMESPACE], tool_choice=choice
        ).reply.response.tool_choice
        == choice
    )


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "required", "tools": [{"type": "web_search"}]}, "tool_choice"),
        ({"tool_choice": {"type": "web_search_preview"}, "tools": [{"type": "web_search"}]}, "tool_choice"),
        ({"tool_choice": {"type": "mcp", "server_label": "x"}}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "g"}, "tools": [FUNCTION]}, "tool_choice.name"),
        ({"tool_choice": {"type": "custom", "name": "f"}, "tools": [FUNCTION]}, "tool_choice.name"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.name"),
        ({"tool_choice": {}}, "tool_choice.type"),
        ({"tool_choice": "perhaps"}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}}, "tool_choice.tools"),
        (
            {"tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [{"type": "mcp"}]}},
            "tool_choice.tools",
        ),
        ({"tools": [FUNCTION, FUNCTION]}, "tools[1].name"),
        ({"tools": [{"type": "function", "function": {"name": "chat's form"}}]}, "tools[0].name"),
        ({"tools": [{"name": "f"}]}, "tools[0].type"),
        ({"tools": [{**NAMESPACE, "tools": [{"type": "function"}]}]}, "tools[0].tools[0].name"),
        ({"tools": ["f"]}, "tools[0]"),
        ({"tools": [{**FUNCTION, "parameters": {"x": "y" * 2**20}}]}, "tools"),
        (
            {"tools": [{"type": "custom", "name": "c", "format": {"type": "grammar"}}]},
            "tools[0].format.syntax",
        ),
        ({"text": {"format": {"type": "yaml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"reasoning": {"effort": "heroic"}}, "reasoning.effort"),
        ({"reasoning": {"mode": "pro"}}, "reasoning.mode"),
        ({"include": ["everything"]}, "include[0]"),
        ({"truncation": "middle"}, "truncation"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"max_output_tokens": -1}, "max_output_tokens"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"temperature": 3}, "temperature"),
        ({"stream_options": {"include_obfuscation": True}}, "stream_options"),
        ({"background": True, "store": False}, "background"),
        ({"previous_response_id": "resp_1", "conversation": "conv_1"}, "previous_response_id"),
        ({"conversation": "conv_1", "store": False}, "store"),
        ({"context_management": [{"type": "magic"}]}, "context_management[0].type"),
        ({"context_management": [{"type": "compaction", "compact_threshold": 9}]}, "context_management"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"moderation": {"model": "x"}}, "moderation"),
        ({"prompt_cache_options": {"prewarm": True}}, "prompt_cache_options.prewarm"),
        ({"messages": [{"role": "user", "content": "x"}]}, "messages"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"n": 2}, "n"),
        ({"guided_regex": "a"}, "guided_regex"),
        ({"best_of": 3}, "best_of"),
        ({"chat_template_kwargs": {"a": "b" * 2**18}}, "chat_template_kwargs"),
        ({"model": ""}, "model"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(fields: dict[str, object], param: str) -> None:
    assert refusal(**fields).param == param


@pytest.mark.parametrize("nothing", [None, []])
def test_a_body_without_anything_to_answer_is_refused(nothing: object) -> None:
    error = refusal(nothing, instructions="Be brief.")
    assert (error.code, error.param) == ("missing_required_parameter", "input")


def test_sampling_formats_and_limits_reach_the_request() -> None:
    found = call(
        temperature=0,
        top_p=0.5,
        top_k=3,
        min_p=0.1,
        seed=4,
        stop=["a", "b"],
        stop_token_ids=[7],
        presence_penalty=1,
        frequency_penalty=-1,
        repetition_penalty=1.5,
        logit_bias={"5": 2},
        priority=-3,
        max_output_tokens=9,
        min_tokens=2,
        top_logprobs=3,
        parallel_tool_calls=False,
        text={
            "format": {"type": "json_schema", "name": "x", "schema": {"type": "integer"}, "strict": True},
            "verbosity": "low",
        },
        reasoning={"effort": "high"},
        chat_template_kwargs={"enable_thinking": False},
        truncation="auto",
    )
    request = found.request
    assert request.sampling == Sampling(
        temperature=0.0,
        top_p=0.5,
        top_k=3,
        min_p=0.1,
        repetition_penalty=1.5,
        presence_penalty=1.0,
        frequency_penalty=-1.0,
        seed=4,
        logit_bias=((5, 2.0),),
    )
    assert request.stop == Stop(("a", "b"), (7,))
    assert (request.priority, request.max_tokens, request.min_tokens, request.top_logprobs) == (-3, 9, 2, 3)
    assert request.constraint == JsonSchema({"type": "integer"})
    assert request.prompt.thinking == Thinking(effort="high")
    assert request.prompt.template_arguments == {"enable_thinking": False, "verbosity": "low"}
    assert not request.prompt.tool_use.is_parallel
    assert found.may_truncate
    assert request.tenant == "tenant"


def test_logprobs_are_asked_for_by_include_too() -> None:
    assert call().request.top_logprobs is None
    assert call(include=["message.output_text.logprobs"]).request.top_logprobs == 0
    assert call(text={"format": {"type": "json_object"}}).request.constraint == JsonSchema({"type": "object"})


def test_what_is_echoed_is_what_was_asked() -> None:
    fields = {
        "instructions": "Be brief.",
        "metadata": {"a": "b"},
        "user": "me",
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "prompt_cache_retention": "24h",
        "max_tool_calls": 3,
        "max_output_tokens": 20,
        "truncation": "auto",
        "previous_response_id": "resp_0",
        "temperature": 0.0,
        "background": True,
    }
    harmless = {"image": {"context_compression": "auto"}, "prompt_cache_options": {"prewarm": False}}
    reply = call(**fields, service_tier="flex", **harmless).reply
    answer = Answer((), Finished("stop", Usage(1, 0)))
    echoed = json.loads(body(answer, reply, ids=ids(), clock_s=lambda: 1700000001))
    assert {name: echoed[name] for name in fields} == fields
    assert echoed["service_tier"] == "default"
    assert echoed["store"] is True
    validate_type(type_=Response, value=echoed)


@pytest.mark.parametrize(("conversation", "found"), [("conv_1", "conv_1"), ({"id": "conv_1"}, "conv_1")])
def test_a_conversation_is_named_in_both_forms(conversation: object, found: str) -> None:
    asked = parse_body(json.dumps({"model": "m", "conversation": conversation}).encode())
    assert asked.conversation_id == found


def test_what_is_stored_and_what_is_not() -> None:
    assert call().is_stored
    assert not call(store=False).is_stored
    arrival = ResponsesParseContext("resp_1", 1, ids(), can_store=False)
    assert not parse(b'{"model": "m", "input": "x"}', arrival).is_stored


def test_unknown_fields_are_noted_and_with_strict_refused() -> None:
    assert call(frobnicate=1, client_metadata={}).unknown_fields == ("frobnicate",)
    with pytest.raises(InvalidRequest) as caught:
        parse_body(b'{"model": "m", "input": "x", "frobnicate": 1}', is_strict=True)
    assert (caught.value.code, caught.value.param) == ("unknown_parameter", "frobnicate")


def test_kept_items_are_listed_in_the_sdks_own_types() -> None:
    kept = call(
        [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": "a"},
            {"type": "reasoning", "summary": []},
            CALL,
            OUTPUT,
            {"type": "custom_tool_call", "call_id": "c", "name": "x", "input": ""},
            {"type": "custom_tool_call_output", "call_id": "c", "output": "done"},
        ]
    ).input_items
    assert items_of(encode_items(kept)) == kept
    page = json.loads(stored.page(kept, has_more=True))
    listed = validate_type(type_=ResponseItemList, value=page)
    assert (listed.first_id, listed.last_id, listed.has_more) == ("msg_1", "ctco_7", True)
    validate_type(type_=conversations.ConversationItemList, value=page)
    assert json.loads(stored.page((), has_more=False))["data"] == []


def test_other_answers_have_the_sdks_own_shapes() -> None:
    item = compacted((), SEAL, "cmp_1")
    validate_type(
        type_=CompactedResponse, value=json.loads(stored.compaction("resp_1", 5, [item], Usage(3, 2)))
    )
    validate_type(type_=InputTokenCountResponse, value=json.loads(stored.input_tokens(7)))
    validate_type(
        type_=conversations.Conversation, value=json.loads(stored.conversation("conv_1", 5, {"a": "b"}))
    )
    validate_type(
        type_=conversations.ConversationDeletedResource,
        value=json.loads(stored.conversation_deleted("conv_1")),
    )
    assert json.loads(stored.deleted("resp_1")) == {"id": "resp_1", "object": "response", "deleted": True}


def test_a_stored_response_is_read_in_another_status() -> None:
    done = body(Answer((), Finished("stop", Usage(1, 0))), call().reply, ids=ids(), clock_s=lambda: 1)
    cancelled = json.loads(stored.response_with(done, "cancelled"))
    assert cancelled == {**json.loads(done), "status": "cancelled"}
    failed = json.loads(stored.response_with(done, "failed", ShuttingDown("The server was interrupted.")))
    assert failed["error"]["code"] == "server_error"
    validate_type(type_=Response, value=failed)


def test_bodies_about_conversations_are_read() -> None:
    items, metadata = stored.read_conversation(
        b'{"items": [{"role": "user", "content": "q"}], "metadata": {"a": "b"}}'
    )
    assert (len(items), metadata) == (1, {"a": "b"})
    assert stored.read_update(b'{"metadata": null}') == {}
    with pytest.raises(InvalidRequest) as caught:
        stored.read_added(b'{"items": [{"type": "nonsense"}]}')
    assert caught.value.param == "items[0].type"
    asked = parse_body(
        compact_body(b'{"model": "m", "input": "x", "previous_response_id": "resp_1"}', "ask", 9)
    )
    assert asked.previous_response_id == "resp_1"
    assert [item.content for item in asked.items if isinstance(item, MessageItem)] == ["x", "ask"]
    assert (asked.body.max_output_tokens, asked.body.store) == (9, False)


def test_truncation_drops_whole_turns_and_never_what_a_system_said() -> None:
    long = prompt(
        [
            {"role": "user", "content": "1"},
            CALL,
            OUTPUT,
            {"role": "developer", "content": "d"},
            {"role": "user", "content": "2"},
            {"role": "assistant", "content": "a"},
            {"role": "user", "content": "3"},
        ],
        instructions="s",
    )
    once = without_oldest_turns(long)
    assert once is not None
    assert [message.content for message in once.messages] == ["s", "d", "2", "a", "3"]
    twice = without_oldest_turns(once)
    assert twice is not None
    assert [message.content for message in twice.messages] == ["s", "d", "3"]
    assert without_oldest_turns(twice) is None


ROLES = st.sampled_from(["user", "assistant", "system", "tool", "developer"])


@given(st.lists(st.tuples(ROLES, st.integers(0, 30)), max_size=30), st.integers(0, 200))
def test_many_turns_go_at_once_as_they_would_one_by_one(said: list[tuple[str, int]], most: int) -> None:
    prompt = ChatPrompt(tuple(Message(role, "x" * length) for role, length in said))  # type: ignore[arg-type]
    one_by_one = without_oldest_turns(prompt)
    while one_by_one is not None and prompt_characters(one_by_one) > most:
        further = without_oldest_turns(one_by_one)
        if further is None:
            break
        one_by_one = further
    assert without_oldest_turns(prompt, most) == one_by_one


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
item_types = st.sampled_from(
    [
        "message",
        "function_call",
        "function_call_output",
        "reasoning",
        "compaction",
        "item_reference",
        "x",
        None,
    ]
)


@given(
    st.lists(
        st.dictionaries(st.sampled_from(["type", "role", "content", "id", "call_id", "name"]), json_values)
        | json_values
    ),
    item_types,
    st.dictionaries(
        st.sampled_from(["tools", "tool_choice", "text", "reasoning", "include", "input"]), json_values
    ),
)
def test_any_json_is_understood_or_refused_and_nothing_else(
    items: list[object], kind: str | None, fields: dict[str, object]
) -> None:
    typed = [{**item, "type": kind} if isinstance(item, dict) else item for item in items]
    sent = {"model": "m", "input": typed, **fields}
    try:
        parse(json.dumps(sent).encode(), ResponsesParseContext("resp_1", 1, ids(), seal=SEAL))
    except InvalidRequest as error:
        assert error.status in (400, 404)
