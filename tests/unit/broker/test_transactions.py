"""The transaction coordinator of a whole broker, asked by requests in every version."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

from tailrace.broker.monitoring.monitoring import write_metrics
from tailrace.broker.monitoring.observed import Look
from tailrace.cluster.features import TRANSACTION_VERSION
from tailrace.errors import ErrorCode
from tailrace.model import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, TopicPartition
from tailrace.transactions.states import ProducerIdentity
from tailrace.wire.codec import Message
from tailrace.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from tailrace.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from tailrace.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionState,
)
from tailrace.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from tailrace.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tailrace.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tailrace.wire.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from tailrace.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest, UpdateFeaturesResponse
from tests.unit.broker.clusters import Cluster, simulate
from tests.unit.broker.monitoring.test_metrics import Scraped

ID = "payments"
Response = TypeVar("Response", bound=Message)


class One:
    """The only broker of a cluster in virtual time."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.broker = cluster.brokers[1]

    async def ask(self, request: Message, version: int, kind: type[Response]) -> Response:
        return await self.cluster.ask(1, request, version, kind)

    async def create(self, name: str, partitions: int = 1) -> None:
        await self.cluster.create(name, [[1]] * partitions)


def with_one(test: Callable[[One], Coroutine[Any, Any, None]]) -> None:
    simulate(lambda cluster: test(One(cluster)), brokers=1, transaction_state_log_num_partitions="3")


async def find(broker: One, version: int = 4, name: str = ID) -> int:
    request = FindCoordinatorRequest(key=name, coordinator_keys=[name], key_type=1)
    response = await broker.ask(request, version, FindCoordinatorResponse)
    return (response.coordinators[0] if version >= 4 else response).error_code


async def begin(
    broker: One, known: ProducerIdentity | None = None, *, version: int = 5, name: str = ID, timeout: int = 5000
) -> tuple[int, ProducerIdentity]:
    request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=timeout)
    if known is not None:
        request.producer_id, request.producer_epoch = known
    response = await broker.ask(request, version, InitProducerIdResponse)
    return response.error_code, ProducerIdentity(response.producer_id, response.producer_epoch)


async def begun(broker: One, name: str = ID, timeout: int = 5000) -> ProducerIdentity:
    assert await find(broker, name=name) == ErrorCode.NONE
    code, me = await begin(broker, name=name, timeout=timeout)
    assert code == ErrorCode.NONE
    return me


async def add(
    broker: One, who: ProducerIdentity, *partitions: tuple[str, int], version: int = 3, name: str = ID
) -> list[int]:
    """The result for each partition."""
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=who.producer_id,
        v3_and_below_producer_epoch=who.epoch,
        v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic, partitions=[number]) for topic, number in partitions],
    )
    response = await broker.ask(request, version, AddPartitionsToTxnResponse)
    return [topic.results_by_partition[0].partition_error_code for topic in response.results_by_topic_v3_and_below]


async def end(
    broker: One, who: ProducerIdentity, is_commit: bool = True, *, version: int = 5, name: str = ID
) -> tuple[int, ProducerIdentity]:
    request = EndTxnRequest(
        transactional_id=name, producer_id=who.producer_id, producer_epoch=who.epoch, committed=is_commit
    )
    response = await broker.ask(request, version, EndTxnResponse)
    return response.error_code, ProducerIdentity(response.producer_id, response.producer_epoch)


async def add_offsets(broker: One, who: ProducerIdentity, group: str, *, version: int = 4) -> int:
    request = AddOffsetsToTxnRequest(
        transactional_id=ID, producer_id=who.producer_id, producer_epoch=who.epoch, group_id=group
    )
    return (await broker.ask(request, version, AddOffsetsToTxnResponse)).error_code


async def describe(broker: One, name: str = ID) -> TransactionState:
    response = await broker.ask(DescribeTransactionsRequest(transactional_ids=[name]), 0, DescribeTransactionsResponse)
    return response.transaction_states[0]


