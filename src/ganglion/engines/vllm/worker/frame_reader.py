"""Frames of the server's to a loaded model: a thread reads them, and the event loop does what they say.

Law: the worker dies with its server: end of file on the socket ends all its processes at once. The reader
answers pings whatever the event loop does.
"""

import asyncio
import threading
import traceback
from collections.abc import Callable, Iterator
from time import monotonic

from ganglion.core.errors import EngineUnavailable, GanglionError
from ganglion.engines.supervision.frame_socket import FrameSocket
from ganglion.engines.supervision.ipc import (
    Detokenize,
    MeasurePieces,
    StopWorker,
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
from ganglion.engines.vllm.vllm_plan import VllmPlan
from ganglion.engines.vllm.worker.error_log import ErrorLog
from ganglion.engines.vllm.worker.group_end import end_all
from ganglion.engines.vllm.worker.load_errors import load_error
from ganglion.engines.vllm.worker.load_progress import LoadProgressSigns

_INSTALL = "Install it with `ganglion engines install vllm`, or name its Python in engine.vllm.python."


def serve(frames: FrameSocket, bodies: Iterator[bytes], plan: VllmPlan, log: ErrorLog) -> None:
    """Load the model and serve it; returns only when that failed, of which the server is told."""
    try:
        asyncio.run(_serve(frames, bodies, plan, log))
    finally:
        # The interpreter's own way out waits for threads; whoever waits for us does not want that.
        traceback.print_exc()
        end_all(1)


async def _serve(frames: FrameSocket, bodies: Iterator[bytes], plan: VllmPlan, log: ErrorLog) -> None:
    began_s = monotonic()
    inbox = _Inbox(frames, bodies)
    inbox.start()
    with LoadProgressSigns(lambda: frames.send(WorkerProgress())):
        try:
            from ganglion.engines.vllm.worker.engine_loading import is_on_processor, load  # noqa: PLC0415
            from ganglion.engines.vllm.worker.request_table import RequestTable  # noqa: PLC0415
        except ImportError as error:
            frames.send(_refused(0, EngineUnavailable(f"vLLM cannot be imported: {error}.", hint=_INSTALL)))
            return
        table = RequestTable(frames)
        try:
            model = await load(plan, table.note_step)
        except Exception as error:  # noqa: BLE001 - vLLM raises all kinds, and each is told
            traceback.print_exc()
            refusal = load_error(error, log.lines, on_processor=is_on_processor())
            frames.send(_refused(0, refusal))
            return
    texts = TokenizerThreads(
        model.vocabulary, frames.send, lambda number, error: frames.send(_refused(number, error))
    )
    inbox.answer_texts(texts)
    table.begin(model)
    frames.send(
        WorkerReady(
            model.vocabulary.vocabulary_size,
            monotonic() - began_s,
            model.vocabulary.special_tokens,
            kv_tokens=model.kv_tokens,
        )
    )
    await inbox.deliver(table.take)
    model.llm.shutdown()
    end_all(0)


class _Inbox:
    """Frames as they come, from the thread that reads them to the event loop."""

    def __init__(self, frames: FrameSocket, bodies: Iterator[bytes]) -> None:
        self._socket = frames
        self._bodies = bodies
        self._loop = asyncio.get_running_loop()
        # Bounded by the requests that the server lets in at once.
        self._arrived: asyncio.Queue[ToWorker] = asyncio.Queue()
        self._texts: TokenizerThreads | None = None

    def start(self) -> None:
        """Begin to read."""
        threading.Thread(target=self._read, daemon=True, name="frames").start()

    def answer_texts(self, texts: TokenizerThreads) -> None:
        """Have questions about texts answered, beside the event loop."""
        self._texts = texts

    async def deliver(self, take: Callable[[ToWorker], None]) -> None:
        """Hand frames on until one of them says stop."""
        while not isinstance(frame := await self._arrived.get(), StopWorker):
            take(frame)

    def _read(self) -> None:
        for body in self._bodies:
            frame: ToWorker = to_worker.decode(body)
            match frame:
                case WorkerPing():
                    self._socket.send(WorkerPong())
                    if self._texts is not None and self._texts.is_getting_on:
                        self._socket.send(WorkerProgress())
                case Tokenize() | Detokenize() | MeasurePieces():
                    assert self._texts is not None
                    self._texts.ask(frame)
                case _:
                    self._loop.call_soon_threadsafe(self._arrived.put_nowait, frame)
        end_all(0)


def _refused(number: int, error: GanglionError) -> WorkerRefusal:
    return WorkerRefusal(number, error.code, error.message, error.hint, error.extras)
