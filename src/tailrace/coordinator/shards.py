"""The shards of one internal topic on this broker: loaded when it becomes the leader, dropped when it resigns.

Finds the shard of a key: the hash of the key chooses the partition, as in every Kafka broker. A shard that is still
loading refuses with COORDINATOR_LOAD_IN_PROGRESS, a shard on another broker with NOT_COORDINATOR.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Iterator
from typing import Generic

from tailrace.coordinator.journal import Journal
from tailrace.coordinator.loader import load
from tailrace.coordinator.operations import Operations
from tailrace.coordinator.shard import S
from tailrace.errors import ErrorCode, KafkaError, StorageError
from tailrace.replication.partition import Partition
from tailrace.replication.waiters import again
from tailrace.runtime.clock import Clock
from tailrace.runtime.tasks import Tasks

logger = logging.getLogger("tailrace.coordinator")

#: Pause before a shard is loaded again after the disk refused a read.
_RETRY_SECONDS = 1.0
#: Errors of a partition during loading which mean that leadership has changed: another broker leads it, or this one in
#: a later epoch. The shards hear of the change next, so what was loaded is discarded.
_LED_OTHERWISE = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


class _Held(Generic[S]):
    """One shard on this broker."""

    def __init__(self, partition: Partition, journal: Journal, operations: Operations, shard: S) -> None:
        self.partition = partition
        self.journal = journal
        self.operations = operations
        self.shard = shard
        self.leader_epoch = partition.leader_epoch
        self.is_loaded = False
        self.failure: KafkaError | None = None


class Shards(Generic[S]):
    """Every shard on this broker."""

    def __init__(self, clock: Clock, tasks: Tasks, make: Callable[[Operations], S]) -> None:
        self._clock = clock
        self._tasks = tasks
        self._make = make
        self._held: dict[int, _Held[S]] = {}

    def __iter__(self) -> Iterator[S]:
        """The shards that are loaded."""
        return iter([held.shard for held in self._held.values() if held.is_loaded])

    @property
    def is_loading(self) -> bool:
        return any(not held.is_loaded and held.failure is None for held in self._held.values())

    def find(self, number: int) -> S:
        """The shard of a partition; raises an error if it is not ready here."""
        held = self._held.get(number)
        if held is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        if held.failure is not None:
            raise again(held.failure)
        if not held.is_loaded:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return held.shard

    def lead(self, partition: Partition) -> None:
        """This broker leads a partition now: load its shard, unless it was loaded in this leader epoch."""
        number = partition.partition.partition
        held = self._held.get(number)
        if held is not None:
            if held.partition is partition and held.leader_epoch == partition.leader_epoch:
                return
            self.resign(number)
        journal = Journal(partition, self._clock)
        operations = Operations(journal, asyncio.get_running_loop())
        held = _Held(partition, journal, operations, self._make(operations))
        operations.replay_into(held.shard)
        self._held[number] = held
        if partition.log.end_offset <= partition.log.start_offset:
            self._begin(held)
            return
        self._tasks.spawn(self._load(number, held), f"load {partition.partition}")

    def resign(self, number: int) -> None:
        """This broker no longer leads a partition."""
        held = self._held.pop(number, None)
        if held is None:
            return
        held.operations.end()
        if held.is_loaded:
            held.shard.end(KafkaError(ErrorCode.NOT_COORDINATOR))

    async def _load(self, number: int, held: _Held[S]) -> None:
        name = held.partition.partition
        started = self._clock.monotonic()
        try:
            count = await load(held.partition, held.leader_epoch, held.shard)
        except (KafkaError, StorageError) as error:
            if isinstance(error, KafkaError) and error.code in _LED_OTHERWISE:
                held.failure = KafkaError(ErrorCode.NOT_COORDINATOR)
                return
            if isinstance(error, StorageError):
                held.partition.directory.fail(error)
            is_of_disk = isinstance(error, StorageError) or error.code is ErrorCode.KAFKA_STORAGE_ERROR
            if is_of_disk and held.partition.directory.failure is None:
                await self._load_again(number, held, error)
                return
            logger.error("Cannot load coordinator state from %s; its keys are not served: %s", name, error)
            held.failure = KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"Cannot load {name}: {error}")
            return
        if self._held.get(number) is not held:
            return
        self._begin(held)
        logger.info(
            "Loaded coordinator state from %s: %d records in %.2f s", name, count, self._clock.monotonic() - started
        )

    async def _load_again(self, number: int, held: _Held[S], error: Exception) -> None:
        """Start over with an empty shard, because the disk refused a read for a reason that passes."""
        logger.error(
            "Cannot load coordinator state from %s, retrying: %s",
            held.partition.partition,
            error,
            extra={"repeats": "coordinator not loaded"},
        )
        await asyncio.sleep(_RETRY_SECONDS)
        if self._held.get(number) is held:
            self.resign(number)
            self.lead(held.partition)

    def _begin(self, held: _Held[S]) -> None:
        held.is_loaded = True
        held.journal.begin()
        held.shard.begin()

    def close(self) -> None:
        """The broker is stopping."""
        for number in list(self._held):
            self.resign(number)


@functools.lru_cache(maxsize=10_000)
def partition_for(key: str, partitions: int) -> int:
    """The partition of an internal topic for a key, by Java's hash of the key's UTF-16 units."""
    units = key.encode("utf-16-be", "surrogatepass")
    code = 0
    for at in range(0, len(units), 2):
        code = (31 * code + (units[at] << 8) + units[at + 1]) & 0xFFFFFFFF
    # Java's abs of the smallest int stays negative; Kafka maps it to 0.
    signed = code - (1 << 32) if code & 0x80000000 else code
    return (0 if signed == -(1 << 31) else abs(signed)) % partitions
