"""A session in an event loop."""

import asyncio
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TypeVar, Unpack
from weakref import ref

from ganglion.client._async.generation import AsyncGeneration, finish
from ganglion.client.flow import Flow
from ganglion.client.options import GenerateOptions
from ganglion.client.reaper import AsyncSessionReaper
from ganglion.client.search import Judge, beam, mean_logprob, tree
from ganglion.client.session_flows import SessionFlows
from ganglion.client.transport import AsyncTransport, CallOptions, SharedTransport
from ganglion.client.values import Branch, Chunk, Score, Suspended
from ganglion.core.errors import InvalidValue, SessionBusy

T = TypeVar("T")


class AsyncSession:
    """A token list that a node keeps; made by `AsyncClient.session()`. `Session` says what each call means.

    async with client.session("llama") as session:
        await session.append("The capital of France is")
        async for event in session.generate(max_tokens=8):
            ...
    """

    def __init__(
        self,
        conversation: SessionFlows,
        shared: SharedTransport[AsyncTransport],
        terms: CallOptions,
        dropped: AsyncSessionReaper,
    ) -> None:
        self._conversation = conversation
        self._dropped = dropped
        dropped.watch(conversation, terms)
        self._shared = shared
        self._terms = terms
        self._is_calling = False
        self._open_generation: ref[AsyncGeneration] | None = None

    @property
    def id(self) -> str | None:
        """The node's name for it; None before the first call."""
        return self._conversation.session_id

    @property
    def model(self) -> str:
        """The model's name as it was asked for."""
        return self._conversation.model

    @property
    def tokens(self) -> tuple[int, ...]:
        """What it holds after the last call that ended; PLACEHOLDER (-1) where no token is known.

        That is so at an image's positions, and until `read_tokens()` at what it held before it was restored
        or attached to.
        """
        return self._conversation.ledger.tokens

    @property
    def length(self) -> int:
        """How many tokens it holds after the last call that ended."""
        return self._conversation.ledger.length

    @property
    def context_length(self) -> int | None:
        """How many it may hold; None before the first call, and where it was restored."""
        return self._conversation.context_length

    async def append(self, chunk: Chunk, *, parse_special: bool = True) -> int:
        """Put text, token ids or an image at the end; the new length.

        Text is tokenized by the node; the signs that a vocabulary puts before a text are added when the
        session is empty. With `parse_special=False`, control tokens written out in the text stay text.
        """
        return await self._finish(self._conversation.append(chunk, parse_special=parse_special))

    async def append_messages(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[Mapping[str, object]] = (),
        **template: object,
    ) -> int:
        """Put chat messages at the end as the model's own template writes them; the new length.

        Only those that are new, in the words of `/v1/chat/completions`; what begins the model's answer comes
        last, so that `generate()` goes on from there. A turn that was left open is closed first. What stands
        in the session is never rewritten. `tools`, `chat_template_kwargs` and the like go to the template.

            session.append_messages([{"role": "user", "content": "Name a colour."}])
            print(await session.generate(max_tokens=32).text())
            session.append_messages([{"role": "user", "content": "And another."}])
        """
        chat = {"messages": list(messages), **({"tools": list(tools)} if tools else {}), **template}
        return await self._finish(self._conversation.append_messages(chat))

    async def read_tokens(self) -> tuple[int, ...]:
        """All its tokens, those that stood in it before it was attached to or restored read from the node."""
        return await self._finish(self._conversation.read_tokens())

    def generate(self, **options: Unpack[GenerateOptions]) -> AsyncGeneration:
        """Continue the session: an iterator of events, the last of which is `Done`.

        The answer is part of the session, also the token that ended it.
        """
        return self._generation(self._conversation.generate(options), options)

    def run(
        self, chunks: Sequence[Chunk], *, parse_special: bool = True, **options: Unpack[GenerateOptions]
    ) -> AsyncGeneration:
        """Generate after a whole conversation, every time given in full; only what is new is sent.

        Pass the tokens of an answer back as the next chunk. Raises SessionDivergence, before anything is
        sent, when the chunks are not a continuation of the session. On any other error the session is
        dropped, unless the call was refused; the next `run()` opens another one and sends everything.

            answer = session.run(chunks, max_tokens=64).result()
            chunks += [answer.tokens, "And then?"]
        """
        flow = self._conversation.run(chunks, options, parse_special=parse_special)
        return self._generation(flow, options)

    async def score(self, chunk: str | Sequence[int], *, top: int = 0, parse_special: bool = True) -> Score:
        """How likely a continuation is, with `top` alternatives at each token; the session stays as it is."""
        return await self._finish(self._conversation.score([chunk], top, parse_special))

    async def best_of(
        self, count: int, *, score: Judge = mean_logprob, **options: Unpack[GenerateOptions]
    ) -> tuple[Branch, ...]:
        """Try `count` answers side by side, and append the one with the highest score; all, best first."""
        flow = tree(self._conversation, options, depth=1, breadth=count, keep=1, judge=score)
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
        """Go `depth` times from each of the best `keep` branches to `breadth` continuations of it.

        Each is as long as the options say (`max_tokens`, `stop`). The best is appended; those that are left
        are told, best first.
        """
        flow = tree(self._conversation, options, depth=depth, breadth=breadth, keep=keep, judge=score)
        return await self._finish(flow)

    async def beam(
        self, width: int, *, max_tokens: int = 64, length_penalty: float = 1.0
    ) -> tuple[Branch, ...]:
        """Follow the `width` likeliest continuations token by token; the best is appended, all are told.

        They are ranked by logprob / tokens ** length_penalty.
        """
        flow = beam(self._conversation, width=width, max_tokens=max_tokens, length_penalty=length_penalty)
        return await self._finish(flow)

    async def fork(self, at: int | None = None, *, ttl_s: float | None = None) -> "AsyncSession":
        """Another session that begins with the same tokens, all or the first `at`; costs nothing."""
        child = await self._finish(self._conversation.fork(at, ttl_s))
        return AsyncSession(child, self._shared, self._terms, self._dropped)

    async def truncate(self, length: int) -> int:
        """Forget everything from a position on; the length."""
        return await self._finish(self._conversation.truncate(length))

    async def save(self, path: str | Path | None = None, *, without_kv: bool = False) -> bytes:
        """The session as bytes, also into a file: `Client.restore()` brings it back, here or elsewhere.

        Without the KV they are few, and the tokens are computed again where they are restored.
        """
        saved = await self._finish(self._conversation.save(without_kv=without_kv))
        if path is not None:
            await asyncio.to_thread(Path(path).write_bytes, saved)
        return saved

    async def suspend(self) -> Suspended:
        """Put it on the node's disk, where it outlives this object and a restart; any call wakes it.

        `Client.attach(session.id)` finds it again.
        """
        return await self._finish(self._conversation.suspend())

    async def reset(self) -> None:
        """Forget everything; the next call opens another session."""
        await self._finish(self._conversation.reset())

    async def close(self) -> None:
        """Forget it on the node as well, where that can be told; also twice."""
        # With the client closed there is no line left to tell it over, and the node forgets it by itself.
        with suppress(InvalidValue):
            await self._finish(self._conversation.close())

    async def __aenter__(self) -> "AsyncSession":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _finish(self, flow: Flow[T]) -> T:
        with self._turn():
            return await finish(flow, self._shared.line(), self._terms)

    def _generation(self, flow: Flow[None], options: GenerateOptions) -> AsyncGeneration:
        with self._turn():
            generation = AsyncGeneration(flow, self._shared.line(), self._terms)
        self._open_generation = ref(generation)
        return generation

    @contextmanager
    def _turn(self) -> Generator[None, None, None]:
        before = self._open_generation() if self._open_generation is not None else None
        if self._is_calling or (before is not None and before.is_reading):
            raise SessionBusy("Another task calls this session just now.", hint="Fork it, one for each.")
        if before is not None:
            before.close()
        self._open_generation = None
        self._is_calling = True
        self._dropped.enter()
        try:
            yield
        finally:
            self._is_calling = False
