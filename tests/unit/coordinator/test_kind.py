"""A kind of coordinator that knows nothing of groups, from the creation of its topic to a failover: named counters."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from tailrace.broker.assembly import Broker
from tailrace.coordinator.coordinator import Coordinator
from tailrace.coordinator.kind import Host, Kind, TopicSettings
from tailrace.coordinator.operations import Operations
from tailrace.coordinator.shard import Producer
from tailrace.coordinator.shards import partition_for
from tailrace.errors import ErrorCode, KafkaError
from tailrace.wire.messages.find_coordinator import Coordinator as Found
from tailrace.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tests.unit.broker.clusters import Cluster, simulate

TOPIC = "__counters"
KEY_TYPE = 77
PARTITIONS = 2
#: How long a counter keeps its value when nobody increments it.
RESET_MS = 30_000
ALL = (1, 2, 3)


class CounterShard:
    """The counters of one partition; a counter is its last record, and what its transactions will add."""

    def __init__(self, operations: Operations) -> None:
        self.operations = operations
        self.values: dict[str, int] = {}
        #: What producers have written in transactions that are open.
        self.pending: dict[Producer, dict[str, int]] = {}
        self.offsets: dict[str, int] = {}
        #: The counters as they were when the shard was loaded.
        self.snapshot: dict[str, int] | None = None
        self.ended: KafkaError | None = None

    # --- what the runtime asks for

    def replay(self, key: bytes, value: bytes | None, offset: int, producer: Producer | None) -> None:
        name = key.decode()
        self.offsets[name] = offset
        if producer is not None and producer.in_transaction:
            assert value is not None
            self.pending.setdefault(producer, {})[name] = int(value)
        elif value is None:
            del self.values[name]
        else:
            self.values[name] = int(value)

    def replay_marker(self, producer: Producer, is_commit: bool, offset: int) -> None:
        written = self.pending.pop(producer, {})
        if is_commit:
            self.values.update(written)

    def begin(self) -> None:
        self.snapshot = dict(self.values)
        for name in self.values:
            self._reset_later(name)

    def end(self, reason: KafkaError) -> None:
        self.ended = reason

    # --- operations

    def increment(self, name: str) -> int | asyncio.Future[int]:
        value = self.values.get(name, 0) + 1
        result = self.operations.write([(name.encode(), b"%d" % value)], value)
        self._reset_later(name)
        return result

    def increment_in_transaction(self, name: str, producer: Producer) -> int | asyncio.Future[int]:
        value = self.values.get(name, 0) + 1
        records = [(name.encode(), b"%d" % value)]
        return self.operations.write_in_transaction(producer.producer_id, producer.epoch, records, value)

    def get(self, name: str) -> int | asyncio.Future[int]:
        return self.operations.read(self.values.get(name, 0))

    def _reset_later(self, name: str) -> None:
        self.operations.timers.set(name, RESET_MS, lambda: self._reset(name))

    def _reset(self, name: str) -> None:
        self.operations.keep([(name.encode(), None)])


class World:
    """Brokers that host counters, each beside its group coordinator."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.counters = {broker_id: self._host(broker) for broker_id, broker in cluster.brokers.items()}

    def _host(self, broker: Broker) -> Coordinator[CounterShard]:
        services = broker.services
        host = Host(services.broker_id, broker.metadata, broker.partitions, services.clock, broker.background)
        configs = {"cleanup.policy": "compact", "min.insync.replicas": "2"}
        kind = Kind(TOPIC, "counters topic", lambda: TopicSettings(PARTITIONS, 3, configs), CounterShard)
        counters = Coordinator(kind, host)
        broker.coordinators.add(counters, KEY_TYPE)
        return counters

    async def locate(self, name: str, asked: int = 1) -> int:
        """The broker that coordinates a counter, as a client is told."""
        request = FindCoordinatorRequest(key_type=KEY_TYPE, coordinator_keys=[name])
        answer: Found = (await self.cluster.ask(asked, request, 4, FindCoordinatorResponse)).coordinators[0]
        assert answer.error_code == ErrorCode.NONE, answer.error_message
        assert answer.host == f"broker-{answer.node_id}"
        return answer.node_id

    async def create(self) -> None:
        """Create the topic by looking for a counter, and let every shard load."""
        await self.locate("a")
        await self.cluster.until(
            lambda: all(TOPIC in one.metadata.image.topics for one in self.cluster.brokers.values())
        )
        await self.cluster.until(lambda: not any(each.is_loading for each in self.counters.values()))
        await asyncio.sleep(1)

    def shard(self, name: str, broker_id: int) -> CounterShard:
        return self.counters[broker_id].shard(name)

    async def increment(self, name: str, broker_id: int) -> int:
        return await now(self.shard(name, broker_id).increment(name))

    async def get(self, name: str, broker_id: int) -> int:
        return await now(self.shard(name, broker_id).get(name))

    async def loaded(self, name: str, broker_id: int) -> CounterShard:
        """The shard of a counter, asked for as a client does: again while it is told to."""
        for _ in range(1000):
            try:
                return self.shard(name, broker_id)
            except KafkaError as error:
                if error.code not in (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR):
                    raise
                await asyncio.sleep(0.01)
        raise AssertionError(f"broker {broker_id} does not coordinate {name}")


