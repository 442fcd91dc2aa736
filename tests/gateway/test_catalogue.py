"""`models.toml`: what is read, and how what is wrong is told."""

import re
from pathlib import Path

import pytest

from ganglion.core.device_layout import DeviceLayout
from ganglion.core.errors import GanglionError, InvalidValue, UnknownParameter
from ganglion.gateway.placing.catalogue import CatalogueModel, Cost, parse_catalogue

DOCUMENT = Path(__file__).parents[2] / "docs" / "catalogue.md"

WHOLE = """
[[models]]
id = "chat-large"
source = "Qwen/Qwen3-32B-GGUF"
served_as = "Qwen3-32B-Q4_K_M"
engine = "llama"
quant = "Q4_K_M"
context_length = 32768
memory_mb = 24000
devices = 2
min_free_mb = 500
pinned_on = ["a"]
priority = -1
min_replicas = 1
max_replicas = 3
scale_up_queue = 2
idle_s = 600
max_in_flight = 64
cost = { prompt = 0.5, completion = 1.5 }
aliases = ["GPT-4o", "large"]
fallbacks = ["chat-small"]

[[models]]
id = "chat-small"
aliases = ["*"]
loadable = false

[[models]]
id = "chat-wide"
tensor_parallel = 2
pipeline_parallel = 3
data_parallel = 4
executor = "ray"
device_mb = 70000
pinned_on = ["head"]
"""


def test_every_key_is_read() -> None:
    large, small, wide = parse_catalogue(WHOLE).models
    assert (large.origin, large.devices, large.priority, large.most_replicas) == (
        "Qwen/Qwen3-32B-GGUF",
        2,
        -1,
        3,
    )
    assert large.cost == Cost(0.5, 1.5)
    assert {"chat-large", "qwen/qwen3-32b-gguf:q4_k_m", "qwen3-32b-q4_k_m"} <= large.listed_as
    assert (small.origin, small.memory_mb, small.most_replicas, small.idle_s) == ("chat-small", 0, 1, None)
    assert wide.layout == DeviceLayout(2, 3, 4, None, "ray")
    assert wide.device_mb == 70000
    assert set(large.__struct_fields__) == set(re.findall(r"^(\w+) =", WHOLE, re.MULTILINE))


def test_names_are_found_in_any_case_and_ids_as_they_are() -> None:
    catalogue = parse_catalogue(WHOLE)
    assert catalogue.by_alias["gpt-4o"].id == "chat-large"
    assert catalogue.by_alias["*"].id == "chat-small"
    assert catalogue.by_alias["qwen/qwen3-32b-gguf"].id == "chat-large"
    assert "chat-large" in catalogue.by_id
    assert "chat-large" not in catalogue.by_alias


def test_a_source_that_two_models_have_is_a_name_for_neither() -> None:
    catalogue = parse_catalogue('[[models]]\nid="a"\nsource="s"\n[[models]]\nid="b"\nsource="s"')
    assert "s" not in catalogue.by_alias
    assert [model.id for model in catalogue.by_listing["s"]] == ["a", "b"]


def test_nothing_at_all_is_a_catalogue() -> None:
    assert parse_catalogue("").models == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[models]\n", "models.toml is not TOML"),
        ('[[models]]\nid="a"\nmemory="4"', "Unknown key memory in model 'a' of models.toml. | memory_mb"),
        ('[[models]]\nid="a"\ncost={promt=1}', "Unknown key cost.promt in model 'a' | cost.prompt"),
        ('[[models]]\nsource="a"', "Model 1 of models.toml has a wrong value: | id"),
        ('[[models]]\nid="a"\nmemory_mb=-1', "Model 'a' of models.toml | memory_mb"),
        ('[[models]]\nid="a"\ndevices=0', "Model 'a' | devices"),
        ('[[models]]\nid=""', "Model '' of models.toml | id"),
        ('[[models]]\nid="a"\n[[models]]\nid="a"', "Two models of models.toml have the id 'a'"),
        ('[[models]]\nid="a"\naliases=["X"]\n[[models]]\nid="b"\naliases=["x"]', "alias 'x' | 'b' | 'a'"),
        ('[[models]]\nid="a"\n[[models]]\nid="b"\naliases=["A"]', "alias 'A' of model 'b' | name of 'a'"),
        ('[[models]]\nid="abc"\n[[models]]\nid="b"\nfallbacks=["abd"]', "fallback 'abd' | mean abc"),
        ('[[models]]\nid="a"\nfallbacks=["a"]', "circle: a → a"),
        ('[[models]]\nid="a"\nmin_replicas=3\nmax_replicas=2', "min_replicas | is 3 | 2"),
        ('[[models]]\nid="a"\npinned_on=["x","y"]\nmax_replicas=1', "pinned_on | 2 nodes"),
        ('[models.a]\nid="a"', "not a list of tables | [[models]]"),
        ("modles = []", "Unknown key modles in models.toml | [[models]]"),
    ],
)
def test_what_is_wrong_is_named(text: str, words: str) -> None:
    with pytest.raises((InvalidValue, UnknownParameter)) as caught:
        parse_catalogue(text)
    told = f"{caught.value.message} {caught.value.hint}"
    for part in words.split(" | "):
        assert part in told


def test_a_circle_of_fallbacks_is_shown_as_it_goes() -> None:
    circle = "".join(f'[[models]]\nid="{a}"\nfallbacks=["{b}"]\n' for a, b in ("ab", "bc", "ca"))
    with pytest.raises(GanglionError, match=r"(a → b → c → a|b → c → a → b|c → a → b → c)"):
        parse_catalogue(circle)


def test_the_page_has_every_key_and_its_example_is_read() -> None:
    text = DOCUMENT.read_text()
    keys = re.findall(r"^\| `(\w+)`", text, re.MULTILINE)
    assert keys == list(CatalogueModel.__struct_fields__)
    example = text.split("```toml\n")[1].split("```")[0]
    assert len(parse_catalogue(example).models) >= 2
