"""What Messages clients may send, and what it means."""

import json
import time
from typing import Any

import pytest

from ganglion.core.errors import (
    InvalidJson,
    InvalidRequest,
    InvalidValue,
    MissingParameter,
    UnknownParameter,
    UnsupportedParameter,
)
from ganglion.core.request import JsonSchema, Message, Stop, Thinking, Tool, ToolCall, ToolUse
from ganglion.wire.answer_format import ParseContext, ParsedCall
from ganglion.wire.messages import CountCall, MessagesReplyContext, parse, parse_count
from ganglion.wire.seal import HmacSeal
from support.golden import GOLDEN

SEAL = HmacSeal(bytes(range(32)))
CLAUDE_CODE = GOLDEN / "messages" / "claude_code.json"
TOOL = {"name": "f", "description": "Does f.", "input_schema": {"type": "object"}}


def arrival(**fields: object) -> ParseContext:
    return ParseContext("msg_1", request_id="req_1", **({"seal": SEAL, "tenant": "t"} | fields))


def ask(**fields: object) -> dict[str, Any]:
    return {"model": "tiny", "max_tokens": 8, "messages": [{"role": "user", "content": "hi"}]} | fields


def parsed(**fields: object) -> ParsedCall[MessagesReplyContext]:
    return parse(json.dumps(ask(**fields)).encode(), arrival())


def turns(*messages: dict[str, object], **fields: object) -> tuple[Message, ...]:
    return parsed(messages=list(messages), **fields).request.prompt.messages


def user(*blocks: object) -> dict[str, object]:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: object) -> dict[str, object]:
    return {"role": "assistant", "content": list(blocks)}


def text(said: str, **fields: object) -> dict[str, object]:
    return {"type": "text", "text": said} | fields


def refusal(kind: type[InvalidRequest] = InvalidRequest, **fields: object) -> InvalidRequest:
    with pytest.raises(kind) as refused:
        parsed(**fields)
    return refused.value


def test_everything_that_claude_code_sends_is_taken() -> None:
    call = parse(CLAUDE_CODE.read_bytes(), arrival(is_strict=True))
    prompt = call.request.prompt
    assert call.is_streamed
    assert (call.unknown_fields, call.ignored) == ((), ())
    assert call.request.max_tokens == 32000
    assert prompt.thinking == Thinking(effort="high")
    assert len(prompt.tool_use.tools) == 24
    assert [message.role for message in prompt.messages] == ["system", "user", "system"]
    assert prompt.messages[0].content.startswith("x-anthropic-billing-header")
    assert prompt.messages[1].content.endswith("hi")
    assert not prompt.is_continued


def test_sampling_stops_and_limits_are_what_was_asked() -> None:
    request = parsed(temperature=0, top_p=0.5, top_k=0, stop_sequences=["a", "b"], max_tokens=0).request
    assert (request.sampling.temperature, request.sampling.top_p, request.sampling.top_k) == (0, 0.5, 0)
    assert request.stop == Stop(("a", "b"))
    assert request.max_tokens == 0
    assert request.tenant == "t"
    more = parsed(seed=3, priority=-2, stop="c", stop_sequences=["a"], ignore_eos=True).request
    assert (more.sampling.seed, more.priority, more.stop.strings) == (3, -2, ("a", "c"))
    assert more.stop.ignore_eos


@pytest.mark.parametrize(
    ("fields", "thinking"),
    [
        ({}, Thinking()),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, Thinking(True, None, 2000)),
        ({"thinking": {"type": "disabled"}}, Thinking(False)),
        (
            {"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}},
            Thinking(None, "max"),
        ),
        ({"thinking": {"type": "between_tools"}}, Thinking()),
        ({"output_config": {"effort": "low"}}, Thinking(None, "low")),
    ],
)
def test_thinking_and_effort_travel_together(fields: dict[str, object], thinking: Thinking) -> None:
    assert parsed(**fields).request.prompt.thinking == thinking


def test_omitted_thinking_is_a_matter_of_the_reply() -> None:
    assert parsed(thinking={"type": "adaptive", "display": "omitted"}).reply.is_thinking_omitted
    assert not parsed(thinking={"type": "adaptive", "display": "summarized"}).reply.is_thinking_omitted


