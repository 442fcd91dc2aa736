"""`ganglion models` on this machine's disk and at a hub, as a person or a script meets it."""

import hashlib
import json
import os
import random
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import GANGLION, data, fresh_environment, in_terminal, refusal, run
from small_models import tiny_gguf

from ganglion.registry.hub.embedded import SMOLLM2
from support.hub_server import Fault, HubServer
from support.waiting import wait_until

REPO = "org/tiny-GGUF"
Q4 = tiny_gguf(filling=random.Random(4).randbytes(400_000))
Q8 = tiny_gguf(filling=random.Random(8).randbytes(700_000))
SMALL, LARGE = "tiny-Q4_K_M.gguf", "tiny-Q8_0.gguf"
Environment = dict[str, str]


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    return fresh_environment(tmp_path)


@pytest.fixture
def hub(environment: Environment) -> Iterator[HubServer]:
    with HubServer() as server:
        server.add(REPO, {SMALL: Q4, LARGE: Q8})
        environment["HF_ENDPOINT"] = server.url
        yield server


def put(folder: Path, name: str, content: bytes | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_bytes(tiny_gguf() if content is None else content)
    return file


def ollama_model(user: Path, name: str, content: bytes) -> Path:
    """A model in Ollama's store under the name that Ollama gives it."""
    digest = hashlib.sha256(content).hexdigest()
    store = user / ".ollama/models"
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}"}
    manifest = json.dumps({"layers": [layer]}).encode()
    put(store / "manifests/registry.ollama.ai/library" / name, "latest", manifest)
    return put(store / "blobs", f"sha256-{digest}", content)


def listed(environment: Environment) -> dict[str, dict[str, object]]:
    return {model["id"]: model for model in data(environment, "models", "list")}


# list


def test_the_list_holds_every_store_the_manifest_and_the_embedded_model(
    environment: Environment, tmp_path: Path
) -> None:
    put(tmp_path / "home/models", "mine-Q4_K_M.gguf")
    put(tmp_path / "home/models", "broken.gguf", b"not a model")
    put(tmp_path / "user/.lmstudio/models/maker/repo", "studio.gguf")
    ollama_model(tmp_path / "user", "llama3", tiny_gguf(filling=b"x"))
    own = put(tmp_path / "elsewhere", "own.gguf")
    (tmp_path / "home/models.yaml").write_text(
        f"named: {own}\nfar: org/far-GGUF:Q8_0\nmine: {{aliases: [fast], path: models/mine-Q4_K_M.gguf}}\n"
        "lost: {pinned: true}\nsmollm2: {keep_alive: 5m}\n"
    )
    models = listed(environment)
    assert {name: model["store"] for name, model in models.items()} == {
        "mine": "models folder",
        "broken": "models folder",
        "studio": "LM Studio",
        "llama3:latest": "Ollama",
        "named": "models.yaml",
        "far": "models.yaml",
        "lost": "models.yaml",
        "smollm2": "embedded",
    }
    assert models["mine"]["aliases"] == ["fast"]
    assert models["mine"]["parameters"] == 16
    assert models["named"]["context_length"] == 512
    assert (models["far"]["path"], models["far"]["hub_id"]) == (None, "org/far-GGUF:Q8_0")
    assert "not a GGUF model" in str(models["broken"]["error"])
    assert "no stored file is called so" in str(models["lost"]["error"])
    assert models["smollm2"]["quantisation"] == "Q4_1"

    table = run(environment, "models", "list")
    assert table.returncode == 0
    assert "\x1b" not in table.stdout
    for words in ("mine", "Q4_K_M", "135M", "98.4 MB", "cannot be used: ", "ganglion models pull far"):
        assert words in table.stdout
    assert table.stderr == "2 of 8 cannot be used\n"


def test_the_manifest_of_the_documentation_is_a_right_one(environment: Environment, tmp_path: Path) -> None:
    document = Path(__file__).parents[2] / "docs/models.md"
    [example] = re.findall(r"```yaml\n(.*?)```", document.read_text(), re.DOTALL)
    put(tmp_path / "home", "models.yaml", example.encode())
    models = listed(environment)
    assert models.keys() == {"coder", "notes", "large", "chat", "wide", SMOLLM2.id}
    assert models["chat"]["aliases"] == ["gpt-4o", "*"]
    assert models["notes"]["error"], "the file is not here"


# show and resolve


