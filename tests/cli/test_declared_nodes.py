"""The nodes that flags and config files declare, and what is said of a declaration that is wrong."""

from pathlib import Path

import pytest

from ganglion.cli.gateway import gateway_setup, static_nodes
from ganglion.config import load, settings_from
from ganglion.core.errors import InvalidRequest, InvalidValue
from ganglion.gateway.settings import DeclaredNode
from ganglion.wire.dialects import ALL_WIRES, USUAL_WIRES
from support.configured import configured

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_a_flag_names_a_node_by_its_url() -> None:
    flags = (
        "http://10.0.0.5:8081/",
        "b=http://[::1]:8083",
        "openai+http://v:8000/x",
        "c=openai+https://api.c",
    )
    first, second, third, cloud = static_nodes((), flags, "between-us", {})
    assert (first.name, first.url, first.kind) == ("10.0.0.5-8081", "http://10.0.0.5:8081", "ganglion")
    assert (first.api_key, first.wires) == ("between-us", ALL_WIRES)
    assert (second.name, second.url) == ("b", "http://[::1]:8083")
    assert (third.name, third.url, third.kind) == ("v-8000", "http://v:8000/x", "openai")
    assert (third.api_key, third.wires) == (None, USUAL_WIRES), "a stranger never sees our key"
    assert (cloud.name, cloud.url, cloud.kind) == ("c", "https://api.c", "openai")


def test_a_table_says_more(tmp_path: Path) -> None:
    file = tmp_path / "cloud.key"
    file.write_text("sk-file\n")
    cloud = DeclaredNode(
        url="https://api.c",
        name="cloud",
        kind="openai",
        key_env="CLOUD_KEY",
        wires=("chat",),
        models=("big",),
        vision=("big",),
        max_in_flight=4,
        cool_down_after=1,
        cool_down_s=2.0,
    )
    other = DeclaredNode(url="http://o:1", name="o", kind="openai", key_file=str(file))
    ours = DeclaredNode(url="http://a:1", key_env="A_KEY")
    environment = {"CLOUD_KEY": " sk-env ", "A_KEY": "sk-a"}
    first, second, third = static_nodes((cloud, other, ours), (), "between-us", environment)
    assert (first.api_key, second.api_key, third.api_key) == ("sk-env", "sk-file", "sk-a")
    assert (first.wires, first.models) == (frozenset({"chat"}), frozenset({"big"}))
    assert (first.vision, second.vision) == (frozenset({"big"}), frozenset())
    assert (first.max_in_flight, first.cool_down_after, first.cool_down_s) == (4, 1, 2.0)


@pytest.mark.parametrize(
    ("nodes", "flags", "message", "hint"),
    [
        ((), ("a=http://x:1", "a=http://y:1"), "Two nodes are called a", "NAME=URL"),
        ((), ("http://x:1", "http://x:1"), "Two nodes are called x-1", "NAME=URL"),
        ((), ("ftp://x",), "ftp", ""),
        ((), ("a=",), "", ""),
        ((DeclaredNode(url="http://x:1", name="no spaces"),), (), "cannot be a node's name", "letters"),
        ((DeclaredNode(url="http://x:1", key_env="NONE"),), (), "NONE of the node x-1 is not set", "Set it"),
        ((DeclaredNode(url="http://x:1", key_file="/none"),), (), "node x-1's key file /none", "readable"),
        (
            (DeclaredNode(url="http://x:1", key_file="f", key_env="E"),),
            (),
            "both key_env and key_file",
            "Leave",
        ),
        ((DeclaredNode(url="http://x:1", models=("m",)),), (), "list of models", "catalogue"),
    ],
)
def test_what_is_wrong_is_said_with_what_to_do(
    nodes: tuple[DeclaredNode, ...], flags: tuple[str, ...], message: str, hint: str
) -> None:
    with pytest.raises(InvalidValue) as caught:
        static_nodes(nodes, flags, None, {})
    assert message in caught.value.message
    assert hint in (caught.value.hint or "")


def test_the_examples_are_a_gateways_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)  # the catalogue stands beside the file, wherever one is
    monkeypatch.setenv("GANGLION_HOME", str(tmp_path))
    monkeypatch.setenv("CLOUD_KEY", "sk-cloud")
    settings = gateway_setup(load(EXAMPLES / "fleet.toml", {}, {}), ())
    assert [spec.name for spec in settings.nodes] == ["a", "b", "vllm", "cloud"]
    assert settings.nodes[3].models == frozenset({"big-model"})
    assert [model.id for model in settings.catalogue.models] == ["smollm2", "qwen3-4b", "big-model"]
    assert settings.server.port == 8000


def test_files_of_a_fleet_stand_beside_its_config_file(tmp_path: Path) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text('[gateway]\ncatalogue = "m.toml"\n[[nodes]]\nurl = "http://x:1"\nkey_file = "x.key"\n')
    config = load(file, {}, {})
    assert config.gateway.catalogue == str(tmp_path / "m.toml")
    assert config.nodes[0].key_file == str(tmp_path / "x.key")
    given = settings_from({"gateway.catalogue": "here.toml"}, "a flag")
    assert load(file, {}, given).gateway.catalogue == "here.toml"
    file.write_text('[gateway]\ncatalogue = "~/m.toml"\n')
    assert load(file, {}, {}).gateway.catalogue == str(Path.home() / "m.toml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[nodes]]\nurll = "x"\n', "nodes in"),
        ('[[nodes]]\nname = "x"\n', "url"),
        ('[[nodes]]\nurl = "http://x"\nkind = "vllm"\n', "kind"),
        ('[[nodes]]\nurl = "http://x"\nwires = ["telex"]\n', "wires"),
        ("[gateway]\nlease_s = 0\n", "gateway.lease_s"),
        ('nodes = "a"\n', "nodes in"),
    ],
)
def test_a_file_that_is_wrong_is_named_with_its_key(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text(text)
    with pytest.raises(InvalidValue) as caught:
        load(file, {}, {})
    assert (message in caught.value.message, str(file) in caught.value.message) == (True, True)


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "could not be read"), ('[[models]]\nid = "m"\npriorty = 1\n', "priorty"), ("[[", "TOML")],
)
def test_a_catalogue_that_is_wrong_is_named(tmp_path: Path, text: str | None, message: str) -> None:
    catalogue = tmp_path / "models.toml"
    if text is not None:
        catalogue.write_text(text)
    config = configured({"gateway.catalogue": str(catalogue)})
    with pytest.raises(InvalidRequest, match=r"models\.toml") as caught:
        gateway_setup(config, ())
    assert message in caught.value.message
