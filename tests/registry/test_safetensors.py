"""Safetensors models as people have them: whole, in shards, damaged, and lying about their size."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from malformed import measured_memory, mutants, read_all

from ganglion.core.errors import LoadFailed, ModelNotFound
from ganglion.core.model import ModelFacts
from ganglion.core.sampling import Sampling
from ganglion.registry.files.safetensors import read_facts
from support.model_files import CONFIG, TENSORS, safetensors, safetensors_model, safetensors_of

INDEX = "model.safetensors.index.json"


def write_shards(folder: Path, count: int) -> list[Path]:
    (folder / "model.safetensors").unlink()
    files = [folder / f"model-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)]
    for file in files:
        file.write_bytes(safetensors())
    return files


def test_a_folder_says_what_its_model_is(tmp_path: Path) -> None:
    folder = safetensors_model(
        tmp_path / "Tiny",
        tokenizer_config={
            "chat_template": "{% if tools %}{{ messages }}{% endif %}<think>",
            "bos_token": "<s>",
            "eos_token": {"content": "</s>", "lstrip": False},
        },
        generation_config={"temperature": 0.6, "top_p": 0.9, "top_k": -1, "do_sample": True},
    )
    weights = folder / "model.safetensors"
    assert read_facts(folder) == ModelFacts(
        path=str(folder),
        size_bytes=weights.stat().st_size,
        modified_s=int(weights.stat().st_mtime),
        architecture="llama",
        name="Tiny",
        context_length=2048,
        block_count=2,
        kv_values_per_token=2 * 2 * (8 + 8),
        vocabulary_size=4,
        chat_template="{% if tools %}{{ messages }}{% endif %}<think>",
        bos_token="<s>",
        eos_token="</s>",
        quantisation="BF16",
        parameters=4 * 8 + 8,
        capabilities=("chat", "tools", "reasoning", "completion"),
        sampling=Sampling(temperature=0.6, top_p=0.9, top_k=0),
        embedding_length=64,
    )


def test_one_file_is_described_by_what_lies_beside_it(tmp_path: Path) -> None:
    facts = read_facts(safetensors_model(tmp_path / "Tiny") / "model.safetensors")
    assert (facts.name, facts.architecture, facts.parameters) == ("model", "llama", 40)


def test_shards_are_one_model_by_their_names_or_by_an_index(tmp_path: Path) -> None:
    folder = safetensors_model(tmp_path / "Tiny")
    files = write_shards(folder, 3)
    assert read_facts(folder).parameters == 3 * 40
    assert read_facts(files[1]).size_bytes == sum(file.stat().st_size for file in files)
    (folder / "consolidated.safetensors").write_bytes(safetensors())
    assert read_facts(folder).parameters == 3 * 40, "the same weights in another layout"
    (folder / "zebra.safetensors").write_bytes(safetensors())
    with pytest.raises(LoadFailed, match="belong together"):
        read_facts(folder)
    (folder / INDEX).write_text(json.dumps({"weight_map": {"a": files[0].name, "b": files[1].name}}))
    assert read_facts(folder).parameters == 2 * 40


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    folder = safetensors_model(tmp_path / "Tiny")
    write_shards(folder, 3)[1].unlink()
    with pytest.raises(LoadFailed, match="incomplete: it lacks model-00002-of-00003"):
        read_facts(folder)
    (folder / INDEX).write_text(json.dumps({"weight_map": {"a": "other.safetensors"}}))
    with pytest.raises(LoadFailed, match=r"lacks other\.safetensors"):
        read_facts(folder)


@pytest.mark.parametrize(
    "name", ["../out.safetensors", "/etc/passwd", "sub/a.safetensors", "a\0.safetensors", "weights.bin", ""]
)
def test_an_index_leads_nowhere_else(tmp_path: Path, name: str) -> None:
    (tmp_path / "out.safetensors").write_bytes(safetensors())
    folder = safetensors_model(tmp_path / "Tiny")
    (folder / INDEX).write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(LoadFailed, match=r"expected \.safetensors files beside it"):
        read_facts(folder)


def test_the_repository_names_a_snapshot_of_a_hub_s_cache(tmp_path: Path) -> None:
    folder = safetensors_model(tmp_path / "models--org--Tiny-1B" / "snapshots" / ("a" * 40))
    assert read_facts(folder).name == "Tiny-1B"


CONFIGS = {
    "sight": (
        {
            "text_config": CONFIG,
            "vision_config": {"depth": 2},
            "architectures": ["AForConditionalGeneration"],
        },
        ("vision", "completion"),
    ),
    "an encoder": ({"model_type": "bert", "architectures": ["BertModel"]}, ("embeddings",)),
    "a classifier": ({"architectures": ["LlamaForSequenceClassification"]}, ()),
    "the oldest names": ({"architectures": ["GPT2LMHeadModel"]}, ("completion",)),
}


@pytest.mark.parametrize(("changes", "expected"), CONFIGS.values(), ids=CONFIGS)
def test_a_config_gives_away_what_its_model_can_do(
    tmp_path: Path, changes: dict[str, object], expected: tuple[str, ...]
) -> None:
    assert read_facts(safetensors_model(tmp_path / "a", config=CONFIG | changes)).capabilities == expected


def test_a_model_that_sees_keeps_its_numbers_one_level_down(tmp_path: Path) -> None:
    config = {"model_type": "seer", "text_config": CONFIG | {"max_position_embeddings": 99}}
    facts = read_facts(safetensors_model(tmp_path / "a", config=config))
    assert (facts.architecture, facts.context_length, facts.block_count) == ("seer", 99, 2)


def test_numbers_that_a_family_takes_for_granted_may_be_left_out(tmp_path: Path) -> None:
    facts = read_facts(safetensors_model(tmp_path / "a", config={"model_type": "gemma3_text"}))
    assert (facts.context_length, facts.block_count, facts.kv_values_per_token) == (0, 0, 0)


def test_what_python_writes_for_infinity_is_no_damage(tmp_path: Path) -> None:
    folder = safetensors_model(tmp_path / "a", config=CONFIG | {"limit": [0.0, float("inf"), float("nan")]})
    assert "Infinity" in (folder / "config.json").read_text()
    assert read_facts(folder).architecture == "llama"


def test_templates_come_from_a_file_of_their_own_or_by_name(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    folder = safetensors_model(tmp_path / "a", tokenizer_config={"chat_template": named, "bos_token": None})
    assert read_facts(folder).chat_template == "D"
    (folder / "chat_template.jinja").write_text("J")
    assert read_facts(folder).chat_template == "J"


def test_a_quantised_model_says_by_which_method(tmp_path: Path) -> None:
    config = CONFIG | {"quantization_config": {"quant_method": "gptq", "bits": 4}}
    assert read_facts(safetensors_model(tmp_path / "a", config=config)).quantisation == "GPTQ"


def header(**tensor: object) -> bytes:
    entry = {"dtype": "F32", "shape": [8], "data_offsets": [0, 32]} | tensor
    return safetensors_of(json.dumps({"a": entry}).encode(), 32)


BROKEN = {
    "nothing": b"",
    "half a length": bytes(4),
    "a header beyond the file": (2**63).to_bytes(8, "little") + b"{}",
    "another kind of file": b"PK\x03\x04 and so on, a zip file",
    "no tensors": safetensors_of(b'{"__metadata__":{}}'),
    "no braces": safetensors_of(b'["a"]'),
    "braces without end": safetensors_of(b'{"a":' * 50_000),
    "an unknown type": header(dtype="F33"),
    "a type that is none": header(dtype=7),
    "a shape that is none": header(shape="8"),
    "a negative length": header(shape=[-8]),
    "a length beyond measure": header(shape=[2**70]),
    "lengths that multiply": header(shape=[2**62, 2**62, 2**62]),
    "too many dimensions": header(shape=[1] * 17),
    "offsets backwards": header(data_offsets=[32, 0]),
    "offsets too small": header(data_offsets=[0, 31]),
    "a hole": header(data_offsets=[8, 40]),
    "one offset": header(data_offsets=[0]),
    "weights cut off": safetensors()[:-1],
    "weights too many": safetensors() + b"x",
    "digits without end": safetensors_of(b'{"a":{"dtype":"F32","shape":[' + b"9" * 5000 + b"]}}"),
    "text that is none": safetensors_of(b'{"\xff\xfe":{}}'),
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_refused_with_a_reason(tmp_path: Path, content: bytes) -> None:
    folder = safetensors_model(tmp_path / "a")
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(LoadFailed, match=r"model\.safetensors") as raised:
        read_facts(folder)
    assert str(folder) in raised.value.message
    assert raised.value.hint


@pytest.mark.parametrize("name", ["config", "tokenizer_config", "generation_config"])
@pytest.mark.parametrize(
    "content", ["", "[]", "{", '{"a":' * 20_000, '{"model_type": 7, "bos_token": 7, "top_p": 7}']
)
def test_a_broken_config_is_refused_by_its_name(tmp_path: Path, name: str, content: str) -> None:
    folder = safetensors_model(tmp_path / "a")
    (folder / f"{name}.json").write_text(content)
    with pytest.raises(LoadFailed, match=rf"{name}\.json"):
        read_facts(folder)


def test_what_is_missing_is_told_apart(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        read_facts(tmp_path / "missing")
    with pytest.raises(LoadFailed, match="holds no"):
        read_facts(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(safetensors())
    with pytest.raises(LoadFailed, match=r"no config\.json"):
        read_facts(tmp_path)


def test_nothing_is_read_that_only_claims_to_be_worth_it(tmp_path: Path) -> None:
    folder = safetensors_model(tmp_path / "a")
    huge = folder / "model.safetensors"
    for file, head in (
        (huge, (1 << 30).to_bytes(8, "little")),
        (huge, safetensors_of(b"{" + b'"a":{},' * 1_000_000)),
        (folder / "config.json", b"{"),
        (folder / INDEX, b"{"),
    ):
        with file.open("wb") as sparse:
            sparse.write(head)
            sparse.truncate(2 << 30)
        with measured_memory() as peak_bytes:
            with pytest.raises(LoadFailed):
                read_facts(folder)
            assert peak_bytes() < 16 << 20


@pytest.fixture
def quick_folder(tmp_path: Path) -> Iterator[Path]:
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as folder:
        yield safetensors_model(
            Path(folder) / "a",
            tokenizer_config={"chat_template": "{{ messages }}", "bos_token": {"content": "<s>"}},
            generation_config={"temperature": 0.5, "top_k": 20},
        )


def test_two_thousand_mutants_are_read_or_refused(quick_folder: Path) -> None:
    weights = quick_folder / "model.safetensors"
    more = TENSORS | {"scales": ("F8_E4M3", [2, 3, 4], 24), "ids": ("I64", [0], 0)}
    read_all(weights, mutants(safetensors(more), 1500), lambda: read_facts(quick_folder))
    weights.write_bytes(safetensors(more))
    whole = {"weight_map": {"embed": "model.safetensors", "norm": "model.safetensors"}}
    (quick_folder / INDEX).write_text(json.dumps(whole))
    (quick_folder / "special_tokens_map.json").write_text('{"eos_token": {"content": "</s>"}}')
    (quick_folder / "config.json").write_text(
        json.dumps(
            CONFIG | {"rope_scaling": {"type": "yarn", "factor": 4.0}, "layer_types": ["attention"] * 2}
        )
    )
    names = (
        "config",
        "tokenizer_config",
        "generation_config",
        "special_tokens_map",
        INDEX.removesuffix(".json"),
    )
    for name in names:
        file = quick_folder / f"{name}.json"
        good = file.read_bytes()
        read_all(file, mutants(good, 200), lambda: read_facts(quick_folder))
        file.write_bytes(good)
    assert read_facts(quick_folder).parameters == 40 + 24