def test_show_says_what_the_file_says_and_what_it_would_take(
    environment: Environment, tmp_path: Path
) -> None:
    file = put(tmp_path / "home/models", "tiny-Q4_K_M.gguf")
    shown = data(environment, "models", "show", "tiny", "--context", "1024")
    assert (shown["architecture"], shown["parameters"], shown["quantisation"]) == ("llama", 16, "Q4_K_M")
    assert (shown["has_template"], shown["capabilities"]) == (True, ["chat", "completion"])
    assert shown["sampling"] == {"temperature": 0.5}
    assert shown["files"] == [str(file)]
    memory = shown["memory"]
    # Two layers of 8 heads with 8 elements, keys and values, 2 bytes each.
    assert memory["kv_bytes"] == 1024 * 2 * 8 * 8 * 2 * 2
    assert memory["weights_bytes"] == file.stat().st_size
    assert memory["context"] == 1024
    assert memory["planned_bytes"] > memory["weights_bytes"] + memory["kv_bytes"]
    assert memory["is_enough"]

    text = run(environment, "models", "show", str(file)).stdout
    for words in ("as trained", "chat template", "temperature 0.5", "memory for 512 tokens"):
        assert words in text
    assert str(file) in "".join(text.split())  # a long path goes on in the next line


def test_the_manifest_decides_what_a_node_would_plan(environment: Environment, tmp_path: Path) -> None:
    put(tmp_path / "home/models", "tiny.gguf")
    manifest = tmp_path / "home/models.yaml"
    manifest.write_text("tiny: {context_length: 256, kv_tokens: 2048, sampling: {temperature: 0.1}}\n")
    shown = data(environment, "models", "show", "tiny")
    assert (shown["memory"]["context"], shown["sampling"]) == (256, {"temperature": 0.1})
    assert shown["memory"]["planned_kv_tokens"] == 2048 + 1024


def test_a_name_that_is_not_here_is_no_model_to_show(environment: Environment) -> None:
    assert refusal(environment, "models", "show", "org/far-GGUF") == (
        "error: The model 'org/far-GGUF' does not exist here.",
        "hint: It can be downloaded: ganglion models pull org/far-GGUF",
    )
    assert (
        "Did you mean smollm2-135m-instruct?"
        in refusal(environment, "models", "show", "smolm2-135m-instruct")[1]
    )


def test_resolve_explains_each_step(environment: Environment, tmp_path: Path) -> None:
    file = put(tmp_path / "home/models", "tiny-Q4_K_M.gguf")
    (tmp_path / "home/models.yaml").write_text("little: {aliases: [small], path: models/tiny-Q4_K_M.gguf}\n")
    meaning = data(environment, "models", "resolve", "SMALL")
    assert (meaning["id"], meaning["kind"], meaning["path"]) == ("little", "file", str(file))
    assert [step["tried"] for step in meaning["steps"]][:2] == ["the exact id of a held model", "an alias"]
    assert data(environment, "models", "resolve", "org/x:Q8_0")["repo"] == "org/x"
    assert data(environment, "models", "resolve", "smollm2")["kind"] == "embedded"

    text = run(environment, "models", "resolve", "small").stdout
    assert "of little in models.yaml" in text
    assert str(file) in text


def test_a_name_that_means_nothing_exits_1_and_still_shows_its_steps(environment: Environment) -> None:
    done = run(environment, "models", "resolve", "nobody")
    assert done.returncode == 1
    assert "it is no hub id" in done.stdout
    assert done.stderr.endswith("hint: Here: smollm2-135m-instruct.\n")


# pull


def test_pull_fetches_prints_the_path_and_is_listed(
    environment: Environment, hub: HubServer, tmp_path: Path
) -> None:
    done = run(environment, "models", "pull", REPO)
    assert done.returncode == 0, done.stderr
    path = Path(done.stdout.removesuffix("\n"))
    assert path.read_bytes() == Q4
    assert path.is_relative_to(tmp_path / "hf")
    assert f"{REPO}:Q4_K_M, 401 kB" in done.stderr
    assert SMALL in done.stderr
    assert listed(environment)["tiny-Q4_K_M"]["hub_id"] == REPO

    again = data(environment, "models", "pull", f"{REPO}:{LARGE}")
    assert (again["was_here"], again["quant"], again["size_bytes"]) == (False, "Q8_0", len(Q8))
    assert Path(again["path"]).read_bytes() == Q8
    assert data(environment, "models", "pull", REPO, "--quant", "q8_0")["was_here"]
    assert len(hub.gets("cdn")) == 2


