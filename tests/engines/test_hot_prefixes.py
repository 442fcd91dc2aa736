"""A conversation goes on after its model was unloaded and loaded again, without its prefill."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from ganglion.core.events import Delta, Finished
from ganglion.core.request import ChatPrompt, Message, Request, Stop, TokenPrompt
from ganglion.core.sampling import Sampling
from ganglion.engines.llama.engine import LlamaEngine
from ganglion.engines.settings import EngineSettings
from ganglion.engines.supervision.supervisor import Supervisor
from ganglion.engines.supervision.watchdog import WorkerLimits
from ganglion.registry.files.gguf import read_facts
from support.embedded_model import embedded_model, kept_open

STORY = (
    "Nora found a brass compass in her grandmother's attic. It never pointed north. On Mondays it pointed to "
    "the harbour, on Tuesdays to the old mill, and on Sundays it turned slowly as if it were thinking. "
)
OPENING = Message("user", STORY * 2 + "What did Nora find?")


@asynccontextmanager
async def engine(folder: Path | None, **settings: object) -> AsyncIterator[LlamaEngine]:
    found = embedded_model()
    asked = {"context": 1024, "kv_tokens": 6144, "kv_folder": None if folder is None else str(folder)}
    subject = LlamaEngine(read_facts(found.path), EngineSettings("m", **(asked | settings)))  # type: ignore[arg-type]
    async with kept_open(subject):
        yield subject


def request(*messages: Message, tenant: str = "", max_tokens: int = 16) -> Request:
    return Request(
        "r",
        "m",
        ChatPrompt(messages),
        sampling=Sampling(temperature=0.0),
        max_tokens=max_tokens,
        tenant=tenant,
    )


async def ask(subject: LlamaEngine, *messages: Message, tenant: str = "") -> tuple[str, int]:
    """The answer, and how many tokens of the prompt were there already."""
    events = [event async for event in subject.generate(request(*messages, tenant=tenant))]
    assert isinstance(events[-1], Finished), events[-1]
    text = "".join(event.text for event in events if isinstance(event, Delta))
    return text, events[-1].usage.cached_tokens


@dataclass(frozen=True)
class Unloaded:
    """What is left of a model that answered OPENING and was unloaded."""

    folder: Path
    follow_up: tuple[Message, ...]


@pytest.fixture(scope="module")
def first_life(tmp_path_factory: pytest.TempPathFactory) -> Unloaded:
    folder = tmp_path_factory.mktemp("home") / "cache" / "kv"

    async def live() -> str:
        async with engine(folder) as subject:
            return (await ask(subject, OPENING))[0]

    answer = asyncio.run(live())
    return Unloaded(folder, (OPENING, Message("assistant", answer), Message("user", "Where did it point?")))


@pytest.fixture
def unloaded(first_life: Unloaded, tmp_path: Path) -> Unloaded:
    return Unloaded(shutil.copytree(first_life.folder, tmp_path / "kv"), first_life.follow_up)


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.model
async def test_a_follow_up_after_a_swap_goes_on_as_if_nothing_had_happened_and_for_its_tenant_only(unloaded):
    async with engine(unloaded.folder) as subject:
        stranger = await ask(subject, OPENING, tenant="other")
        swapped = await ask(subject, *unloaded.follow_up)
        stayed = await ask(subject, *unloaded.follow_up, tenant="other")
    assert stranger[1] == 0
    assert swapped == stayed, "the same tokens were there, and the same answer followed"
    assert swapped[1] > 100


@pytest.mark.model
async def test_many_who_want_one_saved_prefix_all_get_it_and_one_who_left_takes_nothing_along(unloaded):
    async with engine(unloaded.folder) as subject:
        last = Message("user", "Say so in one word.")
        leaving = asyncio.create_task(ask(subject, *unloaded.follow_up))
        asked = [
            asyncio.create_task(ask(subject, *unloaded.follow_up[:2], Message("user", f"{number}: where?")))
            for number in range(5)
        ]
        await asyncio.sleep(0.01)
        leaving.cancel()
        answers = await asyncio.gather(*asked)
        assert all(text and cached > 100 for text, cached in answers)
        assert (await ask(subject, OPENING, last))[1] > 100
        (state,) = subject.models()
        assert (state.in_flight, state.queued, state.slots_used) == (0, 0, 0)


@pytest.mark.model
async def test_damaged_cells_cost_a_prefill_and_are_never_used(unloaded):
    (file,) = files(unloaded.folder)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    async with engine(unloaded.folder, kv_folder_bytes=0) as none:
        expected = await ask(none, *unloaded.follow_up)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    async with engine(unloaded.folder) as subject:
        assert await ask(subject, *unloaded.follow_up) == (expected[0], 0)
        assert not file.exists()
    assert len(files(unloaded.folder)) == 1, "it was kept anew"


@pytest.mark.model
async def test_a_prompt_that_still_ran_when_its_model_was_unloaded_comes_back(tmp_path):
    async with engine(tmp_path / "kv") as subject:
        tokens = await subject.tokens.tokenize(STORY * 2, add_special=True, parse_special=False)
        running = Request("r", "m", TokenPrompt(tokens), stop=Stop(ignore_eos=True), max_tokens=500)
        async with aclosing(subject.generate(running)) as events:
            async for event in events:
                if isinstance(event, Delta):
                    break
            await subject.close()
    async with engine(tmp_path / "kv") as subject:
        again = Request("r", "m", TokenPrompt(tokens), max_tokens=1)
        (finished,) = [event async for event in subject.generate(again) if isinstance(event, Finished)]
    assert finished.usage.cached_tokens == len(tokens) - 1


@pytest.mark.model
async def test_a_folder_that_cannot_be_used_costs_the_prefixes_and_not_the_model(tmp_path):
    (tmp_path / "kv").write_text("a file")
    async with engine(tmp_path / "kv") as subject:
        assert (await ask(subject, OPENING))[0]
    assert (tmp_path / "kv").read_text() == "a file"


async def test_a_worker_gets_its_time_to_keep_what_is_hot(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    limits = WorkerLimits(stop_s=0.2)
    subject = Supervisor("m", "keeping_worker", str(tmp_path / "kept").encode(), limits)
    await subject.open()
    await subject.close(keep_s=1.0)
    assert (tmp_path / "kept").read_text() == "kept"
