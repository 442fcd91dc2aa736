"""How a node lays models over devices: by which engine, on which ones, and what it refuses at once."""

import json
from pathlib import Path

import pytest
from msgspec import structs
from small_models import tiny_gguf

from ganglion.cli.compose import compose
from ganglion.cli.model_layout import check_layout, lay_out, planned_layout
from ganglion.core.device_layout import DeviceLayout
from ganglion.core.errors import InsufficientVideoMemory, InvalidValue, UnsupportedParameter
from ganglion.core.machine import DeviceReading
from ganglion.engines.settings import EngineSettings
from ganglion.engines.table import ENGINES, engines_that_honour
from ganglion.engines.vllm_settings import VllmSettings
from support.configured import configured
from support.served import serving

CARDS = tuple(DeviceReading(index, "H200", 1000, 140_000 - 1000 * index) for index in range(4))


def vllm(**fields: object) -> EngineSettings:
    return EngineSettings(name="vllm", vllm=VllmSettings(**fields))  # type: ignore[arg-type]


def laid(settings: EngineSettings, asked: DeviceLayout, weights_bytes: int = 0) -> VllmSettings:
    return lay_out(settings, settings.name, asked, lambda: CARDS, weights_bytes=weights_bytes).vllm


def test_the_table_says_who_honours_what_and_a_field_of_the_settings_takes_it() -> None:
    for name, kind in ENGINES.items():
        section = (
            structs.fields(type(getattr(EngineSettings(), kind.layout_section)))
            if kind.layout_section
            else ()
        )
        assert set(kind.layout) <= {field.name for field in section}, name
    assert engines_that_honour("tensor_parallel") == ("vllm",)


def test_a_load_wins_over_the_entry_and_that_over_the_configuration() -> None:
    settings = vllm(tensor_parallel=2, executor="mp")
    assert planned_layout(settings, "vllm", DeviceLayout(pipeline_parallel=2)).ranks == 4
    found = laid(settings, DeviceLayout(tensor_parallel=1).over(DeviceLayout(4, devices=("3",))))
    assert (found.tensor_parallel, found.devices) == (1, ("3",))
    assert laid(settings, DeviceLayout()).devices == ("0", "1")


def test_the_configuration_names_devices_to_choose_from_and_a_load_the_ones_to_use() -> None:
    settings = vllm(devices=("cuda:1", "cuda:3"))
    assert laid(settings, DeviceLayout()).devices == ("1",)
    assert laid(settings, DeviceLayout(devices=("3",))).devices == ("3",)
    with pytest.raises(InvalidValue, match="no device 0 here"):
        laid(settings, DeviceLayout(devices=("0",)))


def test_what_does_not_fit_is_said_before_anything_is_started() -> None:
    with pytest.raises(InsufficientVideoMemory) as raised:
        laid(vllm(gpu_memory_share=0.5), DeviceLayout(), weights_bytes=200_000 * 2**20)
    assert (raised.value.free_mb, raised.value.required_mb) == (140_000, 200_000)
    assert laid(vllm(gpu_memory_share=0.5), DeviceLayout(2), weights_bytes=200_000 * 2**20).devices == (
        "0",
        "1",
    )


def test_with_ray_no_device_of_this_machine_is_chosen() -> None:
    found = laid(vllm(), DeviceLayout(8, 2, executor="ray"), weights_bytes=2**45)
    assert (found.tensor_parallel, found.pipeline_parallel, found.executor, found.devices) == (
        8,
        2,
        "ray",
        (),
    )
    check_layout(vllm(), "vllm", DeviceLayout(8, executor="ray"), lambda: ())


@pytest.mark.parametrize("engine", ["llama", "echo"])
@pytest.mark.parametrize(
    "asked",
    [DeviceLayout(2), DeviceLayout(None, 2), DeviceLayout(data_parallel=2), DeviceLayout(devices=("0",))],
)
def test_an_engine_that_does_not_honour_it_refuses_it_by_name(engine, asked: DeviceLayout) -> None:
    settings = EngineSettings(name=engine)
    with pytest.raises(UnsupportedParameter) as raised:
        lay_out(settings, engine, asked, lambda: CARDS, weights_bytes=0)
    assert raised.value.param == asked.demands[0]
    assert repr(engine) in raised.value.message
    assert raised.value.hint == "These do: vllm."
    assert (
        lay_out(settings, engine, DeviceLayout(1, 1, 1, None, "mp"), lambda: CARDS, weights_bytes=0)
        == settings
    )


def written(home: Path, manifest: str) -> None:
    (home / "models").mkdir()
    (home / "models" / "tiny.gguf").write_bytes(tiny_gguf())
    (home / "models.yaml").write_text(manifest)


@pytest.mark.parametrize(
    ("manifest", "param"),
    [
        ("wide: {path: models/tiny.gguf, tensor_parallel: 2}", "wide.tensor_parallel"),
        ("wide: {path: models/tiny.gguf, devices: [0, 1]}", "wide.devices"),
        ("wide: {hub: org/repo, engine: llama, executor: ray}", "wide.executor"),
    ],
)
def test_a_node_does_not_start_with_an_entry_that_its_engine_would_ignore(
    tmp_path, monkeypatch, manifest: str, param: str
) -> None:
    monkeypatch.setenv("GANGLION_HOME", str(tmp_path))
    written(tmp_path, manifest)
    with pytest.raises(UnsupportedParameter) as raised:
        compose(configured({"hub.offline": True}), [], [])
    assert raised.value.param == param


def test_an_entry_says_how_it_is_laid_out_and_which_engine_may_not_be_here_yet(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("GANGLION_HOME", str(tmp_path))
    monkeypatch.delenv("GANGLION_VLLM_PYTHON", raising=False)
    folder = tmp_path / "models" / "checkpoint"
    written(tmp_path, "wide: {path: models/checkpoint, tensor_parallel: 2, devices: [0, 'cuda:1']}")
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    compose(configured({"hub.offline": True}), [], [])


async def test_a_load_is_refused_before_it_begins_by_a_node_that_runs_llama(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("GANGLION_HOME", str(tmp_path))
    written(tmp_path, "plain: {path: models/tiny.gguf}")
    engine = compose(configured({"hub.offline": True}), ["plain"], []).engine
    async with serving(engine) as served:
        fields = {
            "tensor_parallel": 2,
            "pipeline_parallel": 2,
            "data_parallel": 3,
            "devices": [0],
            "executor": "ray",
        }
        for name, value in fields.items():
            answer = await served.http.post("/models/load", json={"model_id": "plain", name: value})
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (400, "unsupported_parameter"), name
            assert error["param"] == name
            assert "'llama'" in error["message"]
