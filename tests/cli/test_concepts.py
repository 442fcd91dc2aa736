"""`ganglion concepts` with the real embedded model, as a person or a script meets it."""

import json
import shlex
import shutil
from pathlib import Path

import pytest
from commands import data, fresh_environment, refusal, run
from small_models import tiny_gguf

from ganglion.engines.concepts.pack import read_pack
from ganglion.registry.hub.embedded import SMOLLM2, find
from support.real_node import running_node

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(find(SMOLLM2, Path("nowhere")) is None, reason="the embedded model is not installed"),
]
EXAMPLES = Path(__file__).parents[2] / "examples" / "concepts"
COUNT = 16
CALM = {"GANGLION_ENGINE__THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""Threads that wait for each other in a loop are slow where tests share the cores."""
Environment = dict[str, str]


class Sets:
    """Files of a few examples: some to train on, some that were never seen."""

    def __init__(self, folder: Path) -> None:
        for name in ("formal", "casual", "positive", "negative"):
            lines = (EXAMPLES / f"{name}.txt").read_text().splitlines()
            (folder / f"{name}.txt").write_text("\n".join(lines[:COUNT]))
            (folder / f"{name}-new.txt").write_text("\n".join(lines[-8:]))
        self.folder = folder

    def pair(self, positive: str, negative: str) -> tuple[str, ...]:
        return "--positive", str(self.folder / positive), "--negative", str(self.folder / negative)


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Sets:
    return Sets(tmp_path_factory.mktemp("sets"))


@pytest.fixture(scope="module")
def trained(sets: Sets, tmp_path_factory: pytest.TempPathFactory) -> tuple[Environment, dict[str, object]]:
    """A home with one pack, and what its training printed."""
    folder = tmp_path_factory.mktemp("machine")
    environment = fresh_environment(folder, **CALM)
    words = "concepts", "train", "formal", *sets.pair("formal.txt", "casual.txt"), "--json"
    done = run(environment, *words, timeout_s=100)
    assert done.returncode == 0, done.stderr
    return environment, json.loads(done.stdout)


def copied(trained: tuple[Environment, object], folder: Path) -> Environment:
    """A home of one's own with the trained pack in it."""
    source = trained[0]
    shutil.copytree(source["GANGLION_HOME"], folder / "home")
    return fresh_environment(folder, **CALM)


def test_training_judges_every_layer_and_keeps_four(trained: tuple[Environment, dict[str, object]]) -> None:
    environment, report = trained
    layers = report["layers"]
    assert isinstance(layers, list)
    chosen = [each for each in layers if each["is_chosen"]]
    assert [each["layer"] for each in layers] == list(range(29))
    assert len(chosen) == 4
    assert max(each["auc"] for each in chosen) >= 0.9
    pack = read_pack(Path(environment["GANGLION_HOME"]) / "concepts" / "formal.safetensors")
    assert str(report["path"]).endswith("concepts/formal.safetensors")
    assert pack.manifest.layers == [each["layer"] for each in chosen]
    assert pack.manifest.spans == {str(each["layer"]): [each["span"]] for each in chosen}
    assert pack.manifest.model.name == SMOLLM2.id


def test_a_concept_is_judged_on_new_examples_and_drawn(
    trained: tuple[Environment, object], sets: Sets, tmp_path: Path
) -> None:
    plot = tmp_path / "auc.png"
    new = sets.pair("formal-new.txt", "casual-new.txt")
    judged = data(trained[0], "concepts", "eval", "formal", *new, "--plot", str(plot))
    assert (judged["positive"], judged["negative"], len(judged["layers"])) == (8, 8, 4)
    assert max(each["auc"] for each in judged["layers"]) >= 0.9
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_the_examples_of_the_training_are_recognised(trained: tuple[Environment, object], sets: Sets) -> None:
    done = run(trained[0], "concepts", "eval", "formal", *sets.pair("formal.txt", "casual.txt"))
    assert done.returncode == 0
    assert "warning: these are the examples it was made of" in done.stderr
    assert "█" in done.stdout


def test_two_concepts_of_defaults_are_served_together_by_the_line_that_training_a_file_prints(
    trained: tuple[Environment, object], sets: Sets, tmp_path: Path
) -> None:
    environment = copied(trained, tmp_path)
    found = find(SMOLLM2, Path("nowhere"))
    assert found is not None
    file, pack = tmp_path / "a model.gguf", tmp_path / "glad.safetensors"
    file.symlink_to(found.path)
    words = "concepts", "train", "glad", *sets.pair("positive.txt", "negative.txt")
    done = run(environment, *words, "--model", str(file), "--out", str(pack), timeout_s=100)
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stderr.splitlines() if "ganglion serve" in line)
    _, _, command = line.partition("ganglion serve ")
    flags = [*shlex.split(command), "--concepts", "formal", "--no-grpc", "--context", "512"]
    environment = {name: value for name, value in environment.items() if name != "COLUMNS"}
    home = Path(environment.pop("GANGLION_HOME"))
    with running_node(home, *flags, **environment) as node:
        manifest = json.loads(node.get("/v1/readout/manifest"))
    assert manifest["concepts"] == ["glad", "formal"] and manifest["layers"] == [10, 15, 20, 25]
    error, hint = refusal(
        environment | {"GANGLION_HOME": str(home)},
        "concepts",
        "eval",
        str(pack),
        *sets.pair("positive-new.txt", "negative-new.txt"),
    )
    assert "does not exist here" in error and "--model" in hint


