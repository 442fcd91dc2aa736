"""A prompt with images, and models that are not loaded yet."""

from ganglion.core.engine import ManagedEngine
from ganglion.core.events import Event, Failed, Finished
from ganglion.core.request import Attachment, ChatPrompt, Message, Request
from ganglion.engines.echo.engine import EchoEngine, EchoSettings
from ganglion.registry.loading.candidate import Candidate, build_without_options
from ganglion.registry.loading.residency import Residency

SEE = ChatPrompt(
    (Message("user", "see", attachments=(Attachment(b"picture", 3, path="messages[0].content[1]"),)),)
)


async def asked(capabilities: tuple[str, ...], *, sees: bool) -> tuple[Event, int]:
    """The end of an answer to a prompt with an image, and how many engines were built for it."""
    built: list[ManagedEngine] = []

    def make() -> ManagedEngine:
        built.append(EchoEngine(EchoSettings("m", sees=sees)))
        return built[-1]

    known = Candidate("m", build_without_options(make), capabilities=capabilities)
    holder = Residency((), (known,), free_bytes=lambda: 2**40)
    await holder.open()
    events = [event async for event in holder.generate(Request("r", "m", SEE))]
    await holder.close()
    return events[-1], len(built)


def code_of(event: Event) -> tuple[str, str | None]:
    assert isinstance(event, Failed)
    return event.error.code, event.error.param


async def test_a_file_that_says_that_it_has_no_eyes_is_not_loaded_to_be_asked() -> None:
    end, built = await asked(("chat",), sees=False)
    assert (code_of(end), built) == (("vision_unsupported", "messages[0].content[1]"), 0)


async def test_a_file_that_says_nothing_is_loaded_and_then_asked() -> None:
    end, built = await asked((), sees=False)
    assert (code_of(end), built) == (("vision_unsupported", "messages[0].content[1]"), 1)
    end, built = await asked((), sees=True)
    assert (isinstance(end, Finished), built) == (True, 1)


async def test_a_file_that_sees_is_loaded_and_answers() -> None:
    end, built = await asked(("chat", "vision"), sees=True)
    assert (isinstance(end, Finished), built) == (True, 1)
