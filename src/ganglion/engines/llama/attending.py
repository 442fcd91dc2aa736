"""What a worker does with a loaded model: frames come in, steps, texts and vectors go out.

A reader thread takes frames in and answers pings, a second one tokenizes beside the running batch, a third
makes vectors, and the main thread steps.
Law: the worker dies with its server: end of file on the socket ends the process at once.
"""

import os
import threading
import traceback
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from time import monotonic

from ganglion.core.errors import GanglionError
from ganglion.engines.concept_pack import ConceptBook
from ganglion.engines.ipc import (
    Abort,
    Detokenize,
    Detokenized,
    Embed,
    FromWorker,
    LoadKv,
    Ping,
    Pong,
    Reading,
    Ready,
    Refused,
    SaveKv,
    Stop,
    Submit,
    Tokenize,
    Tokenized,
    ToWorker,
    to_worker,
)
from ganglion.engines.llama.concepts import load_book
from ganglion.engines.llama.line import Line
from ganglion.engines.llama.loop import Inbox, Loop
from ganglion.engines.llama.native_model import NativeModel
from ganglion.engines.llama.plan import EnginePlan
from ganglion.engines.llama.vectors import VectorMaker

Questions = SimpleQueue["Tokenize | Detokenize"]
"""What is answered beside the batch, in order."""

Inputs = SimpleQueue[Embed]
"""What vectors are wanted of. Bounded, as the questions are, by what the server lets in at once."""


def serve(
    line: Line, bodies: Iterator[bytes], plan: EnginePlan, loaded: Callable[[], NativeModel], began_s: float
) -> None:
    """Serve the model that `loaded` waits for; returns only when that failed, of which the server is told."""
    try:
        model = loaded()
        book = load_book(plan, model)
        loop = Loop(model, plan if model.has_one_cache else plan.in_one_lane(), line, book)
    except GanglionError as error:
        line.send(_refused(0, error))
        return
    line.send(_ready(model, plan, book, monotonic() - began_s))
    inbox: Inbox = SimpleQueue()
    questions: Questions = SimpleQueue()
    inputs: Inputs = SimpleQueue()
    threading.Thread(target=read, args=(line, bodies, inbox, questions, inputs), daemon=True).start()
    threading.Thread(target=answer, args=(line, model, questions), daemon=True).start()
    maker = VectorMaker(model, plan.vectors, threads=plan.threads)
    threading.Thread(target=embed, args=(line, maker, inputs), daemon=True).start()
    try:
        loop.run(inbox)
    finally:
        # The interpreter's own way out waits for native threads; whoever waits for us does not want that.
        traceback.print_exc()
        os._exit(1)


def read(line: Line, bodies: Iterator[bytes], inbox: Inbox, questions: Questions, inputs: Inputs) -> None:
    """Take frames in until the server is gone or says stop."""
    for body in bodies:
        frame: ToWorker = to_worker.decode(body)
        match frame:
            case Ping():
                line.send(Pong())
            case Tokenize() | Detokenize():
                questions.put(frame)
            case Embed():
                inputs.put(frame)
            case Stop(keep_s=0.0):
                break
            case Submit() | Abort() | SaveKv() | LoadKv() | Stop():
                inbox.put(frame)
    os._exit(0)


def answer(line: Line, model: NativeModel, questions: Questions) -> None:
    """Answer questions for ever; a long text holds up other texts and nothing else."""
    while True:
        question = questions.get()
        try:
            line.send(_answer(model, question))
        except GanglionError as error:
            line.send(_refused(question.id, error))


def embed(line: Line, maker: VectorMaker, inputs: Inputs) -> None:
    """Make vectors for ever, of all that waits together."""
    try:
        while True:
            frames = [inputs.get()]
            while not inputs.empty():
                frames.append(inputs.get())
            _embed(line, maker, frames)
    finally:
        traceback.print_exc()
        os._exit(1)


def _embed(line: Line, maker: VectorMaker, frames: list[Embed]) -> None:
    waiting = {frame.id for frame in frames}
    try:
        for vectors in maker.answer(frames, lambda: line.send(Reading())):
            waiting.remove(vectors.id)
            line.send(vectors)
    except GanglionError as error:
        for number in waiting:
            line.send(_refused(number, error))


def _answer(model: NativeModel, question: Tokenize | Detokenize) -> FromWorker:
    match question:
        case Tokenize(text=text, add_special=add_special, parse_special=parse_special):
            tokens = model.tokenize(text, add_special=add_special, parse_special=parse_special)
            return Tokenized(question.id, tokens)
        case Detokenize(tokens=ids, in_pieces=in_pieces):
            pieces = [model.piece(token) for token in ids]
            text = b"".join(pieces).decode("utf-8", "replace")
            return Detokenized(question.id, text, pieces if in_pieces else [])


def _ready(model: NativeModel, plan: EnginePlan, book: ConceptBook | None, load_s: float) -> Ready:
    return Ready(
        model.vocabulary_size,
        load_s,
        model.signs(),
        ranks=plan.vectors.pooling == "rank",
        rank_template=model.metadata("tokenizer.chat_template.rerank"),
        concepts=[] if book is None else list(book.manifest.concepts),
        readout_layers=[] if book is None else list(book.manifest.layers),
    )


def _refused(number: int, error: GanglionError) -> Refused:
    return Refused(number, error.code, error.message, error.hint, error.extras)
