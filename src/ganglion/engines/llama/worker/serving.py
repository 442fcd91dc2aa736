"""Serves a loaded model: frames come in, steps, texts and vectors go out.

A reader thread takes frames in and answers pings, others tokenize beside the running batch
(`tokenizing.py`), one makes vectors (`embedding.py`), and the main thread steps.
Law: the worker dies with its server: end of file on the socket ends the process at once.
"""

import os
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from time import monotonic

import msgspec

from ganglion.core.errors import GanglionError, LoadFailed
from ganglion.engines.llama.concepts.pack import ConceptBook, ConceptPack, merge_packs, read_pack
from ganglion.engines.llama.native.model import NativeModel
from ganglion.engines.llama.plan import EnginePlan
from ganglion.engines.llama.worker.embedding import BatchEmbedder, EmbeddingQueue
from ganglion.engines.llama.worker.loop import Inbox, StepLoop
from ganglion.engines.supervision.frame_socket import FrameSocket
from ganglion.engines.supervision.ipc import (
    Abort,
    Detokenize,
    Embed,
    LoadKv,
    MeasurePieces,
    SaveKv,
    StopWorker,
    Submit,
    Tokenize,
    ToWorker,
    WorkerPing,
    WorkerPong,
    WorkerProgress,
    WorkerReady,
    WorkerRefusal,
    to_worker,
)
from ganglion.engines.tokenizing import TokenizerThreads


def _load_concepts(plan: EnginePlan, model: NativeModel) -> ConceptBook | None:
    """The plan's packs side by side, None for none; raises LoadFailed for what is not this model's."""
    packs = [read_pack(Path(path)) for path in plan.concepts]
    for pack in packs:
        _check_model(pack, model)
    return merge_packs(packs)


def _check_model(pack: ConceptPack, model: NativeModel) -> None:
    expected = model.hidden_size, model.block_count
    found = pack.manifest.model.hidden_size, pack.manifest.model.block_count
    if found != expected:
        raise LoadFailed(
            f"The concept pack {pack.manifest.name!r} is of a model with {found[1]} layers of width "
            f"{found[0]}, and this one has {expected[1]} of {expected[0]}.",
            hint=f"It was trained on {pack.manifest.model.name!r}; train it anew on this model.",
        )


def serve(
    socket: FrameSocket,
    bodies: Iterator[bytes],
    plan: EnginePlan,
    loaded: Callable[[], NativeModel],
    began_s: float,
) -> None:
    """Serve the model that `loaded` waits for; returns only when that failed, of which the server is told."""
    try:
        model = loaded()
        concepts = _load_concepts(plan, model)
        loop = StepLoop(model, plan if model.has_one_cache else plan.for_several_caches(), socket, concepts)
    except GanglionError as error:
        socket.send(_refused(0, error))
        return
    ready = _ready(model, plan, concepts)
    socket.send(msgspec.structs.replace(ready, load_s=monotonic() - began_s))
    inbox: Inbox = SimpleQueue()

    def refuse(number: int, error: GanglionError) -> None:
        socket.send(_refused(number, error))

    texts = TokenizerThreads(model, socket.send, refuse)
    vectors = EmbeddingQueue(BatchEmbedder(model, plan.vectors, threads=plan.threads), socket.send, refuse)
    threading.Thread(target=_read, args=(socket, bodies, inbox, texts, vectors), daemon=True).start()
    try:
        loop.run(inbox)
    finally:
        # The interpreter's own way out waits for native threads; whoever waits for us does not want that.
        traceback.print_exc()
        os._exit(1)


def _read(
    socket: FrameSocket,
    bodies: Iterator[bytes],
    inbox: Inbox,
    texts: TokenizerThreads,
    vectors: EmbeddingQueue,
) -> None:
    """Take frames in until the server is gone or says stop."""
    for body in bodies:
        frame: ToWorker = to_worker.decode(body)
        match frame:
            case WorkerPing():
                socket.send(WorkerPong())
                if texts.is_getting_on:
                    socket.send(WorkerProgress())
            case Tokenize() | Detokenize() | MeasurePieces():
                texts.ask(frame)
            case Embed():
                vectors.ask(frame)
            case StopWorker(keep_s=0.0):
                break
            case Submit() | Abort() | SaveKv() | LoadKv() | StopWorker():
                inbox.put(frame)
    os._exit(0)


def _ready(model: NativeModel, plan: EnginePlan, concepts: ConceptBook | None) -> WorkerReady:
    return WorkerReady(
        model.vocabulary_size,
        0.0,
        model.special_tokens(),
        ranks=plan.vectors.pooling == "rank",
        rank_template=model.metadata("tokenizer.chat_template.rerank"),
        concepts=[] if concepts is None else list(concepts.manifest.concepts),
        readout_layers=[] if concepts is None else list(concepts.manifest.layers),
    )


def _refused(number: int, error: GanglionError) -> WorkerRefusal:
    return WorkerRefusal(number, error.code, error.message, error.hint, error.extras)
