"""Which engine runs a model: the rule as a table."""

import pytest

from ganglion.core.errors import EngineUnavailable, InvalidValue
from ganglion.engines.choice import EnginesHere, choose_engine, preferred_formats, runners_of
from ganglion.engines.table import EngineName

BOTH = ("llama", "vllm", "echo")
ALONE = ("llama", "echo")

# The format; the configured engine; what is installed; whether converting is possible; what the load and
# models.yaml ask for; the engine, and whether it runs a copy.
CHOICES: list[tuple[str, EngineName, tuple[str, ...], bool, str | None, str | None, str, bool]] = [
    ("gguf", "llama", ALONE, False, None, None, "llama", False),
    ("gguf", "llama", BOTH, True, None, None, "llama", False),
    ("gguf", "vllm", BOTH, True, None, None, "llama", False),
    ("gguf", "llama", BOTH, True, "llama", None, "llama", False),
    ("safetensors", "llama", BOTH, True, None, None, "vllm", False),
    ("safetensors", "llama", BOTH, False, None, None, "vllm", False),
    ("safetensors", "vllm", BOTH, True, None, None, "vllm", False),
    (
        "safetensors",
        "vllm",
        ALONE,
        True,
        None,
        None,
        "vllm",
        False,
    ),  # what is configured says itself what it lacks
    ("safetensors", "llama", ALONE, True, None, None, "llama", True),
    ("safetensors", "llama", BOTH, True, None, "llama", "llama", True),
    ("safetensors", "vllm", BOTH, True, "llama", None, "llama", True),
    ("safetensors", "llama", BOTH, True, "vllm", "llama", "vllm", False),  # the load before models.yaml
    ("safetensors", "llama", ALONE, True, None, "vllm", "vllm", False),
]


@pytest.mark.parametrize("row", CHOICES, ids=lambda row: " ".join(map(str, row)))
def test_the_engine_of_a_model(
    row: tuple[str, EngineName, tuple[str, ...], bool, str | None, str | None, str, bool],
) -> None:
    model_format, configured, installed, can_convert, load, entry, engine, is_converted = row
    here = EnginesHere(configured, installed, can_convert)
    choice = choose_engine("m", model_format, here=here, loaded_with=load, entry=entry)
    assert (choice.engine, choice.is_converted) == (engine, is_converted)
    assert choice.why


def test_where_nothing_runs_it_the_message_says_what_to_install() -> None:
    here = EnginesHere("llama", ALONE)
    with pytest.raises(EngineUnavailable, match="safetensors") as raised:
        choose_engine("m", "safetensors", here=here, loaded_with=None, entry=None)
    assert "`ganglion engines install vllm`" in (raised.value.hint or "")
    with pytest.raises(EngineUnavailable, match="converted") as raised:
        choose_engine("m", "safetensors", here=here, loaded_with="llama", entry=None)
    assert "engine.converter_python" in (raised.value.hint or "")


@pytest.mark.parametrize(
    ("model_format", "name"),
    [("gguf", "vllm"), ("gguf", "echo"), ("safetensors", "echo"), ("gguf", "made-up")],
)
def test_an_engine_that_does_not_run_a_model_is_refused_by_name(model_format: str, name: str) -> None:
    with pytest.raises(InvalidValue, match=name) as raised:
        choose_engine("m", model_format, here=EnginesHere("llama", BOTH, True), loaded_with=name, entry=None)
    assert raised.value.param == "engine"


def test_the_configured_engines_formats_come_first() -> None:
    assert preferred_formats("llama") == ("gguf", "safetensors")
    assert preferred_formats("vllm") == ("safetensors", "gguf")
    assert runners_of("safetensors") == runners_of(None) == ("llama", "vllm")
    assert runners_of("gguf") == ("llama",)