def test_a_schema_constrains_the_text_under_either_name() -> None:
    wanted = {"type": "json_schema", "schema": {"type": "object"}}
    constraint = JsonSchema({"type": "object"})
    assert parsed(output_config={"format": wanted}).request.constraint == constraint
    assert parsed(output_format=wanted).request.constraint == constraint
    twice = refusal(output_config={"format": wanted}, output_format=wanted)
    assert twice.param == "output_format"
    wrong = refusal(output_format={"type": "json_schema", "schema": [1]})
    assert wrong.param == "output_format.schema"


def test_the_system_prompt_is_its_blocks_as_they_stand() -> None:
    cached = {"type": "ephemeral", "ttl": "1h"}
    messages = turns(user(text("hi")), system=[text("a", cache_control=cached), text("\nb")])
    assert messages == (Message("system", "a\nb"), Message("user", "hi"))
    assert turns(user(text("hi")), system="") == (Message("user", "hi"),)
    apart = turns(user(text("hi")), system=[text("You are typed."), text("Be brief.")])
    assert apart[0] == Message("system", "You are typed.\n\nBe brief.")


def test_a_tool_round_trip_becomes_turns_of_their_own() -> None:
    messages = turns(
        user(text("go")),
        assistant(
            {"type": "thinking", "thinking": "hm", "signature": SEAL.sign("t", "hm")},
            text("I look."),
            {
                "type": "tool_use",
                "id": "toolu_9",
                "name": "f",
                "input": {"a": [1]},
                "caller": {"type": "direct"},
            },
            {"type": "tool_use", "id": "odd", "name": "g", "input": {}},
        ),
        user(
            {"type": "tool_result", "tool_use_id": "toolu_9", "content": [text("one"), text(" two")]},
            {"type": "tool_result", "tool_use_id": "odd", "is_error": True, "content": "no such file"},
            text("and now?"),
        ),
    )
    assert messages == (
        Message("user", "go"),
        Message(
            "assistant",
            "I look.",
            reasoning="hm",
            tool_calls=(ToolCall("call_9", "f", '{"a": [1]}'), ToolCall("odd", "g", "{}")),
        ),
        Message("tool", "one two", name="f", tool_call_id="call_9"),
        Message("tool", "Error: no such file", name="g", tool_call_id="odd"),
        Message("user", "and now?"),
    )


def test_an_empty_result_and_a_found_tool_are_results_too() -> None:
    messages = turns(
        user({"type": "tool_result", "tool_use_id": "toolu_1"}),
        user(
            {
                "type": "tool_result",
                "tool_use_id": "toolu_2",
                "content": [{"type": "tool_reference", "tool_name": "Read"}],
            }
        ),
    )
    assert messages == (
        Message("tool", "", tool_call_id="call_1"),
        Message("tool", "Read", tool_call_id="call_2"),
    )


@pytest.mark.parametrize(
    "block",
    [
        {"type": "thinking", "thinking": "hm!", "signature": SEAL.sign("t", "hm")},
        {"type": "thinking", "thinking": "hm", "signature": SEAL.sign("another tenant", "hm")},
        {"type": "thinking", "thinking": "hm", "signature": HmacSeal(bytes(32)).sign("t", "hm")},
        {"type": "thinking", "thinking": "hm", "signature": "EqQBCkYIARgCKkD-of-another-server"},
        {"type": "thinking", "thinking": "hm", "signature": ""},
        {"type": "thinking", "thinking": "hm"},
        {"type": "redacted_thinking", "data": "EmwKAhgBEgy3va3pzix"},
    ],
)
def test_thoughts_without_our_seal_are_left_out_and_the_turn_stays(block: dict[str, object]) -> None:
    call = parsed(messages=[user(text("a")), assistant(block, text("b")), user(text("c"))])
    assert call.request.prompt.messages[1] == Message("assistant", "b")
    assert call.remarks == ("1 thinking blocks without our seal were left out",)


def test_neighbours_of_one_role_are_one_turn() -> None:
    call = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}
    messages = turns(
        {"role": "user", "content": "a"},
        user(text("b")),
        {"role": "assistant", "content": "c"},
        assistant(text("d"), call),
        user({"type": "tool_result", "tool_use_id": "toolu_1", "content": "e"}, text("f")),
        {"role": "user", "content": "g"},
    )
    assert [(message.role, message.content) for message in messages] == [
        ("user", "a\n\nb"),
        ("assistant", "cd"),
        ("tool", "e"),
        ("user", "f\n\ng"),
    ]
    assert messages[1].tool_calls == (ToolCall("call_1", "f", "{}"),)