async def now(result: Any) -> Any:
    """The value of a result that may be a future."""
    return await result if isinstance(result, Awaitable) else result


def code_of(call: Any, *arguments: Any) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        call(*arguments)
    return caught.value.code


def test_the_topic_is_created_by_the_first_client_and_every_broker_names_the_same_coordinator() -> None:
    async def test(cluster: Cluster) -> None:
        world = World(cluster)
        assert TOPIC not in cluster.brokers[1].metadata.image.topics
        assert code_of(world.counters[1].shard, "a") is ErrorCode.NOT_COORDINATOR
        await world.create()
        topic = cluster.brokers[1].metadata.image.topics[TOPIC]
        assert [sorted(state.replicas) for state in topic.partitions] == [[1, 2, 3]] * PARTITIONS
        assert topic.configs["cleanup.policy"] == "compact"
        for name in ("a", "b", "some counter", "ü"):
            found = {await world.locate(name, asked) for asked in ALL}
            assert found == {topic.partitions[partition_for(name, PARTITIONS)].leader}
            assert await world.increment(name, *found) == 1
            for other in set(ALL) - found:
                assert code_of(world.shard, name, other) is ErrorCode.NOT_COORDINATOR

    simulate(test)


def test_a_topic_that_was_created_with_fewer_brokers_gets_its_other_replicas_when_they_are_there() -> None:
    async def test(cluster: Cluster) -> None:
        alone = World(cluster)
        await alone.locate("a")
        assert [state.replicas for state in cluster.brokers[1].metadata.image.topics[TOPIC].partitions] == [(1,), (1,)]
        await cluster.start(2, 3)
        await cluster.until(lambda: all(len(cluster.state(1, TOPIC, number).isr) == 3 for number in range(PARTITIONS)))

    simulate(test, brokers=1)


def test_a_new_coordinator_loads_what_the_old_one_wrote_and_goes_on_from_there() -> None:
    async def test(cluster: Cluster) -> None:
        world = World(cluster)
        await world.create()
        found, number = await world.locate("a"), partition_for("a", PARTITIONS)
        for count in range(1, 12):
            shard = world.shard("a", found)
            assert await world.increment("a", found) == count
            former, found = found, found % 3 + 1
            await cluster.move(TOPIC, (number,), leader=found)
            assert shard.ended is not None
            assert shard.ended.code is ErrorCode.NOT_COORDINATOR
            assert code_of(shard.increment, "a") is ErrorCode.NOT_COORDINATOR
            assert shard.values == {"a": count}
            assert code_of(world.shard, "a", former) is ErrorCode.NOT_COORDINATOR
            again = await world.loaded("a", found)
            assert (again.snapshot, again.offsets) == ({"a": count}, {"a": count - 1})
            assert await world.get("a", found) == count

    simulate(test)


def test_a_coordinator_that_dies_is_replaced_without_losing_what_it_acknowledged() -> None:
    async def test(cluster: Cluster) -> None:
        world = World(cluster)
        await world.create()
        found = await world.locate("a")
        assert [await world.increment("a", found) for _ in range(3)] == [1, 2, 3]
        cluster.kill(found)
        del world.counters[found]
        other = min(world.counters)
        number = partition_for("a", PARTITIONS)
        await cluster.until(lambda: cluster.state(other, TOPIC, number).leader in world.counters)
        elected = await world.locate("a", other)
        shard = await world.loaded("a", elected)
        assert shard.snapshot == {"a": 3}
        assert await world.increment("a", elected) == 4

    simulate(test)


def test_nothing_is_told_of_a_shard_before_it_is_loaded() -> None:
    async def test(cluster: Cluster) -> None:
        world = World(cluster)
        await world.create()
        found, number = await world.locate("a"), partition_for("a", PARTITIONS)
        await world.increment("a", found)
        counters, partition = world.counters[found], cluster.partition(found, TOPIC, number)
        counters._shards.resign(number)
        counters.reopened(partition)
        assert counters.is_loading
        assert code_of(counters.shard, "a") is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert [shard for shard in counters if shard.values] == []
        assert (await world.loaded("a", found)).snapshot == {"a": 1}

    simulate(test)


