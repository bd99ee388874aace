"""A process that holds a session of a store with one key, and says on request what it makes of it.

    python -m tests.support.stores.session_holder URL TTL_MS KEY

Prints `held` when the key is written. For each line on its input it prints whether the session is lost, and whether
another write with it was taken: `lost refused` or `held written`. It says goodbye to nobody when it ends.
"""

from __future__ import annotations

import asyncio
import os
import sys

from tailrace.cluster.store import Unavailable, Write
from tailrace.runtime.system.clock import SystemClock
from tailrace.stores.opening import open_store


async def main(url: str, ttl_ms: int, key: str) -> None:
    store = open_store(url, SystemClock())
    session = await store.open_session(ttl_ms)
    assert await store.txn([], [Write(key, b"held", session)]) is not None
    print("held", flush=True)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while await reader.readline():
        state = "lost" if session.is_lost else "held"
        try:
            written = await store.txn([], [Write(key, b"again", session)]) is not None
        except Unavailable:
            written = False
        print(state, "written" if written else "refused", flush=True)
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
