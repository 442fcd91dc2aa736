"""The models of a node inside another application, as its author opens and mounts them."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from ganglion import build_app, open_engine
from ganglion.core.errors import GanglionError

HELLO = [{"role": "user", "content": "Hello"}]


def application(*models: str, **settings: object) -> Starlette:
    """Somebody's own, with our wires under /llm for as long as it runs."""

    @asynccontextmanager
    async def lifespan(app: Starlette):
        async with open_engine(*models, settings=settings) as engine:
            app.mount("/llm", build_app(engine))
            yield

    return Starlette(routes=[Route("/", lambda _: PlainTextResponse("home"))], lifespan=lifespan)


@contextmanager
def running(app: Starlette) -> Iterator[httpx.Client]:
    """The application as uvicorn serves it."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive()
                time.sleep(0.01)
            with httpx.Client(base_url=f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=60) as http:
                yield http
        finally:
            server.should_exit = True
            thread.join(20)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GANGLION_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path


def test_several_models_are_mounted_and_found_by_name(home: Path) -> None:
    with running(application("parrot", "magpie", **{"engine.name": "echo"})) as http:
        assert http.get("/").text == "home"
        assert [each["id"] for each in http.get("/llm/v1/models").json()["data"]] == ["parrot", "magpie"]
        said = http.post("/llm/v1/chat/completions", json={"model": "magpie", "messages": HELLO})
        assert said.json()["choices"][0]["message"]["content"] == "Hello"
        unknown = http.post("/llm/v1/chat/completions", json={"model": "owl", "messages": HELLO})
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.model
def test_the_embedded_model_answers_under_a_name_of_models_yaml(home: Path) -> None:
    (home / "models.yaml").write_text("smollm2-135m-instruct: {aliases: [tiny]}\n")
    (home / "config.toml").write_text("[engine]\ncontext = 512\nkv_tokens = 1024\n")
    with running(application()) as http:
        for model in ("tiny", "smollm2", "llama"):
            body = {"model": model, "messages": HELLO, "max_tokens": 3}
            said = http.post("/llm/v1/chat/completions", json=body)
            assert (said.status_code, said.json()["usage"]["completion_tokens"]) == (200, 3), said.text
        (listed,) = http.get("/llm/v1/models").json()["data"]
        assert listed["id"] == "smollm2-135m-instruct"
        info = http.get("/llm/tokenizer_info?model=tiny").json()
        assert info["model_max_length"] == 512 if "model_max_length" in info else info


async def test_what_is_wrong_is_raised_before_anything_is_mounted(home: Path) -> None:
    for wrong in ({"engine.nmae": "echo"}, {"engine.context": -1}):
        with pytest.raises(GanglionError):
            async with open_engine(settings=wrong):
                raise AssertionError("it was opened")
    (home / "broken.gguf").write_bytes(b"GGUF")
    with pytest.raises(GanglionError):
        async with open_engine(str(home / "broken.gguf")):
            raise AssertionError("it was opened")
