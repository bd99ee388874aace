"""Leadership changes: the longest log succeeds a leader that is gone, and a handover loses nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tailrace.cluster.image import NO_LEADER, TopicImage
from tailrace.cluster.keys import TOPICS
from tailrace.cluster.store import Check, Entry, Unavailable, Write
from tailrace.errors import ErrorCode, StorageError
from tailrace.storage.checkpoints import LEADER_EPOCHS
from tailrace.storage.directory_identity import CLEAN_SHUTDOWN
from tailrace.wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    TopicPartitions,
)
from tests.unit.broker.clusters import Cluster, simulate, values

ALL = (1, 2, 3)


async def elect_preferred(cluster: Cluster, broker_id: int) -> PartitionResult:
    wanted = TopicPartitions(topic="orders", partitions=[0])
    request = ElectLeadersRequest(election_type=0, topic_partitions=[wanted])
    response = await cluster.ask(broker_id, request, 2, ElectLeadersResponse)
    return response.replica_election_results[0].partition_result[0]


@pytest.mark.parametrize("behind", [2, 3])
def test_of_two_followers_the_one_leads_that_has_what_two_replicas_acknowledged(behind: int) -> None:
    async def test(cluster: Cluster) -> None:
        ahead = 5 - behind
        await cluster.create("orders", [[1, 2, 3]])
        await cluster.produce(1, b"everywhere")
        cluster.network.cut("broker-1", f"broker-{behind}")
        answer = await cluster.produce(1, b"on two", acks=2)
        assert answer.error_code == ErrorCode.NONE
        assert len(cluster.log(behind)) == 1
        assert len(cluster.log(ahead)) == 2
        cluster.kill(1)
        cluster.network.heal()
        await cluster.until(lambda: cluster.state(ahead).leader in (2, 3), 60)
        assert cluster.state(ahead).leader == ahead
        await cluster.until_equal(2, 3)
        assert [value for _, _, value in cluster.log(behind)] == [b"everywhere", b"on two"]

    simulate(test)


def test_between_two_that_have_the_same_the_order_of_replicas_decides() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1, 3, 2]])
        await cluster.produce(1, b"everywhere")
        before = cluster.state(2).leader_epoch
        cluster.kill(1)
        await cluster.until(lambda: cluster.state(2).leader == 3, 60)
        # One epoch in which nobody led and they were asked, and one of the new leader.
        assert cluster.state(2).leader_epoch == before + 2
        assert (await cluster.produce(3, b"more")).error_code == ErrorCode.NONE

    simulate(test)


def test_a_candidate_that_does_not_answer_is_left_out() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[3, 1, 2]])
        await cluster.produce(3, b"everywhere")
        await cluster.until(lambda: cluster.brokers[1].controller.is_active or cluster.brokers[2].controller.is_active)
        controller = 1 if cluster.brokers[1].controller.is_active else 2
        silent = 3 - controller
        cluster.network.cut(f"broker-{controller}", f"broker-{silent}")
        cluster.kill(3)
        await cluster.until(lambda: cluster.state(controller).leader == controller, 60)

    simulate(test)


@pytest.mark.parametrize("asked", ALL)
def test_a_preferred_leader_is_made_by_the_one_that_leads_and_nothing_is_lost(asked: int) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1, 2, 3]])
        await cluster.move(leader=2)
        acknowledged: list[bytes] = []
        is_over = False

        async def load() -> None:
            number = 0
            while not is_over:
                value = f"{number}".encode()
                answer = await cluster.produce(2, value, acks=1)
                if answer.error_code == ErrorCode.NONE:
                    acknowledged.append(value)
                number += 1
                await asyncio.sleep(0.001)

        loading = asyncio.ensure_future(load())
        await asyncio.sleep(1)
        result = await elect_preferred(cluster, asked)
        assert result.error_code == ErrorCode.NONE, result.error_message
        await cluster.until(lambda: all(cluster.state(one).leader == 1 for one in ALL))
        await asyncio.sleep(1)
        is_over = True
        await loading
        await cluster.until_equal(*ALL)
        kept = [value for _, _, value in cluster.log(1)]
        assert acknowledged
        assert [value for value in kept if value in acknowledged] == acknowledged, (
            "acks=1 survives a move of leadership"
        )

    simulate(test)


class Forgetful:
    """The store of a broker that takes a change of a leader, does not answer, and is silent for a while."""

    def __init__(self, cluster: Cluster, broker_id: int, leader: int, late_seconds: float) -> None:
        self._store = cluster._stores[broker_id]
        self._tasks = cluster.brokers[broker_id].background
        self._leader = leader
        self._late_seconds = late_seconds
        self._get, self._txn = self._store.get, self._store.txn
        self._store.get, self._store.txn = self.get, self.txn  # type: ignore[method-assign]
        self.is_away = False
        #: What became of the change in the end.
        self.outcomes: list[Sequence[int] | None] = []

    async def get(self, key: str) -> Entry | None:
        self._require_answers()
        return await self._get(key)

    async def txn(self, checks: Sequence[Check], writes: Sequence[Write]) -> Sequence[int] | None:
        self._require_answers()
        topics = [TopicImage.from_bytes(write.value) for write in writes if write.value and TOPICS in write.key]
        if not self.outcomes and any(topic.partitions[0].leader == self._leader for topic in topics):
            self.is_away = True
            self._tasks.spawn(self._apply(checks, writes), "late")
        self._require_answers()
        return await self._txn(checks, writes)

    async def _apply(self, checks: Sequence[Check], writes: Sequence[Write]) -> None:
        await asyncio.sleep(self._late_seconds)
        self.outcomes.append(await self._txn(checks, writes))

    def _require_answers(self) -> None:
        if self.is_away:
            raise Unavailable("no answer")


@pytest.mark.parametrize("late_seconds", [0.0, 0.4, 5.0])
def test_a_leader_takes_no_records_until_it_knows_what_became_of_a_handover(late_seconds: float) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1, 2, 3]])
        await cluster.move(leader=2)
        store = Forgetful(cluster, 2, 1, late_seconds)
        with pytest.raises(Unavailable):
            await cluster.brokers[2].leadership.balance()
        assert store.is_away
        # Nothing is known yet, and nothing may be acknowledged that an heir may not have.
        for _ in range(20):
            answer = await cluster.produce(2, b"too early", acks=1)
            assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            await asyncio.sleep(0.05)
        store.is_away = False
        await cluster.until(lambda: cluster.partition(1).is_leader or cluster.partition(2).refusal is None)
        leader = 1 if cluster.partition(1).is_leader else 2
        assert leader == (2 if late_seconds > 1 else 1)
        assert (await cluster.produce(leader, b"kept", acks=1)).error_code == ErrorCode.NONE
        await cluster.until(lambda: bool(store.outcomes))
        await asyncio.sleep(5)
        assert cluster.state(3).leader == leader, "what was not answered is not made any more"
        await cluster.until_equal(*ALL)
        assert [value for _, _, value in cluster.log(leader)] == [b"kept"]

    simulate(test, leader_imbalance_check_interval_seconds="3000")


def test_a_change_of_a_process_that_has_ended_is_not_made_any_more() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1, 2]])
        metadata = cluster.brokers[1].metadata
        checks = await metadata.own_checks()
        topic = metadata.image.topics["orders"]
        await cluster.stop(1)
        await cluster.start(1)
        later = cluster.brokers[1].metadata
        version = later._known.version_of(topic.lineage)
        key = f"{TOPICS}/{topic.lineage}"
        late = [*checks, Check(key, version)]
        assert await cluster._stores[2].txn(late, [Write(key, topic.to_bytes())]) is None
        metadata._store = cluster._stores[2]
        with pytest.raises(Unavailable, match="another process has started as this broker"):
            await metadata.own_checks()

    simulate(test)


def test_a_broker_that_stops_waits_for_followers_that_are_behind() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1, 2, 3]])
        await cluster.produce(1, b"everywhere")
        for broker_id in (2, 3):
            cluster.network.stall(f"broker-{broker_id}")
        await cluster.until(lambda: cluster.partition(1).leading.followers is not None)
        expected = [b"everywhere", *[f"{number}".encode() for number in range(20)]]
        for value in expected[1:]:
            assert (await cluster.produce(1, value, acks=1)).error_code == ErrorCode.NONE
        cluster.loop.call_later(5, lambda: [cluster.network.unstall(f"broker-{each}") for each in (2, 3)])
        await cluster.stop(1)
        await cluster.until(lambda: cluster.state(2).leader in (2, 3))
        await cluster.until_equal(2, 3)
        assert [value for _, _, value in cluster.log(2)] == expected

    simulate(test)


def test_a_broker_that_stops_says_what_is_lost_where_nobody_catches_up(caplog: pytest.LogCaptureFixture) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1, 2, 3]])
        await cluster.produce(1, b"everywhere")
        for broker_id in (2, 3):
            cluster.network.stall(f"broker-{broker_id}")
        began = cluster.loop.time()
        assert (await cluster.produce(1, b"here", acks=1)).error_code == ErrorCode.NONE
        await cluster.stop(1)
        assert cluster.loop.time() - began < 40
        for broker_id in (2, 3):
            cluster.network.unstall(f"broker-{broker_id}")
        await cluster.until(lambda: cluster.state(2).leader in (2, 3))

    simulate(test)
    assert "records that only this broker acknowledged (acks=1) are lost" in caplog.text


def test_a_preferred_leader_that_is_cut_off_is_not_made_and_the_old_one_goes_on() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1, 2, 3]])
        await cluster.move(leader=2)
        cluster.network.cut("broker-1", "broker-2")
        await cluster.produce(2, b"behind", acks=1)
        result = await elect_preferred(cluster, 2)
        assert result.error_code == ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
        assert (await cluster.produce(2, b"goes on", acks=1)).error_code == ErrorCode.NONE
        assert cluster.state(2).leader == 2

    simulate(test)


def test_leadership_goes_back_to_the_first_replica_after_a_while_unless_that_is_off() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1, 2, 3]])
        await cluster.move(leader=2)
        await asyncio.sleep(250)
        assert cluster.state(1).leader == 2
        await cluster.until(lambda: cluster.state(3).leader == 1, 70)

    simulate(test)

    async def test_off(cluster: Cluster) -> None:
        await cluster.create("orders", [[1, 2, 3]])
        await cluster.move(leader=2)
        await asyncio.sleep(1000)
        assert cluster.state(1).leader == 2

    simulate(test_off, auto_leader_rebalance_enable="false")


def test_a_broker_that_stops_hands_over_all_it_has() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1, 2, 3], [2, 1, 3], [1, 3]])
        for number in range(50):
            await cluster.produce(1, f"{number}".encode(), acks=1)
        await cluster.stop(1)
        await cluster.until(lambda: all(cluster.state(2, number=number).leader in (2, 3) for number in range(3)))
        for number in range(3):
            assert 1 not in cluster.state(2, number=number).isr
        leader = cluster.state(2).leader
        assert [value for _, _, value in cluster.log(leader)] == [f"{number}".encode() for number in range(50)]
        await cluster.start(1)
        await cluster.until(lambda: sorted(cluster.state(2).isr) == [1, 2, 3], 60)
        await cluster.until_equal(*ALL)

    simulate(test)


def test_a_broker_that_stops_while_the_store_is_away_still_closes_its_logs() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1, 2, 3]])
        await cluster.produce(1, b"kept")
        store = cluster._stores[1]

        async def unavailable(*_: object) -> None:
            await asyncio.sleep(5)
            raise Unavailable("nobody answers")

        store.txn = store.get = store.list = unavailable  # type: ignore[method-assign,assignment]
        disk = cluster.disks[1]
        began = cluster.loop.time()
        await cluster.stop(1)
        assert cluster.loop.time() - began < 60
        assert disk.read_file(f"/data/{CLEAN_SHUTDOWN}") is not None
        await cluster.until(lambda: cluster.state(2).leader in (2, 3), 60)
        await cluster.start(1)
        await cluster.until(lambda: sorted(cluster.state(2).isr) == [1, 2, 3], 60)
        await cluster.until_equal(*ALL)

    simulate(test)


def test_the_last_one_that_stops_keeps_what_nobody_else_can_lead() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1, 2]])
        await cluster.produce(1, b"kept")
        await cluster.stop(2)
        await cluster.stop(1)
        await cluster.start(1)
        assert cluster.state(1).leader == 1
        assert values(await cluster.fetch(1)) == [b"kept"]
        await cluster.start(2)
        await cluster.until(lambda: sorted(cluster.state(1).isr) == [1, 2], 60)

    simulate(test, brokers=2)


def test_what_is_on_a_disk_that_failed_is_led_by_others() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1, 2, 3]])
        await cluster.produce(1, b"everywhere")
        cluster.partition(1).directory.fail(StorageError("the disk is gone"))
        await cluster.until(lambda: cluster.state(2).leader in (2, 3), 10)
        assert 1 not in cluster.state(2).isr
        assert (await cluster.produce(cluster.state(2).leader, b"more")).error_code == ErrorCode.NONE
        assert NO_LEADER not in [cluster.state(one).leader for one in (2, 3)]

    simulate(test)


def test_a_disk_that_fails_as_its_broker_is_to_lead_costs_the_directory_and_not_the_broker() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("orders", [[1, 2, 3]])
        await cluster.produce(1, b"everywhere")
        ended: list[BaseException] = []
        cluster.brokers[2].on_fatal = ended.append
        cluster.disks[2].fail(lambda path: path.endswith(LEADER_EPOCHS), "replace_file", times=None)
        await cluster.move(leader=2)
        await cluster.until(lambda: cluster.state(3).leader in (1, 3), 60)
        assert not ended
        (directory,) = cluster.brokers[2].partitions.directories
        assert directory.failure is not None
        answer = await cluster.produce(cluster.state(3).leader, b"goes on")
        assert answer.error_code == ErrorCode.NONE
        await cluster.until_equal(1, 3)

    simulate(test)
