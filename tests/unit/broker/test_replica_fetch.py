"""What a leader answers to followers, which the test plays: how far they may read, and what their fetches report."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from tailrace.broker.fetching.replica_sessions import ReplicaSession
from tailrace.broker.handlers import replica_fetch
from tailrace.errors import ErrorCode
from tailrace.records.record import NewRecord, build_batch
from tailrace.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)
from tailrace.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tests.unit.broker.clusters import Cluster, simulate, values

FOLLOWER = 9
EPOCH = 5


class PlayedFollower:
    """A follower with one connection and one session."""

    def __init__(self, cluster: Cluster, replica_id: int = FOLLOWER, epoch: int = EPOCH) -> None:
        self.cluster = cluster
        self.replica_id = replica_id
        self.epoch = epoch
        self.session_id = 0
        self.session_epoch = 0

    async def prove(self) -> None:
        """Prove which broker this is, unless that was the last proof; where it is refused the fetches are."""
        claimed = self.replica_id, EPOCH if self.epoch < 0 else self.epoch
        if self.cluster.claimed != claimed:
            await self.cluster.prove(1, *claimed)

    def request(
        self,
        positions: dict[int, int] | None = None,
        *,
        forget: tuple[int, ...] = (),
        wait_ms: int = 0,
        last_epoch: int = -1,
        leader_epoch: int = -1,
        log_start: int = 0,
        max_bytes: int = 1 << 20,
    ) -> FetchRequest:
        topic_id = self.topic_id
        partitions = [
            FetchPartition(
                partition=number,
                fetch_offset=offset,
                last_fetched_epoch=last_epoch,
                current_leader_epoch=leader_epoch,
                log_start_offset=log_start,
                partition_max_bytes=max_bytes,
            )
            for number, offset in (positions or {}).items()
        ]
        return FetchRequest(
            replica_state=ReplicaState(replica_id=self.replica_id, replica_epoch=self.epoch),
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=max_bytes,
            session_id=self.session_id,
            session_epoch=self.session_epoch,
            topics=[FetchTopic(topic_id=topic_id, partitions=partitions)] if partitions else [],
            forgotten_topics_data=[ForgottenTopic(topic_id=topic_id, partitions=list(forget))] if forget else [],
        )

    @property
    def topic_id(self) -> UUID:
        return self.cluster.brokers[1].metadata.image.topics["orders"].topic_id

    async def send(self, request: FetchRequest) -> FetchResponse:
        """Send a request and take the next epoch for the one after it."""
        await self.prove()
        if request.session_epoch:
            self.session_epoch += 1
        response = await self.cluster.ask(1, request, 17, FetchResponse)
        if response.session_id and not request.session_epoch:
            self.session_id, self.session_epoch = response.session_id, 1
        return response

    async def fetch(self, positions: dict[int, int] | None = None, **options: object) -> dict[int, PartitionData]:
        response = await self.send(self.request(positions, **options))  # type: ignore[arg-type]
        assert response.error_code == ErrorCode.NONE
        return {data.partition_index: data for topic in response.responses for data in topic.partitions}


async def prepared(cluster: Cluster, partitions: int = 1) -> PlayedFollower:
    """A topic that broker 1 leads, followed by the test."""
    await cluster.register_stranger(FOLLOWER, EPOCH)
    await cluster.create("orders", [[1, FOLLOWER]] * partitions)
    return PlayedFollower(cluster)


def replica_sessions(cluster: Cluster) -> list[ReplicaSession]:
    sessions = cluster.brokers[1].services.fetch_sessions
    return [session for session in sessions if isinstance(session, ReplicaSession)]


def test_a_follower_reads_to_the_log_end_and_a_consumer_to_what_the_follower_has() -> None:
    async def test(cluster: Cluster) -> None:
        follower = await prepared(cluster)
        await cluster.produce(1, b"a", b"b", acks=1)
        data = (await follower.fetch({0: 0}))[0]
        assert (values(data), data.high_watermark) == ([b"a", b"b"], 0)
        assert values(await cluster.fetch(1)) == []
        data = (await follower.fetch({0: 2}))[0]
        assert (values(data), data.high_watermark) == ([], 2)
        assert values(await cluster.fetch(1)) == [b"a", b"b"]

    simulate(test, brokers=1)


def test_a_fetch_acknowledges_what_waited_for_it() -> None:
    async def test(cluster: Cluster) -> None:
        follower = await prepared(cluster)
        await follower.fetch({0: 0})
        producing = asyncio.ensure_future(cluster.produce(1, b"a"))
        await cluster.until(lambda: cluster.partition(1).log.end_offset == 1)
        assert not producing.done()
        # The client of the test has one connection, on which the acknowledgement comes first.
        asked = asyncio.ensure_future(follower.fetch({0: 1}))
        assert (await producing).base_offset == 0
        assert (await asked)[0].high_watermark == 1

    simulate(test, brokers=1)


def test_appends_end_a_followers_wait_and_the_high_watermark_does_not() -> None:
    async def test(cluster: Cluster) -> None:
        follower = await prepared(cluster, 2)
        await follower.fetch({0: 0, 1: 0})
        partition = cluster.partition(1)
        began = cluster.loop.time()
        waiting = asyncio.ensure_future(follower.fetch(wait_ms=500))
        await asyncio.sleep(0.1)
        partition.advance()
        await asyncio.sleep(0.1)
        assert not waiting.done()
        assert await waiting == {}
        assert 0.5 <= cluster.loop.time() - began < 0.7

        waiting = asyncio.ensure_future(follower.fetch(wait_ms=500))
        await asyncio.sleep(0.1)
        began = cluster.loop.time()
        append(cluster, b"a")
        assert {number: values(data) for number, data in (await waiting).items()} == {0: [b"a"]}
        assert cluster.loop.time() - began < 0.2

    simulate(test, brokers=1)


def append(cluster: Cluster, *what: bytes, number: int = 0) -> None:
    """Append as a producer does, without a connection that answers would queue up on."""
    batch = build_batch([NewRecord(value, timestamp=1_700_000_000_000) for value in what])
    cluster.partition(1, number=number).append(memoryview(batch), 1)


def test_what_is_appended_before_the_wait_begins_ends_it_too() -> None:
    async def test(cluster: Cluster) -> None:
        follower = await prepared(cluster)
        await follower.fetch({0: 0})
        broker = cluster.brokers[1]
        session = replica_sessions(cluster)[0]
        request = follower.request(wait_ms=500)
        (connection,) = broker.server._connections
        assert connection.context is not None
        coroutine = replica_fetch.handle(
            broker.services, connection.context, request, FOLLOWER, EPOCH, by_topic_id=True
        )
        assert asyncio.iscoroutine(coroutine)
        append(cluster, b"a")
        began = cluster.loop.time()
        response = await coroutine
        assert values(response.responses[0].partitions[0]) == [b"a"]
        assert cluster.loop.time() == began
        assert session.waiter is None

    simulate(test, brokers=1)


def test_a_second_request_of_a_session_ends_the_wait_of_the_first() -> None:
    async def test(cluster: Cluster) -> None:
        follower = await prepared(cluster, 2)
        await follower.fetch({0: 0})
        append(cluster, b"b", number=1)
        began = cluster.loop.time()
        first = asyncio.ensure_future(follower.send(follower.request(wait_ms=500)))
        await asyncio.sleep(0.05)
        second = asyncio.ensure_future(follower.send(follower.request({1: 0}, wait_ms=500)))
        assert (await first).responses == []
        assert values((await second).responses[0].partitions[0]) == [b"b"]
        assert cluster.loop.time() - began < 0.3

    simulate(test, brokers=1)


def test_a_high_watermark_that_moved_travels_with_the_next_answer() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.register_stranger(8, EPOCH)
        await cluster.register_stranger(FOLLOWER, EPOCH)
        await cluster.create("orders", [[1, 8, FOLLOWER]])
        other, follower = PlayedFollower(cluster, 8), PlayedFollower(cluster)
        append(cluster, b"a")
        await follower.fetch({0: 1})
        assert (await other.fetch({0: 1}))[0].high_watermark == 1
        # Nothing was appended since, but this follower does not know it yet.
        assert (await follower.fetch())[0].high_watermark == 1
        assert await follower.fetch() == {}

    simulate(test, brokers=1)


def test_a_follower_that_names_a_partition_again_is_told_again() -> None:
    """It may have dropped the answer: its log had moved on by then."""

    async def test(cluster: Cluster) -> None:
        follower = await prepared(cluster)
        append(cluster, b"a")
        assert (await follower.fetch({0: 1}))[0].high_watermark == 1
        assert await follower.fetch() == {}
        assert (await follower.fetch({0: 1}))[0].high_watermark == 1
        assert await follower.fetch() == {}

    simulate(test, brokers=1)


def test_an_answer_to_an_earlier_request_does_not_count_as_told() -> None:
    async def test(cluster: Cluster) -> None:
        follower = await prepared(cluster)
        append(cluster, b"a")
        await follower.fetch({0: 1})
        (session,) = replica_sessions(cluster)
        (followed,) = session.followed.values()
        earlier = session.requests
        data = PartitionData(partition_index=0, high_watermark=1, log_start_offset=0, records=b"")
        assert not followed.is_news_in(earlier, data)
        session.update(follower.request({0: 1}))
        assert followed.is_news_in(earlier, data)
        assert followed.is_news_in(session.requests, data)
        assert not followed.is_news_in(session.requests + 1, data)

    simulate(test, brokers=1)


def test_a_log_that_parts_from_the_leaders_counts_for_nothing() -> None:
    async def test(cluster: Cluster) -> None:
        follower = await prepared(cluster)
        append(cluster, b"a")
        await cluster.move(leader=1)
        append(cluster, b"b")
        # Nobody has ever led in epoch 3.
        data = (await follower.fetch({0: 2}, last_epoch=3))[0]
        assert data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert cluster.partition(1).high_watermark == 0
        data = (await follower.fetch({0: 2}, last_epoch=0))[0]
        assert data.diverging_epoch is not None
        assert (data.diverging_epoch.epoch, data.diverging_epoch.end_offset) == (0, 1)
        assert (values(data), cluster.partition(1).high_watermark) == ([], 0)
        await follower.fetch({0: 1}, last_epoch=0)
        assert cluster.partition(1).high_watermark == 1

    simulate(test, brokers=1)


def test_positions_out_of_range_are_refused_and_count_for_nothing() -> None:
    async def test(cluster: Cluster) -> None:
        follower = await prepared(cluster)
        append(cluster, b"a")
        for offset in (2, 100):
            data = (await follower.fetch({0: offset}))[0]
            assert data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert cluster.partition(1).high_watermark == 0
        for timestamp, offset in ((-1, 1), (-2, 0)):
            assert await listed(cluster, FOLLOWER, timestamp) == (ErrorCode.NONE, offset)

    simulate(test, brokers=1)


async def listed(cluster: Cluster, replica_id: int, timestamp: int, broker_id: int = 1) -> tuple[int, int]:
    request = ListOffsetsRequest(
        replica_id=replica_id,
        topics=[
            ListOffsetsTopic(name="orders", partitions=[ListOffsetsPartition(partition_index=0, timestamp=timestamp)])
        ],
    )
    answer = (await cluster.ask(broker_id, request, 9, ListOffsetsResponse)).topics[0].partitions[0]
    return answer.error_code, answer.offset


@pytest.mark.parametrize(
    ("leader_epoch", "expected"),
    [(1, ErrorCode.NONE), (0, ErrorCode.FENCED_LEADER_EPOCH), (2, ErrorCode.UNKNOWN_LEADER_EPOCH)],
)
def test_a_follower_must_know_the_same_leader_epoch(leader_epoch: int, expected: ErrorCode) -> None:
    async def test(cluster: Cluster) -> None:
        follower = await prepared(cluster)
        await cluster.move(leader=1)
        assert (await follower.fetch({0: 0}, leader_epoch=leader_epoch))[0].error_code == expected

    simulate(test, brokers=1)


def test_who_is_no_replica_is_told_to_wait_for_the_image() -> None:
    async def test(cluster: Cluster) -> None:
        await prepared(cluster)
        await cluster.register_stranger(77, EPOCH)
        stranger = PlayedFollower(cluster, 77)
        assert (await stranger.fetch({0: 0}))[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        other = PlayedFollower(cluster, 77)
        assert (await other.fetch({0: 0}, leader_epoch=0))[0].error_code == ErrorCode.UNKNOWN_LEADER_EPOCH

    simulate(test, brokers=1)


@pytest.mark.parametrize("claimed", [EPOCH + 1, (1 << 63) - 1])
def test_an_epoch_that_the_image_does_not_know_is_refused_and_shuts_no_follower_out(claimed: int) -> None:
    async def test(cluster: Cluster) -> None:
        follower = await prepared(cluster)
        await follower.fetch({0: 0})
        stranger = PlayedFollower(cluster, epoch=claimed)
        response = await stranger.send(stranger.request({0: 0}))
        assert response.error_code == ErrorCode.STALE_BROKER_EPOCH
        assert [session.broker_epoch for session in replica_sessions(cluster)] == [EPOCH]
        await cluster.produce(1, b"a", acks=1)
        await follower.fetch({0: 1})
        assert cluster.partition(1).high_watermark == 1
        # As soon as it is registered it is the one that counts.
        await cluster.register_stranger(FOLLOWER, claimed)
        stranger = PlayedFollower(cluster, epoch=claimed)
        await stranger.fetch({0: 1})
        assert [session.broker_epoch for session in replica_sessions(cluster)] == [claimed]

    simulate(test, brokers=1)


def test_who_claims_to_be_a_broker_that_never_registered_is_refused() -> None:
    async def test(cluster: Cluster) -> None:
        await prepared(cluster)
        stranger = PlayedFollower(cluster, replica_id=77, epoch=3)
        assert (await stranger.send(stranger.request({0: 0}))).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert replica_sessions(cluster) == []

    simulate(test, brokers=1)


def test_a_session_without_an_incarnation_is_not_privileged() -> None:
    async def test(cluster: Cluster) -> None:
        await prepared(cluster)
        await PlayedFollower(cluster, epoch=-1).fetch({0: 0})
        assert [session.is_privileged for session in replica_sessions(cluster)] == [False]

    simulate(test, brokers=1)


def test_a_process_that_was_replaced_is_refused_as_a_whole_and_its_session_is_over() -> None:
    async def test(cluster: Cluster) -> None:
        follower = await prepared(cluster)
        await follower.fetch({0: 0})
        await cluster.register_stranger(FOLLOWER, EPOCH + 1)
        response = await follower.send(follower.request())
        assert response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        restarted = PlayedFollower(cluster, epoch=EPOCH + 1)
        await restarted.fetch({0: 0})
        assert [session.broker_epoch for session in replica_sessions(cluster)] == [EPOCH + 1]

    simulate(test, brokers=1)


def test_partitions_that_lead_elsewhere_or_do_not_exist_are_refused_on_their_own() -> None:
    async def test(cluster: Cluster) -> None:
        follower = await prepared(cluster, 2)
        append(cluster, b"a", number=1)
        await cluster.move(leader=FOLLOWER)
        answers = await follower.fetch({0: 0, 1: 0, 5: 0})
        assert {number: data.error_code for number, data in answers.items()} == {
            0: ErrorCode.NOT_LEADER_OR_FOLLOWER,
            1: ErrorCode.NONE,
            5: ErrorCode.UNKNOWN_TOPIC_ID,
        }
        assert values(answers[1]) == [b"a"]
        # Errors are told again until the partition is forgotten.
        assert (await follower.fetch({1: 1}))[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert await follower.fetch(forget=(0, 5)) == {}

    simulate(test, brokers=1)


def test_large_batches_come_one_by_one_and_every_partition_has_its_turn() -> None:
    async def test(cluster: Cluster) -> None:
        follower = await prepared(cluster, 3)
        for number in range(3):
            append(cluster, b"x" * 1000, number=number)
            append(cluster, b"y" * 1000, number=number)
        positions = dict.fromkeys(range(3), 0)
        answers = await follower.fetch(dict(positions), max_bytes=100)
        read = []
        for _ in range(6):
            (number,) = [number for number, data in answers.items() if data.records]
            read.append(number)
            positions[number] += 1
            answers = await follower.fetch({number: positions[number]}, max_bytes=100)
        assert sorted(read) == [0, 0, 1, 1, 2, 2]
        assert sorted(read[:3]) == [0, 1, 2]
        assert positions == {0: 2, 1: 2, 2: 2}

    simulate(test, brokers=1)


def test_partitions_without_traffic_know_that_their_follower_keeps_up() -> None:
    async def test(cluster: Cluster) -> None:
        follower = await prepared(cluster)
        await follower.fetch({0: 0})
        for _ in range(100):
            await follower.fetch(wait_ms=500)
        append(cluster, b"a")
        now = cluster.brokers[1].services.clock.monotonic()
        assert cluster.partition(1).leading.wanted_isr(now, 30_000) is None

    simulate(test, brokers=1)


def test_a_silent_follower_is_one_that_does_not_keep_up() -> None:
    async def test(cluster: Cluster) -> None:
        follower = await prepared(cluster)
        await follower.fetch({0: 0})
        append(cluster, b"a")
        await cluster.until(lambda: cluster.state(1).isr == (1,), seconds=60)

    simulate(test, brokers=1)


def test_what_is_forgotten_or_closed_is_watched_no_more() -> None:
    async def test(cluster: Cluster) -> None:
        follower = await prepared(cluster, 2)
        await follower.fetch({0: 0, 1: 0})
        (session,) = replica_sessions(cluster)
        watched = [cluster.partition(1, number=number) for number in range(2)]

        def watchers() -> list[int]:
            return [len(one._append_waiters) + len(one._data_waiters) for one in watched]

        assert watchers() == [2, 2]
        await follower.fetch(forget=(0,))
        assert watchers() == [0, 2]
        cluster.brokers[1].services.fetch_sessions._close(session.session_id)
        assert watchers() == [0, 0]
        assert (await follower.send(follower.request())).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        # Begun anew, with the id of the former one.
        follower.session_epoch = 0
        await follower.fetch({0: 0})
        assert watchers() == [2, 0]

    simulate(test, brokers=1)


def test_without_room_for_a_session_followers_are_served_and_clients_give_way_to_them() -> None:
    async def test(cluster: Cluster) -> None:
        follower = await prepared(cluster, 2)
        append(cluster, b"a")
        topic_id = follower.topic_id
        request = FetchRequest(
            session_epoch=0,
            max_wait_ms=0,
            topics=[FetchTopic(topic_id=topic_id, partitions=[FetchPartition(partition=0, partition_max_bytes=1)])],
        )
        client = await cluster.ask(1, request, 17, FetchResponse)
        assert client.session_id
        await follower.fetch({0: 0})
        assert follower.session_id
        other = PlayedFollower(cluster)
        answers = await other.fetch({0: 0, 1: 0})
        assert other.session_id == 0
        assert (values(answers[0]), values(answers[1])) == ([b"a"], [])
        began = cluster.loop.time()
        assert list(await other.fetch({0: 1, 1: 0}, wait_ms=200)) == [0, 1]
        assert cluster.loop.time() - began >= 0.2

    simulate(test, brokers=1, max_incremental_fetch_session_cache_slots="1")


def test_older_versions_name_the_replica_in_the_request_itself() -> None:
    async def test(cluster: Cluster) -> None:
        follower = await prepared(cluster)
        await follower.prove()
        append(cluster, b"a")
        wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
        for version in range(4, 15):
            request = FetchRequest(
                replica_id=FOLLOWER,
                max_wait_ms=0,
                topics=[FetchTopic(topic="orders", partitions=[wanted])],
            )
            if version >= 13:
                request.topics[0].topic_id = cluster.brokers[1].metadata.image.topics["orders"].topic_id
            data = (await cluster.ask(1, request, version, FetchResponse)).responses[0].partitions[0]
            assert (version, values(data), data.high_watermark) == (version, [b"a"], 0)

    simulate(test, brokers=1)
