"""Markers reach the leader of each partition, however often it moves, and only deleted partitions are given up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from tailrace.cluster.image import NO_LEADER, ClusterImage, PartitionState, TopicImage
from tailrace.errors import ErrorCode
from tailrace.model import Lineage, TopicPartition
from tailrace.records.markers import Marker
from tailrace.runtime.tasks import Tasks
from tailrace.testing.loop import SimLoop
from tailrace.transactions.counters import TransactionCounters
from tailrace.transactions.delivery import Delivery, MarkerBatch
from tests.unit.transactions.world import P0, P1, P2

LINEAGE = Lineage(UUID(int=1))


class Brokers:
    """What brokers answer to markers, and the image that says who leads."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.image = ClusterImage("cluster", 1)
        self.calls: list[tuple[int, list[TopicPartition]]] = []
        self.markers: dict[TopicPartition, list[Marker]] = {}
        #: What a partition answers instead, once for each entry, and how long each call takes.
        self.refusals: dict[TopicPartition, list[ErrorCode]] = {}
        self.down: dict[int, None] = {}
        self.seconds = 0.001
        self.waiting: list[Callable[[], None]] = []
        self.counters = TransactionCounters()
        self.failures: list[BaseException] = []
        tasks = Tasks(self.failures.append)
        self.delivery = Delivery(self, lambda: self.image, self.waiting.append, tasks, self.counters)
        self.show(1, 2, 3)

    def show(self, *leaders: int) -> None:
        """Let the image show the topic `orders`, with these leaders of its partitions; without any it is gone."""
        states = tuple(PartitionState((1, 2, 3), (1, 2, 3), leader, 0) for leader in leaders)
        topic = TopicImage("orders", LINEAGE, states, {})
        self.image = replace(self.image, topics={"orders": topic} if leaders else {})

    async def write(self, broker_id: int, batch: MarkerBatch) -> Sequence[Mapping[TopicPartition, ErrorCode]]:
        self.calls.append((broker_id, [partition for _, partitions in batch for partition in partitions]))
        await asyncio.sleep(self.seconds)
        if broker_id in self.down:
            raise ConnectionError(f"broker {broker_id} is down")
        return [{each: self._answer(broker_id, marker, each) for each in partitions} for marker, partitions in batch]

    def _answer(self, broker_id: int, marker: Marker, partition: TopicPartition) -> ErrorCode:
        if self.refusals.get(partition):
            return self.refusals[partition].pop(0)
        if self.image.topics["orders"].partitions[partition.partition].leader != broker_id:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        self.markers.setdefault(partition, []).append(marker)
        return ErrorCode.NONE


class Listener:
    """One transaction that waits for its markers."""

    def __init__(self) -> None:
        self.done: list[TopicPartition] = []
        self.failed: list[tuple[TopicPartition, ErrorCode]] = []

    def written(self, partition: TopicPartition) -> None:
        self.done.append(partition)

    def refused(self, partition: TopicPartition, error: ErrorCode) -> None:
        self.failed.append((partition, error))


def marker(producer_id: int = 1) -> Marker:
    return Marker(producer_id, 0, True, 0, 2)


def with_brokers(test: Callable[[Brokers], Coroutine[Any, Any, None]]) -> None:
    loop = SimLoop(5)

    async def run() -> None:
        brokers = Brokers(loop)
        await test(brokers)
        assert brokers.failures == []

    loop.run(run())


def test_each_leader_gets_the_markers_of_a_turn_in_one_call() -> None:
    async def test(brokers: Brokers) -> None:
        listeners = [Listener() for _ in range(20)]
        brokers.show(1, 2, 2)
        for number, listener in enumerate(listeners):
            brokers.delivery.send(marker(number), [P0, P1, P2], listener)
        await asyncio.sleep(1)
        assert all(sorted(listener.done) == [P0, P1, P2] for listener in listeners)
        assert [(broker_id, len(partitions)) for broker_id, partitions in brokers.calls] == [(1, 20), (2, 40)]
        assert brokers.counters.markers_written == 60

    with_brokers(test)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ],
)
def test_a_marker_is_sent_again_until_the_leader_has_it(code: ErrorCode) -> None:
    async def test(brokers: Brokers) -> None:
        listener = Listener()
        brokers.refusals[P1] = [code] * 12
        brokers.delivery.send(marker(), [P0, P1], listener)
        await asyncio.sleep(20)
        assert sorted(listener.done) == [P0, P1]
        assert (listener.failed, brokers.counters.markers_retried) == ([], 12)

    with_brokers(test)