def test_many_small_turns_are_merged_in_linear_time() -> None:
    body = json.dumps(ask(messages=[{"role": "user", "content": "x" * 40}] * 100_000)).encode()
    began_s = time.process_time()
    (turn,) = parse(body, arrival()).request.prompt.messages
    assert time.process_time() - began_s < 5
    assert len(turn.content) == 42 * 100_000 - 2


def test_a_trailing_assistant_turn_goes_on() -> None:
    begun = parsed(messages=[user(text("a")), assistant(text("The answer is "))])
    assert begun.request.prompt.is_continued
    assert begun.request.prompt.messages[-1].content == "The answer is "
    empty = parsed(messages=[user(text("a")), {"role": "assistant", "content": ""}])
    assert not empty.request.prompt.is_continued
    assert empty.request.prompt.messages == (Message("user", "a"),)
    last = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}
    assert refusal(messages=[user(text("a")), assistant(last)]).param == "messages[1]"


def test_documents_of_text_are_read_as_text() -> None:
    messages = turns(
        user(
            {
                "type": "document",
                "title": "T",
                "source": {"type": "text", "media_type": "text/plain", "data": "d"},
            },
            {"type": "document", "source": {"type": "content", "content": "e"}},
            {"type": "document", "source": {"type": "content", "content": [text("f")]}},
            text("?"),
        )
    )
    assert messages == (Message("user", "T\ndef?"),)


def test_tools_are_told_to_the_model_and_hosted_ones_are_set_aside() -> None:
    hosted = [
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 5},
        {"type": "bash_20250124", "name": "bash"},
        {"type": "mcp_toolset", "mcp_server_name": "x"},
    ]
    call = parsed(
        tools=[TOOL | {"type": "custom", "strict": True, "cache_control": {"type": "ephemeral"}}, *hosted],
        mcp_servers=[{"type": "url", "url": "https://example.com", "name": "x"}],
        container="container_1",
    )
    tool = Tool("f", "Does f.", {"type": "object"}, is_strict=True)
    assert call.request.prompt.tool_use == ToolUse((tool,))
    names = ("web_search_20250305", "bash_20250124", "mcp_toolset", "mcp_servers", "container")
    assert call.ignored == tuple(f"the tool {name!r}, which is not run here" for name in names)
    assert call.unknown_fields == ()


@pytest.mark.parametrize(
    ("choice", "use"),
    [
        ({"type": "auto"}, ("auto", None, True)),
        ({"type": "auto", "disable_parallel_tool_use": True}, ("auto", None, False)),
        ({"type": "any"}, ("required", None, True)),
        ({"type": "tool", "name": "f", "disable_parallel_tool_use": True}, ("required", ("f",), False)),
        ({"type": "none"}, ("none", None, True)),
    ],
)
def test_a_tool_choice_is_what_was_asked(choice: dict[str, object], use: tuple[object, ...]) -> None:
    found = parsed(tools=[TOOL], tool_choice=choice).request.prompt.tool_use
    assert (found.choice, found.allowed, found.is_parallel) == use


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "some"}}, "tool_choice.type"),
        (
            {
                "tools": [{"type": "web_search_20250305", "name": "web_search"}],
                "tool_choice": {"type": "tool", "name": "web_search"},
            },
            "tool_choice.name",
        ),
        ({"tools": [TOOL, TOOL]}, "tools"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tools": [{"input_schema": {}}]}, "tools[0].name"),
        ({"tools": [TOOL | {"type": "costum"}]}, "tools[0].type"),
        ({"tools": [TOOL | {"input_schema": "{}"}]}, "tools[0].input_schema"),
        ({"tools": [TOOL | {"input_schema": {"x": "y" * 2**18}}]}, "tools[0].input_schema"),
        ({"tools": [TOOL | {"allowed_callers": ["code_execution_20260120"]}]}, "tools[0].allowed_callers"),
        ({"output_config": {"task_budget": {"type": "tokens", "total": 5}}}, "output_config.task_budget"),
        ({"output_config": {"effort": "enormous"}}, "output_config.effort"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "deep"}}, "thinking.type"),
        ({"temperature": 1.5}, "temperature"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"stop_sequences": [""]}, "stop_sequences[0]"),
        ({"system": [{"type": "image"}]}, "system[0].type"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [user(text("a")), user({"type": "search_result"})]}, "messages[1].content[0].content"),
        ({"messages": [user(text("a"), {"type": "novelty"})]}, "messages[0].content[1].type"),
        ({"messages": [assistant({"type": "server_tool_use"})]}, "messages[0].content[0].id"),
        ({"messages": [user({"type": "server_tool_use"})]}, "messages[0].content[0].type"),
        (
            {"messages": [user({"type": "tool_use", "id": "a", "name": "f", "input": {}})]},
            "messages[0].content[0].type",
        ),
        (
            {"messages": [user({"type": "document", "source": {"type": "url"}})]},
            "messages[0].content[0].source",
        ),
        (
            {"messages": [assistant({"type": "tool_use", "id": "a", "name": "f", "input": 1}), user()]},
            "messages[0].content[0].input",
        ),
        ({"thread": {"id": "x"}}, "thread"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"n": 2}, "n"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, object], param: str) -> None:
    assert refusal(**fields).param == param


