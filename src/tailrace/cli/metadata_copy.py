"""Reads the metadata of a cluster out of a store, in batches that any other store accepts.

Owns the list of what is copied: everything that outlives the sessions of brokers, except the cluster id, which the
caller writes first or last. Must not know why it is copied.
"""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.cluster.keys import (
    ARCHIVES,
    BROKER_CONFIGS,
    BROKER_EPOCHS,
    CONTROLLER_EPOCH,
    FINALIZED_FEATURES,
    PRODUCER_IDS,
    TOPIC_NAMES,
    TOPICS,
)
from tailrace.cluster.store import Entry, Store

_DIRECTORIES = (TOPIC_NAMES, TOPICS, ARCHIVES, BROKER_EPOCHS, BROKER_CONFIGS)
_SINGLE_KEYS = (CONTROLLER_EPOCH, PRODUCER_IDS, FINALIZED_FEATURES)
_BATCH_OPERATIONS = 50
_BATCH_BYTES = 512 << 10


async def read_entries(store: Store) -> list[Entry]:
    """Read everything that is to be copied."""
    entries: list[Entry] = []
    for directory in _DIRECTORIES:
        entries += await store.list(directory)
    for key in _SINGLE_KEYS:
        entry = await store.get(key)
        if entry is not None:
            entries.append(entry)
    return entries


def batches(entries: Sequence[Entry]) -> list[list[Entry]]:
    """Divide entries into transactions."""
    divided: list[list[Entry]] = []
    size = 0
    for entry in entries:
        size += len(entry.value)
        if not divided or len(divided[-1]) >= _BATCH_OPERATIONS or size > _BATCH_BYTES:
            divided.append([])
            size = len(entry.value)
        divided[-1].append(entry)
    return divided
