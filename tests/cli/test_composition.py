"""What a node is put together of, as far as requests can reach it."""

import sys
from pathlib import Path

import pytest

from ganglion.cli.compose import auto_loads, compose
from ganglion.config import load
from ganglion.core.engine import LoadOptions
from ganglion.core.errors import ModelNotFound
from ganglion.core.events import Failed
from ganglion.core.request import Request, TextPrompt

sys.path.append(str(Path(__file__).parent.parent / "registry"))
from hostile import hostile_names


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
    engine = compose(load(None, {}, {"engine.name": "echo", "hub.download": False}), [], []).engine
    opened = Opened()
    names = [name for name in hostile_names(10_000) if "smollm2" not in name.casefold()]
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


def test_a_node_that_joins_a_gateway_loads_nothing_by_itself_unless_told_to() -> None:
    joined = {"join.urls": ["http://gateway.lan:8000"]}
    assert auto_loads(load(None, {}, {}))
    assert not auto_loads(load(None, {}, joined))
    assert auto_loads(load(None, {}, joined | {"residency.auto_load": True}))
    assert not auto_loads(load(None, {}, {"residency.auto_load": False}))
