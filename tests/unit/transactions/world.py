"""A shard of transactions on a real journal in virtual time, and markers that arrive when the test says so."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable
from itertools import count
from typing import Any, TypeVar

from tailrace.coordinator.operations import Operations
from tailrace.coordinator.shards import Shards
from tailrace.errors import ErrorCode, KafkaError
from tailrace.model import TopicPartition
from tailrace.records.markers import Marker
from tailrace.runtime.tasks import Tasks
from tailrace.testing.loop import SimLoop
from tailrace.transactions.counters import TransactionCounters
from tailrace.transactions.markers import MarkerListener
from tailrace.transactions.settings import TransactionSettings
from tailrace.transactions.shard import TransactionShard
from tailrace.transactions.states import ProducerIdentity, State, Transaction
from tests.unit.replication.replicas import Replicas

T = TypeVar("T")
ID = "payments"
TIMEOUT_MS = 60_000
P0, P1, P2 = (TopicPartition("orders", number) for number in range(3))


class Sent:
    """Markers on their way: one for each partition of a transaction."""

    def __init__(
        self,
        marker: Marker,
        partitions: Iterable[TopicPartition],
        listener: MarkerListener,
        arrived: list[tuple[Marker, TopicPartition]],
    ) -> None:
        self.marker = marker
        self.arrived = arrived
        self.partitions = dict.fromkeys(partitions)
        self.listener = listener
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True

    def arrive(self, *partitions: TopicPartition) -> None:
        """Let markers arrive, by default all; nobody listens any more to those that were cancelled."""
        for partition in partitions or list(self.partitions):
            del self.partitions[partition]
            self.arrived.append((self.marker, partition))
            if not self.is_cancelled:
                self.listener.written(partition)


class Post:
    """Sends markers as the test says."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []
        #: Every marker that arrived, no matter who sent it.
        self.arrived: list[tuple[Marker, TopicPartition]] = []

    def send(self, marker: Marker, partitions: Iterable[TopicPartition], listener: MarkerListener) -> Sent:
        self.sent.append(Sent(marker, partitions, listener, self.arrived))
        return self.sent[-1]

    @property
    def under_way(self) -> list[Sent]:
        return [sent for sent in self.sent if sent.partitions and not sent.is_cancelled]

    def deliver(self) -> None:
        """Let all markers arrive."""
        for sent in self.under_way:
            sent.arrive()


class World:
    """Three brokers that can coordinate one partition of the transaction topic, of which one does."""

    def __init__(self, loop: SimLoop, settings: TransactionSettings) -> None:
        self.loop = loop
        self.settings = settings
        self.replicas = Replicas(loop)
        self.post = Post()
        self.counters = TransactionCounters()
        self._tasks = Tasks(_fail)
        self._ids = count(1000)
        #: Whether there are producer ids to give out.
        self.has_ids = True
        self.shards = self._new_shards()
        self.replicas.change(isr=(1,))
        self.lead()

    def _new_shards(self) -> Shards[TransactionShard]:
        return Shards(self.replicas.leader.clock, self._tasks, self._make)

    def _make(self, operations: Operations) -> TransactionShard:
        clock = self.replicas.leader.clock
        return TransactionShard(operations, lambda: self.settings, self.post, self._take_id, clock, self.counters)

    def _take_id(self) -> int:
        if not self.has_ids:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return next(self._ids)

    @property
    def shard(self) -> TransactionShard:
        return self.shards.find(0)

    def lead(self) -> None:
        self.shards.lead(self.replicas.leader.partition)

    async def fail_over(self) -> None:
        """Another coordinator takes over, with all that is in the journal."""
        self.shards.close()
        self.post.sent.clear()
        self.replicas.change(leader=1)
        self.shards = self._new_shards()
        self.lead()
        await self.pass_seconds(0.1)

    async def pass_seconds(self, seconds: float) -> None:
        done = self.loop.create_future()
        self.loop.call_later(seconds, done.set_result, None)
        await done

    def refuse_writes(self, is_refused: bool = True) -> None:
        """Let the journal refuse records, for lack of replicas."""
        self.replicas.leader.partition.min_insync_replicas = 2 if is_refused else 1

    def transaction(self, transactional_id: str = ID) -> Transaction:
        return self.shard._transactions[transactional_id]

    def state(self, transactional_id: str = ID) -> State:
        return self.transaction(transactional_id).state

    # --- requests

    async def begin(self, known: ProducerIdentity | None = None, transactional_id: str = ID) -> ProducerIdentity:
        return await now(self.shard.initialize(transactional_id, known, TIMEOUT_MS))

    async def begin_at_last(self, known: ProducerIdentity | None = None) -> ProducerIdentity:
        """Become the producer, as a client does that is told to ask again."""
        for _ in range(10):
            try:
                return await self.begin(known)
            except KafkaError as error:
                if error.code is not ErrorCode.CONCURRENT_TRANSACTIONS:
                    raise
                self.post.deliver()
        raise AssertionError("the transaction never ends")

    async def add(self, who: ProducerIdentity, *partitions: TopicPartition, transactional_id: str = ID) -> None:
        await now(self.shard.add_partitions(transactional_id, who, partitions))

    async def end(
        self, who: ProducerIdentity, is_commit: bool = True, *, is_newer: bool = True, transactional_id: str = ID
    ) -> ProducerIdentity:
        return await now(
            self.shard.end_transaction(transactional_id, who, is_commit=is_commit, with_new_epoch=is_newer)
        )


def with_world(
    test: Callable[[World], Coroutine[Any, Any, None]],
    settings: TransactionSettings | None = None,
    seed: int = 7,
) -> None:
    loop = SimLoop(seed)

    async def run() -> None:
        await test(World(loop, settings or TransactionSettings()))

    loop.run(run())


async def code_of(call: Awaitable[Any]) -> ErrorCode:
    """What a request is answered."""
    try:
        await call
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE


async def now(result: Any) -> Any:
    """The value of a result that may be a future."""
    return await result if isinstance(result, Awaitable) else result


def _fail(error: BaseException) -> None:
    raise error
