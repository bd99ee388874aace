"""A broker on a disk that fills up or fails: what it refuses, what continues, and what it never acknowledges."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tailrace.broker.assembly import Broker
from tailrace.errors import ErrorCode
from tailrace.model import TopicPartition
from tailrace.records.record import NewRecord, build_batch
from tailrace.testing.client import KafkaClient
from tailrace.testing.history import check_promises
from tailrace.testing.loop import SimLoop
from tailrace.testing.network import SimNetwork
from tailrace.testing.node import PORT, SimNode
from tailrace.testing.workload import Acknowledged, read_partition
from tailrace.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData

ORDERS = TopicPartition("orders", 0)
SEEDS = range(20)
#: For worlds with many logs, which take longer.
FEW_SEEDS = range(5)


class World:
    """One broker, one client, and the client's acknowledgements."""

    def __init__(self, loop: SimLoop, settings: dict[str, str]) -> None:
        self.loop = loop
        self.network = SimNetwork(loop, loop.random_for("network"))
        self.node = SimNode(loop, self.network, "broker", settings)
        self.acknowledged: list[Acknowledged] = []
        self._sent = 0

    async def start(self) -> Broker:
        broker = await self.node.start()
        if ORDERS.topic not in broker.metadata.image.topics:
            await broker.metadata.create_topic(broker.metadata.plan_topic(ORDERS.topic, 1, 1, {}, {}))
        return broker

    async def client(self) -> KafkaClient:
        return await KafkaClient.connect(self.network.host("client"), "broker", PORT, "client")

    async def produce(self, client: KafkaClient, size: int = 200) -> ErrorCode:
        """Send one record, and remember it if it is acknowledged."""
        value = f"{self._sent}:".encode().ljust(size, b".")
        self._sent += 1
        batch = build_batch([NewRecord(value, timestamp=self.node.clock.wall_ms())])
        data = TopicProduceData(
            name=ORDERS.topic, partition_data=[PartitionProduceData(index=ORDERS.partition, records=batch)]
        )
        request = ProduceRequest(acks=-1, timeout_ms=5_000, topic_data=[data])
        response = await client.call(request, 9, ProduceResponse)
        result = response.responses[0].partition_responses[0]
        if result.error_code == 0:
            self.acknowledged.append(Acknowledged(value, result.base_offset, self.loop.time(), 0.0))
        return ErrorCode(result.error_code)

    async def check(self, client: KafkaClient) -> None:
        check_promises(await read_partition(client, ORDERS), self.acknowledged)


def simulate(seed: int, scenario: Callable[[World], Coroutine[Any, Any, None]], settings: dict[str, str]) -> None:
    loop = SimLoop(seed, max_virtual_seconds=3600)

    async def main() -> None:
        await scenario(World(loop, settings))

    loop.run(main())


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("flush", ["default", "every record"])
def test_a_full_disk_refuses_producers_until_there_is_room_and_loses_nothing(seed: int, flush: str) -> None:
    async def scenario(world: World) -> None:
        broker = await world.start()
        client = await world.client()
        for _ in range(30):
            assert await world.produce(client) is ErrorCode.NONE
        world.node.disk.capacity_bytes = world.node.disk.used_bytes + 500
        outcomes = [await world.produce(client) for _ in range(20)]
        assert ErrorCode.KAFKA_STORAGE_ERROR in outcomes
        assert all(code in (ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR) for code in outcomes)
        await world.check(client)
        assert all(directory.failure is None for directory in broker.partitions.directories)
        world.node.disk.capacity_bytes = None
        await asyncio.sleep(3)
        assert await world.produce(client) is ErrorCode.NONE
        await world.check(client)
        await world.node.stop()
        await world.start()
        await world.check(await world.client())
        await world.node.stop()

    settings = {} if flush == "default" else {"log.flush.interval.messages": "1"}
    simulate(seed, scenario, settings)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_failed_sync_acknowledges_nothing_it_covered_and_takes_the_directory_offline(seed: int) -> None:
    async def scenario(world: World) -> None:
        broker = await world.start()
        client = await world.client()
        for _ in range(5):
            assert await world.produce(client) is ErrorCode.NONE
        world.node.disk.fail(lambda path: path.endswith(".log"), "sync")
        assert await world.produce(client) is ErrorCode.KAFKA_STORAGE_ERROR
        assert broker.partitions.directories[0].failure is not None
        assert await world.produce(client) is ErrorCode.KAFKA_STORAGE_ERROR
        world.node.unplug()
        await world.start()
        await world.check(await world.client())
        await world.node.stop()

    simulate(seed, scenario, {"log.flush.interval.messages": "1"})