def test_a_marker_follows_the_leader_to_another_broker() -> None:
    async def test(brokers: Brokers) -> None:
        listener = Listener()
        brokers.down[1] = None
        brokers.delivery.send(marker(), [P0], listener)
        await asyncio.sleep(3)
        assert listener.done == []
        brokers.show(NO_LEADER, 2, 3)
        await asyncio.sleep(3)
        asked = len(brokers.calls)
        await asyncio.sleep(3)
        assert (listener.done, len(brokers.calls)) == ([], asked)
        brokers.show(3, 2, 3)
        await asyncio.sleep(2)
        assert listener.done == [P0]
        assert len(brokers.markers[P0]) == 1

    with_brokers(test)


def test_markers_that_wait_for_a_call_follow_the_leader_too() -> None:
    async def test(brokers: Brokers) -> None:
        listeners = [Listener() for _ in range(2000)]
        brokers.show(1, 1, 1)
        brokers.down[1] = None
        brokers.seconds = 35
        for number, listener in enumerate(listeners):
            brokers.delivery.send(marker(number), [P0], listener)
        await asyncio.sleep(10)
        brokers.show(2, 2, 2)
        brokers.seconds = 0.001
        await asyncio.sleep(30)
        # The dead broker was called for the first of them only.
        assert all(listener.done == [P0] for listener in listeners)
        assert [broker_id for broker_id, _ in brokers.calls if broker_id == 1] == [1]

    with_brokers(test)


def test_markers_that_fail_hold_up_no_others() -> None:
    async def test(brokers: Brokers) -> None:
        stuck, fine = Listener(), Listener()
        brokers.show(1, 1, 1)
        brokers.refusals[P0] = [ErrorCode.NOT_ENOUGH_REPLICAS] * 10_000
        brokers.delivery.send(marker(1), [P0], stuck)
        await asyncio.sleep(5)
        brokers.delivery.send(marker(2), [P1], fine)
        await asyncio.sleep(0.01)
        assert (stuck.done, fine.done) == ([], [P1])

    with_brokers(test)


@pytest.mark.parametrize("code", [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED])
def test_a_marker_that_a_partition_will_never_take_is_not_sent_again(code: ErrorCode) -> None:
    async def test(brokers: Brokers) -> None:
        listener = Listener()
        brokers.refusals[P0] = [code]
        brokers.delivery.send(marker(), [P0], listener)
        await asyncio.sleep(5)
        assert (listener.failed, len(brokers.calls)) == ([(P0, code)], 1)

    with_brokers(test)


def test_a_partition_is_given_up_only_when_the_store_does_not_know_it() -> None:
    async def test(brokers: Brokers) -> None:
        listener = Listener()
        brokers.show()
        brokers.delivery.send(marker(), [P0], listener)
        await asyncio.sleep(60)
        assert (listener.done, brokers.calls) == ([], [])
        for then in list(brokers.waiting):
            then()
        assert listener.done == [P0]

    with_brokers(test)


def test_a_topic_that_the_image_did_not_show_yet_gets_its_markers() -> None:
    async def test(brokers: Brokers) -> None:
        listener = Listener()
        brokers.show(1)
        brokers.delivery.send(marker(), [P2], listener)
        brokers.show(1, 2, 3)
        for then in list(brokers.waiting):
            then()
        await asyncio.sleep(1)
        assert listener.done == [P2]
        assert brokers.calls == [(3, [P2])]

    with_brokers(test)


def test_a_cancelled_errand_tells_nobody_and_sends_nothing_more() -> None:
    async def test(brokers: Brokers) -> None:
        listener = Listener()
        brokers.refusals[P0] = [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 100
        errand = brokers.delivery.send(marker(), [P0, P1], listener)
        brokers.seconds = 1
        await asyncio.sleep(0.5)
        errand.cancel()
        await asyncio.sleep(10)
        assert (listener.done, listener.failed) == ([], [])
        assert len(brokers.calls) == 2

    with_brokers(test)