def test_the_coordinator_is_found_in_every_version_and_the_topic_made_once() -> None:
    async def test(broker: One) -> None:
        for version in range(1, 7):
            assert await find(broker, version) == ErrorCode.NONE
        topic = broker.broker.metadata.image.topics[TRANSACTIONS_TOPIC]
        assert len(topic.partitions) == 3
        assert dict(topic.configs)["cleanup.policy"] == "compact"
        assert dict(topic.configs)["min.insync.replicas"] == "2"
        # One broker is enough all the same.
        assert broker.broker.partitions.find(TRANSACTIONS_TOPIC, 0).min_insync_replicas == 1

    with_one(test)


@pytest.mark.parametrize("version", range(6))
def test_a_producer_gets_its_identity_in_every_version(version: int) -> None:
    async def test(broker: One) -> None:
        await find(broker)
        code, me = await begin(broker, version=version)
        assert (code, me.epoch) == (ErrorCode.NONE, 0)
        code, next_one = await begin(broker, version=version)
        assert (code, next_one) == (ErrorCode.NONE, ProducerIdentity(me.producer_id, 1))
        if version >= 3:
            fenced = ErrorCode.PRODUCER_FENCED if version >= 4 else ErrorCode.INVALID_PRODUCER_EPOCH
            assert (await begin(broker, me, version=version))[0] == fenced
            assert await begin(broker, next_one, version=version) == (0, ProducerIdentity(me.producer_id, 2))
            assert (await begin(broker, ProducerIdentity(1, -1), version=version))[0] == ErrorCode.INVALID_REQUEST
        assert (await begin(broker, name="", version=version))[0] == ErrorCode.INVALID_REQUEST
        for timeout in (0, 900_001):
            refused = await begin(broker, version=version, timeout=timeout)
            assert refused[0] == ErrorCode.INVALID_TRANSACTION_TIMEOUT

    with_one(test)


@pytest.mark.parametrize("version", range(6))
@pytest.mark.parametrize("is_commit", [True, False])
def test_a_transaction_ends_in_every_version(version: int, is_commit: bool) -> None:
    async def test(broker: One) -> None:
        await broker.create("orders", 2)
        me = await begun(broker)
        assert await add(broker, me, ("orders", 0), ("orders", 1), version=min(version, 3)) == [0, 0]
        shown = await describe(broker)
        assert (shown.transaction_state, shown.topics[0].partitions) == ("Ongoing", [0, 1])
        assert (shown.producer_id, shown.producer_epoch, shown.transaction_timeout_ms) == (*me, 5000)
        code, after = await end(broker, me, is_commit, version=version)
        assert code == ErrorCode.NONE
        if version >= 5:
            assert after == ProducerIdentity(me.producer_id, me.epoch + 1)
        await asyncio.sleep(0.1)
        shown = await describe(broker)
        assert shown.transaction_state == ("CompleteCommit" if is_commit else "CompleteAbort")
        assert shown.topics == []
        # It may ask again, and nobody may have it otherwise.
        assert (await end(broker, me, is_commit, version=version))[0] == ErrorCode.NONE
        assert (await end(broker, me, not is_commit, version=version))[0] == ErrorCode.INVALID_TXN_STATE
        counters = broker.broker.transactions.counters
        assert (counters.committed, counters.aborted) == (int(is_commit), int(not is_commit))

    with_one(test)


