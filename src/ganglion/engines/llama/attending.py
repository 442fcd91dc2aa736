"""What a worker does with a loaded model: frames come in, steps, texts and vectors go out.

A reader thread takes frames in and answers pings, others tokenize beside the running batch (`texts.py`), one
makes vectors (`vector_turns.py`), and the main thread steps.
Law: the worker dies with its server: end of file on the socket ends the process at once.
"""

import os
import threading
import traceback
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from time import monotonic

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
from ganglion.engines.llama.line import Line
from ganglion.engines.llama.loop import Inbox, Loop
from ganglion.engines.llama.native_model import NativeModel
from ganglion.engines.llama.plan import EnginePlan
from ganglion.engines.llama.texts import Texts
from ganglion.engines.llama.vector_turns import VectorTurns
from ganglion.engines.llama.vectors import VectorMaker


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

    def refuse(number: int, error: GanglionError) -> None:
        line.send(_refused(number, error))

    texts = Texts(model, line.send, refuse)
    vectors = VectorTurns(VectorMaker(model, plan.vectors, threads=plan.threads), line.send, refuse)
    threading.Thread(target=read, args=(line, bodies, inbox, texts, vectors), daemon=True).start()
    try:
        loop.run(inbox)
    finally:
        # The interpreter's own way out waits for native threads; whoever waits for us does not want that.
        traceback.print_exc()
        os._exit(1)


def read(line: Line, bodies: Iterator[bytes], inbox: Inbox, texts: Texts, vectors: VectorTurns) -> None:
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
                vectors.ask(frame)
            case Stop(keep_s=0.0):
                break
            case Submit() | Abort() | SaveKv() | LoadKv() | Stop():
                inbox.put(frame)
    os._exit(0)


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
