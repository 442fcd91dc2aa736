"""A worker without a model, for tests of what is around one; the plan, its first frame, says how it ends.

`die` ends before it is ready, `blink` as soon as it is, `refuse` says why it cannot load, `stubborn` does
nothing for ever, and any other plan works until it is told to stop.
A prompt says by its tokens what happens when it runs: CRASH and HANG do what they say, JAM in the tokenizer.
"""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from queue import Empty, SimpleQueue

from ganglion.core.model import WorkerLoad
from ganglion.engines.supervision.ipc import (
    LENGTH_PREFIX,
    Abort,
    FromWorker,
    PieceRecord,
    SequenceEnd,
    SequenceGone,
    SequenceUpdate,
    Stepped,
    StopWorker,
    Submit,
    Tokenize,
    Tokenized,
    ToWorker,
    WorkerPing,
    WorkerPong,
    WorkerReady,
    WorkerRefusal,
    encode,
    to_worker,
)

CRASH, HANG = 666, 667
JAM = "jam"
STEP_S = 0.005


class Worker:
    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._lock = threading.Lock()
        self._inbox: SimpleQueue[Submit | Abort] = SimpleQueue()
        self._questions: SimpleQueue[Tokenize] = SimpleQueue()
        self._running: dict[int, tuple[Submit, int]] = {}

    def send(self, frame: FromWorker) -> None:
        with self._lock:
            self._line.sendall(encode(frame))

    def read(self, bodies: Iterator[bytes]) -> None:
        for body in bodies:
            frame: ToWorker = to_worker.decode(body)
            match frame:
                case WorkerPing():
                    self.send(WorkerPong())
                case Tokenize():
                    self._questions.put(frame)
                case StopWorker():
                    break
                case Submit() | Abort():
                    self._inbox.put(frame)
        os._exit(0)

    def answer(self) -> None:
        while True:
            question = self._questions.get()
            if question.text == JAM:
                time.sleep(600)
            self.send(Tokenized(question.id, [ord(each) for each in question.text]))

    def step(self) -> None:
        while True:
            self._take_in()
            time.sleep(STEP_S)
            updates = [self._advance(number) for number in list(self._running)]
            self.send(Stepped(updates, WorkerLoad(len(self._running), 0, 0, 0.0, 0.0)))

    def _take_in(self) -> None:
        is_blocking = not self._running
        while True:
            try:
                frame = self._inbox.get(block=is_blocking)
            except Empty:
                return
            is_blocking = False
            if isinstance(frame, Submit):
                self._running[frame.id] = frame, 0
            else:
                self._running.pop(frame.id, None)
                self.send(SequenceGone(frame.id))

    def _advance(self, number: int) -> SequenceUpdate:
        submit, count = self._running[number]
        if count == 2 and CRASH in submit.tokens:
            os.kill(os.getpid(), signal.SIGSEGV)
        if count == 2 and HANG in submit.tokens:
            time.sleep(600)
        self._running[number] = submit, count + 1
        started = (len(submit.tokens), 0) if count == 0 else None
        end = (
            SequenceEnd("length", count + 1, None, 0.0, 0.0, 0.0) if count + 1 >= submit.max_tokens else None
        )
        if end is not None:
            del self._running[number]
        return SequenceUpdate(number, started=started, pieces=[PieceRecord("word ", False, [])], end=end)


def bodies_of(line: socket.socket) -> Iterator[bytes]:
    with line.makefile("rb") as stream:
        while prefix := stream.read(LENGTH_PREFIX.size):
            yield stream.read(LENGTH_PREFIX.unpack(prefix)[0])


def main() -> None:
    line = socket.socket(fileno=int(sys.argv[1]))
    bodies = bodies_of(line)
    word = next(bodies).decode(errors="replace")
    if word == "die":
        sys.exit(3)
    if word == "refuse":
        line.sendall(encode(WorkerRefusal(0, "load_failed", "not a model", "fetch it again", {})))
        return
    if word == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    line.sendall(encode(WorkerReady(1, 0.0)))
    if word == "blink":
        os._exit(0)
    if word == "stubborn":
        time.sleep(600)
    worker = Worker(line)
    for target, arguments in ((worker.read, (bodies,)), (worker.answer, ())):
        threading.Thread(target=target, args=arguments, daemon=True).start()
    worker.step()


if __name__ == "__main__":
    main()
