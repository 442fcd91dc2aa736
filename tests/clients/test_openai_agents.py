"""openai-agents against a node: its Runner over chat, Responses, and Responses on a WebSocket."""

import pytest
from python_clients import FINALS, HELLO, WEATHER, Played, needs, play, weather_as_heard

from ganglion.core.request import JsonSchema
from ganglion.engines.echo.answer import EchoScript

pytestmark = needs("agents")

WIRES = ("chat", "responses", "websocket")
CITY = (EchoScript(reply='{"name": "Oslo", "people": 700000}'),)
SCENES = {
    **{f"{wire}: stream": HELLO for wire in WIRES},
    **{f"{wire}: city": CITY for wire in WIRES},
    **{f"{wire}: must call": WEATHER for wire in WIRES},
    **{f"{wire}: three whole turns": WEATHER for wire in WIRES},
    **{f"{wire}: three streamed turns": WEATHER for wire in WIRES},
    **{f"{wire}: three chained turns": WEATHER for wire in WIRES[1:]},
    "responses: a conversation": WEATHER,
}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    return play("agents", "openai_agents_script.py", SCENES, tmp_path_factory.mktemp("openai_agents"))


@pytest.mark.parametrize("wire", WIRES)
def test_a_stream_arrives_in_deltas_with_its_reasoning_and_usage(played: Played, wire: str) -> None:
    saw = played.report(f"{wire}: stream")
    assert saw["deltas"] == ["Hello", " there,", " you."]
    assert saw["items"] == ["reasoning_item_created", "message_output_created"]
    assert (saw["final"], saw["usage"]) == ("Hello there, you.", 5)


@pytest.mark.parametrize("wire", WIRES)
def test_output_of_a_type_is_asked_for_by_its_schema(played: Played, wire: str) -> None:
    assert played.report(f"{wire}: city") == {"name": "Oslo", "people": 700000}
    constraint = played.requests(f"{wire}: city")[0].constraint
    assert isinstance(constraint, JsonSchema)
    assert list(constraint.schema["properties"]) == ["name", "people"]


@pytest.mark.parametrize("wire", WIRES)
def test_a_named_tool_must_be_called_and_then_need_not(played: Played, wire: str) -> None:
    assert played.report(f"{wire}: must call") == "It rains in Oslo."
    first, second = played.requests(f"{wire}: must call")
    assert (first.prompt.tool_use.choice, first.prompt.tool_use.allowed) == ("required", ("weather",))
    assert (first.sampling.temperature, first.max_tokens) == (0.5, 99)
    assert not first.prompt.tool_use.is_parallel
    assert second.prompt.tool_use.choice == "auto"


@pytest.mark.parametrize("how", ["whole", "streamed"])
@pytest.mark.parametrize("wire", WIRES)
def test_three_turns_replay_every_item_that_we_sent(played: Played, wire: str, how: str) -> None:
    saw = played.report(f"{wire}: three {how} turns")
    assert saw["finals"] == FINALS
    assert saw["kinds"].count("function_call") == saw["kinds"].count("function_call_output") == 1
    # The library does not send back the reasoning of a chat.
    heard = weather_as_heard(f"{wire}: three {how} turns", has_reasoning=wire != "chat")
    assert played.last_heard(f"{wire}: three {how} turns") == heard


@pytest.mark.parametrize("wire", WIRES[1:])
def test_turns_chain_by_the_previous_response(played: Played, wire: str) -> None:
    assert played.report(f"{wire}: three chained turns") == FINALS
    heard = weather_as_heard(f"{wire}: three chained turns")
    assert played.last_heard(f"{wire}: three chained turns") == heard


def test_turns_go_on_in_a_conversation_that_the_node_keeps(played: Played) -> None:
    saw = played.report("responses: a conversation")
    assert saw["finals"] == FINALS
    assert saw["items"] == [
        *("message", "reasoning", "message", "function_call", "function_call_output", "reasoning", "message"),
        *("message", "message", "message", "message"),
    ]
