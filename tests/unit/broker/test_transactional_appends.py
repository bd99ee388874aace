"""Batches of transactions: their partition is in the transaction before they are in the log, in clusters that fail."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tailrace.coordinator.shards import partition_for
from tailrace.errors import ErrorCode
from tailrace.model import TRANSACTIONS_TOPIC, TopicPartition
from tailrace.records.batch import TRANSACTIONAL_BIT
from tailrace.records.markers import Marker
from tailrace.records.record import NewRecord, build_batch
from tailrace.replication.acknowledging import ACKS_ALL
from tailrace.transactions.delivery import MarkerBatch, MarkerCalls
from tailrace.transactions.states import ProducerIdentity
from tailrace.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from tailrace.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from tailrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tailrace.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tailrace.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tailrace.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tests.unit.broker.clusters import Cluster, simulate, values

ID = "payments"
OLDER, NEWER = 9, 12
RETRIED = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
)


class Producer:
    """A producer with a transactional id that asks again while it is told to, as clients do."""

    def __init__(self, cluster: Cluster, version: int = NEWER) -> None:
        self.cluster = cluster
        self.version = version
        self.me = ProducerIdentity(-1, -1)
        self.sequences: dict[TopicPartition, int] = {}

    @property
    def is_newer(self) -> bool:
        return self.version >= NEWER

    async def coordinator(self) -> int:
        broker_id = next(iter(self.cluster.brokers))
        request = FindCoordinatorRequest(coordinator_keys=[ID], key_type=1)
        return (await self.cluster.ask(broker_id, request, 4, FindCoordinatorResponse)).coordinators[0].node_id

    async def _ask(self, request: Any, version: int, kind: Any) -> Any:
        """Ask the coordinator until it answers."""
        for _ in range(2000):
            broker_id = await self.coordinator()
            if broker_id in self.cluster.brokers:
                try:
                    response = await self.cluster.ask(broker_id, request, version, kind)
                except OSError:
                    response = None
                if response is not None and _code_of(response) not in RETRIED:
                    return response
            await asyncio.sleep(0.05)
        raise AssertionError("there is no coordinator")

    async def begin(self) -> None:
        request = InitProducerIdRequest(transactional_id=ID, transaction_timeout_ms=60_000)
        response = await self._ask(request, 5, InitProducerIdResponse)
        assert response.error_code == ErrorCode.NONE
        self.me = ProducerIdentity(response.producer_id, response.producer_epoch)
        self.sequences.clear()

    async def add(self, *numbers: int) -> None:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=ID,
            v3_and_below_producer_id=self.me.producer_id,
            v3_and_below_producer_epoch=self.me.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name="orders", partitions=list(numbers))],
        )
        response = await self._ask(request, 3, AddPartitionsToTxnResponse)
        assert _code_of(response) == ErrorCode.NONE

    def send(self, value: bytes, number: int = 0, *, version: int | None = None) -> asyncio.Task[Any]:
        """Send one record, without waiting for those before."""
        place = TopicPartition("orders", number)
        sequence = self.sequences.get(place, 0)
        self.sequences[place] = sequence + 1
        return asyncio.ensure_future(self.send_again(value, number, sequence, version=version))

    async def send_again(
        self, value: bytes, number: int, sequence: int, *, version: int | None = None
    ) -> PartitionProduceResponse:
        batch = build_batch(
            [NewRecord(value, timestamp=1_700_000_000_000)],
            producer_id=self.me.producer_id,
            producer_epoch=self.me.epoch,
            base_sequence=sequence,
            attributes=TRANSACTIONAL_BIT,
        )
        data = PartitionProduceData(index=number, records=bytes(batch))
        request = ProduceRequest(
            transactional_id=ID,
            acks=ACKS_ALL,
            timeout_ms=5000,
            topic_data=[TopicProduceData(name="orders", partition_data=[data])],
        )
        leader = self.cluster.state(next(iter(self.cluster.brokers)), "orders", number).leader
        response = await self.cluster.ask(leader, request, version or self.version, ProduceResponse)
        return response.responses[0].partition_responses[0]

    async def end(self, is_commit: bool = True) -> int:
        request = EndTxnRequest(
            transactional_id=ID, producer_id=self.me.producer_id, producer_epoch=self.me.epoch, committed=is_commit
        )
        response = await self._ask(request, 5 if self.is_newer else 3, EndTxnResponse)
        if response.error_code == ErrorCode.NONE and self.is_newer:
            self.me = ProducerIdentity(response.producer_id, response.producer_epoch)
            self.sequences.clear()
        return response.error_code


def _code_of(response: Any) -> int:
    if isinstance(response, AddPartitionsToTxnResponse):
        return response.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
    return response.error_code


async def committed(cluster: Cluster, number: int = 0) -> list[bytes | None]:
    """What a reader of committed records is given."""
    broker_id = next(iter(cluster.brokers))
    leader = cluster.state(broker_id, "orders", number).leader
    topic_id = cluster.brokers[broker_id].metadata.image.topics["orders"].topic_id
    wanted = FetchPartition(partition=number, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(isolation_level=1, topics=[FetchTopic(topic_id=topic_id, partitions=[wanted])])
    data = (await cluster.ask(leader, request, 17, FetchResponse)).responses[0].partitions[0]
    aborted = {each.producer_id for each in data.aborted_transactions or ()}
    # No test here has a producer that aborts one transaction and commits another in one partition.
    return [] if aborted else [value for value in values(data) if value is not None and not value.startswith(b"\0\0")]


def with_cluster(test: Any, topic: Mapping[str, str] | None = None) -> None:
    """Three brokers, of which each leads a partition of the topic and one of the transaction topic."""

    async def run(cluster: Cluster) -> None:
        await cluster.create("orders", [[1, 2, 3], [2, 3, 1], [3, 1, 2]], **(topic or {}))
        await test(cluster)

    simulate(run, transaction_state_log_num_partitions="3")


@pytest.mark.parametrize("version", [OLDER, NEWER])
@pytest.mark.parametrize("is_commit", [True, False])
def test_a_transaction_over_several_brokers_is_seen_as_a_whole_or_not_at_all(version: int, is_commit: bool) -> None:
    async def test(cluster: Cluster) -> None:
        producer = Producer(cluster, version)
        await producer.begin()
        if not producer.is_newer:
            await producer.add(0, 1, 2)
        sent = [producer.send(b"value", number) for number in range(3)]
        for each in sent:
            assert (await each).error_code == ErrorCode.NONE
        assert [await committed(cluster, number) for number in range(3)] == [[], [], []]
        assert await producer.end(is_commit) == ErrorCode.NONE
        await asyncio.sleep(1)
        expected = [b"value"] if is_commit else []
        assert [await committed(cluster, number) for number in range(3)] == [expected] * 3
        for number in range(3):
            leader = cluster.state(1, "orders", number).leader
            partition = cluster.partition(leader, "orders", number)
            assert partition.last_stable_offset == partition.high_watermark == 2

    with_cluster(test)


@pytest.mark.parametrize(
    ("version", "code"),
    [(9, ErrorCode.INVALID_TXN_STATE), (10, ErrorCode.INVALID_TXN_STATE), (11, ErrorCode.TRANSACTION_ABORTABLE)],
)
def test_an_older_producer_has_to_add_its_partitions(version: int, code: ErrorCode) -> None:
    async def test(cluster: Cluster) -> None:
        producer = Producer(cluster, version)
        await producer.begin()
        for number in range(3):
            refused = await producer.send_again(b"lost", number, 0)
            assert (refused.error_code, refused.base_offset) == (code, -1)
        await producer.add(1)
        assert (await producer.send(b"value", 1)).error_code == ErrorCode.NONE
        assert (await producer.send_again(b"lost", 0, 0)).error_code == code
        assert [len(cluster.log(1, "orders", number)) for number in (0, 2)] == [0, 0]

    with_cluster(test)


@pytest.mark.parametrize("topic", [{}, {"compression_type": "gzip"}], ids=["as they are", "prepared"])
def test_batches_in_flight_stay_in_order_while_the_first_one_waits(topic: dict[str, str]) -> None:
    async def test(cluster: Cluster) -> None:
        producer = Producer(cluster)
        await producer.begin()
        for number in range(3):
            await cluster.client(cluster.state(1, "orders", number).leader)  # one connection for all
            sent = [producer.send(b"%d" % at, number) for at in range(5)]
            offsets = [(await each).base_offset for each in sent]
            assert offsets == [0, 1, 2, 3, 4]
        assert await producer.end() == ErrorCode.NONE
        await asyncio.sleep(1)
        assert await committed(cluster, 1) == [b"0", b"1", b"2", b"3", b"4"]

    with_cluster(test, topic)


def test_a_fenced_producer_is_told_so_without_a_question() -> None:
    # KAFKA-19690: not that its partition is not in the transaction.
    async def test(cluster: Cluster) -> None:
        first, second = Producer(cluster, OLDER), Producer(cluster, OLDER)
        await first.begin()
        await first.add(0)
        await first.send(b"first")
        await second.begin()
        await second.add(0)
        assert (await second.send(b"second")).error_code == ErrorCode.NONE
        assert (await first.send(b"late")).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
        # Where the partition knows neither, the coordinator does.
        assert (await first.send(b"late", 1)).error_code == ErrorCode.INVALID_PRODUCER_EPOCH

    with_cluster(test)


def test_a_batch_that_waited_across_the_end_of_its_transaction_is_refused() -> None:
    async def test(cluster: Cluster) -> None:
        producer = Producer(cluster, OLDER)
        await producer.begin()
        await producer.add(0, 1, 2)
        coordinator = await producer.coordinator()
        number = next(each for each in range(3) if cluster.state(1, "orders", each).leader != coordinator)
        leader = cluster.state(1, "orders", number).leader
        appends = cluster.brokers[leader].services.transactional_appends
        sent = producer.send(b"late", number)
        await cluster.until(lambda: bool(appends._waiting))
        # What the end of the transaction writes, before the coordinator's answer arrives.
        marker = Marker(*producer.me, False, 0)
        cluster.partition(leader, "orders", number).append_marker(marker)
        assert (await sent).error_code == ErrorCode.INVALID_TXN_STATE

    with_cluster(test)


@pytest.mark.parametrize("version", [OLDER, NEWER])
def test_a_new_producer_is_not_given_the_answer_for_the_one_before_it(version: int) -> None:
    async def test(cluster: Cluster) -> None:
        first, second = Producer(cluster, version), Producer(cluster, version)
        await first.begin()
        coordinator = await first.coordinator()
        # Neither the coordinator nor the broker that is asked for it, whose answers would wait behind the late one.
        number = next(each for each in range(3) if cluster.state(1, "orders", each).leader not in (1, coordinator))
        appends = cluster.brokers[cluster.state(1, "orders", number).leader].services.transactional_appends
        ask = appends._answers

        async def ask_later(question: Any, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, ErrorCode]:
            if question.who == first.me:
                await asyncio.sleep(1)
            return await ask(question, partitions)

        appends._answers = ask_later  # type: ignore[method-assign]
        late = first.send(b"late", number)
        await cluster.until(lambda: bool(appends._waiting))
        await second.begin()
        if not second.is_newer:
            await second.add(number)
        assert (await second.send(b"value", number)).error_code == ErrorCode.NONE
        assert (await late).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
        assert await second.end() == ErrorCode.NONE
        await asyncio.sleep(1)
        assert await committed(cluster, number) == [b"value"]

    with_cluster(test)


def test_only_the_producer_whose_coordinator_is_silent_waits_and_not_for_long() -> None:
    async def test(cluster: Cluster) -> None:
        producer = Producer(cluster)
        await producer.begin()
        coordinator = await producer.coordinator()
        number = next(each for each in range(3) if cluster.state(1, "orders", each).leader != coordinator)
        leader = cluster.state(1, "orders", number).leader
        cluster.network.cut(f"broker-{leader}", f"broker-{coordinator}")
        began = cluster.loop.time()
        waiting = producer.send(b"value", number)
        await asyncio.sleep(0.01)
        # Its answer comes after the first one, on the same connection.
        other = asyncio.ensure_future(cluster.produce(leader, b"other", number=number, acks=1))
        await asyncio.sleep(0.1)
        assert [value for _, _, value in cluster.log(leader, "orders", number)] == [b"other"]
        assert not waiting.done()
        assert (await waiting).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert cluster.loop.time() - began < 3
        assert (await other).error_code == ErrorCode.NONE

    with_cluster(test)


def test_a_repeated_batch_of_an_ended_transaction_begins_no_other() -> None:
    async def test(cluster: Cluster) -> None:
        producer = Producer(cluster, OLDER)
        await producer.begin()
        await producer.add(0)
        first = await producer.send(b"value")
        assert await producer.end() == ErrorCode.NONE
        await asyncio.sleep(1)
        again = await producer.send_again(b"value", 0, 0)
        assert (again.error_code, again.base_offset) == (ErrorCode.NONE, first.base_offset)
        assert (await producer.send(b"not in a transaction")).error_code == ErrorCode.INVALID_TXN_STATE
        partition = cluster.partition(cluster.state(1).leader)
        assert partition.last_stable_offset == partition.high_watermark

    with_cluster(test)


def test_a_partition_is_admitted_for_records_that_the_broker_writes_itself() -> None:
    async def test(cluster: Cluster) -> None:
        producer = Producer(cluster)
        await producer.begin()
        leader = cluster.state(1).leader
        appends, partition = cluster.brokers[leader].services.transactional_appends, cluster.partition(leader)
        assert await appends.admit(partition, ID, producer.me, is_added=False) is ErrorCode.TRANSACTION_ABORTABLE
        assert await appends.admit(partition, ID, producer.me, is_added=True) is ErrorCode.NONE
        assert await appends.admit(partition, ID, producer.me, is_added=False) is ErrorCode.NONE
        stranger = ProducerIdentity(producer.me.producer_id, 7)
        assert await appends.admit(partition, ID, stranger, is_added=True) is ErrorCode.PRODUCER_FENCED
        late = asyncio.ensure_future(appends.admit(partition, ID, producer.me, is_added=False))
        await asyncio.sleep(0)
        partition.append_marker(Marker(*producer.me, False, 0))
        assert await late is ErrorCode.INVALID_TXN_STATE

    with_cluster(test)


@pytest.mark.parametrize("is_commit", [True, False])
@pytest.mark.parametrize("version", [OLDER, NEWER])
def test_a_transaction_survives_the_death_of_its_coordinator(version: int, is_commit: bool) -> None:
    async def test(cluster: Cluster) -> None:
        producer = Producer(cluster, version)
        await producer.begin()
        if not producer.is_newer:
            await producer.add(0, 1, 2)
        coordinator = await producer.coordinator()
        for number in range(3):
            assert (await producer.send(b"value", number)).error_code == ErrorCode.NONE
        cluster.kill(coordinator)
        assert await producer.end(is_commit) == ErrorCode.NONE
        expected = [b"value"] if is_commit else []

        async def is_ended() -> bool:
            return [await committed(cluster, number) for number in range(3)] == [expected] * 3 and all(
                (
                    partition := cluster.partition(cluster.state(alive, "orders", number).leader, "orders", number)
                ).last_stable_offset
                == partition.log.end_offset
                for alive in list(cluster.brokers)[:1]
                for number in range(3)
            )

        for _ in range(300):
            if await is_ended():
                break
            await asyncio.sleep(0.1)
        else:
            raise AssertionError("the transaction never ends")
        # The next coordinator has the same producer.
        if not producer.is_newer:
            await producer.add(0)
        assert (await producer.send(b"more")).error_code == ErrorCode.NONE

    with_cluster(test)


def test_a_decided_transaction_ends_though_its_coordinator_dies_before_the_first_marker() -> None:
    async def test(cluster: Cluster) -> None:
        producer = Producer(cluster)
        await producer.begin()
        coordinator = await producer.coordinator()
        number = next(each for each in range(3) if cluster.state(1, "orders", each).leader != coordinator)
        leader = cluster.state(1, "orders", number).leader
        assert (await producer.send(b"value", number)).error_code == ErrorCode.NONE
        # The journal's followers hear of the decision, the leader of the partition of no marker.
        (other,) = [each for each in cluster.brokers if each not in (leader, coordinator)]
        shard = partition_for(ID, 3)
        cluster.brokers[coordinator].transactions._delivery._calls = _Silent()  # type: ignore[assignment]
        assert await producer.end() == ErrorCode.NONE
        assert cluster.state(other, TRANSACTIONS_TOPIC, shard).leader == coordinator
        assert await committed(cluster, number) == []
        cluster.kill(coordinator)
        for _ in range(300):
            if await committed(cluster, number) == [b"value"]:
                return
            await asyncio.sleep(0.1)
        raise AssertionError("nobody sent the marker")

    with_cluster(test)


class _Silent:
    """Markers that never arrive."""

    async def write(self, broker_id: int, batch: Any) -> Any:
        await asyncio.sleep(10_000)


def test_the_next_transaction_waits_in_a_partition_where_the_last_one_has_not_ended() -> None:
    async def test(cluster: Cluster) -> None:
        producer = Producer(cluster)
        await producer.begin()
        coordinator = await producer.coordinator()
        number = next(each for each in range(3) if cluster.state(1, "orders", each).leader != coordinator)
        delivery = cluster.brokers[coordinator].transactions._delivery
        delivery._calls = _Slow(delivery._calls)
        for value in (b"first", b"second"):
            # The end is answered before the markers are sent, so the partition may see the next epoch first.
            assert (await producer.send(value, number)).error_code == ErrorCode.NONE
            assert await producer.end() == ErrorCode.NONE
        await asyncio.sleep(1)
        assert await committed(cluster, number) == [b"first", b"second"]

    with_cluster(test)


class _Slow:
    """Markers that take a while."""

    def __init__(self, calls: MarkerCalls) -> None:
        self._calls = calls

    async def write(self, broker_id: int, batch: MarkerBatch) -> Sequence[Mapping[TopicPartition, ErrorCode]]:
        await asyncio.sleep(0.1)
        return await self._calls.write(broker_id, batch)
