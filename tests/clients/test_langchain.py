"""LangChain against a node: ChatOpenAI over chat and Responses, ChatAnthropic over Messages, embeddings."""

import pytest
from python_clients import FINALS, HELLO, WEATHER, Played, needs, play, weather_as_heard

from ganglion.core.request import JsonSchema
from ganglion.engines.echo.answer import EchoScript, ScriptedCall

pytestmark = needs("agents")

WIRES = ("chat", "responses", "messages")
OSLO = '{"name": "Oslo", "people": 700000}'
BY_TEXT = [(wire, "json_schema") for wire in WIRES] + [(wire, "json_mode") for wire in WIRES[:2]]
HOWS = [
    *((wire, how) for wire in WIRES for how in ("whole", "streamed")),
    *(("responses", how) for how in ("chained", "sealed", "block")),
]
SCENES = {
    **{f"{wire}: stream": HELLO for wire in WIRES},
    **{f"{wire}: city by {method}": (EchoScript(reply=OSLO),) for wire, method in BY_TEXT},
    **{
        f"{wire}: city by function_calling": (EchoScript(reply="", calls=(ScriptedCall("City", OSLO),)),)
        for wire in WIRES
    },
    **{f"{wire}: three {how} turns": WEATHER for wire, how in HOWS},
}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    return play("agents", "langchain_script.py", SCENES, tmp_path_factory.mktemp("langchain"))


@pytest.mark.parametrize("wire", WIRES)
def test_a_stream_arrives_in_deltas_with_its_usage(played: Played, wire: str) -> None:
    saw = played.report(f"{wire}: stream")
    assert saw["deltas"] == ["Hello", " there,", " you."]
    # Of a chat the library shows no reasoning, and of streamed Responses only summaries.
    thought = {
        "chat": [],
        "responses": [["reasoning", None]],
        "messages": [["reasoning", "A greeting."]],
    }
    assert saw["blocks"] == [*thought[wire], ["text", "Hello there, you."]]
    assert saw["usage"] == 5


@pytest.mark.parametrize("wire, method", BY_TEXT)
def test_output_of_a_type_comes_as_json(played: Played, wire: str, method: str) -> None:
    assert played.report(f"{wire}: city by {method}") == {"name": "Oslo", "people": 700000}
    constraint = played.requests(f"{wire}: city by {method}")[0].constraint
    assert isinstance(constraint, JsonSchema)
    assert ("properties" in constraint.schema) == (method == "json_schema")


@pytest.mark.parametrize("wire", WIRES)
def test_output_of_a_type_comes_by_a_tool_that_must_be_called(played: Played, wire: str) -> None:
    assert played.report(f"{wire}: city by function_calling") == {"name": "Oslo", "people": 700000}
    use = played.requests(f"{wire}: city by function_calling")[0].prompt.tool_use
    assert (use.choice, use.allowed) == ("required", ("City",))


@pytest.mark.parametrize("wire, how", HOWS)
def test_three_turns_replay_everything_that_we_sent(played: Played, wire: str, how: str) -> None:
    scene = f"{wire}: three {how} turns"
    assert played.report(scene) == FINALS
    assert played.last_heard(scene) == weather_as_heard(scene, has_reasoning=wire != "chat")


def test_embeddings_are_the_same_one_by_one_and_together(played: Played) -> None:
    assert played.report("embeddings") == {"size": 64, "is_same": True, "is_other": True}