def test_a_second_concept_joins_a_pack_on_its_layers(
    trained: tuple[Environment, object], sets: Sets, tmp_path: Path
) -> None:
    environment = copied(trained, tmp_path)
    pair = sets.pair("positive.txt", "negative.txt")
    done = run(environment, "concepts", "train", "formal", "--concept", "glad", "--add", *pair, timeout_s=100)
    assert done.returncode == 0, done.stderr
    assert "ganglion serve smollm2-135m-instruct --concepts formal" in done.stderr
    assert "chosen" in done.stdout
    shown = data(environment, "concepts", "show", "formal")
    assert [each["name"] for each in shown["concepts"]] == ["formal", "glad"]
    assert all(abs(value) < 0.5 for value in shown["cosines"][0]["layers"].values())
    assert "cosine" in run(environment, "concepts", "show", "formal").stdout
    error, hint = refusal(environment, "concepts", "eval", "formal", *pair, status=2)
    assert "holds 2 concepts" in error and "glad" in hint
    error, hint = refusal(environment, "concepts", "train", "formal", *pair, status=2)
    assert "would be lost" in error and "--add" in hint
    files = data(environment, "concepts", "export", "formal", "--to", str(tmp_path / "out"), "--gguf")
    assert [Path(file).name for file in files] == [
        "formal.safetensors",
        "formal.json",
        "formal.formal.gguf",
        "formal.glad.gguf",
    ]
    assert read_pack(Path(files[0])).manifest.concepts == ["formal", "glad"]


def test_the_list_says_what_is_there_and_what_is_broken(
    trained: tuple[Environment, object], tmp_path: Path
) -> None:
    environment = copied(trained, tmp_path)
    (tmp_path / "home/concepts/broken.safetensors").write_bytes(b"nothing")
    broken, formal = data(environment, "concepts", "list")
    assert "not a concept pack" in broken["error"]
    assert (formal["name"], formal["concepts"], formal["model"]) == ("formal", ["formal"], SMOLLM2.id)
    assert formal["auc"]["formal"] >= 0.9
    table = run(environment, "concepts", "list")
    assert table.returncode == 0
    assert "broken" in table.stdout and "formal" in table.stdout


def test_an_empty_machine_says_how_to_make_one(tmp_path: Path) -> None:
    done = run(fresh_environment(tmp_path), "concepts", "list")
    assert (done.returncode, done.stdout) == (0, "")
    assert "ganglion concepts train" in done.stderr


