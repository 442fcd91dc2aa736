"""LlamaIndex against a node: its OpenAI-like models over chat, Responses and completions, and embeddings."""

import pytest
from python_clients import FINALS, HELLO, WEATHER, Played, needs, play, weather_as_heard

from ganglion.core.request import JsonSchema
from ganglion.engines.echo.answer import EchoScript, ScriptedCall

pytestmark = needs("llama_index")

WIRES = ("chat", "responses")
OSLO = '{"name": "Oslo", "people": 700000}'
HOWS = [*((wire, how) for wire in WIRES for how in ("whole", "streamed")), ("responses", "chained")]
SCENES = {
    **{f"{wire}: stream": HELLO for wire in WIRES},
    "chat: city by a tool": (EchoScript(reply="", calls=(ScriptedCall("City", OSLO),)),),
    **{f"{wire}: city by its schema": (EchoScript(reply=OSLO),) for wire in WIRES},
    **{f"{wire}: three {how} turns": WEATHER for wire, how in HOWS},
    "completions": (EchoScript(reply="and so on"),),
}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    return play("llama_index", "llama_index_script.py", SCENES, tmp_path_factory.mktemp("llama_index"))


@pytest.mark.parametrize("wire", WIRES)
def test_a_stream_arrives_in_deltas(played: Played, wire: str) -> None:
    saw = played.report(f"{wire}: stream")
    assert saw["deltas"] == ["Hello", " there,", " you."]
    assert saw["whole"] == "assistant: Hello there, you."


def test_output_of_a_type_comes_by_a_tool_that_must_be_called(played: Played) -> None:
    assert played.report("chat: city by a tool") == {"name": "Oslo", "people": 700000}
    use = played.requests("chat: city by a tool")[0].prompt.tool_use
    assert (use.choice, [tool.name for tool in use.tools]) == ("required", ["City"])


@pytest.mark.parametrize("wire", WIRES)
def test_output_of_a_type_comes_by_its_schema(played: Played, wire: str) -> None:
    assert played.report(f"{wire}: city by its schema") == {"name": "Oslo", "people": 700000}
    constraint = played.requests(f"{wire}: city by its schema")[0].constraint
    assert isinstance(constraint, JsonSchema)
    assert list(constraint.schema["properties"]) == ["name", "people"]


@pytest.mark.parametrize("wire, how", HOWS)
def test_three_turns_replay_everything_that_we_sent(played: Played, wire: str, how: str) -> None:
    scene = f"{wire}: three {how} turns"
    assert played.report(scene) == FINALS
    heard = played.last_heard(scene)
    if wire == "responses":
        assert heard[0][0] == "developer"  # what the library makes of a system message
        heard[0] = ("system", *heard[0][1:])
    # The library does not send back the reasoning of a chat, nor what was streamed of it.
    assert heard == weather_as_heard(scene, has_reasoning=wire == "responses" and how != "streamed")


def test_completions_are_whole_and_streamed_the_same(played: Played) -> None:
    assert played.report("completions") == {"whole": "and so on", "streamed": ["and", " so", " on"]}


def test_embeddings_are_the_same_one_by_one_and_together(played: Played) -> None:
    assert played.report("embeddings") == {"size": 64, "is_same": True, "is_other": True}
