"""The snippets of docs/client-libraries.md run as they stand, and say what they should."""

from pathlib import Path

from python_clients import HELLO, HERE, WEATHER, needs, play

from ganglion.engines.echo.answer import EchoScript

DOCUMENT = HERE.parents[1] / "docs" / "client-libraries.md"
SCENES = {
    "What is the weather in Oslo?": WEATHER,
    "Describe Oslo.": (EchoScript(reply='{"name": "Oslo", "people": 700000}'),),
    "Say hello.": HELLO,
}
TURNS = ["It rains in Oslo.", "An umbrella.", "700000"]


@needs("agents")
def test_the_snippets_of_agents_run(tmp_path: Path) -> None:
    headings = ("openai-agents", "pydantic-ai", "LangChain")
    played = play("agents", "snippets.py", SCENES, tmp_path, str(DOCUMENT), *headings)
    assert played.report("openai-agents").splitlines() == TURNS
    assert played.report("pydantic-ai").splitlines() == TURNS * 3
    assert played.report("LangChain").splitlines() == [*(TURNS * 3), "True"]


@needs("llama_index")
def test_the_snippet_of_llama_index_runs(tmp_path: Path) -> None:
    played = play("llama_index", "snippets.py", SCENES, tmp_path, str(DOCUMENT), "LlamaIndex")
    told = ["rain in Oslo", "Hello there, you.", "700000"]
    assert played.report("LlamaIndex").splitlines() == [*told, *told, "True"]


def test_the_task_of_lm_eval_is_the_one_that_is_tried() -> None:
    task = (HERE / "python" / "facts" / "facts.yaml").read_text()
    assert f"```yaml\n{task}```" in DOCUMENT.read_text()
