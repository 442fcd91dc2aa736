"""What a node is put together of, as far as requests can reach it."""

import sys
from pathlib import Path

import pytest
from small_models import tiny_gguf

from ganglion.cli.compose import auto_loads, compose
from ganglion.config import load
from ganglion.core.engine import LoadOptions
from ganglion.core.errors import InvalidValue, ModelNotFound
from ganglion.core.events import Failed
from ganglion.core.request import Request, TextPrompt
from support.configured import configured
from support.hostile_names import hostile_names


class Opened:
    """Every path that this process opens, while `is_on`; audit hooks stay for the life of a process."""

    def __init__(self) -> None:
        self.is_on = False
        self.paths: list[str] = []
        sys.addaudithook(self._note)

    def _note(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.is_on and event in ("open", "os.scandir", "os.listdir"):
            self.paths += [str(path) for path in arguments[:1] if isinstance(path, str | Path)]


async def test_no_name_of_a_request_opens_a_file_outside_the_stores(tmp_path, monkeypatch) -> None:
    home, outside = tmp_path / "home", tmp_path / "outside"
    (home / "models").mkdir(parents=True)
    outside.mkdir()
    (outside / "secret.gguf").write_bytes(b"GGUF")
    (home / "models" / "out.gguf").symlink_to(outside / "secret.gguf")
    monkeypatch.setenv("GANGLION_HOME", str(home))
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("OLLAMA_MODELS", str(home / "ollama"))
    engine = compose(configured({"engine.name": "echo", "hub.download": False}), [], []).engine
    opened = Opened()
    embedded = ("smollm2", "llama")
    names = [name for name in hostile_names(10_000) if not any(own in name.casefold() for own in embedded)]
    names += ["../outside/secret", str(outside / "secret.gguf"), "out", "out.gguf"]
    opened.is_on = True
    for name in names:
        events = [event async for event in engine.generate(Request("1", name, TextPrompt("hi")))]
        assert isinstance(events[-1], Failed)
        assert isinstance(events[-1].error, ModelNotFound), name
        with pytest.raises(ModelNotFound):
            await anext(engine.load(name, LoadOptions()))
    opened.is_on = False
    await engine.close()
    assert opened.paths, "the stores were looked at"
    assert [path for path in opened.paths if not path.startswith(str(home))] == []


def test_a_linked_file_is_served_under_the_name_of_its_link(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("GANGLION_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HOME", str(tmp_path))
    files = tmp_path / "files"
    files.mkdir()
    (files / "qwen.gguf").write_bytes(tiny_gguf())
    link = files / "my-chat.gguf"
    link.symlink_to("qwen.gguf")

    def names(*models: str, served: tuple[str, ...] = ()) -> list[tuple[str, tuple[str, ...]]]:
        engine = compose(load(None, {}, {}), models, served).engine
        return [(model.id, model.aliases) for model in engine.models()]

    assert names(str(link)) == [("my-chat", ("qwen",))], "and its own name answers too"
    assert names(str(files / "qwen.gguf")) == [("qwen", ())]
    assert names(str(link), served=("assistant",)) == [("assistant", ("qwen",))]
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "models.yaml").write_text(f"notes: {link}\n")
    assert names(str(link)) == [("notes", ())], "what models.yaml calls it comes first"


def test_a_node_that_joins_a_gateway_loads_nothing_by_itself_unless_told_to() -> None:
    joined = {"join.urls": ["http://gateway.lan:8000"]}
    assert auto_loads(load(None, {}, {}))
    assert not auto_loads(configured(joined))
    assert auto_loads(configured(joined | {"residency.auto_load": True}))
    assert not auto_loads(configured({"residency.auto_load": False}))


@pytest.mark.model
@pytest.mark.parametrize(
    ("ours", "asked", "expected"), [(None, None, 8192), (1024, None, 1024), (1024, 512, 512)]
)
async def test_a_models_context_is_told_alike_before_while_and_after_it_loads(
    tmp_path, monkeypatch, ours: int | None, asked: int | None, expected: int
) -> None:
    monkeypatch.setenv("GANGLION_HOME", str(tmp_path))
    settings = {"hub.download": False} | ({} if ours is None else {"engine.context": ours})
    engine = compose(configured(settings), [], []).engine
    (before,) = engine.models()
    assert before.context_length == (ours or expected)
    seen: set[tuple[str, int]] = set()
    loading = engine.load(before.id, LoadOptions(context_length=asked))
    async for _ in loading:
        (state,) = engine.models()
        seen.add((state.status, state.context_length))
    (state,) = engine.models()
    await engine.close()
    assert (state.status, state.context_length) == ("loaded", expected)
    # A length that only this load asks for is known once its engine is planned.
    assert {length for _, length in seen} <= {expected, ours or expected}


def test_an_engine_that_does_not_exist_is_refused_with_those_that_do(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("GANGLION_HOME", str(tmp_path))
    (tmp_path / "models.yaml").write_text("models:\n  fast: {hub: org/repo, engine: lama}\n")
    with pytest.raises(InvalidValue, match=r"fast\.engine") as raised:
        compose(configured({"hub.offline": True}), [], [])
    assert raised.value.hint == "There are: llama, vllm."