def test_a_result_waits_for_the_followers_and_who_waits_is_told_of_the_next_coordinator() -> None:
    async def test(cluster: Cluster) -> None:
        world = World(cluster)
        await world.create()
        found, number = await world.locate("a"), partition_for("a", PARTITIONS)
        assert await world.increment("a", found) == 1
        for other in set(ALL) - {found}:
            cluster.network.cut(f"broker-{found}", f"broker-{other}")
        written, read = world.shard("a", found).increment("a"), world.shard("a", found).get("a")
        assert isinstance(written, asyncio.Future)
        assert isinstance(read, asyncio.Future)
        await asyncio.sleep(0.5)
        assert (written.done(), read.done()) == (False, False)
        elected = found % 3 + 1
        await cluster.move(TOPIC, (number,), leader=elected)
        errors = await asyncio.gather(written, read, return_exceptions=True)
        assert [error.code for error in errors if isinstance(error, KafkaError)] == [ErrorCode.NOT_COORDINATOR] * 2
        cluster.network.heal()
        assert (await world.loaded("a", elected)).snapshot == {"a": 1}

    simulate(test)


def test_a_write_that_too_few_replicas_would_keep_is_refused_and_its_timer_tries_again() -> None:
    async def test(cluster: Cluster) -> None:
        world = World(cluster)
        await world.create()
        found, number = await world.locate("a"), partition_for("a", PARTITIONS)
        assert await world.increment("a", found) == 1
        shard = world.shard("a", found)
        others = sorted(set(ALL) - {found})
        await cluster.stop(*others)
        assert code_of(shard.increment, "a") is ErrorCode.COORDINATOR_NOT_AVAILABLE
        await asyncio.sleep(RESET_MS / 1000 + 1)
        # The reset is due and refused: nothing has changed.
        assert "a" in shard.operations.timers
        assert shard.values == {"a": 1}
        await cluster.start(*others)
        await cluster.until(lambda: cluster.partition(found, TOPIC, number).isr_count > 1)
        await asyncio.sleep(1)
        assert "a" not in shard.operations.timers
        assert shard.values == {}
        assert await world.increment("a", found) == 1

    simulate(test)


def test_a_timer_begins_anew_with_every_increment_and_with_every_coordinator() -> None:
    async def test(cluster: Cluster) -> None:
        world = World(cluster)
        await world.create()
        found, number = await world.locate("a"), partition_for("a", PARTITIONS)
        for count in range(1, 4):
            assert await world.increment("a", found) == count
            await asyncio.sleep(RESET_MS / 1000 * 0.8)
        former, found = world.shard("a", found), found % 3 + 1
        await cluster.move(TOPIC, (number,), leader=found)
        shard = await world.loaded("a", found)
        await asyncio.sleep(RESET_MS / 1000 * 0.8)
        assert await world.get("a", found) == 3
        assert former.values == {"a": 3}
        await asyncio.sleep(RESET_MS / 1000 * 0.4)
        assert await world.get("a", found) == 0
        # Only the coordinator of now has reset it: once.
        assert shard.offsets == {"a": 3}

    simulate(test)


def test_what_a_transaction_wrote_counts_when_its_marker_says_so_also_after_a_failover() -> None:
    async def test(cluster: Cluster) -> None:
        world = World(cluster)
        await world.create()
        found, number = await world.locate("a"), partition_for("a", PARTITIONS)
        committed, aborted = Producer(1, 0, True), Producer(2, 5, True)
        shard = world.shard("a", found)
        assert await world.increment("a", found) == 1
        assert await now(shard.increment_in_transaction("a", committed)) == 2
        assert await now(shard.increment_in_transaction("b", aborted)) == 1
        assert await world.get("a", found) == 1
        assert shard.pending == {committed: {"a": 2}, aborted: {"b": 1}}

        # The transactions are still open where the next coordinator takes them over.
        found = found % 3 + 1
        await cluster.move(TOPIC, (number,), leader=found)
        shard = await world.loaded("a", found)
        assert shard.pending == {committed: {"a": 2}, aborted: {"b": 1}}
        assert shard.values == {"a": 1}
        assert world.counters[found].shard_of_partition(number) is shard
        await now(shard.operations.end_transaction(1, 0, None, is_commit=True, coordinator_epoch=1))
        await now(shard.operations.end_transaction(2, 5, None, is_commit=False, coordinator_epoch=1))
        assert (shard.values, shard.pending) == ({"a": 2}, {})

        # And they are ended for the one after that.
        found = found % 3 + 1
        await cluster.move(TOPIC, (number,), leader=found)
        shard = await world.loaded("a", found)
        assert (shard.snapshot, shard.pending) == ({"a": 2}, {})

    simulate(test)
