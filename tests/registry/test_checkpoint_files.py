"""What belongs to a checkpoint and what does not, and the numbers that its config.json gives away."""

from pathlib import Path

import pytest

from ganglion.core.errors import LoadFailed
from ganglion.registry.files.checkpoint_files import checkpoint_of
from ganglion.registry.files.model_files import files_of, format_of
from ganglion.registry.files.safetensors import code_of, read_facts, refuse_code
from support.model_files import CONFIG, safetensors, safetensors_model

WHOLE = ("config.json", "model.safetensors")
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
INDEX = "model.safetensors.index.json"

REPOSITORIES = {
    "one file": (WHOLE, ("config.json",), ("model.safetensors",), None),
    "shards": (("config.json", INDEX, *SHARDS), ("config.json", INDEX), SHARDS, None),
    "a missing shard": (("config.json", INDEX, SHARDS[0]), ("config.json", INDEX), SHARDS[:1], SHARDS[1]),
    "an index alone": (("config.json", INDEX), ("config.json", INDEX), (), "model.safetensors"),
    "an index beside both": (
        (*WHOLE, INDEX, *SHARDS),
        ("config.json", INDEX),
        SHARDS,
        None,
    ),
    "other formats": (
        (
            *WHOLE,
            "pytorch_model.bin",
            "original/model.safetensors",
            "onnx/model.onnx",
            "tf_model.h5",
            "a.gguf",
        ),
        ("config.json",),
        ("model.safetensors",),
        None,
    ),
    "the same weights twice": (
        ("config.json", "consolidated.safetensors", *SHARDS),
        ("config.json",),
        SHARDS,
        None,
    ),
    "names of its own": (
        ("config.json", INDEX, "layers-1.safetensors", "layers-2.safetensors"),
        ("config.json", INDEX),
        ("layers-1.safetensors", "layers-2.safetensors"),
        None,
    ),
    "an embedding model": (
        (*WHOLE, "modules.json", "1_Pooling/config.json", "2_Dense/model.safetensors", "vocab.txt"),
        ("config.json", "1_Pooling/config.json", "2_Dense/model.safetensors", "modules.json", "vocab.txt"),
        ("model.safetensors",),
        None,
    ),
}


@pytest.mark.parametrize(("paths", "beside", "weights", "missing"), REPOSITORIES.values(), ids=REPOSITORIES)
def test_of_a_repository_the_checkpoint_is_taken_and_nothing_else(
    paths: tuple[str, ...], beside: tuple[str, ...], weights: tuple[str, ...], missing: str | None
) -> None:
    found = checkpoint_of((*paths, "README.md", ".gitattributes", "modeling_a.py", "training_args.bin"))
    assert found is not None
    assert (found.beside, found.weights, found.missing) == (beside, weights, missing)
    assert found.code == ("modeling_a.py",), "told apart, and no part of it"


@pytest.mark.parametrize(
    "paths",
    [
        (),
        ("config.json",),
        ("config.json", "pytorch_model.bin"),
        ("model.safetensors",),
        ("adapter_config.json", "adapter_model.safetensors"),
        ("unet/config.json", "unet/model.safetensors", "model_index.json"),
        ("Config.json", "../config.json", "a/config.json", "model.safetensors"),
    ],
)
def test_what_lacks_a_config_or_weights_is_none(paths: tuple[str, ...]) -> None:
    assert checkpoint_of(paths) is None


def facts_of(folder: Path, **changes: object):
    config = {key: value for key, value in {**CONFIG, **changes}.items() if value is not None}
    return read_facts(safetensors_model(folder, config=config))


LENGTHS = {
    "plain": ({}, 2048),
    "linear": ({"rope_scaling": {"type": "linear", "factor": 4.0}}, 8192),
    "dynamic": ({"rope_scaling": {"rope_type": "dynamic", "factor": 2}}, 4096),
    "yarn that names the trained length": (
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}},
        4096,
    ),
    "yarn that names the longer one as well": (
        {"rope_scaling": {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 1024}},
        2048,
    ),
    "llama3 is written out": ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 2048),
    "longrope is written out": ({"rope_scaling": {"type": "longrope", "short_factor": [1.0]}}, 2048),
    "a family that is written out": (
        {"model_type": "gemma3_text", "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
        2048,
    ),
    "newer files": ({"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}, 4096),
    "one for each kind of layer": (
        {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 2.0}}},
        2048,
    ),
    "another name": ({"max_position_embeddings": None, "seq_length": 77}, 77),
}


@pytest.mark.parametrize(("changes", "expected"), LENGTHS.values(), ids=LENGTHS)
def test_the_context_is_what_the_positions_reach(
    tmp_path: Path, changes: dict[str, object], expected: int
) -> None:
    assert facts_of(tmp_path / "a", **changes).context_length == expected