def test_pull_knows_names_of_the_manifest_and_the_embedded_model(
    environment: Environment, hub: HubServer, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "models.yaml").write_text(f"big: {REPO}:Q8_0\nlocal: /srv/x.gguf\n")
    assert data(environment, "models", "pull", "big")["quant"] == "Q8_0"
    assert data(environment, "models", "pull", "smollm2")["path"].endswith(SMOLLM2.file_name)
    assert "/srv/x.gguf" in refusal(environment, "models", "pull", "local", status=2)[0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nothing",), "A model at a hub is named org/repo"),
        ((f"{REPO}:Q2_K",), "The repository has Q4_K_M, Q8_0."),
        (("org/absent",), "org/absent"),
        ((REPO, "--revision", "none"), "no such revision"),
    ],
)
def test_a_pull_that_cannot_be_is_refused_in_words(
    environment: Environment, hub: HubServer, arguments: tuple[str, ...], words: str
) -> None:
    done = run(environment, "models", "pull", *arguments)
    assert done.returncode == 1
    assert done.stdout == ""
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_terminal_sees_bytes_speed_and_time_left(environment: Environment, hub: HubServer) -> None:
    hub.fail(Fault("cdn", pause_s=0.15))
    status, stdout, shown = in_terminal(environment, "models", "pull", REPO)
    assert (status, Path(stdout.strip()).read_bytes() == Q4) == (0, True)
    assert f"/{len(Q4) / 1000:.1f} kB" in shown
    assert "kB/s" in shown
    assert re.search(r"\d\d:\d\d", shown), "the time left"
    assert "Q4_K_M" in shown


def test_ctrl_c_stops_a_pull_and_the_next_one_goes_on(
    environment: Environment, hub: HubServer, tmp_path: Path
) -> None:
    hub.fail(Fault("cdn", stall_after=300_000))
    command = [*GANGLION, "models", "pull", REPO]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        partials = tmp_path / "hf/hub/models--org--tiny-GGUF/blobs"
        wait_until(lambda: any(file.stat().st_size >= 262_144 for file in partials.glob("*.incomplete")))
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=10)
    assert (process.returncode, stdout) == (130, "")
    assert stderr.endswith(f"stopped; ganglion models pull {REPO} goes on from there\n")
    done = run(environment, "models", "pull", REPO)
    assert Path(done.stdout.strip()).read_bytes() == Q4
    assert hub.gets("cdn")[-1].range_from >= 262_144


# rm


def test_rm_frees_a_blob_and_leaves_its_neighbour(
    environment: Environment, hub: HubServer, tmp_path: Path
) -> None:
    for quant in ("Q4_K_M", "Q8_0"):
        run(environment, "models", "pull", f"{REPO}:{quant}")
    assert (
        refusal(environment, "models", "rm", REPO, "--yes", status=2)[1]
        == "hint: ganglion models rm tiny-Q4_K_M"
    )
    done = run(environment, "models", "rm", f"{REPO}:Q4_K_M", "--yes")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "removed tiny-Q4_K_M, 401 kB freed\n")
    assert listed(environment).keys() == {"tiny-Q8_0", SMOLLM2.id}
    receipts = json.loads((tmp_path / "home/cache/receipts.json").read_text())
    assert [entry["size_bytes"] for entry in receipts.values()] == [len(Q8)]

    assert run(environment, "models", "rm", REPO, "-y").returncode == 0
    assert not (tmp_path / "hf/hub/models--org--tiny-GGUF").exists()
    assert data(environment, "models", "pull", REPO)["was_here"] is False


def test_rm_keeps_a_blob_that_another_snapshot_uses(
    environment: Environment, hub: HubServer, tmp_path: Path
) -> None:
    run(environment, "models", "pull", REPO)
    repository = tmp_path / "hf/hub/models--org--tiny-GGUF"
    other = repository / "snapshots" / ("a" * 40) / "other-Q4_K_M.gguf"
    other.parent.mkdir()
    other.symlink_to(Path("../../blobs") / hashlib.sha256(Q4).hexdigest())
    done = run(environment, "models", "rm", "tiny-Q4_K_M", "--yes")
    assert done.stderr == (
        "removed tiny-Q4_K_M, 0 bytes freed\n401 kB stay: other names of the same file use them\n"
    )
    assert other.read_bytes() == Q4
    assert not (repository / "refs").exists()