@pytest.mark.parametrize(("version", "code"), [(0, 47), (1, 47), (2, 90), (3, 90)])
def test_a_fenced_producer_hears_it_in_the_words_of_its_version(version: int, code: int) -> None:
    async def test(broker: One) -> None:
        await broker.create("orders")
        old = await begun(broker)
        await begun(broker)
        assert await add(broker, old, ("orders", 0), version=version) == [code]
        assert await add_offsets(broker, old, "group", version=version) in (code, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        assert (await end(broker, old, version=version))[0] == code

    with_one(test)


def test_partitions_are_added_all_or_none() -> None:
    async def test(broker: One) -> None:
        await broker.create("orders")
        me = await begun(broker)
        unknown, not_tried = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OPERATION_NOT_ATTEMPTED
        assert await add(broker, me, ("orders", 0), ("missing", 0)) == [not_tried, unknown]
        assert await add(broker, me, ("orders", 0), ("orders", 1)) == [not_tried, unknown]
        assert await add(broker, me, ("orders", -1)) == [unknown]
        for topic in (TRANSACTIONS_TOPIC, OFFSETS_TOPIC):
            assert await add(broker, me, (topic, 0)) == [ErrorCode.INVALID_TOPIC_EXCEPTION]
        assert (await describe(broker)).transaction_state == "Empty"
        stranger = ProducerIdentity(me.producer_id + 1, 0)
        assert await add(broker, stranger, ("orders", 0)) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
        assert await add(broker, me, ("orders", 0), name="") == [ErrorCode.INVALID_REQUEST]

    with_one(test)


@pytest.mark.parametrize("version", range(5))
def test_the_offsets_of_a_group_join_by_their_partition(version: int) -> None:
    async def test(broker: One) -> None:
        me = await begun(broker)
        assert OFFSETS_TOPIC not in broker.broker.metadata.image.topics
        # It creates the topic: kafka-python adds the offsets before it looks for the coordinator of the group.
        assert await add_offsets(broker, me, "group", version=version) == ErrorCode.NONE
        assert await add_offsets(broker, me, "", version=version) == ErrorCode.INVALID_GROUP_ID
        (topic,) = (await describe(broker)).topics
        where = broker.broker.groups.partition_of("group")
        assert TopicPartition(topic.topic, topic.partitions[0]) == where

    with_one(test)


@pytest.mark.parametrize("version", [4, 5])
def test_a_client_that_sends_what_brokers_send_is_checked_like_a_producer(version: int) -> None:
    # @platformatic/kafka takes the newest version that it finds.
    async def test(broker: One) -> None:
        await broker.create("orders")
        me = await begun(broker)

        async def send(*names: str, who: ProducerIdentity = me, verify_only: bool = False) -> list[int]:
            wanted = AddPartitionsToTxnTransaction(
                transactional_id=ID,
                producer_id=who.producer_id,
                producer_epoch=who.epoch,
                verify_only=verify_only,
                topics=[AddPartitionsToTxnTopic(name=name, partitions=[0]) for name in names],
            )
            request = AddPartitionsToTxnRequest(transactions=[wanted])
            response = await broker.ask(request, version, AddPartitionsToTxnResponse)
            assert response.error_code == ErrorCode.NONE
            (result,) = response.results_by_transaction
            assert result.transactional_id == ID
            return [each.partition_error_code for topic in result.topic_results for each in topic.results_by_partition]

        not_tried = ErrorCode.OPERATION_NOT_ATTEMPTED
        assert await send("orders", "missing") == [not_tried, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert await send("orders", OFFSETS_TOPIC) == [not_tried, ErrorCode.INVALID_TOPIC_EXCEPTION]
        assert await send("orders", who=me._replace(epoch=9)) == [ErrorCode.PRODUCER_FENCED]
        assert (await describe(broker)).transaction_state == "Empty"
        assert await send("orders") == [ErrorCode.NONE]
        assert await send("orders", verify_only=True) == [ErrorCode.NONE]
        assert (await describe(broker)).transaction_state == "Ongoing"

    with_one(test)


def test_transactions_are_listed_by_state_producer_duration_and_name() -> None:
    async def test(broker: One) -> None:
        await broker.create("orders")
        for name in ("pay-1", "pay-2", "ship-1"):
            await begun(broker, name)
        paying = await begun(broker, "pay-3", timeout=60_000)
        await add(broker, paying, ("orders", 0), name="pay-3")

        async def listed(version: int = 2, **filters: object) -> list[str]:
            request = ListTransactionsRequest(**filters)
            response = await broker.ask(request, version, ListTransactionsResponse)
            assert response.error_code == ErrorCode.NONE
            return sorted(each.transactional_id for each in response.transaction_states)

        assert await listed(0) == ["pay-1", "pay-2", "pay-3", "ship-1"]
        assert await listed(state_filters=["Ongoing"]) == ["pay-3"]
        assert await listed(state_filters=["Empty"]) == ["pay-1", "pay-2", "ship-1"]
        assert await listed(producer_id_filters=[paying.producer_id]) == ["pay-3"]
        assert await listed(transactional_id_pattern="pay-[12]") == ["pay-1", "pay-2"]
        assert await listed(transactional_id_pattern="pay") == []
        assert await listed(duration_filter=60_000) == []
        await asyncio.sleep(0.1)
        assert await listed(1, duration_filter=50) == ["pay-3"]
        unknown = await broker.ask(ListTransactionsRequest(state_filters=["Sleeping"]), 2, ListTransactionsResponse)
        assert (unknown.unknown_state_filters, unknown.transaction_states) == (["Sleeping"], [])
        broken = await broker.ask(ListTransactionsRequest(transactional_id_pattern="("), 2, ListTransactionsResponse)
        assert broken.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION

    with_one(test)


def test_open_and_ended_transactions_are_counted() -> None:
    async def test(broker: One) -> None:
        async def scrape() -> Scraped:
            return Scraped(b"".join(await write_metrics(Look(broker.broker.observed, None))).decode())

        await broker.create("orders")
        me = await begun(broker)
        oldest = "tailrace_transactions_oldest_start_timestamp_seconds"
        assert not (await scrape()).has(oldest)
        await add(broker, me, ("orders", 0))
        scraped = await scrape()
        assert scraped.value("tailrace_transactional_ids") == 1
        assert scraped.value("tailrace_transactions_open") == 1
        assert scraped.value(oldest) == (await describe(broker)).transaction_start_time_ms / 1000
        await end(broker, me)
        await asyncio.sleep(0.1)
        scraped = await scrape()
        assert scraped.value("tailrace_transactions_open") == scraped.value("tailrace_transactions_ending") == 0
        assert scraped.value("tailrace_transactions_committed_total") == 1
        assert scraped.value("tailrace_transaction_markers_written_total") == 1

    with_one(test)


def test_an_unknown_transactional_id_cannot_be_described() -> None:
    async def test(broker: One) -> None:
        assert (await describe(broker)).error_code == ErrorCode.NOT_COORDINATOR
        await find(broker)
        assert (await describe(broker)).error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        assert (await describe(broker, "")).error_code == ErrorCode.INVALID_REQUEST

    with_one(test)


def test_there_are_no_transactions_before_every_broker_can_end_them() -> None:
    async def change(broker: One, level: int, upgrade_type: int) -> None:
        key = FeatureUpdateKey(feature=TRANSACTION_VERSION, max_version_level=level, upgrade_type=upgrade_type)
        response = await broker.ask(UpdateFeaturesRequest(feature_updates=[key]), 1, UpdateFeaturesResponse)
        assert response.error_code == ErrorCode.NONE

    async def test(broker: One) -> None:
        await broker.create("orders")
        me = await begun(broker)
        assert await add(broker, me, ("orders", 0)) == [0]
        await change(broker, 0, 2)
        assert TRANSACTION_VERSION not in broker.broker.metadata.image.features.levels
        assert await find(broker) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert (await begin(broker))[0] == ErrorCode.COORDINATOR_NOT_AVAILABLE
        # What is open can still be ended.
        code, me = await end(broker, me)
        assert code == ErrorCode.NONE
        await asyncio.sleep(1)
        # A producer that has its id already begins no other.
        assert await add(broker, me, ("orders", 0)) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
        assert await add_offsets(broker, me, "group") == ErrorCode.COORDINATOR_NOT_AVAILABLE
        await change(broker, 1, 1)
        assert await find(broker) == ErrorCode.NONE

    with_one(test)
