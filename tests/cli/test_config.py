"""One Config from a file, the environment and flags."""

from pathlib import Path

import pytest
from msgspec import Struct
from msgspec.structs import fields
from rich.console import Console

from ganglion.cli.flags import EngineFlags, FlagGroup, OutputFlags
from ganglion.cli.gateway import GatewayServerFlags
from ganglion.cli.main import app
from ganglion.cli.serve import JoinFlags, ResidencyFlags, SecurityFlags, ServerFlags
from ganglion.config import Config, descriptions, keys, load, settings_from
from ganglion.core.errors import InvalidValue, UnknownParameter
from ganglion.core.home import home_folder
from ganglion.gateway.settings import DeclaredNode
from ganglion.server.settings import ServerSettings
from ganglion.sessions.settings import SessionSettings

FILE = """
models = ["smollm2", "other.gguf"]

[server]
port = 9000
api_keys = ["a", "b"]

[server.deadlines]
queue_s = 5

[engine]
name = "echo"
parallel = 4

[log]
level = "debug"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(FILE)
    return path


def test_without_anything_the_defaults_stand() -> None:
    config = load(None, {}, {})
    assert config == Config()
    assert (config.server.host, config.server.port, config.engine.name) == ("127.0.0.1", 8080, "llama")


def test_a_file_is_read(file: Path) -> None:
    config = load(file, {}, {})
    assert config.models == ("smollm2", "other.gguf")
    assert config.server.api_keys == ("a", "b")
    assert config.server.deadlines.queue_s == 5.0
    assert config.server.deadlines.idle_s == Config().server.deadlines.idle_s
    assert (config.engine.name, config.engine.parallel, config.log.level) == ("echo", 4, "debug")


def test_flags_win_over_the_environment_over_the_file(file: Path) -> None:
    environment = {
        "GANGLION_SERVER__PORT": "9001",
        "GANGLION_ENGINE__PARALLEL": "8",
        "GANGLION_LOG__LEVEL": "error",
    }
    config = load(file, environment, settings_from({"server.port": 9002, "log.level": None}, "the flags"))
    assert (config.server.port, config.engine.parallel, config.log.level) == (9002, 8, "error")


def test_the_environment_is_text_and_is_read_by_type() -> None:
    environment = {
        "GANGLION_SERVER__API_KEYS": "one, two",
        "GANGLION_SERVER__STRICT": "true",
        "GANGLION_SERVER__DEADLINES__TOTAL_S": "1.5",
        "GANGLION_MODELS": "a,b",
        "GANGLION_HOME": "/somewhere",
        "GANGLION_LIBLLAMA": "/lib/x.so",
        "OTHER__THING": "1",
    }
    config = load(None, environment, {})
    assert config.server.api_keys == ("one", "two")
    assert config.server.is_strict is True
    assert config.server.deadlines.total_s == 1.5
    assert config.models == ("a", "b")


@pytest.mark.parametrize(
    ("written", "key", "nearest"),
    [
        ("[server]\nprot = 1", "server.prot", "server.port"),
        ("[servr]\nport = 1", "servr.port", "server.port"),
        ("[engine]\nkv_token = 1", "engine.kv_token", "engine.kv_tokens"),
        ("model = ['x']", "model", "models"),
    ],
)
def test_a_typo_names_the_key_the_file_and_the_nearest_key(
    tmp_path: Path, written: str, key: str, nearest: str
) -> None:
    file = tmp_path / "config.toml"
    file.write_text(written)
    with pytest.raises(UnknownParameter) as raised:
        load(file, {}, {})
    assert raised.value.message == f"Unknown key {key} in {file}."
    assert raised.value.hint == f"Did you mean {nearest}?"


def test_a_typo_in_the_environment_names_the_variable() -> None:
    with pytest.raises(UnknownParameter) as raised:
        load(None, {"GANGLION_SERVER__PROT": "1"}, {})
    assert "GANGLION_SERVER__PROT" in raised.value.message
    assert raised.value.hint == "Did you mean server.port?"


def test_a_key_that_is_like_no_other_is_told_what_there_is() -> None:
    with pytest.raises(UnknownParameter) as raised:
        load(None, {"GANGLION_LOG__XYZZY": "1"}, {})
    assert raised.value.hint == "There are: log.level, log.format."


@pytest.mark.parametrize(
    "written",
    [
        '[server]\nport = "80"',
        "[server]\nport = 70000",
        '[engine]\nname = "lama"',
        "[engine]\nparallel = 0",
        "server = 1",
    ],
)
def test_a_wrong_value_names_its_key_and_file(tmp_path: Path, written: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(written)
    with pytest.raises((InvalidValue, UnknownParameter)) as raised:
        load(file, {}, {})
    assert str(file) in raised.value.message
    assert (raised.value.param or "").split(".")[0] in ("server", "engine")


@pytest.mark.parametrize("content", [b"[server", b"\xff\xfe"])
def test_a_file_that_is_not_toml_says_so(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "config.toml"
    file.write_bytes(content)
    with pytest.raises(InvalidValue, match=r"config\.toml (is not TOML|.*not UTF-8)"):
        load(file, {}, {})


def test_a_file_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="could not be read"):
        load(tmp_path / "missing.toml", {}, {})


def test_home_is_where_the_environment_says() -> None:
    assert home_folder({"GANGLION_HOME": "/data/ganglion"}) == Path("/data/ganglion")
    assert home_folder({}) == Path.home() / ".ganglion"


def test_a_wrong_value_of_a_flag_names_the_flag_as_it_is_typed() -> None:
    wrong: dict[type[FlagGroup], dict[str, object]] = {
        EngineFlags: {"engine": "lama"},
        ServerFlags: {"keep_sessions": "maybe", "drain_timeout": -1.0},
        SecurityFlags: {"api_key": 7},
        ResidencyFlags: {"keep_alive": 0.0},
        JoinFlags: {"join": 7},
        GatewayServerFlags: {"store": 7},
        OutputFlags: {"log_level": "loud"},
    }
    for group, values in wrong.items():
        for name, value in values.items():
            with pytest.raises(
                InvalidValue, match=f"in the flag --{name.replace('_', '-')} has the wrong value"
            ):
                load(None, {}, group(**{name: value}).settings())


def test_a_flag_takes_type_default_and_help_from_its_key(capsys: pytest.CaptureFixture[str]) -> None:
    for command, words in {
        "serve": (
            "Port of HTTP; 0 takes a free one. Default: 8080.",
            "[choices: llama, vllm, echo]",
            "--keep-sessions",
        ),
        "gateway": ("Default: 8000.", "GANGLION_GATEWAY__NODE_KEY keeps it out of ps."),
    }.items():
        app([command, "--help"], console=Console(width=400), result_action="return_value")
        shown = " ".join(capsys.readouterr().out.split())
        for text in words:
            assert text in shown


def test_a_field_without_a_description_is_no_key() -> None:
    for key in (
        "server.max_in_flight",
        "server.build",
        "sessions.folder",
        "engine.model_id",
        "server.has_grpc",
    ):
        assert key not in keys()
        with pytest.raises(UnknownParameter):
            load(None, {}, settings_from({key: 1}, "the test"))


def test_two_keys_that_contradict_each_other_are_refused() -> None:
    for section in (ServerSettings(tls_cert="a.pem"), ServerSettings(has_grpc=False, grpc_port=1)):
        with pytest.raises(InvalidValue):
            section.check()
    with pytest.raises(InvalidValue, match="max_ttl_s"):
        SessionSettings(default_ttl_s=2.0, max_ttl_s=1.0).check()


def test_every_description_is_of_a_field() -> None:
    waiting: list[type[Struct]] = [Config, DeclaredNode]
    while waiting:
        section = waiting.pop()
        known = {field.encode_name: field.type for field in fields(section)}
        waiting += [kind for kind in known.values() if isinstance(kind, type) and issubclass(kind, Struct)]
        assert set(descriptions(section)) <= set(known), section.__name__
        assert descriptions(section), f"the docstring of {section.__name__} describes its keys"
