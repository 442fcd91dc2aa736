"""Every wire inside an application of your own, over an engine of your own: uvicorn mounted:app."""

from starlette.applications import Starlette
from starlette.routing import Mount

from ganglion import build_app
from ganglion.core.engine import ModelState
from ganglion.core.events import Closed, Delta, Finished, Opened, Started, Usage


class Shouting:
    """Answers in capitals."""

    def models(self):
        return (ModelState(id="shout", engine="mine", status="loaded", context_length=4096, created_s=0),)

    async def generate(self, request):
        yield Started(prompt_tokens=1)
        yield Opened(0, "text")
        yield Delta(0, request.prompt.messages[-1].content.upper())
        yield Closed(0)
        yield Finished("stop", Usage(prompt_tokens=1, completion_tokens=1))


app = Starlette(routes=[Mount("/llm", build_app(Shouting(), paths=["/v1"]))])
