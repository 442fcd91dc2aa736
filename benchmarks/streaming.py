"""The gap between tokens of many answers at once: by sessions, by chat, and by an engine in this process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from random import Random

from benchmarks.load import ChatRequest, Endpoint, Message, Record, chat
from benchmarks.measure import decode_rate
from benchmarks.prompts import words
from benchmarks.salience import Node
from benchmarks.servers import KV_TOKENS, PARALLEL, ServerDied, model_path
from ganglion.core.events import Failed, Pieces
from ganglion.core.request import Stop, TokenRequest
from ganglion.core.sampling import ResolvedSampling
from ganglion.engines.llama.engine import LlamaEngine
from ganglion.engines.settings import EngineSettings
from ganglion.registry.files.gguf import read_facts

PROMPT_TOKENS = 64


def texts(seed: str) -> list[str]:
    """The prompts of the streams."""
    random = Random(seed)
    return [words(random, PROMPT_TOKENS) for _ in range(PARALLEL)]


async def by_sessions(node: Node, prompts: Sequence[str], output_tokens: int) -> float:
    """One Generate a session, all at once."""

    async def stream(text: str) -> Record:
        tokens = await node.tokenize(text)
        session = await node.open()
        result = await node.generate(session, tokens, 0, output_tokens)
        await node.close(session)
        return result.record()

    return gap_s(await asyncio.gather(*map(stream, prompts)))


async def by_chat(endpoint: Endpoint, prompts: Sequence[str], output_tokens: int) -> float:
    """One streamed chat completion each."""
    chat_requests = [ChatRequest((Message("user", text),), output_tokens) for text in prompts]
    return gap_s(await asyncio.gather(*(chat(endpoint, chat_request) for chat_request in chat_requests)))


async def by_engine(model: str, threads: int, prompts: Sequence[str], output_tokens: int) -> float:
    """Without a server: the engine in this process, its worker beside it."""
    settings = EngineSettings(model, threads=threads, kv_tokens=KV_TOKENS)
    engine = LlamaEngine(read_facts(model_path()), settings)
    await engine.open()
    try:
        return gap_s(await asyncio.gather(*(_run(engine, text, output_tokens) for text in prompts)))
    finally:
        await engine.close()


async def _run(engine: LlamaEngine, text: str, output_tokens: int) -> Record:
    tokens = await engine.tokens.tokenize(text, add_special=False, parse_special=True)
    request = TokenRequest(
        text[:16],
        tokens,
        output_tokens,
        sampling=ResolvedSampling(temperature=0.0),
        stop=Stop(ignore_eos=True),
        in_tokens=True,
    )
    times: list[float] = []
    sent_s = time.perf_counter()
    async for event in engine.tokens.run(request):
        if isinstance(event, Failed):
            raise ServerDied(f"the engine in process failed: {event.error}")
        if isinstance(event, Pieces):
            now_s = time.perf_counter()
            times += [now_s for piece in event.pieces for _ in piece.tokens]
    return Record(sent_s, time.perf_counter(), tuple(times), "", len(tokens), 0, len(times))


def gap_s(records: Sequence[Record]) -> float:
    """The median of the gaps while all streams decode."""
    errors = [record.error for record in records if record.error is not None]
    rate = decode_rate(records, len(records))
    if errors or rate is None:
        raise ServerDied(errors[0] if errors else "the streams never ran all at once: ask for more tokens")
    return len(records) / rate
