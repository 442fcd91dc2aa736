"""pydantic-ai against a node: its Agent over chat, Responses, Responses on a WebSocket, and Messages."""

import pytest
from python_clients import FINALS, HELLO, WEATHER, Played, needs, play, weather_as_heard

from ganglion.core.request import JsonSchema
from ganglion.engines.echo.answer import EchoScript, ScriptedCall

pytestmark = needs("agents")

WIRES = ("chat", "responses", "websocket", "messages")
OSLO = '{"name": "Oslo", "people": 700000}'
SCENES = {
    **{f"{wire}: stream": HELLO for wire in WIRES},
    **{
        f"{wire}: city by a tool": (EchoScript(reply="", calls=(ScriptedCall("final_result", OSLO),)),)
        for wire in WIRES
    },
    **{f"{wire}: city by its schema": (EchoScript(reply=OSLO),) for wire in WIRES},
    **{f"{wire}: three {how} turns": WEATHER for wire in WIRES for how in ("whole", "streamed")},
    "responses: three chained turns": WEATHER,
}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    return play("agents", "pydantic_ai_script.py", SCENES, tmp_path_factory.mktemp("pydantic_ai"))


@pytest.mark.parametrize("wire", WIRES)
def test_a_stream_arrives_in_deltas_with_its_thinking_and_usage(played: Played, wire: str) -> None:
    saw = played.report(f"{wire}: stream")
    assert saw["deltas"] == ["Hello", " there,", " you."]
    # Of Responses the library shows summaries only, and keeps the reasoning itself aside.
    is_aside = wire in ("responses", "websocket")
    assert saw["parts"] == [["thinking", "" if is_aside else "A greeting."], ["text", "Hello there, you."]]
    assert saw["raw"] == (["A greeting."] if is_aside else None)
    assert saw["usage"] == 5


@pytest.mark.parametrize("wire", WIRES)
def test_output_of_a_type_comes_by_a_tool_that_must_be_called(played: Played, wire: str) -> None:
    assert played.report(f"{wire}: city by a tool") == {"name": "Oslo", "people": 700000}
    use = played.requests(f"{wire}: city by a tool")[0].prompt.tool_use
    assert (use.choice, [tool.name for tool in use.tools]) == ("required", ["final_result"])


@pytest.mark.parametrize("wire", WIRES)
def test_output_of_a_type_comes_by_its_schema(played: Played, wire: str) -> None:
    assert played.report(f"{wire}: city by its schema") == {"name": "Oslo", "people": 700000}
    constraint = played.requests(f"{wire}: city by its schema")[0].constraint
    assert isinstance(constraint, JsonSchema)
    assert list(constraint.schema["properties"]) == ["name", "people"]


@pytest.mark.parametrize("how", ["whole", "streamed"])
@pytest.mark.parametrize("wire", WIRES)
def test_three_turns_replay_every_part_that_we_sent(played: Played, wire: str, how: str) -> None:
    scene = f"{wire}: three {how} turns"
    assert played.report(scene) == FINALS
    assert played.last_heard(scene) == weather_as_heard(scene)


def test_turns_chain_by_the_previous_response(played: Played) -> None:
    assert played.report("responses: three chained turns") == FINALS
    assert played.last_heard("responses: three chained turns") == weather_as_heard(
        "responses: three chained turns"
    )