KV = {
    "grouped": ({}, 2 * 2 * 8 * 2),
    "a head of its own width": ({"head_dim": 128}, 2 * 2 * 128 * 2),
    "no groups": ({"num_key_value_heads": None}, 2 * 8 * 8 * 2),
    "one for all": ({"num_key_value_heads": None, "multi_query": True}, 2 * 1 * 8 * 2),
    "latent": ({"kv_lora_rank": 512, "qk_rope_head_dim": 64}, 2 * (512 + 64)),
    "layers without a cache": ({"layer_types": ["linear_attention", "full_attention"]}, 1 * 2 * 8 * 2),
    "layers with a window": ({"layer_types": ["sliding_attention", "full_attention"]}, 2 * 2 * 8 * 2),
}


@pytest.mark.parametrize(("changes", "expected"), KV.values(), ids=KV)
def test_a_token_takes_what_its_kind_of_attention_keeps(
    tmp_path: Path, changes: dict[str, object], expected: int
) -> None:
    assert facts_of(tmp_path / "a", **changes).kv_values_per_token == expected


QUANTISED = {
    "fp8": ({"quant_method": "fp8"}, "FP8"),
    "awq": ({"quant_method": "awq", "bits": 4}, "AWQ"),
    "modelopt": ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "NVFP4"),
    "a container": ({"quant_method": "compressed-tensors", "format": "float-quantized"}, "FP8"),
    "nothing": ({}, "BF16"),
}


@pytest.mark.parametrize(("written", "expected"), QUANTISED.values(), ids=QUANTISED)
def test_a_quantisation_is_called_what_people_call_it(
    tmp_path: Path, written: dict[str, object], expected: str
) -> None:
    assert facts_of(tmp_path / "a", quantization_config=written).quantisation == expected


def test_weights_that_only_one_program_reads_are_refused(tmp_path: Path) -> None:
    with pytest.raises(LoadFailed, match="quantised for MLX"):
        facts_of(tmp_path / "a", quantization={"group_size": 64, "bits": 4})


def test_a_reranker_and_an_embedding_model_say_how_they_pool(tmp_path: Path) -> None:
    ranker = facts_of(
        tmp_path / "a",
        model_type="xlm-roberta",
        architectures=["XLMRobertaForSequenceClassification"],
        id2label={"0": "LABEL_0"},
    )
    assert (ranker.pooling, ranker.capabilities) == ("rank", ("embeddings",))
    folder = safetensors_model(tmp_path / "b", modules=[{"type": "Pooling"}])
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_lasttoken": true}')
    assert (read_facts(folder).pooling, read_facts(folder).capabilities) == (
        "last",
        ("embeddings", "completion"),
    )


def test_a_module_that_is_a_link_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    folder = safetensors_model(tmp_path / "a", modules=[])
    (folder / "1_Pooling").symlink_to(tmp_path / "out")
    assert read_facts(folder).pooling is None
    assert folder / "1_Pooling/config.json" not in files_of(folder)


def test_templates_and_special_tokens_may_stand_beside_the_tokenizers_config(tmp_path: Path) -> None:
    folder = safetensors_model(
        tmp_path / "a",
        chat_template={"chat_template": "P"},
        special_tokens_map={"bos_token": {"content": "<b>"}, "eos_token": "<e>"},
    )
    facts = read_facts(folder)
    assert (facts.chat_template, facts.bos_token, facts.eos_token) == ("P", "<b>", "<e>")


def test_code_is_named_and_refused_unless_it_is_trusted(tmp_path: Path) -> None:
    folder = safetensors_model(
        tmp_path / "a",
        config=CONFIG | {"auto_map": {"AutoModelForCausalLM": "modeling_a.AForCausalLM"}},
        tokenizer_config={"auto_map": {"AutoTokenizer": ["tokenization_a.ATokenizer", None]}},
    )
    assert code_of(folder) == ("modeling_a.AForCausalLM", "tokenization_a.ATokenizer")
    with pytest.raises(LoadFailed, match=r"modeling_a\.AForCausalLM") as raised:
        refuse_code("org/a", code_of(folder))
    assert "trust_remote_code" in (raised.value.hint or "")
    (folder / "tokenizer_config.json").write_text("{")
    with pytest.raises(LoadFailed, match=r"tokenizer_config\.json"):
        code_of(folder)


REFUSED = {
    "no checkpoint at all": ({"notes.txt": b""}, "holds no model"),
    "weights as pickle": ({"config.json": b"{}", "pytorch_model.bin": b""}, r"pickle \(pytorch_model\.bin\)"),
    "GGUF files": ({"a-Q8_0.gguf": b""}, "expected a GGUF file"),
    "a config alone": ({"config.json": b"{}"}, "incomplete"),
    "weights alone": ({"model.safetensors": safetensors()}, r"no config\.json"),
    "an index that names nothing": ({"config.json": b"{}", INDEX: b'{"weight_map": {}}'}, "names 0 files"),
}


@pytest.mark.parametrize(("files", "reason"), REFUSED.values(), ids=REFUSED)
def test_a_folder_that_is_no_checkpoint_says_why_not(
    tmp_path: Path, files: dict[str, bytes], reason: str
) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    assert format_of(folder) == "safetensors"
    with pytest.raises(LoadFailed, match=reason) as raised:
        read_facts(folder)
    assert raised.value.hint
