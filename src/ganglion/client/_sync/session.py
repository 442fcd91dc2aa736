"""A session, blocking."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TypeVar, Unpack
from weakref import ref

from ganglion.client._sync.generation import Generation, finish
from ganglion.client.flow import Flow
from ganglion.client.options import GenerateOptions
from ganglion.client.reaper import SessionReaper
from ganglion.client.search import Judge, beam, mean_logprob, tree
from ganglion.client.session_flows import SessionFlows
from ganglion.client.transport import CallOptions, SharedTransport, Transport
from ganglion.client.values import Branch, Chunk, Score, Suspended
from ganglion.core.errors import InvalidValue, SessionBusy

T = TypeVar("T")


class Session:
    """A token list that a node keeps, so that only what is new is sent; made by `Client.session()`.

    It is opened on the node with the first call and closed on leaving the `with` block, or when nobody holds
    it any more (one that was attached to is not: it is somebody else's). A call that raises
    changes nothing in it; an iteration that is left keeps what was seen. One call at a time, from one thread
    at a time: a call while a generation is open, and nobody reads it, leaves that one.

        with client.session("llama") as session:
            session.append("The capital of France is")
            print(session.generate(max_tokens=8).text())
    """

    def __init__(
        self,
        conversation: SessionFlows,
        shared: SharedTransport[Transport],
        terms: CallOptions,
        dropped: SessionReaper,
    ) -> None:
        self._conversation = conversation
        self._dropped = dropped
        dropped.watch(conversation, terms)
        self._shared = shared
        self._terms = terms
        self._is_calling = False
        self._open_generation: ref[Generation] | None = None

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

    def append(self, chunk: Chunk, *, parse_special: bool = True) -> int:
        """Put text, token ids or an image at the end; the new length.

        Text is tokenized by the node; the signs that a vocabulary puts before a text are added when the
        session is empty. With `parse_special=False`, control tokens written out in the text stay text.
        """
        return self._finish(self._conversation.append(chunk, parse_special=parse_special))

    def append_messages(
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
            print(session.generate(max_tokens=32).text())
            session.append_messages([{"role": "user", "content": "And another."}])
        """
        chat = {"messages": list(messages), **({"tools": list(tools)} if tools else {}), **template}
        return self._finish(self._conversation.append_messages(chat))

    def read_tokens(self) -> tuple[int, ...]:
        """All its tokens, those that stood in it before it was attached to or restored read from the node."""
        return self._finish(self._conversation.read_tokens())

    def generate(self, **options: Unpack[GenerateOptions]) -> Generation:
        """Continue the session: an iterator of events, the last of which is `Done`.

        The answer is part of the session, also the token that ended it.
        """
        return self._generation(self._conversation.generate(options), options)

    def run(
        self, chunks: Sequence[Chunk], *, parse_special: bool = True, **options: Unpack[GenerateOptions]
    ) -> Generation:
        """Generate after a whole conversation, every time given in full; only what is new is sent.

        Pass the tokens of an answer back as the next chunk. Raises SessionDivergence, before anything is
        sent, when the chunks are not a continuation of the session. On any other error the session is
        dropped, unless the call was refused; the next `run()` opens another one and sends everything.

            answer = session.run(chunks, max_tokens=64).result()
            chunks += [answer.tokens, "And then?"]
        """
        flow = self._conversation.run(chunks, options, parse_special=parse_special)
        return self._generation(flow, options)

    def score(self, chunk: str | Sequence[int], *, top: int = 0, parse_special: bool = True) -> Score:
        """How likely a continuation is, with `top` alternatives at each token; the session stays as it is."""
        return self._finish(self._conversation.score([chunk], top, parse_special))

    def best_of(
        self, count: int, *, score: Judge = mean_logprob, **options: Unpack[GenerateOptions]
    ) -> tuple[Branch, ...]:
        """Try `count` answers side by side, and append the one with the highest score; all, best first."""
        flow = tree(self._conversation, options, depth=1, breadth=count, keep=1, judge=score)
        return self._finish(flow)

    def tree(
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
        return self._finish(flow)

    def beam(self, width: int, *, max_tokens: int = 64, length_penalty: float = 1.0) -> tuple[Branch, ...]:
        """Follow the `width` likeliest continuations token by token; the best is appended, all are told.

        They are ranked by logprob / tokens ** length_penalty.
        """
        flow = beam(self._conversation, width=width, max_tokens=max_tokens, length_penalty=length_penalty)
        return self._finish(flow)

    def fork(self, at: int | None = None, *, ttl_s: float | None = None) -> "Session":
        """Another session that begins with the same tokens, all or the first `at`; costs nothing."""
        child = self._finish(self._conversation.fork(at, ttl_s))
        return Session(child, self._shared, self._terms, self._dropped)

    def truncate(self, length: int) -> int:
        """Forget everything from a position on; the length."""
        return self._finish(self._conversation.truncate(length))

    def save(self, path: str | Path | None = None, *, without_kv: bool = False) -> bytes:
        """The session as bytes, also into a file: `Client.restore()` brings it back, here or elsewhere.

        Without the KV they are few, and the tokens are computed again where they are restored.
        """
        saved = self._finish(self._conversation.save(without_kv=without_kv))
        if path is not None:
            Path(path).write_bytes(saved)
        return saved

    def suspend(self) -> Suspended:
        """Put it on the node's disk, where it outlives this object and a restart; any call wakes it.

        `Client.attach(session.id)` finds it again.
        """
        return self._finish(self._conversation.suspend())

    def reset(self) -> None:
        """Forget everything; the next call opens another session."""
        self._finish(self._conversation.reset())

    def close(self) -> None:
        """Forget it on the node as well, where that can be told; also twice."""
        # With the client closed there is no line left to tell it over, and the node forgets it by itself.
        with suppress(InvalidValue):
            self._finish(self._conversation.close())

    def __enter__(self) -> "Session":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _finish(self, flow: Flow[T]) -> T:
        with self._turn():
            return finish(flow, self._shared.line(), self._terms)

    def _generation(self, flow: Flow[None], options: GenerateOptions) -> Generation:
        with self._turn():
            generation = Generation(flow, self._shared.line(), self._terms)
        self._open_generation = ref(generation)
        return generation

    @contextmanager
    def _turn(self) -> Generator[None, None, None]:
        before = self._open_generation() if self._open_generation is not None else None
        if self._is_calling or (before is not None and before.is_reading):
            raise SessionBusy("Another thread calls this session just now.", hint="Fork it, one for each.")
        if before is not None:
            before.close()
        self._open_generation = None
        self._is_calling = True
        try:
            yield
        finally:
            self._is_calling = False
