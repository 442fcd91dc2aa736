"""A worker without a model that gives each of its sequences one token a step, at a chosen rate.

It speaks the frames of a real one, so that what a server spends on tokens is measured with their decoding.
Its first frame, the plan, is ignored; the steps a second are in `GANGLION_PACED_STEPS`.
"""

from __future__ import annotations

import os
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
    TokenRecord,
    ToWorker,
    WorkerPing,
    WorkerPong,
    WorkerReady,
    encode,
    to_worker,
)

STEPS = "GANGLION_PACED_STEPS"
VOCABULARY = 1000


class _Worker:
    def __init__(self, line: socket.socket, step_s: float) -> None:
        self._line = line
        self._lock = threading.Lock()
        self._step_s = step_s
        self._inbox: SimpleQueue[Submit | Abort] = SimpleQueue()
        self._running: dict[int, tuple[Submit, int]] = {}

    def read(self, bodies: Iterator[bytes]) -> None:
        for body in bodies:
            frame: ToWorker = to_worker.decode(body)
            match frame:
                case WorkerPing():
                    self.send(WorkerPong())
                case Tokenize():
                    tokens = [ord(each) % VOCABULARY for each in frame.text]
                    self.send(Tokenized(frame.id, tokens))
                case StopWorker():
                    break
                case Submit() | Abort():
                    self._inbox.put(frame)
                case _:
                    pass
        os._exit(0)

    def step_for_ever(self) -> None:
        due_s = time.monotonic()
        while True:
            if self._take_in():
                due_s = time.monotonic()
            due_s = max(due_s + self._step_s, time.monotonic())
            time.sleep(max(0.0, due_s - time.monotonic()))
            updates = [self._advance(number) for number in list(self._running)]
            self.send(Stepped(updates, WorkerLoad(len(self._running), 0, 0, 0.0, 0.0)))

    def _take_in(self) -> bool:
        """Take what came, and wait for something where nothing runs; returns whether it waited."""
        waits = not self._running
        is_blocking = waits
        while True:
            try:
                frame = self._inbox.get(block=is_blocking)
            except Empty:
                return waits
            is_blocking = False
            if isinstance(frame, Submit):
                self._running[frame.id] = frame, 0
            else:
                self._running.pop(frame.id, None)
                self.send(SequenceGone(frame.id))

    def _advance(self, number: int) -> SequenceUpdate:
        submit, count = self._running[number]
        self._running[number] = submit, count + 1
        prompt = len(submit.tokens)
        token, text = (number + count) % VOCABULARY, f" word{count % 10}"
        pieces = [PieceRecord(text, False, [TokenRecord(token, text.encode(), prompt + count)])]
        end = None
        if count + 1 >= submit.max_tokens:
            end = SequenceEnd("length", count + 1, None, 0.0, 0.0, 0.0)
            del self._running[number]
        started = (prompt, 0) if count == 0 else None
        return SequenceUpdate(number, started=started, pieces=pieces, end=end)

    def send(self, frame: FromWorker) -> None:
        with self._lock:
            self._line.sendall(encode(frame))


def _bodies_of(line: socket.socket) -> Iterator[bytes]:
    with line.makefile("rb") as stream:
        while prefix := stream.read(LENGTH_PREFIX.size):
            yield stream.read(LENGTH_PREFIX.unpack(prefix)[0])


def main() -> None:
    line = socket.socket(fileno=int(sys.argv[1]))
    bodies = _bodies_of(line)
    next(bodies)
    worker = _Worker(line, 1.0 / float(os.environ[STEPS]))
    worker.send(WorkerReady(VOCABULARY, 0.0))
    threading.Thread(target=worker.read, args=(bodies,), daemon=True).start()
    worker.step_for_ever()


if __name__ == "__main__":
    main()