@pytest.mark.parametrize("seed", SEEDS)
def test_a_failed_write_is_refused_and_what_was_acknowledged_before_is_there_after_a_restart(seed: int) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        client = await world.client()
        for _ in range(50):
            assert await world.produce(client) is ErrorCode.NONE
        world.node.disk.fail(lambda path: path.endswith(".log"), "append")
        assert await world.produce(client) is ErrorCode.KAFKA_STORAGE_ERROR
        world.node.kill()
        await world.start()
        again = await world.client()
        await world.check(again)
        assert await world.produce(again) is ErrorCode.NONE
        await world.check(again)
        await world.node.stop()

    simulate(seed, scenario, {})


@pytest.mark.parametrize("seed", SEEDS)
def test_only_the_partitions_of_a_failed_directory_go_offline(seed: int) -> None:
    async def scenario(world: World) -> None:
        broker = await world.start()
        await broker.metadata.create_topic(broker.metadata.plan_topic("payments", 1, 1, {}, {}))
        homes = {partition.partition.topic: partition.directory for partition in broker.partitions}
        assert homes["orders"] is not homes["payments"]
        client = await world.client()
        assert await world.produce(client) is ErrorCode.NONE
        world.node.disk.fail(lambda path: path.startswith(homes["payments"].path), "sync", times=None)
        partition = broker.partitions.find("payments", 0)
        batch = build_batch([NewRecord(b"x", timestamp=world.node.clock.wall_ms())])
        partition.append(memoryview(batch), 1)
        await asyncio.sleep(5)
        assert homes["payments"].failure is not None
        assert homes["orders"].failure is None
        assert await world.produce(client) is ErrorCode.NONE
        await world.check(client)
        await world.node.stop()

    simulate(seed, scenario, {"log.dirs": "/disk1,/disk2"})


@pytest.mark.parametrize("seed", SEEDS)
def test_what_survived_a_kill_also_survives_a_power_cut_after_the_restart(seed: int) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        client = await world.client()
        for _ in range(30):
            assert await world.produce(client) is ErrorCode.NONE
        world.node.kill()
        await world.start()
        await world.check(await world.client())
        world.node.unplug()
        await world.start()
        again = await world.client()
        await world.check(again)
        assert await world.produce(again) is ErrorCode.NONE
        await world.check(again)
        await world.node.stop()

    simulate(seed, scenario, {})


@pytest.mark.parametrize("seed", FEW_SEEDS)
def test_a_power_cut_spares_what_many_logs_synced_together(seed: int) -> None:
    async def scenario(world: World) -> None:
        broker = await world.start()
        await broker.metadata.create_topic(broker.metadata.plan_topic("many", 100, 1, {}, {}))
        for _ in range(3):
            batch = build_batch([NewRecord(b"x", timestamp=world.node.clock.wall_ms())])
            for number in range(100):
                broker.partitions.find("many", number).append(memoryview(bytearray(batch)), 1)
            # Twice the time until a sync begins, and time to finish it.
            await asyncio.sleep(3)
        world.node.unplug()
        broker = await world.start()
        assert [broker.partitions.find("many", number).log.end_offset for number in range(100)] == [3] * 100
        await world.node.stop()

    simulate(seed, scenario, {})


@pytest.mark.parametrize("seed", FEW_SEEDS)
def test_a_failed_sync_of_many_logs_takes_their_directory_offline(seed: int) -> None:
    async def scenario(world: World) -> None:
        broker = await world.start()
        await broker.metadata.create_topic(broker.metadata.plan_topic("many", 100, 1, {}, {}))
        batch = build_batch([NewRecord(b"x", timestamp=world.node.clock.wall_ms())])
        for fails in (False, True):
            if fails:
                world.node.disk.fail(lambda path: True, "sync_all", times=1)
            for number in range(100):
                broker.partitions.find("many", number).append(memoryview(bytearray(batch)), 1)
            await asyncio.sleep(3)
            assert (broker.partitions.directories[0].failure is not None) == fails
        await world.node.stop()

    simulate(seed, scenario, {})
