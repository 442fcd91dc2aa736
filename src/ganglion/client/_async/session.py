"""`ganglion.client.AsyncSession`: one session in an event loop."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar, Unpack
from weakref import ref

from ganglion.client._async.generation import AsyncGeneration, finish
from ganglion.client._async.protocols import AsyncTransport
from ganglion.client.concurrency import async_write_file
from ganglion.client.flow import Flow
from ganglion.client.options import GenerateOptions
from ganglion.client.reaper import AsyncSessionReaper
from ganglion.client.search import Judge, beam, mean_logprob, tree
from ganglion.client.session_flows import SessionFlows
from ganglion.client.transport import CallOptions, SharedTransport
from ganglion.client.values import Branch, Chunk, Score, Suspended
from ganglion.core.errors import InvalidValue, SessionBusy

T = TypeVar("T")


class AsyncSession:
    """A token list that a node keeps, so that only what is new is sent; made by `AsyncClient.session()`.

    It is opened on the node with the first call and closed on leaving the `with` block, or once nothing
    refers to it any more (one that was attached to is not: it is somebody else's). A call that raises changes
    nothing in it; an iteration that is abandoned keeps what was seen. It takes one call at a time: a call
    while a generation is open that nobody reads closes that generation.

        async with client.session("llama") as session:
            await session.append("The capital of France is")
            print(await session.generate(max_tokens=8).text())
    """

    def __init__(
        self,
        flows: SessionFlows,
        shared: SharedTransport[AsyncTransport],
        call_options: CallOptions,
        reaper: AsyncSessionReaper,
    ) -> None:
        self._flows = flows
        self._reaper = reaper
        reaper.watch(flows, call_options)
        self._shared = shared
        self._call_options = call_options
        self._is_calling = False
        self._open_generation: ref[AsyncGeneration] | None = None

    @property
    def id(self) -> str | None:
        """The node's id of it; None before the first call."""
        return self._flows.node_session.id

    @property
    def model(self) -> str:
        """The model's name as it was given."""
        return self._flows.model

    @property
    def tokens(self) -> tuple[int, ...]:
        """What it holds after the last call that ended; PLACEHOLDER (-1) where no token is known.

        That is so at the positions of an image, and until `read_tokens()` at those that it held before it was
        restored or attached to.
        """
        return self._flows.committed.tokens

    @property
    def length(self) -> int:
        """How many tokens it holds after the last call that ended."""
        return self._flows.committed.length

    @property
    def context_length(self) -> int | None:
        """How many tokens it may hold; None before the first call, and where it was restored."""
        return self._flows.context_length

    async def append(self, chunk: Chunk, *, parse_special: bool = True) -> int:
        """Append text, token ids or an image; the new length.

        Text is tokenized by the node; the special tokens that a vocabulary puts before a text are added when
        the session is empty. With `parse_special=False`, control tokens written out in the text stay text.
        """
        return await self._finish(self._flows.append(chunk, parse_special=parse_special))

    async def append_messages(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[Mapping[str, object]] = (),
        **template: object,
    ) -> int:
        """Append chat messages as the model's own template writes them; the new length.

        Give only new messages, in the format of `/v1/chat/completions`; the beginning of the model's answer
        is appended last, so that `generate()` continues from there. A turn that was left open is closed
        first. Tokens of the session are never rewritten. `tools`, `chat_template_kwargs` and the like go to
        the template.

            await session.append_messages([{"role": "user", "content": "Name a colour."}])
            print(await session.generate(max_tokens=32).text())
            await session.append_messages([{"role": "user", "content": "And another."}])
        """
        chat = {"messages": list(messages), **({"tools": list(tools)} if tools else {}), **template}
        return await self._finish(self._flows.append_messages(chat))

    async def read_tokens(self) -> tuple[int, ...]:
        """All its tokens; those from before it was attached to or restored are read from the node."""
        return await self._finish(self._flows.read_tokens())

    def generate(self, **options: Unpack[GenerateOptions]) -> AsyncGeneration:
        """Continue the session: an iterator of events, the last of which is `Done`.

        The answer becomes part of the session, with the token that ended it.
        """
        return self._generation(self._flows.generate(options))

    def run(
        self, chunks: Sequence[Chunk], *, parse_special: bool = True, **options: Unpack[GenerateOptions]
    ) -> AsyncGeneration:
        """Generate after a whole conversation, given in full every time; only what is new is sent.

        Pass the tokens of an answer back as the next chunk. Raises SessionDivergence, before anything is
        sent, when the chunks are not a continuation of the session. On any other error the session is
        dropped, unless the call was refused; the next `run()` opens another one and sends everything.

            answer = await session.run(chunks, max_tokens=64).result()
            chunks += [answer.tokens, "And then?"]
        """
        flow = self._flows.run(chunks, options, parse_special=parse_special)
        return self._generation(flow)

    async def score(self, chunk: str | Sequence[int], *, top: int = 0, parse_special: bool = True) -> Score:
        """How likely a continuation is, with `top` alternatives at each token; the session stays as it is."""
        return await self._finish(self._flows.score([chunk], top, parse_special))

    async def best_of(
        self, count: int, *, score: Judge = mean_logprob, **options: Unpack[GenerateOptions]
    ) -> tuple[Branch, ...]:
        """Sample `count` answers together and append the one that scores highest; all, best first."""
        flow = tree(self._flows, options, depth=1, breadth=count, keep=1, judge=score)
        return await self._finish(flow)

    async def tree(
        self,
        *,
        depth: int,
        breadth: int,
        keep: int = 1,
        score: Judge = mean_logprob,
        **options: Unpack[GenerateOptions],
    ) -> tuple[Branch, ...]:
        """Continue each of the best `keep` branches `breadth` times, over `depth` levels.

        Each continuation is as long as the options say (`max_tokens`, `stop`). The best branch is appended;
        the last `keep` are returned, best first.
        """
        flow = tree(self._flows, options, depth=depth, breadth=breadth, keep=keep, judge=score)
        return await self._finish(flow)

    async def beam(
        self, width: int, *, max_tokens: int = 64, length_penalty: float = 1.0
    ) -> tuple[Branch, ...]:
        """Follow the `width` likeliest continuations token by token; the best is appended, all are returned.

        They are ranked by logprob / tokens ** length_penalty.
        """
        flow = beam(self._flows, width=width, max_tokens=max_tokens, length_penalty=length_penalty)
        return await self._finish(flow)

    async def fork(self, at: int | None = None, *, ttl_s: float | None = None) -> "AsyncSession":
        """Another session that begins with the same tokens, all or the first `at`; costs nothing."""
        child = await self._finish(self._flows.fork(at, ttl_s))
        return AsyncSession(child, self._shared, self._call_options, self._reaper)

    async def truncate(self, length: int) -> int:
        """Drop the tokens from a position on; the length."""
        return await self._finish(self._flows.truncate(length))

    async def save(self, path: str | Path | None = None, *, without_kv: bool = False) -> bytes:
        """The session as bytes, also into a file: `restore()` of a client brings it back, here or elsewhere.

        Without the KV they are few, and the tokens are computed again where they are restored.
        """
        saved = await self._finish(self._flows.save(without_kv=without_kv))
        if path is not None:
            await async_write_file(path, saved)
        return saved

    async def suspend(self) -> Suspended:
        """Put it on the node's disk, where it outlives this object and a restart; any call resumes it.

        `attach(session.id)` of a client finds it again.
        """
        return await self._finish(self._flows.suspend())

    async def reset(self) -> None:
        """Drop everything; the next call opens another session."""
        await self._finish(self._flows.reset())

    async def close(self) -> None:
        """Close it on the node too, where the node can be reached; may be called twice."""
        # A closed client has no transport left; the node drops the session by itself after its `ttl_s`.
        with suppress(InvalidValue):
            await self._finish(self._flows.close())

    async def __aenter__(self) -> "AsyncSession":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _finish(self, flow: Flow[T]) -> T:
        with self._turn():
            return await finish(flow, self._shared.transport(), self._call_options)

    def _generation(self, flow: Flow[None]) -> AsyncGeneration:
        with self._turn():
            generation = AsyncGeneration(flow, self._shared.transport(), self._call_options)
        self._open_generation = ref(generation)
        return generation

    @contextmanager
    def _turn(self) -> Generator[None, None, None]:
        before = self._open_generation() if self._open_generation is not None else None
        if self._is_calling or (before is not None and before.is_reading):
            raise SessionBusy("Another task is calling this session.", hint="Fork it: one session for each.")
        if before is not None:
            before.close()
        self._open_generation = None
        self._is_calling = True
        self._reaper.begin_call()
        try:
            yield
        finally:
            self._is_calling = False