def used(name: str, kind: str = "server_tool_use", **fields: object) -> dict[str, object]:
    return {"type": kind, "id": "srvtoolu_1", "name": name, "input": {"q": 1}} | fields


def came(kind: str, content: object, **fields: object) -> dict[str, object]:
    return {"type": f"{kind}_tool_result", "tool_use_id": "srvtoolu_1", "content": content} | fields


ELSEWHERE: dict[str, tuple[dict[str, object], str]] = {
    "web_search": (
        came(
            "web_search",
            [
                {"type": "web_search_result", "title": "A", "url": "http://a", "encrypted_content": "x"},
                {"type": "web_search_result", "title": "B", "url": "http://b", "encrypted_content": "y"},
            ],
        ),
        "A http://a\nB http://b",
    ),
    "web_search that failed": (
        came("web_search", {"type": "web_search_tool_result_error", "error_code": "unavailable"}),
        "Error: unavailable",
    ),
    "web_fetch": (
        came(
            "web_fetch",
            {
                "type": "web_fetch_result",
                "url": "http://a",
                "content": {
                    "type": "document",
                    "title": "A",
                    "source": {"type": "text", "media_type": "text/plain", "data": "It is."},
                },
            },
        ),
        "A\nhttp://a\nIt is.",
    ),
    "web_fetch that failed": (
        came("web_fetch", {"type": "web_fetch_tool_result_error", "error_code": "url_not_allowed"}),
        "Error: url_not_allowed",
    ),
    "code_execution": (
        came(
            "code_execution",
            {
                "type": "code_execution_result",
                "stdout": "4\n",
                "stderr": "hm",
                "return_code": 1,
                "content": [],
            },
        ),
        "4\nhm\nexit code 1",
    ),
    "bash_code_execution": (
        came(
            "bash_code_execution",
            {
                "type": "bash_code_execution_result",
                "stdout": "a.txt\n",
                "stderr": "",
                "return_code": 0,
                "content": [],
            },
        ),
        "a.txt",
    ),
    "text_editor_code_execution": (
        came(
            "text_editor_code_execution",
            {"type": "text_editor_code_execution_view_result", "file_type": "text", "content": "line"},
        ),
        "line",
    ),
    "tool_search_tool_bm25": (
        came(
            "tool_search",
            {
                "type": "tool_search_tool_search_result",
                "tool_references": [{"type": "tool_reference", "tool_name": "f"}],
            },
        ),
        "f",
    ),
    "advisor": (came("advisor", {"type": "advisor_result", "text": "Wait."}), "Wait."),
    "mcp": (came("mcp", [text("one"), text("two")], is_error=False), "one\ntwo"),
    "mcp as a text": (came("mcp", "one"), "one"),
    "mcp that failed": (came("mcp", [text("no")], is_error=True), "Error: no"),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_what_other_servers_tools_did_is_told_as_calls_and_answers(name: str) -> None:
    result, words = ELSEWHERE[name]
    kind = "mcp_tool_use" if name.startswith("mcp") else "server_tool_use"
    call = parsed(
        messages=[
            user(text("q")),
            assistant(
                text("I look."), used(name, kind), result, text("So it is.", citations=[{"type": "x"}])
            ),
            user(text("thanks")),
        ]
    )
    assert call.ignored == ()
    assert call.request.prompt.messages == (
        Message("user", "q"),
        Message("assistant", "I look.", tool_calls=(ToolCall("srvtoolu_1", name, '{"q": 1}'),)),
        Message("tool", words, name=name, tool_call_id="srvtoolu_1"),
        Message("assistant", "So it is."),
        Message("user", "thanks"),
    )


@pytest.mark.parametrize(
    ("blocks", "named"),
    [
        ([used("web_search")], "web_search"),
        ([came("web_search", [])], "web_search_tool_result"),
        ([used("web_search"), came("web_search", [])], "web_search_tool_result"),
        ([used("web_search"), came("web_search", 7)], "web_search_tool_result"),
        ([used("code_execution"), came("code_execution", {"stdout": 7})], "code_execution_tool_result"),
        ([used("web_fetch"), came("web_fetch", {"type": "web_fetch_result"})], "web_fetch_tool_result"),
        ([{"type": "container_upload", "file_id": "f"}], "container_upload"),
        ([{"type": "mcp_tool_listing", "mcp_server_name": "s", "tools": []}], "mcp_tool_listing"),
        ([{"type": "fallback", "from": {}, "to": {}}], "fallback"),
    ],
)
def test_what_of_other_servers_tools_has_no_words_is_left_out_with_a_warning(
    blocks: list[object], named: str
) -> None:
    call = parsed(messages=[user(text("q")), assistant(text("a"), *blocks, text("b")), user(text("c"))])
    assert [turn.content for turn in call.request.prompt.messages] == ["q", "ab", "c"]
    (warning,) = call.ignored
    assert named in warning


def test_search_results_and_documents_with_citations_are_read_as_text() -> None:
    found = {
        "type": "search_result",
        "source": "http://a",
        "title": "A",
        "content": [text("It is.")],
        "citations": {"enabled": True},
    }
    document = {"type": "document", "source": {"type": "text", "data": "d"}, "citations": {"enabled": True}}
    call = parsed(
        messages=[
            user(found, document, {"type": "compaction", "content": " before"}),
            assistant({"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}),
            user({"type": "tool_result", "tool_use_id": "toolu_1", "content": [found]}),
        ]
    )
    asked, _, answered = call.request.prompt.messages
    assert asked.content == "A\nhttp://a\nIt is.d before"
    assert answered.content == "A\nhttp://a\nIt is."
    assert call.ignored == ("citations, which no model makes here",)


def test_fields_that_ask_for_nothing_are_taken() -> None:
    call = parsed(
        metadata={"user_id": "u"},
        service_tier="auto",
        context_management={"edits": []},
        cache_control={"type": "ephemeral"},
        betas=["x"],
        thread=None,
        n=None,
        tools=None,
        tool_choice=None,
        system=None,
        stream=None,
    )
    assert call.unknown_fields == ()


def test_unknown_fields_are_noted_or_refused() -> None:
    assert parsed(novelty=1).unknown_fields == ("novelty",)
    with pytest.raises(UnknownParameter) as refused:
        parse(json.dumps(ask(novelty=1)).encode(), arrival(is_strict=True))
    assert refused.value.param == "novelty"


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image", "source": {"type": "base64", "data": "", "media_type": "image/png"}},
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "image"}]},
    ],
)
def test_images_that_are_none_are_refused_by_name(block: dict[str, object]) -> None:
    refused = refusal(InvalidRequest, messages=[user(text("see"), block)])
    assert refused.param is not None
    assert refused.param.startswith("messages[0].content[1]")


