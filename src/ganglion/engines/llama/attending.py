"""What a worker does with a loaded model: frames come in, steps, texts and vectors go out.

A reader thread takes frames in and answers pings, others tokenize beside the running batch (`texts.py`), one
makes vectors, and the main thread steps.
Law: the worker dies with its server: end of file on the socket ends the process at once.
"""

import os
import threading
import traceback
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from time import monotonic
from typing import Final

import msgspec

from ganglion.core.errors import GanglionError
from ganglion.engines.concept_pack import ConceptBook
from ganglion.engines.ipc import (
    Abort,
    Detokenize,
    Embed,
    LoadKv,
    MeasurePieces,
    Ping,
    Pong,
    Reading,
    Ready,
    Refused,
    SaveKv,
    Stop,
    Submit,
    Tokenize,
    ToWorker,
    to_worker,
)
from ganglion.engines.llama.concepts import load_book
from ganglion.engines.llama.fair_inbox import FairInbox
from ganglion.engines.llama.line import Line
from ganglion.engines.llama.loop import Inbox, Loop
from ganglion.engines.llama.native_model import NativeModel
from ganglion.engines.llama.plan import EnginePlan
from ganglion.engines.llama.texts import Texts
from ganglion.engines.llama.vectors import VectorMaker

MOST_INPUT_TOKENS: Final = 2**22
MOST_INPUT_TOKENS_EACH: Final = 2**21
"""What waits to be made vectors of, and of one tenant."""
ROUND_TOKENS: Final = 1024
"""Questions for vectors that are read together; whoever comes meanwhile waits for so much at least."""

Inputs = FairInbox[Embed]
"""What vectors are wanted of."""


def serve(
    line: Line, bodies: Iterator[bytes], plan: EnginePlan, loaded: Callable[[], NativeModel], began_s: float
) -> None:
    """Serve the model that `loaded` waits for; returns only when that failed, of which the server is told."""
    try:
        model = loaded()
        book = load_book(plan, model)
        loop = Loop(model, plan if model.has_one_cache else plan.for_several_caches(), line, book)
    except GanglionError as error:
        line.send(_refused(0, error))
        return
    ready = _ready(model, plan, book)
    line.send(msgspec.structs.replace(ready, load_s=monotonic() - began_s))
    inbox: Inbox = SimpleQueue()
    inputs: Inputs = FairInbox(most=MOST_INPUT_TOKENS, most_each=MOST_INPUT_TOKENS_EACH, of="inputs")
    texts = Texts(model, line.send, lambda number, error: line.send(_refused(number, error)))
    threading.Thread(target=read, args=(line, bodies, inbox, texts, inputs), daemon=True).start()
    maker = VectorMaker(model, plan.vectors, threads=plan.threads)
    threading.Thread(target=embed, args=(line, maker, inputs), daemon=True).start()
    try:
        loop.run(inbox)
    finally:
        # The interpreter's own way out waits for native threads; whoever waits for us does not want that.
        traceback.print_exc()
        os._exit(1)


def read(line: Line, bodies: Iterator[bytes], inbox: Inbox, texts: Texts, inputs: Inputs) -> None:
    """Take frames in until the server is gone or says stop."""
    for body in bodies:
        frame: ToWorker = to_worker.decode(body)
        match frame:
            case Ping():
                line.send(Pong())
                if texts.is_getting_on:
                    line.send(Reading())
            case Tokenize() | Detokenize() | MeasurePieces():
                texts.ask(frame)
            case Embed():
                try:
                    inputs.put(frame.tenant, frame, _tokens_in(frame))
                except GanglionError as error:
                    line.send(_refused(frame.id, error))
            case Stop(keep_s=0.0):
                break
            case Submit() | Abort() | SaveKv() | LoadKv() | Stop():
                inbox.put(frame)
    os._exit(0)


def embed(line: Line, maker: VectorMaker, inputs: Inputs) -> None:
    """Make vectors for ever, a round of what waits at a time, tenants in turn."""
    try:
        while True:
            _embed(line, maker, _round(inputs))
    finally:
        traceback.print_exc()
        os._exit(1)


def _round(inputs: Inputs) -> list[Embed]:
    frames = [inputs.get()]
    room = ROUND_TOKENS - _tokens_in(frames[0])
    while room > 0 and (frame := inputs.get_now()) is not None:
        frames.append(frame)
        room -= _tokens_in(frame)
    return frames


def _tokens_in(frame: Embed) -> int:
    return sum(map(len, frame.inputs))


def _embed(line: Line, maker: VectorMaker, frames: list[Embed]) -> None:
    waiting = {frame.id for frame in frames}
    try:
        for vectors in maker.answer(frames, lambda: line.send(Reading())):
            waiting.remove(vectors.id)
            line.send(vectors)
    except GanglionError as error:
        for number in waiting:
            line.send(_refused(number, error))


def _ready(model: NativeModel, plan: EnginePlan, book: ConceptBook | None) -> Ready:
    return Ready(
        model.vocabulary_size,
        0.0,
        model.signs(),
        ranks=plan.vectors.pooling == "rank",
        rank_template=model.metadata("tokenizer.chat_template.rerank"),
        concepts=[] if book is None else list(book.manifest.concepts),
        readout_layers=[] if book is None else list(book.manifest.layers),
    )


def _refused(number: int, error: GanglionError) -> Refused:
    return Refused(number, error.code, error.message, error.hint, error.extras)
