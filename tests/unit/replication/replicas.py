"""Replicas of one partition, each on a simulated disk of its own, that exchange batches as brokers do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from random import Random
from typing import Any, NamedTuple
from uuid import UUID

from tailrace.cluster.image import PartitionState
from tailrace.model import TopicPartition
from tailrace.replication.acknowledging import ACKS_ALL
from tailrace.replication.partition import Partition
from tailrace.replication.reading import Audience
from tailrace.runtime import Runtime
from tailrace.storage.log_config import LogConfig
from tailrace.storage.log_directory import LogDirectory
from tailrace.storage.partition_log import Appended
from tailrace.testing.clock import SimClock
from tailrace.testing.disk import SimDisk
from tailrace.testing.helper import SimHelper
from tailrace.testing.loop import SimLoop
from tailrace.testing.network import SimNetwork
from tests.unit.replication.reads import read
from tests.unit.storage.logs import batch, read_all

NAME = TopicPartition("orders", 0)
TOPIC_ID = UUID(int=1)
LAG_MS = 10_000


class Fetched(NamedTuple):
    """What a leader answered to a follower's fetch: where the logs part, or what comes next."""

    leader_epoch: int
    diverging: tuple[int, int] | None
    data: bytes
    high_watermark: int
    log_start_offset: int


class Replica:
    """One broker with its replica, started and crashed at will."""

    def __init__(self, loop: SimLoop, broker_id: int, config: LogConfig | None = None) -> None:
        self.loop = loop
        self.broker_id = broker_id
        self.broker_epoch = 0
        self.config = config or LogConfig(index_interval_bytes=0)
        self.disk = SimDisk(loop.random_for(f"disk {broker_id}"), cached_probability=1.0)
        self.clock = SimClock(loop)
        network = SimNetwork(loop, Random(broker_id)).host(f"broker {broker_id}")
        self._runtime = Runtime(
            self.clock, self.disk, network, Random(broker_id), SimHelper(self.disk, Random(broker_id))
        )
        self.holds_lease = True
        self.is_up = False
        self.start()

    def start(self) -> None:
        """Start on whatever the disk has, in a new incarnation."""
        self.broker_epoch += 1
        self.directory = LogDirectory("/data", self._runtime, background_bytes=1 << 30, background_ms=1000)
        self.directory.open()
        log = self.directory.open_partition(NAME, TOPIC_ID, self.config)
        self.directory.start()
        self.partition = Partition(
            NAME, TOPIC_ID, log, self.directory, self.broker_id, holds_lease=lambda: self.holds_lease
        )
        partition = self.partition
        self.directory.on_promise = lambda _: partition.advance()
        self.is_up = True

    async def crash(self, *, power_cut: bool) -> None:
        """End the process, and perhaps the machine with it."""
        self.is_up = False
        self.directory.tasks.abandon()
        if power_cut:
            self.disk.crash()
        else:
            self.disk.kill()
        await asyncio.sleep(0.1)  # until what was cancelled has ended

    async def stop(self) -> None:
        """Stop cleanly."""
        self.is_up = False
        await self.directory.close()

    async def save_high_watermark(self) -> None:
        """Write down what is known to be committed, as a broker does now and then."""
        await self.directory.checkpoints.save_high_watermarks({NAME: self.partition.high_watermark})

    def apply(self, state: PartitionState, epochs: Mapping[int, int] | None = None) -> None:
        self.partition.apply_state(state, {1: 1, 2: 1, 3: 1} if epochs is None else epochs, self.loop.time())

    def append(self, value: bytes = b"a value", acks: int = ACKS_ALL, records: int = 1, **fields: Any) -> int:
        """Append a batch as a producer does; its last offset."""
        data = batch(records, value=value, timestamp=self.clock.wall_ms(), **fields)
        appended = self.partition.append(memoryview(data), acks)
        assert isinstance(appended, Appended)
        return appended.last_offset

    def answer(self, follower: Replica, max_bytes: int = 1 << 20) -> Fetched:
        """Answer a follower's fetch, as the fetch handler does."""
        partition = self.partition
        offset, last_epoch = follower.partition.following.fetch_position()
        partition.require_leader(follower.partition.leader_epoch)
        diverging = partition.diverging_epoch(last_epoch, offset)
        end, data = None, b""
        if diverging is not None:
            end = diverging
        else:
            log_start = follower.partition.log.start_offset
            partition.leading.follower_fetched(
                follower.broker_id, follower.broker_epoch, offset, log_start, self.loop.time()
            )
            part = read(partition, offset, max_bytes, follower.partition.leader_epoch, Audience.REPLICA)
            if part is not None:
                data = part.file.read(part.position, part.size)
        return Fetched(partition.leader_epoch, end, data, partition.high_watermark, partition.log.start_offset)

    async def take(self, fetched: Fetched) -> None:
        """Go by a leader's answer, as a fetcher does."""
        if fetched.leader_epoch != self.partition.leader_epoch:
            return
        if fetched.diverging is not None:
            await self.partition.following.truncate_to(*fetched.diverging)
        else:
            data = memoryview(fetched.data)
            self.partition.following.append_fetched(data, fetched.high_watermark, fetched.log_start_offset)

    async def fetch_from(self, leader: Replica, rounds: int = 1) -> None:
        for _ in range(rounds):
            await self.take(leader.answer(self))

    def values(self) -> dict[int, bytes]:
        """Every record in the log by its offset."""
        return {record.offset: record.value or b"" for record in read_all(self.partition.log)}


class Replicas:
    """Three brokers with a replica each, of which the first leads."""

    def __init__(self, loop: SimLoop, config: LogConfig | None = None) -> None:
        self.loop = loop
        self.leader, self.second, self.third = self.all = [Replica(loop, number, config) for number in (1, 2, 3)]
        self.state = PartitionState((1, 2, 3), (1, 2, 3), 1, 0)
        self.change()

    def change(self, *, isr: tuple[int, ...] | None = None, leader: int | None = None) -> None:
        """Change the image for all: another leader begins another epoch."""
        state = self.state
        self.state = PartitionState(
            state.replicas,
            state.isr if isr is None else isr,
            state.leader if leader is None else leader,
            state.leader_epoch + (leader is not None),
        )
        epochs = {replica.broker_id: replica.broker_epoch for replica in self.all}
        for replica in self.all:
            replica.apply(self.state, epochs)

    async def fetch(self, rounds: int = 2) -> None:
        """Let both followers fetch until they have all, and the leader knows."""
        leader = self.all[self.state.leader - 1]
        for _ in range(rounds):
            for replica in self.all:
                if replica is not leader:
                    await replica.fetch_from(leader)


def with_replicas(
    test: Callable[[Replicas], Coroutine[Any, Any, None]], config: LogConfig | None = None, seed: int = 7
) -> None:
    loop = SimLoop(seed)

    async def run() -> None:
        # Log directories need a loop that runs.
        await test(Replicas(loop, config))

    loop.run(run())