def test_a_message_needs_its_limit_and_a_count_does_not() -> None:
    body = ask(tools=[TOOL], system="s")
    del body["max_tokens"]
    with pytest.raises(MissingParameter) as refused:
        parse(json.dumps(body).encode(), arrival())
    assert refused.value.param == "max_tokens"
    call = parse_count(json.dumps(body).encode(), arrival())
    assert isinstance(call, CountCall)
    assert call.request.prompt.messages == (Message("system", "s"), Message("user", "hi"))
    assert call.request.prompt.tool_use.tools[0].name == "f"
    with pytest.raises(UnsupportedParameter):
        parse_count(json.dumps(body | {"output_config": {"task_budget": {"total": 1}}}).encode(), arrival())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"model": "\xff"}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"model":"\\ud800"}',
    ],
)
def test_what_is_not_a_body_is_refused(body: bytes) -> None:
    with pytest.raises((InvalidJson, InvalidValue, MissingParameter)):
        parse(body, arrival())


def test_a_hostile_input_of_a_call_is_refused_not_broken_on() -> None:
    for inside in (b'{"a":"\\ud800"}', b'{"a":' * 2000 + b"1" + b"}" * 2000, b'{"a":"\xff"}'):
        block = b'{"type":"tool_use","id":"a","name":"f","input":%b}' % inside
        turns_of = b'[{"role":"assistant","content":[%b]},{"role":"user","content":""}]' % block
        body = b'{"model":"m","max_tokens":1,"messages":%b}' % turns_of
        with pytest.raises(InvalidJson):
            parse(body, arrival())
