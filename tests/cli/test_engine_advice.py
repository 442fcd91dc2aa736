"""Which engine doctor recommends, on machines that are not here."""

from dataclasses import replace

from ganglion.cli.system.engine_advice import EngineSituation, advise

NOTHING = EngineSituation(
    has_nvidia=False,
    has_amd=False,
    has_rocm=False,
    is_apple=False,
    llama_offloads=False,
    vllm_version=None,
    vllm_has_cuda=False,
)
NVIDIA = replace(NOTHING, has_nvidia=True)


def test_without_a_gpu_the_bundled_library_is_best_and_nothing_is_to_do() -> None:
    here = advise(NOTHING)
    assert "bundled llama.cpp" in here.best
    assert here.to_do is None
    assert "slowly" in advise(replace(NOTHING, vllm_version="0.32.0")).best


def test_an_nvidia_gpu_wants_vllm_for_checkpoints_and_a_build_for_gguf() -> None:
    both = advise(NVIDIA).to_do
    assert both is not None
    assert "engines install vllm --cuda" in both
    assert "engines build llama --cuda" in both
    has_vllm = replace(NVIDIA, vllm_version="0.32.0", vllm_has_cuda=True)
    assert advise(has_vllm).to_do == "ganglion engines build llama --cuda"
    assert advise(replace(NVIDIA, llama_offloads=True)).to_do == "ganglion engines install vllm --cuda"
    assert advise(replace(has_vllm, llama_offloads=True)).to_do is None


def test_vllm_for_processors_is_no_engine_for_a_gpu() -> None:
    here = advise(replace(NVIDIA, vllm_version="0.32.0", llama_offloads=True))
    assert here.to_do == "ganglion engines install vllm --cuda"


def test_other_gpus_want_the_build_that_drives_them() -> None:
    for here, flag in (
        (replace(NOTHING, is_apple=True), "--metal"),
        (replace(NOTHING, has_amd=True), "--vulkan"),
        (replace(NOTHING, has_amd=True, has_rocm=True), "--hip"),
    ):
        assert advise(here).to_do == f"ganglion engines build llama {flag}"
        assert advise(replace(here, llama_offloads=True)).to_do is None
