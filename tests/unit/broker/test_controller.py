"""The controller: leaders for all partitions while brokers come and go; a deposed controller changes nothing."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence

import pytest

from tailrace.broker.leading.log_ends import Leaderless
from tailrace.cluster.image import NO_LEADER, BrokerImage, ClusterImage, PartitionState, TopicImage
from tailrace.cluster.keys import CONTROLLER, broker_epoch_key, broker_key, epoch_to_bytes, name_key, topic_key
from tailrace.cluster.leaders import LogEnd
from tailrace.cluster.store import Check, Unavailable, Write
from tailrace.model import OFFSETS_TOPIC, TopicPartition
from tailrace.stores.memory import MemorySpace, MemoryStore
from tests.unit.cluster.worlds import SESSION_TIMEOUT_MS, Member, World, broker, run, state


def partitions(member: Member, name: str = "orders") -> tuple[PartitionState, ...]:
    topic = member.metadata.image.topics.get(name)
    return () if topic is None else topic.partitions


def test_a_broker_alone_is_the_controller_before_it_serves() -> None:
    async def test(world: World) -> None:
        (member,) = await world.started(1)
        assert member.controller.is_active
        assert member.metadata.image.controller_id == 1

    run(test)


def test_one_of_several_is_the_controller_and_another_when_it_is_gone(caplog: pytest.LogCaptureFixture) -> None:
    async def test(world: World) -> None:
        one, two, three = await world.started(1, 2, 3)
        assert [each.controller.is_active for each in (one, two, three)] == [True, False, False]
        one.kill()
        await world.until(lambda: two.controller.is_active or three.controller.is_active)
        assert [each.controller.is_active for each in (two, three)].count(True) == 1
        heir = two if two.controller.is_active else three
        other = three if heir is two else two
        await world.until(lambda: other.metadata.image.controller_id == heir.broker_id)
        began = world.clock.monotonic()
        await heir.stop()
        await world.until(lambda: other.controller.is_active)
        assert world.clock.monotonic() - began < 1, "a controller that stops does not have to be waited for"

    with caplog.at_level(logging.INFO):
        run(test)
    assert caplog.text.count("this broker became the controller in epoch") == 3


def test_an_election_that_the_store_did_not_answer_is_held_again_without_further_news() -> None:
    async def test(world: World) -> None:
        one, two = await world.started(1, 2)
        transact = two.store.txn
        unanswered = 0

        async def leave_elections_unanswered(checks: Sequence[Check], writes: Sequence[Write]) -> Sequence[int] | None:
            nonlocal unanswered
            if any(write.key == CONTROLLER for write in writes) and unanswered < 10:
                unanswered += 1
                raise Unavailable("no answer")
            return await transact(checks, writes)

        two.store.txn = leave_elections_unanswered  # type: ignore[method-assign]
        one.kill()
        await world.until(lambda: two.controller.is_active)
        assert unanswered == 10

    run(test)


def test_a_new_controller_says_how_much_it_has_loaded_before_it_acts(caplog: pytest.LogCaptureFixture) -> None:
    async def test(world: World) -> None:
        one, two, three = await world.started(1, 2, 3)
        await world.put_topic("orders", state("123", "123", 1), state("231", "231", 2))
        await world.put_topic("audit", state("12", "12", 1))
        await world.until(lambda: bool(partitions(three, "audit")))
        caplog.clear()
        one.kill()
        await world.until(lambda: partitions(two)[0].leader in (2, 3))

    with caplog.at_level(logging.INFO):
        run(test)
    said = [record for record in caplog.records if record.name == "tailrace.controller"]
    elected, loaded, acted = said[:3]
    assert elected.getMessage() == "this broker became the controller in epoch 2"
    assert loaded.getMessage().startswith("loaded 2 topics with 3 partitions in ")
    assert (vars(loaded)["topics"], vars(loaded)["partitions"]) == (2, 3)
    assert vars(loaded)["load_seconds"] >= 0
    assert "gone [1]" in acted.getMessage() or "live brokers [2, 3]" in acted.getMessage()


def test_partitions_of_a_broker_that_is_gone_get_leaders_from_their_isr(caplog: pytest.LogCaptureFixture) -> None:
    async def test(world: World) -> None:
        _, two, three = await world.started(1, 2, 3)
        topic = await world.put_topic(
            "orders", state("231", "231", 2), state("321", "321", 3), state("23", "2", 2), state("13", "13", 1)
        )
        await world.until(lambda: bool(partitions(three)))
        two.kill()
        expected = (
            state("231", "31", 3, 7),
            state("321", "31", 3),
            state("23", "2", NO_LEADER, 6),
            topic.partitions[3],
        )
        await world.until(lambda: partitions(three) == expected, 12)
        again = world.member(2)
        await again.start()
        await world.until(lambda: partitions(three)[2] == state("23", "2", 2, 7))
        assert partitions(three)[:2] == expected[:2], "it has to catch up before it is in sync"

    with caplog.at_level(logging.INFO):
        run(test)
    assert "elected leaders of 1 partitions: each is the replica with the longest log" in caplog.text
    assert "live brokers [1, 3], gone [2]: 0 partitions have a new leader, 2 have none yet" in caplog.text
    assert "live brokers [1, 3]: shrank the ISRs of 1 partitions" in caplog.text


def test_nobody_leaves_the_isr_of_a_leader_that_does_not_answer(caplog: pytest.LogCaptureFixture) -> None:
    async def test(world: World) -> None:
        one, two, _ = await world.started(1, 2, 3)
        silent = [{3, 4}, {4}, set[int]()]
        asked = []
        sizes = []

        async def ask(
            brokers: Mapping[int, BrokerImage], leaderless: Sequence[Leaderless], *_: object
        ) -> dict[TopicPartition, dict[int, LogEnd]]:
            asked.append([(wanted.partition.partition, wanted.leader_epoch, wanted.replicas) for wanted in leaderless])
            sizes.append([len(each.isr) for each in partitions(one)])
            numbers = silent.pop(0)
            return {
                wanted.partition: {} if wanted.partition.partition in numbers else {wanted.replicas[0]: LogEnd(5, 10)}
                for wanted in leaderless
            }

        one.ask_log_ends = ask
        states = ("123", 1), ("321", 3), ("13", 3), ("321", 3), ("321", 3)
        await world.put_topic("orders", *(state(replicas, replicas, leader) for replicas, leader in states))
        await world.until(lambda: bool(partitions(one)))
        two.kill()
        gone = tuple(state(replicas, replicas.replace("2", ""), leader) for replicas, leader in states)
        await world.until(lambda: partitions(one) == gone, 12)
        assert sizes == [[3, 3, 2, 3, 3], [2, 2, 2, 3, 3], [2, 2, 2, 2, 3]]
        assert [[number for number, _, _ in each] for each in asked] == [[0, 1, 3, 4], [3, 4], [4]]
        assert asked[0] == [(0, 5, (1,)), (1, 5, (3,)), (3, 5, (3,)), (4, 5, (3,))]

    with caplog.at_level(logging.INFO):
        run(test)
    assert "shrank the ISRs of 2 partitions; 2 more wait for their leaders to answer" in caplog.text


@pytest.mark.parametrize("is_started_again", [False, True])
def test_who_is_not_in_sync_leads_by_its_log_unless_it_was_started_again_since_it_said_so(
    is_started_again: bool,
) -> None:
    async def test(world: World) -> None:
        one, two, three = await world.started(1, 2, 3)

        async def ask(
            brokers: Mapping[int, BrokerImage], leaderless: Sequence[Leaderless], *_: object
        ) -> dict[TopicPartition, dict[int, LogEnd]]:
            (wanted,) = leaderless
            assert sorted(wanted.replicas) == [1, 3]
            if is_started_again:
                await world.put(broker_epoch_key(3), epoch_to_bytes(three.registration.epoch + 1))
            return {wanted.partition: {1: LogEnd(5, 10), 3: LogEnd(5, 11)}}

        one.ask_log_ends = ask
        await world.put_topic("orders", state("213", "21", 2))
        await world.until(lambda: bool(partitions(one)))
        two.kill()
        await world.until(lambda: partitions(one)[0].leader not in (2, NO_LEADER))
        assert partitions(one) == (state("213", "1", 1, 7) if is_started_again else state("213", "31", 3, 7),)

    run(test)


def test_partitions_wait_for_leaders_until_one_in_sync_says_how_far_it_is() -> None:
    async def test(world: World) -> None:
        one, two, _ = await world.started(1, 2, 3)
        answers = [{}, {3: LogEnd(5, 11)}, {1: LogEnd(5, 10), 3: LogEnd(5, 10)}]

        async def ask(
            brokers: Mapping[int, BrokerImage], leaderless: Sequence[Leaderless], *_: object
        ) -> dict[TopicPartition, dict[int, LogEnd]]:
            return {leaderless[0].partition: answers.pop(0)}

        one.ask_log_ends = ask
        await world.put_topic("orders", state("213", "21", 2))
        await world.until(lambda: bool(partitions(one)))
        two.kill()
        await world.until(lambda: partitions(one)[0].leader == 1)
        assert answers == []

    run(test)


def test_a_replica_that_the_image_does_not_show_yet_counts_as_alive_in_an_election() -> None:
    """Its registration is in the store, and it may have the only copy of an acknowledged record."""

    async def test(world: World) -> None:
        (one,) = await world.started(1)
        alive: list[tuple[bool, bool]] = []

        async def ask(
            brokers: Mapping[int, BrokerImage],
            leaderless: Sequence[Leaderless],
            seconds: float,
            is_alive: Callable[[int], bool],
        ) -> dict[TopicPartition, dict[int, LogEnd]]:
            alive.append((3 in one.metadata.image.brokers, is_alive(3)))
            return {each.partition: dict.fromkeys(each.replicas, LogEnd(5, 10)) for each in leaderless}

        one.ask_log_ends = ask
        await world.put_topic("orders", state("31", "3", NO_LEADER))
        await world.until(lambda: bool(partitions(one)))
        handled = asyncio.Event()

        async def take_long(_: ClusterImage) -> None:
            await handled.wait()

        one.metadata.on_change = take_long
        await world.put_topic("audit", state("1", "1", 1))
        await world.until(lambda: bool(partitions(one, "audit")))
        await world.started(3)
        await world.until(lambda: bool(alive))
        handled.set()
        await world.until(lambda: partitions(one)[0].leader == 3)
        assert alive[0] == (False, True)

    run(test)


def test_the_controller_itself_may_be_the_one_that_is_gone() -> None:
    async def test(world: World) -> None:
        one, two = await world.started(1, 2)
        await world.put_topic("orders", state("12", "12", 1))
        await world.until(lambda: bool(partitions(two)))
        one.kill()
        await world.until(lambda: partitions(two) == (state("12", "2", 2, 6),), 12)

    run(test)


@pytest.mark.parametrize("where", ["topic", "broker", "nowhere"])
def test_leaders_from_outside_the_isr_only_where_that_is_allowed(where: str) -> None:
    async def test(world: World) -> None:
        settings = {"unclean_leader_election_enable": "true"} if where == "broker" else {}
        configs = {"unclean_leader_election_enable": "true"} if where == "topic" else {}
        one, two = await world.started(1, 2, **settings)
        await world.put_topic("orders", state("21", "2", 2), **configs)
        await world.until(lambda: bool(partitions(one)))
        two.kill()
        expected = state("21", "2", NO_LEADER, 6) if where == "nowhere" else state("21", "1", 1, 6)
        await world.until(lambda: partitions(one) == (expected,), 12)

    run(test)


def test_a_topic_that_is_made_with_a_dead_broker_or_allowed_unclean_leaders_later_is_seen_to() -> None:
    async def test(world: World) -> None:
        (one,) = await world.started(1)
        topic = await world.put_topic("orders", state("21", "21", 2))
        await world.until(lambda: partitions(one) == (state("21", "1", 1, 6),), SESSION_TIMEOUT_MS / 1000 + 2)
        other = await world.put_topic("bills", state("21", "2", 2))
        await world.until(lambda: partitions(one, "bills") == (state("21", "2", NO_LEADER, 6),), 2)
        await one.metadata.alter_topic(other, lambda each: _allow_unclean(each))
        await world.until(lambda: partitions(one, "bills") == (state("21", "1", 1, 7),), 2)
        assert (await world.stored(topic)).partitions == (state("21", "1", 1, 6),)

    run(test)


def _allow_unclean(topic: TopicImage) -> TopicImage:
    return TopicImage(
        topic.name, topic.topic_id, topic.partitions, {**topic.configs, "unclean.leader.election.enable": "true"}
    )


def test_a_controller_that_is_deposed_writes_nothing_and_steps_down(caplog: pytest.LogCaptureFixture) -> None:
    async def test(world: World) -> None:
        one, two = await world.started(1, 2)
        # Another is elected behind its back, as after a pause that was longer than its session.
        await world.store.txn([], [Write(CONTROLLER, None)])
        await world.until(lambda: two.controller.is_active)
        topic = await world.put_topic("orders", state("31", "31", 3))
        await world.until(lambda: partitions(two) == (state("31", "1", 1, 6),), 5)
        await world.until(lambda: not one.controller.is_active, 5)
        assert (await world.stored(topic)).partitions == (state("31", "1", 1, 6),)

    with caplog.at_level(logging.INFO):
        run(test)
    assert "this broker is no longer the controller: another controller was elected after epoch 1" in caplog.text


def test_a_controller_whose_session_is_over_rules_again_only_after_another_election() -> None:
    async def test(world: World) -> None:
        (one,) = await world.started(1)
        session = one.registration.session
        assert session is not None
        world.space.end_session(session.session_id)  # type: ignore[attr-defined]
        await world.until(lambda: not one.controller.is_active, 20)
        await world.until(lambda: one.controller.is_active, 20)
        assert one.metadata.image.controller_id == 1
        await world.put_topic("orders", state("31", "31", 3))
        await world.until(lambda: partitions(one) == (state("31", "1", 1, 6),), 20)

    run(test)


def test_a_controller_that_is_not_alive_to_the_store_takes_nobody_for_dead() -> None:
    async def test(world: World) -> None:
        (one,) = await world.started(1)
        topic = await world.put_topic("orders", state("1", "1", 1))
        await world.until(lambda: bool(partitions(one)))
        await world.store.txn([], [Write(broker_key(1), None)])
        await asyncio.sleep(5)
        assert await world.stored(topic) == topic

    run(test)


def test_brokers_get_a_moment_to_be_back_after_the_store_was_away() -> None:
    async def test(world: World) -> None:
        one, two = await world.started(1, 2)
        topic = await world.put_topic("orders", state("21", "21", 2), state("12", "12", 1))
        await world.until(lambda: bool(partitions(two)))
        for each in (one, two):
            session = each.registration.session
            assert session is not None
            world.space.end_session(session.session_id)  # type: ignore[attr-defined]
        await asyncio.sleep(20)
        assert one.registration.is_registered
        assert two.registration.is_registered
        assert await world.stored(topic) == topic, "all were back before anybody was taken for gone"

    run(test)


def test_after_the_store_was_away_nobody_is_taken_for_gone_before_a_session_is_over() -> None:
    async def test(world: World) -> None:
        one, two = await world.started(1, 2)
        topic = await world.put_topic("orders", state("12", "12", 1))
        await world.until(lambda: bool(partitions(one)))
        two.kill()
        former = one.registration.session
        for each in (one, two):
            session = each.registration.session
            assert session is not None
            world.space.end_session(session.session_id)  # type: ignore[attr-defined]
        await world.until(lambda: one.registration.session is not former)
        await asyncio.sleep(SESSION_TIMEOUT_MS / 1000 - 2)
        assert await world.stored(topic) == topic
        await world.until(lambda: partitions(one) == (state("12", "1", 1),), 4)

    run(test)


def test_a_broker_that_was_just_started_takes_nobody_for_gone_before_a_session_is_over() -> None:
    async def test(world: World) -> None:
        topic = await world.put_topic("orders", state("23", "23", 3))
        (one,) = await world.started(1)
        await asyncio.sleep(SESSION_TIMEOUT_MS / 1000 - 2)
        assert await world.stored(topic) == topic
        await world.until(lambda: partitions(one) == (state("23", "23", NO_LEADER, 6),), 4)

    run(test)


def test_a_broker_that_was_just_started_waits_for_nobody_when_all_are_back() -> None:
    async def test(world: World) -> None:
        await world.put_topic("orders", state("12", "12", NO_LEADER))
        one, _ = await world.started(1, 2)
        await world.until(lambda: partitions(one)[0].leader != NO_LEADER, 4)

    run(test)


def test_a_broker_that_was_just_started_waits_for_those_who_may_have_more_than_those_in_sync() -> None:
    async def test(world: World) -> None:
        topic = await world.put_topic("bills", state("123", "12", NO_LEADER))
        one, _ = await world.started(1, 2)
        await asyncio.sleep(SESSION_TIMEOUT_MS / 1000 - 2)
        assert (await world.stored(topic)).partitions[0].leader == NO_LEADER
        await world.until(lambda: partitions(one, "bills")[0].leader != NO_LEADER, 4)

    run(test)


def test_the_offsets_topic_gets_replicas_as_brokers_join() -> None:
    async def test(world: World) -> None:
        (one,) = await world.started(1)
        await world.put_topic(OFFSETS_TOPIC, *[state("1", "1", 1)] * 6)
        await world.put_topic("orders", state("1", "1", 1))
        await world.started(2)
        await world.until(lambda: {each.replicas for each in partitions(one, OFFSETS_TOPIC)} == {(1, 2)}, 5)
        await world.store.txn([], [Write(broker_key(each), broker(each).to_bytes()) for each in (3, 4)])
        await world.until(lambda: all(len(each.replicas) == 3 for each in partitions(one, OFFSETS_TOPIC)), 5)
        third = [each.replicas[2] for each in partitions(one, OFFSETS_TOPIC)]
        assert (third.count(3), third.count(4)) == (3, 3)
        assert all(each.isr == (1,) for each in partitions(one, OFFSETS_TOPIC))
        assert partitions(one) == (state("1", "1", 1),)

    run(test)


def test_names_without_a_topic_are_freed_when_a_controller_is_elected() -> None:
    async def test(world: World) -> None:
        topic = await world.put_topic("orders", state("1", "1", 1))
        await world.store.txn([], [Write(name_key("ghost"), b"5fb8d1a0-0000-4000-8000-000000000000")])
        (member,) = await world.started(1)
        await asyncio.sleep(1)
        assert await world.store.get(name_key("ghost")) is None
        assert await world.store.get(name_key("orders")) is not None
        assert await world.store.get(topic_key(topic.lineage)) is not None
        await member.metadata.create_topic(member.metadata.plan_topic("ghost", 1, 1, {}, {}))

    run(test)


class FlakyStore(MemoryStore):
    """A store that loses every other answer to a transaction, applied or not."""

    def __init__(self, space: MemorySpace) -> None:
        super().__init__(space)
        self.calls = 0
        self.is_flaky = False

    async def txn(self, checks: Sequence[Check], writes: Sequence[Write]) -> Sequence[int] | None:
        self.calls += 1
        if self.is_flaky and self.calls % 4 == 1:
            raise Unavailable("not applied")
        versions = await super().txn(checks, writes)
        if self.is_flaky and self.calls % 4 == 3:
            raise Unavailable("applied")
        return versions


def test_a_store_that_loses_answers_delays_a_failover_and_no_more() -> None:
    async def test(world: World) -> None:
        store = FlakyStore(world.space)
        one = Member(store, world.clock, 1)
        world.members.append(one)
        await one.start()
        (two,) = await world.started(2)
        topics = [await world.put_topic(f"t{number}", state("21", "21", 2)) for number in range(130)]
        await world.until(lambda: len(one.metadata.image.topics) == 130)
        store.is_flaky = True
        two.kill()
        await world.until(lambda: all(partitions(one, topic.name) == (state("21", "1", 1, 6),) for topic in topics), 30)

    run(test)


def test_ten_thousand_partitions_are_loaded_and_a_thousand_leaders_moved_within_seconds() -> None:
    async def test(world: World) -> None:
        for number in range(1000):
            await world.put_topic(f"t{number}", *[state("123", "123", 2), *[state("123", "123", 1)] * 9])
        for broker_id in (2, 3):
            await world.store.txn([], [Write(broker_key(broker_id), broker(broker_id).to_bytes())])
        began = time.process_time()
        one = world.member(1)
        await one.start(stopped_in_epoch=-1)
        await asyncio.sleep(1)
        loaded = time.process_time()
        await world.store.txn([], [Write(broker_key(2), None)])
        await world.until(
            lambda: all(topic.partitions[0].leader == 1 for topic in one.metadata.image.topics.values()), 20
        )
        moved = time.process_time()
        print(
            f"10,000 partitions loaded in {loaded - began:.2f} s of CPU, 1,000 leaders moved in {moved - loaded:.2f} s"
        )
        assert loaded - began < 5
        assert moved - loaded < 5

    run(test)