def test_rm_asks_a_person_and_needs_a_yes_of_a_script(environment: Environment, tmp_path: Path) -> None:
    file = put(tmp_path / "home/models", "tiny.gguf")
    (tmp_path / "home/models.yaml").write_text("small: {path: models/tiny.gguf}\n")
    assert "--yes" in refusal(environment, "models", "rm", "small", status=2)[1]
    status, _, shown = in_terminal(environment, "models", "rm", "small", typed=b"n\n", ask=b"[y/N]")
    assert (status, file.exists()) == (1, True)
    assert str(file) in shown
    status, _, shown = in_terminal(environment, "models", "rm", "small", typed=b"y\n", ask=b"[y/N]")
    assert (status, file.exists()) == (0, False)
    assert "models.yaml still names small" in shown


def test_rm_leaves_what_is_not_ours(environment: Environment, tmp_path: Path) -> None:
    files = {
        "ollama rm llama3:latest": ollama_model(tmp_path / "user", "llama3", tiny_gguf(filling=b"x")),
        "My Models": put(tmp_path / "user/.lmstudio/models/maker/repo", "studio.gguf"),
        "yourself": put(tmp_path / "elsewhere", "own.gguf"),
    }
    names = ("llama3", "studio", str(tmp_path / "elsewhere/own.gguf"))
    for name, (words, file) in zip(names, files.items(), strict=True):
        assert words in refusal(environment, "models", "rm", name, "--yes", status=2)[1]
        assert file.exists()
    assert "pip uninstall" in refusal(environment, "models", "rm", "smollm2", "--yes", status=2)[1]


# verify


def test_verify_tells_whole_damaged_and_unknown_apart(
    environment: Environment, hub: HubServer, tmp_path: Path
) -> None:
    put(tmp_path / "home/models", "mine.gguf")
    path = Path(run(environment, "models", "pull", REPO).stdout.strip())
    found = {each["id"]: each["verdict"] for each in data(environment, "models", "verify")}
    assert found == {"tiny-Q4_K_M": "ok", "mine": "unknown", SMOLLM2.id: "ok"}

    status = path.stat()
    with path.resolve().open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"!")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # a disk that rots changes no times
    done = run(environment, "models", "verify", "tiny")
    assert done.returncode == 1
    assert "damaged" in done.stdout
    assert done.stderr.endswith(
        f"error: tiny-Q4_K_M: damaged.\n\nhint: ganglion models pull {REPO}:{SMALL}\n"
    )
    assert run(environment, "models", "pull", f"{REPO}:{SMALL}").returncode == 0
    assert data(environment, "models", "verify", "tiny")[0]["verdict"] == "ok"


# What holds for all of them


def test_each_command_teaches_with_an_example(environment: Environment) -> None:
    commands = ("list", "show", "pull", "rm", "load", "unload", "resolve", "verify", "ps")
    program = "import sys\nfrom ganglion.cli.main import app\n" + "".join(
        f"app(['models', '{command}', '--help'], result_action='return_value')\n" for command in commands
    )
    done = subprocess.run(
        [GANGLION[0], "-c", program], check=True, env=environment, capture_output=True, text=True, timeout=20
    )
    examples = done.stdout.split("Examples:\n\n")[1:]
    assert [each.split()[:3] for each in examples] == [["ganglion", "models", name] for name in commands]


def test_a_wrong_manifest_is_an_error_that_names_it(environment: Environment, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home/models.yaml").write_text("tiny: {contxt_length: 5}\n")
    done = run(environment, "models", "list")
    assert (done.returncode, done.stdout) == (2, "")
    assert "contxt_length" in done.stderr


def test_bash_completes_commands_flags_and_the_names_of_models(
    environment: Environment, tmp_path: Path
) -> None:
    put(tmp_path / "home/models", "tiny.gguf")
    program = tmp_path / "ganglion"
    program.write_text(f'#!/bin/sh\nexec {GANGLION[0]} -m ganglion.cli.main "$@"\n')
    program.chmod(0o755)
    script = run(environment, "completion", "bash").stdout
    asked = "".join(
        f'COMP_WORDS=({program} {words} "{last}"); COMP_CWORD={len(words.split()) + 1}; _ganglion\n'
        'echo "${COMPREPLY[@]}"\n'
        for words, last in [("models", "p"), ("models load", "--p"), ("models show", "ti")]
    )
    done = subprocess.run(
        ["bash", "-c", f"{script}\n{asked}"],
        check=True,
        env=environment,
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert done.stdout.splitlines() == ["pull ps", "--pipeline-parallel --pin", "tiny"]
    assert "#compdef ganglion" in run(environment, "completion", "zsh").stdout
    assert "complete -c ganglion" in run(environment | {"SHELL": "/bin/fish"}, "completion").stdout
    assert "bash|zsh|fish" in refusal(environment | {"SHELL": "/bin/tcsh"}, "completion", status=2)[1]
