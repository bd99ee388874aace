"""Metrics of groups: progress as committed, states as they are, counters that only grow, and a cheap look."""

from __future__ import annotations

import asyncio

from tailrace.broker.monitoring.monitoring import write_metrics
from tailrace.broker.monitoring.observed import Look
from tailrace.errors import ErrorCode
from tailrace.groups.commits import Committer
from tailrace.groups.consumer import HeartbeatCall, HeartbeatResult
from tailrace.model import TopicPartition
from tailrace.records.record import NewRecord, build_batch
from tests.unit.broker.monitoring.test_metrics import Scraped
from tests.unit.groups.world import GROUP, GroupWorld, committing, now, simulate, subscription

LAG = "kafka_consumergroup_lag"
OFFSET = "kafka_consumergroup_current_offset"
MEMBERS = "kafka_consumergroup_members"
CLASSIC = "kafka_coordinator_group_groupmetadatamanager_numgroups"
COORDINATOR = "kafka_server_group_coordinator_metrics"


async def scrape(world: GroupWorld) -> Scraped:
    assert world.broker is not None
    return Scraped(b"".join(await write_metrics(Look(world.broker.observed, None))).decode())


def append(world: GroupWorld, topic: str, partition: int, count: int) -> None:
    assert world.broker is not None
    batch = build_batch([NewRecord(b"value", timestamp=1) for _ in range(count)])
    world.broker.partitions.find(topic, partition).append_own(memoryview(batch), -1)


async def commit(world: GroupWorld, group: str, topic: str, partition: int, offset: int) -> ErrorCode:
    place = TopicPartition(topic, partition)
    assert world.broker is not None
    shard = world.broker.groups.shard(group)
    refused = await committing(shard.commit(group, "", None, -1, -1, [(place, offset, -1, "")]))
    return refused.get(place, ErrorCode.NONE)


def test_lag_is_what_lies_between_the_commit_and_the_high_watermark() -> None:
    async def scenario(world: GroupWorld) -> None:
        await world.create_topic("orders", 3)
        append(world, "orders", 0, 10)
        append(world, "orders", 1, 4)
        await commit(world, GROUP, "orders", 0, 3)
        await commit(world, GROUP, "orders", 1, 4)
        # Beyond the end, as after a log was cut: never a negative lag.
        await commit(world, GROUP, "orders", 2, 5)
        scraped = await scrape(world)
        lags = [scraped.value(LAG, consumergroup=GROUP, topic="orders", partition=str(n)) for n in range(3)]
        offsets = [scraped.value(OFFSET, consumergroup=GROUP, topic="orders", partition=str(n)) for n in range(3)]
        assert (lags, offsets) == ([7, 0, 0], [3, 4, 5])
        assert scraped.value(f"{COORDINATOR}_offset_commit_count_total") == 3
        assert scraped.value("kafka_coordinator_group_groupmetadatamanager_numoffsets") == 3
        assert scraped.value(CLASSIC) == scraped.value(f"{CLASSIC}empty") == 1

    simulate(scenario)


def test_offsets_of_open_transactions_are_neither_progress_nor_counted_as_committed() -> None:
    async def scenario(world: GroupWorld) -> None:
        await world.create_topic("orders", 2)
        append(world, "orders", 0, 10)
        await commit(world, GROUP, "orders", 0, 3)
        offsets = [(TopicPartition("orders", number), 9, -1, "") for number in range(2)]
        shard = world.shard
        assert await now(shard.commit_in_transaction(GROUP, Committer(), 7, 0, offsets)) == {}
        assert await now(shard.commit_in_transaction(GROUP, Committer(), 8, 0, offsets[:1])) == {}
        for ended, expected, count in ((None, 3, 1), (8, 9, 1), (7, 9, 2)):
            if ended is not None:
                await now(shard.end_transaction(ended, 0, True, 0))
            scraped = await scrape(world)
            assert scraped.value(OFFSET, consumergroup=GROUP, topic="orders", partition="0") == expected
            assert scraped.value(LAG, consumergroup=GROUP, topic="orders", partition="0") == 10 - expected
            assert scraped.value("kafka_coordinator_group_groupmetadatamanager_numoffsets") == count

    simulate(scenario)


def test_names_of_groups_are_escaped() -> None:
    async def scenario(world: GroupWorld) -> None:
        name = 'a "quoted\\ name"\nin two lines'
        await world.create_topic("orders", 1)
        await commit(world, name, "orders", 0, 1)
        scraped = await scrape(world)
        assert scraped.value(OFFSET, consumergroup=name, topic="orders", partition="0") == 1

    simulate(scenario)


