"""A process that forks writers on request; each opens the store, writes as fast as it can, and is killed.

Reads lines `path round`; for each, forks a writer, which prints its pid and then `ack <id>` for every write
that the store has answered; `gone` follows when it was killed.
"""

import asyncio
import os
import sys

from kept import events, items, response

from ganglion.store.database import Store
from ganglion.store.opening import open_store

WRITERS = 8


async def write(store: Store, name: str) -> None:
    number = 0
    while True:
        kept = response(f"{name}-{number}", body=os.urandom(512), conversation_id="conv_1")
        await store.put(kept, items=items(f"{name}-{number}"))
        os.write(1, f"ack {kept.id}\n".encode())
        number += 1


async def writer(path: str, number: str) -> None:
    store = await open_store(path)
    cut = response(f"{number}-cut", status="in_progress")
    await store.put(cut, events=events(0, 1))
    os.write(1, f"ack {cut.id}\n".encode())
    await asyncio.gather(*(write(store, f"{number}-{each}") for each in range(WRITERS)))


def main() -> None:
    for line in sys.stdin:
        path, number = line.split()
        pid = os.fork()
        if pid == 0:
            os.write(1, f"pid {os.getpid()}\n".encode())
            asyncio.run(writer(path, number))
        os.waitpid(pid, 0)
        os.write(1, b"gone\n")


if __name__ == "__main__":
    main()
