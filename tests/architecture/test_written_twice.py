"""No six lines are written twice: what two places share has one home, or a reason beside it here."""

from pathlib import Path

from shape import RUN, duplicated_runs, modules_below

SOURCES = Path(__file__).parents[2] / "src"

REASONS = {
    (
        "client.values",
        "sessions.values",
    ): "a client keeps its values when the server changes its own",
    (
        "gateway.node",
        "wire.fleet",
    ): "the gateway's value has our names, its state the wire's",
    (
        "engines.llama.engine",
        "engines.vllm.engine",
    ): "both constructors take what the table's factory is given",
    ("gateway.upstream.node_client", "gateway.upstream.node_client"): (
        "`call` takes what `stream` takes, each by its name, so that both are checked where they are called"
    ),
    ("wire.ollama.schema", "wire.ollama.schema"): (
        "a line of Ollama's has its message in the middle, and a Struct's inherited fields come first"
    ),
}


def test_no_six_lines_are_written_twice_without_a_reason() -> None:
    pairs = duplicated_runs(modules_below(SOURCES))
    found = {
        (each.one.name.removeprefix("ganglion."), each.other.name.removeprefix("ganglion.")): str(each)
        for each in pairs
    }
    unexplained = [place for names, place in found.items() if names not in REASONS]
    assert not unexplained, f"{RUN} lines or more that are the same need one home"
    assert found.keys() == REASONS.keys(), "a reason without a pair is out of date"
    assert len(pairs) == len(found), "a reason speaks for one run of lines"
