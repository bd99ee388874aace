"""The newer protocol in virtual time: joining, moving partitions without a pause, fencing, both protocols at once."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from uuid import UUID

import pytest

from tailrace.errors import ErrorCode, KafkaError
from tailrace.groups.classic_group import ClassicGroup
from tailrace.groups.consumer import HeartbeatCall, HeartbeatResult
from tailrace.groups.consumer_group import ConsumerGroup, ConsumerGroupState
from tailrace.groups.group_table import GroupTable
from tailrace.groups.subscription import (
    ConsumerProtocolAssignment,
    TopicPartitions,
    decode_assignment,
    encode_assignment,
)
from tailrace.model import TopicPartition
from tailrace.records.batch import iterate_batches
from tailrace.records.record import iterate_records
from tests.unit.groups.world import GROUP, GroupWorld, committing, simulate, subscription


@dataclass
class Client:
    """A member that obeys the coordinator: gives up what it must revoke, takes what it gets."""

    world: GroupWorld
    member_id: str
    topics: frozenset[str] = frozenset({"orders"})
    instance_id: str | None = None
    regex: str | None = None
    epoch: int = 0
    owned: dict[UUID, frozenset[int]] = field(default_factory=dict)

    async def beat(self) -> HeartbeatResult | KafkaError:
        """One heartbeat, and what follows from its answer."""
        joins = self.epoch == 0
        call = HeartbeatCall(
            self.member_id,
            self.epoch,
            instance_id=self.instance_id,
            rebalance_timeout_ms=60_000 if joins else -1,
            topics=self.topics if joins and self.regex is None else None,
            regex=self.regex if joins else None,
            owned={} if joins else dict(self.owned),
        )
        answer = await self.world.consumer(call)
        if isinstance(answer, HeartbeatResult):
            self.epoch = answer.epoch
            if answer.assignment is not None:
                self.owned = dict(answer.assignment)
        return answer

    async def leave(self, epoch: int = -1) -> HeartbeatResult | KafkaError:
        answer = await self.world.consumer(HeartbeatCall(self.member_id, epoch, instance_id=self.instance_id))
        self.epoch, self.owned = 0, {}
        return answer

    @property
    def count(self) -> int:
        return sum(len(numbers) for numbers in self.owned.values())


def group(world: GroupWorld) -> ConsumerGroup:
    found = world.shard.describe(GROUP)
    assert isinstance(found, ConsumerGroup)
    return found


def check_no_partition_twice(*clients: Client) -> None:
    pairs = [(topic, number) for client in clients for topic, numbers in client.owned.items() for number in numbers]
    assert len(pairs) == len(set(pairs))


async def settle(*clients: Client) -> None:
    """Heartbeats in turn until nothing changes; at no moment do two own the same."""
    for _ in range(10):
        for client in clients:
            await client.beat()
            check_no_partition_twice(*clients)
    world = clients[0].world
    assert group(world).state is ConsumerGroupState.STABLE


def test_partitions_move_only_after_they_were_given_up_and_kept_ones_stay() -> None:
    async def scenario(world: GroupWorld) -> None:
        await world.create_topic("orders", 6)
        one, two, three = (Client(world, name) for name in ("m1", "m2", "m3"))
        await one.beat()
        assert (one.epoch, one.count) == (1, 6)
        kept = dict(one.owned)
        answer = await two.beat()
        assert isinstance(answer, HeartbeatResult)
        # All partitions still belong to the first: the newcomer waits without any.
        assert (two.epoch, two.count) == (2, 0)
        await one.beat()
        assert one.epoch == 1
        assert one.count == 3
        await two.beat()
        assert two.count == 0
        await one.beat()
        assert one.epoch == 2
        await two.beat()
        assert two.count == 3
        assert all(one.owned[topic] <= numbers for topic, numbers in kept.items())
        await three.beat()
        await settle(one, two, three)
        assert sorted(client.count for client in (one, two, three)) == [2, 2, 2]
        await two.leave()
        await settle(one, three)
        assert sorted(client.count for client in (one, three)) == [3, 3]

    simulate(scenario)


def test_who_takes_the_place_of_a_member_that_left_need_not_wait_for_the_others() -> None:
    async def scenario(world: GroupWorld) -> None:
        await world.create_topic("orders", 6)
        one, two, three = (Client(world, name) for name in ("m1", "m2", "m3"))
        for client in (one, two, three):
            await client.beat()
        await settle(one, two, three)
        had = dict(two.owned)
        await two.leave()
        assert group(world).state is ConsumerGroupState.ASSIGNING
        successor = Client(world, "m4")
        await successor.beat()
        assert successor.owned == had
        kept = [dict(one.owned), dict(three.owned)]
        await settle(one, three, successor)
        assert [one.owned, three.owned] == kept

    simulate(scenario)


def test_a_silent_member_loses_its_partitions_and_is_fenced_when_it_is_back() -> None:
    async def scenario(world: GroupWorld) -> None:
        await world.create_topic("orders", 4)
        one, two = Client(world, "m1"), Client(world, "m2")
        await one.beat()
        await two.beat()
        await settle(one, two)
        for _ in range(10):
            await asyncio.sleep(5)
            await one.beat()
        assert one.count == 4
        answer = await two.beat()
        assert isinstance(answer, KafkaError)
        assert answer.code is ErrorCode.UNKNOWN_MEMBER_ID

    simulate(scenario)


def test_who_does_not_give_up_its_partitions_in_time_is_put_out() -> None:
    async def scenario(world: GroupWorld) -> None:
        await world.create_topic("orders", 4)
        one, two = Client(world, "m1"), Client(world, "m2")
        await one.beat()
        await two.beat()
        stubborn = dict(one.owned)
        for _ in range(14):
            await asyncio.sleep(5)
            await world.consumer(HeartbeatCall("m1", one.epoch, owned=stubborn))
            await two.beat()
        assert set(group(world).members) == {"m2"}
        assert two.count == 4

    simulate(scenario)


def test_epochs_other_than_the_current_are_fenced_except_after_a_lost_answer() -> None:
    async def scenario(world: GroupWorld) -> None:
        await world.create_topic("orders", 2)
        one = Client(world, "m1")
        await one.beat()
        assert isinstance(answer := await world.consumer(HeartbeatCall("m1", 9)), KafkaError)
        assert answer.code is ErrorCode.FENCED_MEMBER_EPOCH
        assert "greater member epoch (9)" in str(answer.message)
        two = Client(world, "m2")
        await two.beat()
        await settle(one, two)
        before = one.epoch
        one.epoch -= 1
        answer = await one.beat()
        assert isinstance(answer, HeartbeatResult)
        assert one.epoch == before

    simulate(scenario)


def test_a_topic_that_appears_or_grows_is_shared_out_at_the_next_heartbeat() -> None:
    async def scenario(world: GroupWorld) -> None:
        one = Client(world, "m1")
        await one.beat()
        assert one.count == 0
        await world.create_topic("orders", 3)
        await one.beat()
        await one.beat()
        assert one.count == 3

    simulate(scenario)


def test_an_expression_subscribes_to_what_matches_now_and_later() -> None:
    async def scenario(world: GroupWorld) -> None:
        await world.create_topic("orders-eu", 2)
        await world.create_topic("payments", 2)
        one = Client(world, "m1", regex="orders-.*")
        await one.beat()
        assert one.count == 2
        await world.create_topic("orders-us", 3)
        await one.beat()
        await one.beat()
        assert one.count == 5
        bad = Client(world, "m2", regex="orders-(")
        answer = await bad.beat()
        assert isinstance(answer, KafkaError)
        assert answer.code is ErrorCode.INVALID_REGULAR_EXPRESSION
        assert set(group(world).members) == {"m1"}

    simulate(scenario)


def test_a_static_member_takes_its_place_again_without_a_new_epoch() -> None:
    async def scenario(world: GroupWorld) -> None:
        await world.create_topic("orders", 4)
        one, two = Client(world, "m1", instance_id="a"), Client(world, "m2", instance_id="b")
        await one.beat()
        await two.beat()
        await settle(one, two)
        had, epoch = dict(two.owned), group(world).epoch
        thief = Client(world, "m3", instance_id="b")
        refused = await thief.beat()
        assert isinstance(refused, KafkaError)
        assert refused.code is ErrorCode.UNRELEASED_INSTANCE_ID
        await two.leave(-2)
        back = Client(world, "m4", instance_id="b")
        await back.beat()
        assert back.owned == had
        assert group(world).epoch == epoch
        gone = await world.consumer(HeartbeatCall("m2", 3, instance_id="b"))
        assert isinstance(gone, KafkaError)
        assert gone.code is ErrorCode.FENCED_INSTANCE_ID

    simulate(scenario)


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_the_group_survives_its_coordinator(how: str) -> None:
    async def scenario(world: GroupWorld) -> None:
        await world.create_topic("orders", 6)
        one, two = Client(world, "m1"), Client(world, "m2", regex="orders")
        await one.beat()
        await two.beat()
        await one.beat()
        if how == "stop":
            await world.node.stop()
        else:
            world.node.kill()
        await world.start()
        await settle(one, two)
        assert sorted((one.count, two.count)) == [3, 3]

    simulate(scenario)


def test_a_fleet_moves_to_the_newer_protocol_and_back_without_a_partition_left_or_shared() -> None:
    async def scenario(world: GroupWorld) -> None:
        await world.create_topic("orders", 4)
        orders = subscription("orders")
        joined = await world.join(protocols=[("range", orders)])
        plan = ConsumerProtocolAssignment(
            assigned_partitions=[TopicPartitions(topic="orders", partitions=[0, 1, 2, 3])]
        )
        await world.sync(joined.member_id, 1, {joined.member_id: encode_assignment(plan)})
        new = Client(world, "new")
        await new.beat()
        assert isinstance(world.shard.describe(GROUP), ConsumerGroup)
        assert new.count == 0
        assert world.heartbeat(joined.member_id, 1) is ErrorCode.REBALANCE_IN_PROGRESS
        # An eager member gives up everything and joins again, twice, until it is where the group is.
        for _ in range(3):
            again = await world.join(joined.member_id, protocols=[("range", orders)])
            assert again.error is ErrorCode.NONE
            synced = await world.sync(joined.member_id, again.generation)
            assert synced.error is ErrorCode.NONE
            await new.beat()
        (mine,) = decode_assignment(synced.assignment).assigned_partitions
        assert len(mine.partitions) == 2
        assert new.count == 2
        assert world.heartbeat(joined.member_id, again.generation) is ErrorCode.NONE
        await new.leave()
        found = world.shard.describe(GROUP)
        assert isinstance(found, ClassicGroup)
        last = await world.join(joined.member_id, protocols=[("range", orders)])
        assert last.error is ErrorCode.NONE
        assert last.leader == joined.member_id
        assert last.generation > again.generation

    simulate(scenario)


def check_not_found(answer: HeartbeatResult | KafkaError, message: str) -> None:
    assert isinstance(answer, KafkaError)
    assert (answer.code, answer.message) == (ErrorCode.GROUP_ID_NOT_FOUND, message)


def test_who_was_put_out_of_a_group_that_is_classic_again_is_told_so_and_may_join_anew() -> None:
    async def scenario(world: GroupWorld) -> None:
        await world.create_topic("orders", 4)
        joined = await world.join(protocols=[("range", subscription("orders"))], session_ms=600_000)
        await world.sync(joined.member_id, 1, {joined.member_id: encode_assignment(ConsumerProtocolAssignment())})
        silent = Client(world, "silent")
        await silent.beat()
        await silent.beat()
        assert isinstance(world.shard.describe(GROUP), ConsumerGroup)
        await asyncio.sleep(50)
        assert isinstance(world.shard.describe(GROUP), ClassicGroup)
        assert silent.epoch > 0
        for answer in (await silent.beat(), await silent.leave()):
            check_not_found(answer, f"Group {GROUP} is not a consumer group.")
        assert isinstance(await silent.beat(), HeartbeatResult)
        assert isinstance(world.shard.describe(GROUP), ConsumerGroup)

    simulate(scenario)


def test_a_group_that_is_not_there_is_not_made_by_who_is_no_newcomer() -> None:
    async def scenario(world: GroupWorld) -> None:
        await world.create_topic("orders", 4)
        check_not_found(await Client(world, "m", epoch=3).beat(), f"Consumer group {GROUP} not found.")
        check_not_found(await Client(world, "m").leave(), f"Group {GROUP} not found.")
        assert world.shard.list_groups() == []
        # A group that only has offsets is a classic one.
        await committing(world.shard.commit(GROUP, "", None, -1, -1, [(TopicPartition("orders", 0), 1, -1, None)]))
        check_not_found(await Client(world, "m", epoch=3).beat(), f"Group {GROUP} is not a consumer group.")

    simulate(scenario)


@pytest.mark.parametrize("assignor", ["sticky", "cooperative-sticky"])
def test_a_classic_group_becomes_a_newer_one_whatever_a_sticky_assignor_adds_to_its_assignment(assignor: str) -> None:
    """librdkafka adds the partitions that a member had before."""

    async def scenario(world: GroupWorld) -> None:
        await world.create_topic("orders", 4)
        one = await world.join(client_id="a", protocol_type="consumer", protocols=[(assignor, subscription("orders"))])
        plan = {one.member_id: encode_assignment(ConsumerProtocolAssignment(user_data=b"before"))}
        assert (await world.sync(one.member_id, 1, plan)).error is ErrorCode.NONE
        await Client(world, "new").beat()
        (listed,) = world.shard.list_groups()
        assert listed.kind == "consumer"

    simulate(scenario)


@pytest.mark.parametrize(
    ("protocol_type", "assignment", "settings", "why"),
    [
        pytest.param(
            "connect",
            b"",
            {},
            "the group does not use the consumer embedded protocol.",
            id="of another protocol",
        ),
        pytest.param(
            "consumer",
            b"\x00\x00\x7f",
            {},
            "the embedded consumer protocol is malformed.",
            id="malformed",
        ),
        pytest.param(
            "consumer",
            encode_assignment(ConsumerProtocolAssignment(user_data=b"mine")),
            {},
            "an unsupported custom assignor is in use. Please refer to the documentation or switch to a default "
            "assignor before re-attempting the upgrade.",
            id="with data of its own assignor",
        ),
        pytest.param(
            "consumer",
            b"",
            {"group_consumer_migration_policy": "downgrade"},
            "online upgrade is disabled.",
            id="disabled",
        ),
        pytest.param(
            "consumer",
            b"",
            {"group_consumer_max_size": "1"},
            "the group size exceeds the consumer group maximum size.",
            id="too large",
        ),
    ],
)
def test_a_classic_group_that_cannot_become_a_newer_one_is_not_touched(
    protocol_type: str, assignment: bytes, settings: dict[str, str], why: str
) -> None:
    async def scenario(world: GroupWorld) -> None:
        await world.create_topic("orders", 4)
        protocols = [("own", subscription("orders"))]
        joins = [world.join(client_id=name, protocol_type=protocol_type, protocols=protocols) for name in ("a", "b")]
        one, two = [await join for join in joins]
        plan = {one.member_id: assignment, two.member_id: assignment}
        for sync in [world.sync(joined.member_id, 1, plan) for joined in (one, two)]:
            assert (await sync).error is ErrorCode.NONE
        check_not_found(
            await Client(world, "new").beat(),
            f"Cannot upgrade classic group {GROUP} to consumer group because {why}",
        )
        assert world.heartbeat(one.member_id, 1) is ErrorCode.NONE
        assert isinstance(world.shard.describe(GROUP), ClassicGroup)

    simulate(scenario, **settings)


@pytest.mark.parametrize(
    ("assignor", "expected"), [("own", ErrorCode.UNSUPPORTED_ASSIGNOR), (None, ErrorCode.GROUP_MAX_SIZE_REACHED)]
)
def test_who_does_not_get_in_does_not_change_a_classic_group(assignor: str | None, expected: ErrorCode) -> None:
    async def scenario(world: GroupWorld) -> None:
        await world.create_topic("orders", 4)
        joined = await world.join(protocols=[("range", subscription("orders"))])
        await world.sync(joined.member_id, 1, {joined.member_id: encode_assignment(ConsumerProtocolAssignment())})
        call = HeartbeatCall(
            "m", 0, rebalance_timeout_ms=1000, topics=frozenset({"orders"}), assignor=assignor, owned={}
        )
        answer = await world.consumer(call)
        assert isinstance(answer, KafkaError)
        assert answer.code is expected
        assert isinstance(world.shard.describe(GROUP), ClassicGroup)
        assert world.heartbeat(joined.member_id, 1) is ErrorCode.NONE

    simulate(scenario, group_consumer_max_size="1")


def test_an_assignor_that_is_not_there_is_refused() -> None:
    async def scenario(world: GroupWorld) -> None:
        call = HeartbeatCall("m", 0, rebalance_timeout_ms=1000, topics=frozenset({"orders"}), assignor="own", owned={})
        answer = await world.consumer(call)
        assert isinstance(answer, KafkaError)
        assert answer.code is ErrorCode.UNSUPPORTED_ASSIGNOR

    simulate(scenario)


def test_an_instance_id_that_its_member_has_changed_is_free_for_others() -> None:
    async def scenario(world: GroupWorld) -> None:
        await world.create_topic("orders", 4)
        member = Client(world, "m1", instance_id="one")
        await member.beat()
        member.epoch, member.instance_id = 0, "two"
        await member.beat()
        assert group(world).static_members == {"two": "m1"}
        other = Client(world, "m2", instance_id="one")
        assert isinstance(await other.beat(), HeartbeatResult)
        await member.leave()
        assert group(world).static_members == {"one": "m2"}

    simulate(scenario)


def test_what_a_member_owns_counts_even_if_compaction_kept_its_description_only_later_in_the_log() -> None:
    """A new address rewrites the description alone; compaction then removes the first one."""

    async def scenario(world: GroupWorld) -> None:
        await world.create_topic("orders", 4)
        one, two = Client(world, "m1"), Client(world, "m2")
        for client in (one, two):
            await client.beat()
        await settle(one, two)
        moved = await world.consumer(HeartbeatCall("m1", one.epoch, client_host="/elsewhere"))
        assert isinstance(moved, HeartbeatResult)
        left = Client(world, "m3")
        await left.beat()
        await left.leave()
        records = records_of(world)
        last = {key: place for place, (key, _) in enumerate(records)}
        whole, compacted = GroupTable(), GroupTable()
        for place, (key, value) in enumerate(records):
            whole.replay(key, value, place, None)
            if last[key] == place:
                compacted.replay(key, value, place, None)
        expected, found = whole.groups[GROUP], compacted.groups[GROUP]
        assert isinstance(expected, ConsumerGroup)
        assert isinstance(found, ConsumerGroup)
        assert found.members == expected.members
        for number in range(4):
            pair = next(iter(one.owned)), number
            assert found.is_free(pair, ("m1",)) == expected.is_free(pair, ("m1",))

    simulate(scenario)


def records_of(world: GroupWorld) -> list[tuple[bytes, bytes | None]]:
    """Everything in the log of the group's shard."""
    assert world.broker is not None
    found: list[tuple[bytes, bytes | None]] = []
    for partition in world.broker.partitions:
        log, offset = partition.log, 0
        while partition.is_internal and (part := log.read(offset, 1 << 20, log.end_offset)) is not None:
            data = part.file.read(part.position, part.size)
            for position, header in iterate_batches(memoryview(data)):
                for record in iterate_records(data, header, position):
                    assert record.key is not None
                    found.append((bytes(record.key), None if record.value is None else bytes(record.value)))
                offset = header.next_offset
    return found
