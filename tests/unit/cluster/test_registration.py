"""A broker joins the cluster, is known while it lives, and leaves nothing half done."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping, Sequence

import pytest

from tailrace.cluster.image import NO_LEADER, BrokerImage, PartitionState
from tailrace.cluster.keys import broker_epoch_key, broker_key, epoch_from_bytes, epoch_to_bytes
from tailrace.cluster.metadata import IsrChange
from tailrace.cluster.store import Check, Entry, Session, Unavailable, Write
from tailrace.errors import StorageError
from tailrace.model import TopicPartition
from tailrace.stores.memory import MemorySpace, MemoryStore
from tests.unit.cluster.worlds import SESSION_TIMEOUT_MS, Member, World, broker, run, state


async def epoch_of(world: World, broker_id: int) -> int:
    entry = await world.store.get(broker_epoch_key(broker_id))
    assert entry is not None
    return epoch_from_bytes(entry.value)


async def registered(world: World, broker_id: int) -> BrokerImage | None:
    entry = await world.store.get(broker_key(broker_id))
    return None if entry is None else BrokerImage.from_bytes(entry.value)


def test_every_start_is_a_new_epoch_and_the_registration_says_which() -> None:
    async def test(world: World) -> None:
        for epoch in (1, 2, 3):
            member = world.member(1)
            await member.start()
            found = await registered(world, 1)
            assert found is not None
            assert (found.epoch, found.directory_ids) == (epoch, ("directory 1",))
            assert member.registration.epoch == await epoch_of(world, 1) == epoch
            assert member.metadata.image.brokers == {1: found}
            await member.stop()
            assert await registered(world, 1) is None

    run(test)


def test_a_registration_ends_with_its_session() -> None:
    async def test(world: World) -> None:
        (member,) = await world.started(1)
        began = world.clock.monotonic()
        await asyncio.sleep(100)
        assert member.registration.is_registered
        assert 0 < member.registration.deadline - world.clock.monotonic() <= SESSION_TIMEOUT_MS / 1000
        member.kill()
        assert await registered(world, 1) is not None
        await asyncio.sleep(SESSION_TIMEOUT_MS / 1000 + 1)
        assert await registered(world, 1) is None
        assert world.clock.monotonic() - began > 100

    run(test)


def test_before_it_is_registered_nobody_takes_a_broker_for_alive() -> None:
    async def test(world: World) -> None:
        member = world.member(1)
        assert member.registration.deadline == -math.inf
        assert not member.registration.is_registered

    run(test)


# --- leaving ISRs


@pytest.mark.parametrize("mark", [None, -1, 0, 2])
def test_a_broker_whose_logs_may_have_lost_their_ends_leaves_the_isrs_before_it_registers(mark: int | None) -> None:
    async def test(world: World) -> None:
        await world.store.txn(
            [], [Write(broker_key(2), broker(2).to_bytes()), Write(broker_epoch_key(1), epoch_to_bytes(1))]
        )
        topic = await world.put_topic(
            "orders",
            state("123", "123", 1),
            state("123", "123", 2),
            state("123", "13", 1),
            state("13", "1", 1),
            state("13", "1", NO_LEADER),
            state("23", "23", 2),
        )
        member = world.member(1)
        await member.metadata.load("cluster")
        assert await member.registration.claim(["d"], mark) == 2
        assert await registered(world, 1) is None
        assert (await world.stored(topic)).partitions == (
            # The controller decides who leads: not all brokers may be registered yet.
            state("123", "23", NO_LEADER, 6),
            state("123", "23", 2),
            state("123", "3", NO_LEADER, 6),
            state("13", "1", NO_LEADER, 6),
            state("13", "1", NO_LEADER),
            state("23", "23", 2),
        )
        assert member.metadata.image.topics["orders"] == await world.stored(topic)

    run(test)


@pytest.mark.parametrize("last", [None, 1, 7])
def test_a_broker_that_was_stopped_cleanly_in_its_last_epoch_stays_in_the_isrs(last: int | None) -> None:
    async def test(world: World) -> None:
        if last is not None:
            await world.store.txn([], [Write(broker_epoch_key(1), epoch_to_bytes(last))])
        topic = await world.put_topic("orders", state("12", "12", 1), state("1", "1", 1))
        member = world.member(1)
        await member.metadata.load("cluster")
        epoch = await member.registration.claim(["d"], -1 if last is None else last)
        assert epoch == (last or 0) + 1
        assert await world.stored(topic) == topic

    run(test)


def test_an_older_copy_of_a_disk_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    async def test(world: World) -> None:
        await world.store.txn([], [Write(broker_epoch_key(1), epoch_to_bytes(5))])
        member = world.member(1)
        await member.metadata.load("cluster")
        await member.registration.claim(["d"], 3)

    with caplog.at_level(logging.WARNING):
        run(test)
    assert "last stopped cleanly in broker epoch 3, but the last epoch was 5" in caplog.text


def test_a_follower_of_an_earlier_epoch_cannot_be_added_to_an_isr_again() -> None:
    async def test(world: World) -> None:
        leader, follower = await world.started(2, 1)
        topic = await world.put_topic("orders", state("12", "12", 2))
        await world.until(lambda: "orders" in leader.metadata.image.topics)
        fetched_in = follower.registration.epoch
        follower.kill()
        again = world.member(1)
        await again.start()
        await leader.metadata.alter_isr([IsrChange(topic.lineage, 0, 5, (1, 2), {1: fetched_in})])
        assert (await world.stored(topic)).partitions == (state("12", "2", 2),)
        await leader.metadata.alter_isr([IsrChange(topic.lineage, 0, 5, (1, 2), {1: again.registration.epoch})])
        assert (await world.stored(topic)).partitions == (state("12", "12", 2),)

    run(test)


# --- two brokers of one id


def test_a_second_broker_of_one_id_is_refused_and_harms_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def test(world: World) -> None:
        (first,) = await world.started(1)
        topic = await world.put_topic("orders", state("12", "1", 1))
        second = world.member(1)
        began = world.clock.monotonic()
        with pytest.raises(StorageError) as caught:
            await second.start(["another directory"])
        message = str(caught.value)
        assert message.startswith(
            "node.id=1 is already registered by a broker at host1:9092 (pid 4711 on machine1, started 2023-11-14 "
        )
        assert message.endswith("stop it, or give this one another --node-id")
        assert world.clock.monotonic() - began >= SESSION_TIMEOUT_MS / 1000
        assert await epoch_of(world, 1) == first.registration.epoch == 1
        assert await world.stored(topic) == topic

    with caplog.at_level(logging.WARNING):
        run(test)
    assert "waiting up to 11 s for its session to end" in caplog.text


def test_a_broker_with_a_new_disk_waits_for_the_session_of_the_old_one() -> None:
    async def test(world: World) -> None:
        (first,) = await world.started(1)
        first.kill()
        began = world.clock.monotonic()
        again = world.member(1)
        await again.start(["a new directory"])
        assert 1 < world.clock.monotonic() - began <= SESSION_TIMEOUT_MS / 1000 + 2
        assert (await registered(world, 1)) == again.metadata.image.brokers[1]

    run(test)


def test_a_broker_that_was_killed_is_back_at_once_with_its_own_disk() -> None:
    async def test(world: World) -> None:
        (first,) = await world.started(1)
        first.kill()
        began = world.clock.monotonic()
        again = world.member(1)
        await again.start()
        assert world.clock.monotonic() - began < 0.5
        # The session of the dead process ends later; the registration is not its any more.
        await asyncio.sleep(3 * SESSION_TIMEOUT_MS / 1000)
        found = await registered(world, 1)
        assert found is not None
        assert found.epoch == 2
        assert again.metadata.image.controller_id == 1
        assert again.controller.is_active

    run(test)


# --- a session that is lost


class CutStore(MemoryStore):
    """A store that can be out of reach, or lose answers."""

    def __init__(self, space: MemorySpace) -> None:
        super().__init__(space)
        self.is_cut = False
        self.unanswered = 0

    async def get(self, key: str) -> Entry | None:
        self._reach()
        return await super().get(key)

    async def list(self, directory: str) -> Sequence[Entry]:
        self._reach()
        return await super().list(directory)

    async def txn(self, checks: Sequence[Check], writes: Sequence[Write]) -> Sequence[int] | None:
        self._reach()
        versions = await super().txn(checks, writes)
        if self.unanswered and versions is not None:
            self.unanswered -= 1
            raise Unavailable("applied, but who knows")
        return versions

    async def open_session(self, ttl_ms: int) -> Session:  # type: ignore[override]
        self._reach()
        return await super().open_session(ttl_ms)

    def _reach(self) -> None:
        if self.is_cut:
            raise Unavailable("out of reach")


async def cut_member(world: World, broker_id: int) -> tuple[Member, CutStore]:
    store = CutStore(world.space)
    member = Member(store, world.clock, broker_id)
    world.members.append(member)
    await member.start()
    return member, store


def end_session(world: World, member: Member) -> None:
    """End a broker's session on the store's side."""
    session = member.registration.session
    assert session is not None
    world.space.end_session(session.session_id)  # type: ignore[attr-defined]


def test_a_broker_that_lost_its_session_registers_again_in_the_same_epoch(caplog: pytest.LogCaptureFixture) -> None:
    async def test(world: World) -> None:
        member, store = await cut_member(world, 1)
        (other,) = await world.started(2)
        before = await registered(world, 1)
        store.is_cut = True
        end_session(world, member)
        await world.until(lambda: not member.registration.is_registered)
        assert member.registration.deadline <= world.clock.monotonic()
        await world.until(lambda: list(other.metadata.image.brokers) == [2])
        await asyncio.sleep(20)
        assert await registered(world, 1) is None
        store.is_cut = False
        await asyncio.sleep(1)
        assert member.registration.is_registered
        assert await registered(world, 1) == before
        await world.until(lambda: list(other.metadata.image.brokers) == [1, 2])

    with caplog.at_level(logging.INFO):
        run(test)
    lines = [record.message for record in caplog.records if record.name == "tailrace.cluster"]
    assert [line.split(":")[0] for line in lines] == [
        "The session in the metadata store has expired",
        "Cannot reach the metadata store, retrying",
        "Registered in the metadata store again",
    ]


def test_a_broker_whose_id_was_taken_while_it_was_cut_off_stops() -> None:
    async def test(world: World) -> None:
        member, store = await cut_member(world, 1)
        store.is_cut = True
        end_session(world, member)
        await world.until(lambda: not member.registration.is_registered)
        thief = world.member(1)
        await thief.start(["another directory"])
        store.is_cut = False
        await world.until(lambda: bool(member.failures))
        (failure,) = member.failures
        assert "node.id=1 is already registered" in str(failure)
        member.failures.clear()
        await thief.stop()

    run(test)


def test_a_broker_that_was_replaced_while_it_was_cut_off_stops_also_if_the_other_is_gone_again() -> None:
    async def test(world: World) -> None:
        member, store = await cut_member(world, 1)
        store.is_cut = True
        end_session(world, member)
        await world.until(lambda: not member.registration.is_registered)
        await world.store.txn([], [Write(broker_epoch_key(1), epoch_to_bytes(2))])
        store.is_cut = False
        await world.until(lambda: bool(member.failures))
        assert "another process has started as node.id=1" in str(member.failures.pop())

    run(test)


@pytest.mark.parametrize("unanswered", [1, 2])
def test_answers_that_get_lost_during_a_start_cost_epochs_and_nothing_else(unanswered: int) -> None:
    async def test(world: World) -> None:
        await world.put_topic("orders", state("12", "12", 1))
        store = CutStore(world.space)
        member = Member(store, world.clock, 1)
        world.members.append(member)
        await member.metadata.load("cluster")
        store.unanswered = unanswered
        epoch = await member.registration.claim(["d"], None)
        assert epoch == await epoch_of(world, 1) == 1 + unanswered
        store.unanswered = unanswered
        await member.registration.register(broker(1))
        found = await registered(world, 1)
        assert found is not None
        assert found.epoch == epoch

    run(test)


# --- stopping


def test_a_broker_that_stops_leaves_the_isrs_of_leaders_that_answer_and_is_not_taken_back() -> None:
    async def test(world: World) -> None:
        one, two, three = await world.started(1, 2, 3)
        topic = await world.put_topic(
            "orders",
            state("123", "123", 1),
            state("213", "213", 2),
            state("1", "1", 1),
            state("321", "321", 3),
            state("41", "41", 4),
        )
        await world.until(lambda: "orders" in one.metadata.image.topics)
        epoch = one.registration.epoch

        async def only_two_answers(
            brokers: Mapping[int, BrokerImage], led: Sequence[tuple[TopicPartition, int, int]]
        ) -> list[TopicPartition]:
            return [partition for partition, _, leader in led if leader == 2]

        await one.registration.hand_over(only_two_answers)
        assert _partition(one, 1) == state("213", "23", 2)
        assert _partition(one, 0) == state("123", "123", 1), "what no heir was found for is the controller's"
        assert _partition(one, 3) == state("321", "321", 3), "the log of a leader that is silent may be lost"
        await two.metadata.alter_isr([IsrChange(topic.lineage, 1, 5, (2, 3, 1), {1: epoch})])
        assert (await world.stored(topic)).partitions[1] == state("213", "23", 2)
        mark = await one.stop()
        # The controller chooses the heirs of one that is gone, and asks them.
        await world.until(lambda: _partition(three, 0).leader in (2, 3))
        # What it alone has is led by nobody, and by it again when it is back.
        await world.until(lambda: _partition(three, 2) == state("1", "1", NO_LEADER, 6))
        again = world.member(1)
        await again.start(stopped_in_epoch=mark)
        await world.until(lambda: _partition(three, 2) == state("1", "1", 1, 7))
        assert 1 not in _partition(three, 1).isr

    run(test)


def _partition(member: Member, number: int) -> PartitionState:
    return member.metadata.image.topics["orders"].partitions[number]


def test_a_broker_that_cannot_reach_the_store_stops_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    async def test(world: World) -> None:
        member, store = await cut_member(world, 1)
        await world.started(2)
        store.is_cut = True
        await member.stop()

    run(test)
    assert "Stopping without leaving the ISRs: out of reach" in caplog.text


def test_a_broker_alone_starts_and_stops_with_few_transactions() -> None:
    async def test(world: World) -> None:
        for number in range(5):
            await world.put_topic(f"t{number}", state("1", "1", 1))
        counts: list[int] = []

        class Counting(MemoryStore):
            async def txn(self, checks: Sequence[Check], writes: Sequence[Write]) -> Sequence[int] | None:
                counts.append(len(writes))
                return await super().txn(checks, writes)

        member = Member(Counting(world.space), world.clock, 1)
        await member.start(stopped_in_epoch=-1)
        await asyncio.sleep(1)
        assert counts == [2, 1, 1, 2], "the cluster's id and features, the epoch, the registration, the election"
        counts.clear()
        mark = await member.stop()
        assert counts == [1], "the end of the controller"
        again = Member(Counting(world.space), world.clock, 1)
        await again.start(stopped_in_epoch=mark)
        await asyncio.sleep(1)
        assert counts == [1, 1, 1, 2]

    run(test)