def test_a_pack_belongs_to_its_model(trained: tuple[Environment, object], sets: Sets, tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(tiny_gguf())
    pair = sets.pair("formal-new.txt", "casual-new.txt")
    error, hint = refusal(trained[0], "concepts", "eval", "formal", "--model", str(other), *pair)
    assert "is of smollm2-135m-instruct" in error
    assert "train the concept on this one" in hint


def test_a_model_without_weights_is_refused_and_not_died_of(sets: Sets, tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(tiny_gguf())
    pair = sets.pair("formal.txt", "casual.txt")
    error, _ = refusal(fresh_environment(tmp_path), "concepts", "train", "x", "--model", str(other), *pair)
    assert "could not be loaded" in error


def test_bad_examples_are_refused_before_any_model_is_read(sets: Sets, tmp_path: Path) -> None:
    environment = fresh_environment(tmp_path)
    files = {
        "empty.txt": "\n\n",
        "few.txt": "one\ntwo\none\n",
        "wrong.jsonl": '{"words": "one"}\n',
        "many.txt": "\n".join(map(str, range(1001))),
        "long.txt": "x" * 20_000,
    }
    for name, text in files.items():
        (sets.folder / name).write_text(text)
    (sets.folder / "binary.txt").write_bytes(b"\xff\xfe\x00")
    cases = {
        "empty.txt": "is empty",
        "few.txt": "holds 2 different examples",
        "wrong.jsonl": "line 1",
        "many.txt": "1001",
        "long.txt": "longer than",
        "binary.txt": "not UTF-8",
        "nowhere.txt": "could not be read",
        "casual.txt": "both name",
    }
    for name, expected in cases.items():
        error, _ = refusal(environment, "concepts", "train", "x", *sets.pair(name, "casual.txt"), status=2)
        assert expected in error


def test_examples_can_be_json_lines_and_must_not_stand_on_both_sides(sets: Sets, tmp_path: Path) -> None:
    lines = (sets.folder / "casual.txt").read_text().splitlines()
    (sets.folder / "same.jsonl").write_text("\n".join(json.dumps({"text": line}) for line in lines))
    error, _ = refusal(
        fresh_environment(tmp_path),
        *("concepts", "train", "x"),
        *sets.pair("same.jsonl", "casual.txt"),
        status=2,
    )
    assert f"{COUNT} examples stand in both files" in error


@pytest.mark.parametrize(
    ("arguments", "status", "expected"),
    [
        (("show", "nothing"), 1, "no concept pack 'nothing'"),
        (("eval", "nothing", "SETS"), 1, "no concept pack 'nothing'"),
        (("export", "nothing", "--to", "out"), 1, "no concept pack 'nothing'"),
        (("train", "../x", "SETS"), 2, "cannot be a name"),
        (("train", "x", "SETS", "--add"), 2, "no pack"),
        (("train", "x", "SETS", "--model", "nobody"), 1, "'nobody' does not exist"),
        (("train", "x", "SETS", "--layers", "29"), 2, "0 to 28 can be read"),
    ],
)
def test_what_cannot_be_done_is_said_with_a_hint(
    sets: Sets, tmp_path: Path, arguments: tuple[str, ...], status: int, expected: str
) -> None:
    said = [
        word
        for each in arguments
        for word in (sets.pair("formal.txt", "casual.txt") if each == "SETS" else (each,))
    ]
    error, _ = refusal(fresh_environment(tmp_path), "concepts", *said, status=status)
    assert expected in error


@pytest.mark.parametrize("words", [("--layers", "seven"), ("--out", "pack.bin"), ("--held-out", "0.9")])
def test_flags_out_of_bounds_are_usage_errors(sets: Sets, tmp_path: Path, words: tuple[str, ...]) -> None:
    pair = sets.pair("formal.txt", "casual.txt")
    done = run(fresh_environment(tmp_path), "concepts", "train", "x", *pair, *words)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")


def test_a_plot_without_matplotlib_says_what_to_install(
    trained: tuple[Environment, object], sets: Sets, tmp_path: Path
) -> None:
    hide = tmp_path / "sitecustomize.py"
    hide.write_text("import sys\nsys.modules['matplotlib'] = None\n")
    environment = {**trained[0], "PYTHONPATH": str(tmp_path)}
    pair = sets.pair("formal-new.txt", "casual-new.txt")
    error, hint = refusal(environment, "concepts", "eval", "formal", *pair, "--plot", "a.png", status=2)
    assert "matplotlib" in error
    assert "pip install 'ganglion[plots]'" in hint


def test_help_teaches_by_examples(tmp_path: Path) -> None:
    for command in ("train", "eval", "list", "show", "export"):
        done = run(fresh_environment(tmp_path), "concepts", command, "--help")
        assert f"ganglion concepts {command}" in done.stdout
        assert "Examples:" in done.stdout
