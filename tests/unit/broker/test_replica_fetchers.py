"""Followers: their logs become equal to the leader's, whatever fails in between."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tailrace.errors import ErrorCode
from tailrace.model import TopicPartition
from tailrace.runtime.disk import DiskFullError
from tailrace.storage.checkpoints import LOG_START_OFFSETS, read_offsets
from tailrace.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from tests.unit.broker.clusters import Cluster, simulate, values

ALL = (1, 2, 3)


async def delete_records(
    cluster: Cluster, offset: int, *, timeout_ms: int = 5000, broker_id: int = 1
) -> DeleteRecordsPartitionResult:
    wanted = DeleteRecordsTopic(name="orders", partitions=[DeleteRecordsPartition(partition_index=0, offset=offset)])
    request = DeleteRecordsRequest(topics=[wanted], timeout_ms=timeout_ms)
    return (await cluster.ask(broker_id, request, 2, DeleteRecordsResponse)).topics[0].partitions[0]


def requests_sent(cluster: Cluster, broker_id: int, leader_id: int) -> int:
    """How many requests a broker has sent to a leader since it follows it."""
    return cluster.brokers[broker_id].fetchers._fetchers[leader_id, 0].session.requests


@pytest.mark.parametrize("seed", range(5))
def test_followers_have_what_their_leader_has(seed: int) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1, 2, 3], [2, 3, 1], [3, 1, 2]])
        for turn in range(20):
            for number, leader in enumerate(ALL):
                answer = await cluster.produce(leader, f"{turn}".encode(), number=number)
                assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, turn)
        for number in range(3):
            assert all(cluster.partition(one, number=number).log.end_offset == 20 for one in ALL)
            await cluster.until_equal(*ALL, number=number)
            assert sorted(cluster.state(1, number=number).isr) == [1, 2, 3]
            # The last high watermark travels with the answer to the next fetch.
            await cluster.until(
                lambda number=number: all(cluster.partition(one, number=number).high_watermark == 20 for one in ALL)
            )

    simulate(test, seed=seed)


def test_an_acknowledgement_by_all_takes_no_long_poll() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1, 2, 3]])
        await cluster.produce(1, b"first")
        for number in range(20):
            began = cluster.loop.time()
            await cluster.produce(1, f"{number}".encode())
            # Four ways through the network of at most 3 ms, now and then of 60.
            assert cluster.loop.time() - began < 0.3

    simulate(test)


def test_consumers_see_nothing_that_followers_in_sync_do_not_have() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1, 2]])
        await cluster.produce(1, b"a")
        cluster.network.cut("broker-1", "broker-2")
        await cluster.produce(1, b"b", acks=1)
        await asyncio.sleep(5)
        assert values(await cluster.fetch(1)) == [b"a"]
        cluster.network.heal()
        await cluster.until_equal(1, 2)
        assert values(await cluster.fetch(1, offset=1, wait_ms=5000)) == [b"b"]

    simulate(test, brokers=2)


def test_new_partitions_of_a_leader_are_fetched_at_once_although_it_holds_a_request_back() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1, 2]] + [[2, 1]] * 20)
        await cluster.produce(1, b"a")
        await cluster.produce(2, b"a", number=1)
        # Everybody is idle, and each has a session with the other.
        await asyncio.sleep(0.7)
        before = requests_sent(cluster, 2, 1)
        began = cluster.loop.time()
        await cluster.move(numbers=range(1, 21), leader=1)
        for number in range(1, 21):
            answer = await cluster.produce(1, b"b", number=number)
            assert answer.error_code == ErrorCode.NONE
        assert cluster.loop.time() - began < 3.0
        # All of them were told in few requests; beyond that each produced batch costs one or two.
        assert requests_sent(cluster, 2, 1) - before < 60

    simulate(test, brokers=2, replica_fetch_wait_max_ms="20000", replica_lag_time_max_ms="60000")


def test_a_request_costs_nothing_for_partitions_of_which_there_is_nothing_new() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1, 2]] * 50)
        await asyncio.sleep(2)
        before = requests_sent(cluster, 2, 1)
        await asyncio.sleep(10)
        assert 18 <= requests_sent(cluster, 2, 1) - before <= 22
        session = cluster.brokers[2].fetchers._fetchers[1, 0].session
        assert session.is_established
        request = session.next_request(2, 1)
        assert request is not None
        assert (request.topics, request.forgotten_topics_data) == ([], [])

    simulate(test, brokers=2)


def test_what_a_deposed_leader_has_alone_is_cut_off() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1, 2, 3]])
        await cluster.produce(1, b"committed")
        for other in ("broker-2", "broker-3"):
            cluster.network.cut("broker-1", other)
        for number in range(3):
            assert (await cluster.produce(1, f"lost {number}".encode(), acks=1)).error_code == ErrorCode.NONE
        await cluster.move(leader=2, isr=(2, 3))
        await cluster.produce(2, b"kept")
        cluster.network.heal()
        await cluster.until_equal(*ALL)
        assert [value for _, _, value in cluster.log(1)] == [b"committed", b"kept"]
        await cluster.until(lambda: sorted(cluster.state(2).isr) == [1, 2, 3])
        assert (await cluster.produce(2, b"again")).error_code == ErrorCode.NONE
        assert [value for _, _, value in cluster.log(1)] == [b"committed", b"kept", b"again"]

    simulate(test)


def test_leadership_that_goes_back_and_forth_leaves_equal_logs() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1, 2, 3]])
        for turn in range(30):
            leader = turn % 3 + 1
            await cluster.move(leader=leader)
            await cluster.produce(leader, f"{turn}".encode(), acks=1)
            if turn % 4 == 0:
                await asyncio.sleep(0.3)
        await cluster.until_equal(*ALL)
        assert (await cluster.produce(3, b"end")).error_code == ErrorCode.NONE

    simulate(test)


def test_a_follower_that_is_behind_the_log_start_begins_anew_there() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1, 2, 3]])
        for number in range(5):
            await cluster.produce(1, f"{number}".encode())
        await cluster.stop(3)
        for number in range(5, 10):
            await cluster.produce(1, f"{number}".encode())
        result = await delete_records(cluster, 8)
        assert (result.error_code, result.low_watermark) == (ErrorCode.NONE, 8)
        await cluster.start(3)
        await cluster.until_equal(*ALL)
        log = cluster.partition(3).log
        assert (log.start_offset, log.end_offset) == (8, 10)
        await cluster.until(lambda: sorted(cluster.state(1).isr) == [1, 2, 3])

    simulate(test)


def test_a_follower_that_lost_its_disk_gets_everything_again() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1, 2, 3]])
        for number in range(5):
            await cluster.produce(1, f"{number}".encode())
        await cluster.stop(3)
        del cluster.disks[3]
        await cluster.start(3)
        await cluster.until_equal(*ALL)
        assert len(cluster.log(3)) == 5
        await cluster.until(lambda: sorted(cluster.state(1).isr) == [1, 2, 3])

    simulate(test)


def test_a_replica_that_begins_behind_deleted_records_knows_who_produced_them() -> None:
    """The producer may not have had its answer, and send its last batch again when that replica leads."""

    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1, 2]])
        first = await cluster.produce(1, b"a", b"b", producer=(7, 0, 0))
        assert (first.error_code, first.base_offset) == (ErrorCode.NONE, 0)
        await cluster.stop(2)
        del cluster.disks[2]
        assert (await delete_records(cluster, 2)).error_code == ErrorCode.NONE
        await cluster.start(2)
        await cluster.until(lambda: sorted(cluster.state(1).isr) == [1, 2])
        assert cluster.partition(2).log.start_offset == 2
        await cluster.move(leader=2)
        again = await cluster.produce(2, b"a", b"b", producer=(7, 0, 0))
        assert (again.error_code, again.base_offset) == (ErrorCode.NONE, 0)
        assert cluster.partition(2).log.end_offset == 2

    simulate(test, brokers=2)


def test_deleted_records_are_gone_from_all_replicas_when_it_is_answered() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1, 2, 3]])
        for number in range(10):
            await cluster.produce(1, f"{number}".encode())
        await asyncio.sleep(2)
        began = cluster.loop.time()
        result = await delete_records(cluster, 7)
        assert (result.error_code, result.low_watermark) == (ErrorCode.NONE, 7)
        assert [cluster.partition(one).log.start_offset for one in ALL] == [7, 7, 7]
        # Followers that wait for records hear of it at once.
        assert cluster.loop.time() - began < 0.3
        assert (await delete_records(cluster, 11)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert (await delete_records(cluster, 7, broker_id=2)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    simulate(test, seed=2)


def test_deleted_records_stay_deleted_when_followers_lose_power_after_the_answer() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1, 2, 3]])
        for number in range(10):
            await cluster.produce(1, f"{number}".encode())
        result = await delete_records(cluster, 7)
        assert (result.error_code, result.low_watermark) == (ErrorCode.NONE, 7)
        for broker_id in (2, 3):
            cluster.kill(broker_id)
            disk = cluster.disks[broker_id]
            disk.crash()
            # Only what the disk kept counts: the leader would tell the follower again.
            assert read_offsets(disk, f"/data/{LOG_START_OFFSETS}")[TopicPartition("orders", 0)] == 7

    simulate(test)


def test_deleting_records_times_out_while_a_broker_that_is_alive_does_not_fetch() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1, 2, 3]])
        await cluster.produce(1, b"a", b"b")
        cluster.network.cut("broker-1", "broker-3")
        began = cluster.loop.time()
        result = await delete_records(cluster, 1, timeout_ms=3000)
        assert (result.error_code, result.low_watermark) == (ErrorCode.REQUEST_TIMED_OUT, -1)
        assert 3.0 <= cluster.loop.time() - began < 4.0
        cluster.network.heal()
        await cluster.until(lambda: cluster.partition(3).log.start_offset == 1)
        assert (await delete_records(cluster, 1)).error_code == ErrorCode.NONE

    simulate(test)


def test_a_leader_that_dies_and_comes_back_is_fetched_from_again(caplog: pytest.LogCaptureFixture) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1, 2]], isr=[1])
        await cluster.produce(1, b"a", acks=1)
        await cluster.until_equal(1, 2)
        await cluster.move(isr=(1,))
        with caplog.at_level(logging.INFO, logger="tailrace.replication"):
            cluster.kill(1)
            await asyncio.sleep(1)
            await cluster.start(1)
            await cluster.until(lambda: cluster.state(1).leader == 1)
            await cluster.produce(1, b"b", acks=1)
            await cluster.until_equal(1, 2)

    simulate(test, brokers=2)
    assert len([line for line in caplog.messages if "cannot fetch from" in line]) <= 2


def test_a_leader_that_comes_back_as_another_process_is_met_at_once() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1, 2]], isr=[1])
        await cluster.produce(1, b"a", acks=1)
        await cluster.until_equal(1, 2)
        await cluster.move(isr=(1,))
        cluster.kill(1)
        # The follower has been refused again and again, and pauses by now for longer than the rest of this test takes.
        await asyncio.sleep(60)
        await cluster.start(1)
        began = cluster.loop.time()
        await cluster.produce(1, b"b", acks=1)
        await cluster.until_equal(1, 2)
        assert cluster.loop.time() - began < 5

    simulate(test, brokers=2, replica_fetch_backoff_ms="600000", broker_session_timeout_ms="600000")


def test_a_broker_that_does_not_answer_is_given_up_in_time() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1, 2]])
        await cluster.produce(1, b"a")
        # Nothing passes, and nobody is told: a connection like that may hang for many minutes.
        cluster.network.cut("broker-1", "broker-2")
        await cluster.produce(1, b"b", acks=1)
        await asyncio.sleep(3)
        assert cluster.brokers[2].fetchers._fetchers[1, 0]._connection is None
        cluster.network.heal()
        began = cluster.loop.time()
        await cluster.until_equal(1, 2)
        assert cluster.loop.time() - began < 2.5

    simulate(test, brokers=2, replica_socket_timeout_ms="1000")


def test_one_partition_whose_disk_is_full_does_not_hold_up_the_others(caplog: pytest.LogCaptureFixture) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1, 2], [1, 2]])
        for number in range(2):
            await cluster.produce(1, b"a", number=number)
        full = cluster.disks[2].fail(
            lambda path: "orders-0/" in path and path.endswith(".log"), "append", DiskFullError, times=None
        )
        await cluster.produce(1, b"b", acks=1)
        for number in range(10):
            assert (await cluster.produce(1, f"{number}".encode(), number=1)).error_code == ErrorCode.NONE
        assert cluster.partition(2).log.end_offset == 1
        assert cluster.brokers[2].fetchers.failed_count == 1
        full.lift()
        await cluster.until_equal(1, 2)
        await cluster.until(lambda: cluster.brokers[2].fetchers.failed_count == 0)

    with caplog.at_level(logging.INFO, logger="tailrace.replication"):
        simulate(test, brokers=2)
    said = [line for line in caplog.messages if "cannot fetch orders-0" in line]
    assert 1 <= len(said) <= 2


def test_records_that_must_be_durable_are_confirmed_when_they_are() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1, 2]], flush_messages="1")
        for number in range(10):
            assert (await cluster.produce(1, f"{number}".encode())).error_code == ErrorCode.NONE
            # What the leader counts as confirmed is on the follower's disk.
            assert cluster.partition(2).log.flushed_offset == number + 1

    simulate(test, brokers=2)


def test_a_deleted_topic_is_followed_no_more_and_one_of_the_same_name_from_its_start() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1, 2]])
        await cluster.produce(1, b"old")
        metadata = cluster.brokers[1].metadata
        await metadata.delete_topic(metadata.image.topics["orders"])
        await cluster.until(lambda: "orders" not in cluster.brokers[2].metadata.image.topics)
        await cluster.until(lambda: list(cluster.brokers[2].fetchers) == [])
        await cluster.create("orders", [[1, 2]])
        await cluster.produce(1, b"new")
        await cluster.until_equal(1, 2)
        assert [value for _, _, value in cluster.log(2)] == [b"new"]

    simulate(test, brokers=2)


def test_several_connections_to_a_leader_share_the_partitions() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1, 2]] * 10)
        for number in range(10):
            await cluster.produce(1, b"a", number=number)
        places = cluster.brokers[2].fetchers._fetchers
        assert sorted(places) == [(1, 0), (1, 1), (1, 2)]
        assert sum(len(fetcher.session) for fetcher in places.values()) == 10
        assert all(len(fetcher.session) for fetcher in places.values())

    simulate(test, brokers=2, num_replica_fetchers="3")


def test_a_broker_that_stops_closes_its_fetchers() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1, 2]])
        await cluster.produce(1, b"a")
        broker = cluster.brokers[2]
        await cluster.stop(2)
        assert list(broker.fetchers) == []
        assert broker.fetchers._fetchers == {}

    simulate(test, brokers=2)
