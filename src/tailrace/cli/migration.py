"""Copies metadata from the file of a single broker to the store of a cluster.

Writes the cluster id last: an interrupted copy is not a cluster yet, and the next attempt starts over. Reads everything
back before it marks the file as moved.
"""

from __future__ import annotations

from collections.abc import Callable

from tailrace.cli.metadata_copy import batches, read_entries
from tailrace.cluster.keys import CLUSTER_ID, MOVED_TO
from tailrace.cluster.store import ABSENT, Check, Store, Write
from tailrace.errors import StorageError
from tailrace.runtime.system.clock import SystemClock
from tailrace.stores.opening import open_store
from tailrace.stores.sqlite import SqliteStore

_SAID_EVERY = 1000


async def migrate_store(path: str, target: str, say: Callable[[str], None]) -> int:
    """Copy everything and return the number of entries."""
    source = SqliteStore(path)
    try:
        destination = open_store(target, SystemClock())
        try:
            return await _migrate(source, destination, target, say)
        finally:
            await destination.close()
    finally:
        await source.close()


async def _migrate(source: Store, destination: Store, target: str, say: Callable[[str], None]) -> int:
    cluster_id = await source.get(CLUSTER_ID)
    if cluster_id is None:
        raise StorageError("the data directory has no metadata: its broker was never started")
    there = await destination.get(CLUSTER_ID)
    if there is not None:
        if there.value == cluster_id.value:
            raise StorageError(
                f"{target} already has the metadata of this cluster: start the broker with --coordination {target}"
            )
        raise StorageError(f"{target} is in use by cluster {there.value.decode()}: choose another prefix or chroot")
    entries = await read_entries(source)
    done = 0
    for batch in batches(entries):
        if await destination.txn([], [Write(entry.key, entry.value) for entry in batch]) is None:
            raise StorageError(f"cannot write to {target}: the store refused the transaction")
        done += len(batch)
        if done // _SAID_EVERY != (done - len(batch)) // _SAID_EVERY:
            say(f"copied {done} of {len(entries)} entries")
    copied = {entry.key: entry.value for entry in await read_entries(destination)}
    for entry in entries:
        if copied.get(entry.key) != entry.value:
            raise StorageError(
                f"{entry.key} in {target} differs from what was written: the broker's file is unchanged, try again"
            )
    if await destination.txn([Check(CLUSTER_ID, ABSENT)], [Write(CLUSTER_ID, cluster_id.value)]) is None:
        raise StorageError(
            f"{target} has meanwhile become the store of another cluster: choose another prefix or chroot"
        )
    await source.txn([], [Write(MOVED_TO, target.encode())])
    return len(entries) + 1