def test_classic_groups_by_state_and_their_rebalances() -> None:
    async def scenario(world: GroupWorld) -> None:
        await world.create_topic("orders", 1)
        one, two = await world.form(2, protocols=(("range", subscription("orders")),))
        scraped = await scrape(world)
        assert scraped.value(f"{CLASSIC}stable") == scraped.value(f"{COORDINATOR}_group_count", protocol="classic") == 1
        assert scraped.value(MEMBERS, consumergroup=GROUP) == 2
        assert scraped.value(f"{COORDINATOR}_group_rebalance_count_total") == 1
        assert scraped.value(f"{COORDINATOR}_group_completed_rebalance_count_total") == 1
        again = world.join(one.member_id, protocols=(("range", subscription("orders", version=0)),))
        await asyncio.sleep(0.1)
        scraped = await scrape(world)
        assert (scraped.value(f"{CLASSIC}stable"), scraped.value(f"{CLASSIC}preparingrebalance")) == (0, 1)
        assert await world.leave(two.member_id) is ErrorCode.NONE
        await again
        scraped = await scrape(world)
        assert scraped.value(f"{CLASSIC}completingrebalance") == 1
        assert scraped.value(MEMBERS, consumergroup=GROUP) == 1
        assert scraped.value(f"{COORDINATOR}_group_rebalance_count_total") == 2
        assert scraped.value(f"{COORDINATOR}_group_completed_rebalance_count_total") == 1

    simulate(scenario)


def test_groups_of_the_newer_protocol_by_state_and_their_epochs() -> None:
    async def scenario(world: GroupWorld) -> None:
        await world.create_topic("orders", 2)
        call = HeartbeatCall("m1", 0, rebalance_timeout_ms=5000, topics=frozenset(["orders"]), owned={})
        joined = await world.consumer(call)
        assert isinstance(joined, HeartbeatResult)
        scraped = await scrape(world)
        assert scraped.value(f"{COORDINATOR}_group_count", protocol="consumer") == 1
        assert scraped.value(f"{COORDINATOR}_group_count", protocol="classic") == scraped.value(CLASSIC) == 0
        assert scraped.value(f"{COORDINATOR}_consumer_group_count", state="stable") == 1
        assert scraped.value(f"{COORDINATOR}_consumer_group_rebalance_count_total") == 1
        assert scraped.value(MEMBERS, consumergroup=GROUP) == 1
        # The second one waits for what the first has to give up.
        await world.consumer(call._replace(member_id="m2"))
        scraped = await scrape(world)
        assert scraped.value(f"{COORDINATOR}_consumer_group_count", state="reconciling") == 1
        assert scraped.value(f"{COORDINATOR}_consumer_group_rebalance_count_total") == 2
        for name in ("m1", "m2"):
            await world.consumer(HeartbeatCall(name, -1))
        scraped = await scrape(world)
        assert scraped.value(f"{COORDINATOR}_consumer_group_count", state="empty") == 1
        assert scraped.value(MEMBERS, consumergroup=GROUP) == 0

    simulate(scenario)


def test_offsets_that_go_are_counted_by_why_they_go() -> None:
    async def scenario(world: GroupWorld) -> None:
        await world.create_topic("orders", 2)
        await world.create_topic("bills", 1)
        assert world.broker is not None
        for partition in range(2):
            await commit(world, GROUP, "orders", partition, 1)
        await commit(world, GROUP, "bills", 0, 1)
        await now(world.shard.delete_offsets(GROUP, [TopicPartition("orders", 1), TopicPartition("orders", 0)]))
        await world.broker.metadata.delete_topic(world.broker.metadata.image.topics["bills"])
        scraped = await scrape(world)
        assert scraped.value(f"{COORDINATOR}_offset_deletion_count_total") == 3
        await commit(world, GROUP, "orders", 0, 1)
        await now(world.shard.delete_group(GROUP))
        await commit(world, GROUP, "orders", 1, 1)
        await asyncio.sleep(5 * 60)
        scraped = await scrape(world)
        assert scraped.value(f"{COORDINATOR}_offset_deletion_count_total") == 4
        assert scraped.value(f"{COORDINATOR}_offset_expiration_count_total") == 1
        assert not scraped.has(OFFSET, consumergroup=GROUP, topic="orders", partition="1")

    simulate(scenario, offsets_retention_minutes="2", offsets_retention_check_interval_ms="30000")


def test_a_scrape_of_many_groups_lets_others_have_their_turn() -> None:
    async def scenario(world: GroupWorld) -> None:
        await world.create_topic("orders", 10)
        assert world.broker is not None
        for number in range(200):
            name = f"group-{number}"
            places = [(TopicPartition("orders", partition), 1, -1, "") for partition in range(10)]
            await committing(world.broker.groups.shard(name).commit(name, "", None, -1, -1, places))
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        beside = world.loop.create_task(other())
        scraped = await scrape(world)
        beside.cancel()
        assert len(scraped.labels_of(LAG)) == len(scraped.labels_of(OFFSET)) == 2000
        # A hundred lines at a time, for 4,000 lines of progress.
        assert turns >= 40

    simulate(scenario)
