"""Serves a loaded model: frames come in, steps, texts and vectors go out.

A reader thread takes frames in and answers pings, others tokenize beside the running batch
(`tokenizing.py`), one makes vectors (`embedding.py`), two read pictures (`pictures.py`), and the main thread
steps.
Law: the worker dies with its server: end of file on the socket ends the process at once.
"""

import os
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from time import monotonic

import msgspec

from ganglion.core.errors import GanglionError
from ganglion.engines.concepts.pack import ConceptBook, check_shape, merge_packs, read_pack
from ganglion.engines.llama.native.accelerators import accelerators, placement, refusal
from ganglion.engines.llama.native.model import NativeModel
from ganglion.engines.llama.native.mtmd import Projector
from ganglion.engines.llama.native.probe import LibraryDevice
from ganglion.engines.llama.plan import EnginePlan
from ganglion.engines.llama.worker.embedding import BatchEmbedder, EmbeddingQueue
from ganglion.engines.llama.worker.loop import Inbox, StepLoop
from ganglion.engines.llama.worker.pictures import PictureReader
from ganglion.engines.supervision.frame_socket import FrameSocket
from ganglion.engines.supervision.ipc import (
    Abort,
    Detokenize,
    Embed,
    ImagePlaced,
    LoadKv,
    MeasurePieces,
    PlaceImage,
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
        check_shape(pack, model.hidden_size, model.block_count)
    return merge_packs(packs)


def serve(
    socket: FrameSocket,
    bodies: Iterator[bytes],
    plan: EnginePlan,
    loaded: Callable[[], NativeModel],
    began_s: float,
    *,
    free_before: Callable[[], tuple[LibraryDevice, ...]] = tuple,
) -> None:
    """Serve the model that `loaded` waits for; returns only when that failed, of which the server is told.

    `free_before` waits for what the accelerators had free before the load.
    """
    before: tuple[LibraryDevice, ...] = ()
    inbox: Inbox = SimpleQueue()
    try:
        before = free_before()
        model = loaded()
        concepts = _load_concepts(plan, model)
        projector = _load_projector(plan, model)
        loop = StepLoop(model, plan if model.has_one_cache else plan.for_several_caches(), socket, concepts)
        pictures = None if projector is None else _pictures(plan, projector, socket, inbox)
    except GanglionError as error:
        socket.send(_refused(0, refusal(plan, error, before)))
        return
    ready = _ready(model, plan, concepts, projector)
    if before:
        ready = msgspec.structs.replace(ready, placement=placement(plan, before, accelerators(model.library)))
    socket.send(msgspec.structs.replace(ready, load_s=monotonic() - began_s))

    def refuse(number: int, error: GanglionError) -> None:
        socket.send(_refused(number, error))

    texts = TokenizerThreads(model, socket.send, refuse)
    vectors = EmbeddingQueue(BatchEmbedder(model, plan.vectors, threads=plan.threads), socket.send, refuse)
    threading.Thread(
        target=_read, args=(socket, bodies, inbox, _BesideSteps(texts, vectors, pictures)), daemon=True
    ).start()
    try:
        loop.run(inbox, pictures)
    finally:
        # The interpreter's own way out waits for native threads; whoever waits for us does not want that.
        traceback.print_exc()
        os._exit(1)


@dataclass(frozen=True, slots=True)
class _BesideSteps:
    """What answers beside the steps, each on threads of its own."""

    texts: TokenizerThreads
    vectors: EmbeddingQueue
    pictures: PictureReader | None


def _read(socket: FrameSocket, bodies: Iterator[bytes], inbox: Inbox, beside: _BesideSteps) -> None:
    """Take frames in until the server is gone or says stop."""
    pictures = beside.pictures
    for body in bodies:
        frame: ToWorker = to_worker.decode(body)
        match frame:
            case WorkerPing():
                socket.send(WorkerPong())
                if beside.texts.is_getting_on:
                    socket.send(WorkerProgress())
                if pictures is not None and pictures.is_getting_on:
                    socket.send(WorkerProgress(is_of_step=True))
            case Tokenize() | Detokenize() | MeasurePieces():
                beside.texts.ask(frame)
            case Embed():
                beside.vectors.ask(frame)
            case PlaceImage(id=number) if pictures is None:
                socket.send(ImagePlaced(number, []))
            case PlaceImage():
                assert pictures is not None
                pictures.ask(frame)
            case StopWorker(keep_s=0.0):
                break
            case Submit() | Abort() | SaveKv() | LoadKv() | StopWorker():
                inbox.put(frame)
    os._exit(0)


def _load_projector(plan: EnginePlan, model: NativeModel) -> Projector | None:
    if plan.projector is None:
        return None
    return model.project(plan.projector, threads=plan.threads, uses_gpu=plan.gpu_layers > 0)


def _pictures(plan: EnginePlan, projector: Projector, socket: FrameSocket, inbox: Inbox) -> PictureReader:
    assert plan.projector is not None
    reader = PictureReader(
        projector,
        plan.projector,
        most_rows=min(plan.micro_batch(number) for number in range(len(plan.kv_contexts))),
        send=socket.send,
        refuse=lambda number, error: socket.send(_refused(number, error)),
        report=inbox.put,
    )
    reader.probe()
    return reader


def _ready(
    model: NativeModel, plan: EnginePlan, concepts: ConceptBook | None, projector: Projector | None
) -> WorkerReady:
    return WorkerReady(
        model.vocabulary_size,
        0.0,
        model.special_tokens(),
        ranks=plan.vectors.pooling == "rank",
        rank_template=model.metadata("tokenizer.chat_template.rerank"),
        concepts=[] if concepts is None else list(concepts.manifest.concepts),
        readout_layers=[] if concepts is None else list(concepts.manifest.layers),
        sample_rate=0 if projector is None else projector.sample_rate,
    )


def _refused(number: int, error: GanglionError) -> WorkerRefusal:
    return WorkerRefusal(number, error.code, error.message, error.hint, error.extras)
