"""Which files of a repository a name means."""

import pytest

from ganglion.core.errors import ModelNotFound
from ganglion.registry.files.quantisation import PREFERRED, choose, quant_of, variants


@pytest.mark.parametrize(
    ("path", "quant"),
    [
        ("Llama-3.2-1B-Instruct-Q4_K_M.gguf", "Q4_K_M"),
        ("smollm2-135m-instruct.q4_k_m.gguf", "Q4_K_M"),
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "Q4_1"),
        ("qwen2.5-0.5b-instruct-fp16.gguf", "F16"),
        ("gemma-3-270m-it-BF16.gguf", "BF16"),
        ("Qwen3-30B-A3B-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("Qwen3-8B-IQ4_XS.gguf", "IQ4_XS"),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
        ("gpt-oss-20b-MXFP4_MOE.gguf", "MXFP4"),
        ("BitNet-b1.58-TQ2_0.gguf", "TQ2_0"),
        ("Q8_0/model-00001-of-00003.gguf", "Q8_0"),
        ("Q8_0/model-Q6_K-00001-of-00003.gguf", "Q6_K"),
        ("phi-4.gguf", ""),
        ("Q9000.gguf", ""),
    ],
)
def test_the_quantisation_is_read_from_the_name(path: str, quant: str) -> None:
    assert quant_of(path) == quant


def test_without_a_wish_the_documented_order_decides() -> None:
    everything = [f"m-{quant}.gguf" for quant in ("F16", "BF16", "F32", *PREFERRED)]
    there = variants(everything)
    assert [model.quant for model in there[:4]] == ["Q4_K_M", "Q4_0", "Q5_K_M", "Q8_0"]
    assert [model.quant for model in there] == [*PREFERRED, "BF16", "F16", "F32"]
    assert choose("org/repo", None, variants(["m-F16.gguf", "m-Q2_K.gguf"])).quant == "Q2_K"
    assert choose("org/repo", None, variants(["m-F16.gguf", "m-Q4_0_4_4.gguf"])).quant == "Q4_0_4_4"


def test_a_quantisation_is_asked_for_in_any_case_and_also_by_file() -> None:
    there = variants(["m-Q4_K_M.gguf", "m-Q8_0.gguf", "m-UD-Q4_K_XL.gguf", "m-F16.gguf"])
    assert choose("org/repo", "q8_0", there).paths == ("m-Q8_0.gguf",)
    assert choose("org/repo", "Q4_K_XL", there).quant == "UD-Q4_K_XL"
    assert choose("org/repo", "fp16", there).quant == "F16"
    assert choose("org/repo", "M-q8_0.gguf", there).quant == "Q8_0"
    assert choose("org/repo", "m-q8_0", there).quant == "Q8_0"


def test_what_does_not_exist_is_answered_with_what_does() -> None:
    with pytest.raises(ModelNotFound, match="org/repo:Q3_K_M") as raised:
        choose("org/repo", "Q3_K_M", variants(["m-F16.gguf", "m-Q8_0.gguf", "m-Q4_K_M.gguf", "plain.gguf"]))
    assert raised.value.hint == "The repository has Q4_K_M, Q8_0, plain, F16."
    with pytest.raises(ModelNotFound) as raised:
        choose("org/repo", None, variants(["model.safetensors", "README.md"]))
    assert "no GGUF" in (raised.value.hint or "")


def test_parts_stay_together_and_a_model_with_a_part_missing_is_none() -> None:
    whole = [f"big-Q4_K_M-0000{part}-of-00003.gguf" for part in (3, 1, 2)]
    there = variants([*whole, "big-Q8_0-00001-of-00002.gguf"])
    assert [model.paths for model in there] == [tuple(sorted(whole))]
    assert choose("org/repo", "big-q4_k_m", there).paths == tuple(sorted(whole))
    assert choose("org/repo", "big-Q4_K_M-00002-of-00003.gguf", there).paths == tuple(sorted(whole))


def test_a_projector_or_an_importance_matrix_is_never_the_model() -> None:
    beside = ["mmproj-model-f16.gguf", "MMPROJ-Q8_0.gguf", "m-mmproj-Q4_K_M.gguf", "m.imatrix.gguf"]
    assert variants(beside) == []
    assert choose("org/repo", None, variants([*beside, "m-F32.gguf"])).paths == ("m-F32.gguf",)


def test_of_two_models_of_one_quantisation_the_plainer_name_is_taken() -> None:
    there = variants(["sub/m-Q4_K_M.gguf", "m-long-Q4_K_M.gguf", "m-Q4_K_M.gguf", "m-UD-Q4_K_M.gguf"])
    assert there[0].paths == ("m-Q4_K_M.gguf",)
    assert there[-1].quant == "UD-Q4_K_M"
