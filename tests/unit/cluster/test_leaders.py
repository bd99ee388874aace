"""Who leads what when brokers come and go."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from types import MappingProxyType
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.cluster.decisions import ElectionType, after_crash, elect, handed_over, plan_preferred, without_broker
from tailrace.cluster.image import NO_LEADER, BrokerImage, PartitionState, TopicImage
from tailrace.cluster.leaders import (
    LogEnd,
    failed_over,
    has_dead,
    plan_failover,
    with_longest_leaders,
    without_the_dead,
)
from tailrace.cluster.placement import plan_internal_replication
from tailrace.errors import ErrorCode

BROKERS = range(1, 6)


def clean(topic: TopicImage) -> bool:
    return False


def unclean(topic: TopicImage) -> bool:
    return True


def topic(*states: PartitionState, name: str = "orders") -> TopicImage:
    return TopicImage(name, UUID(int=7), states, MappingProxyType({}))


def state(replicas: str, isr: str, leader: int, epoch: int = 5) -> PartitionState:
    return PartitionState(tuple(map(int, replicas)), tuple(map(int, isr)), leader, epoch)


@st.composite
def states(draw: st.DrawFn) -> PartitionState:
    """Any partition that can be stored: a leader is in the ISR, and the ISR is never empty."""
    replicas = draw(st.lists(st.sampled_from(BROKERS), min_size=1, max_size=4, unique=True))
    isr = draw(st.lists(st.sampled_from(replicas), min_size=1, unique=True))
    leader = draw(st.sampled_from([NO_LEADER, *isr]))
    return PartitionState(tuple(replicas), tuple(isr), leader, draw(st.integers(0, 9)))


topics = st.lists(states(), min_size=1, max_size=6).map(lambda some: topic(*some))
lives = st.lists(st.sampled_from(BROKERS), unique=True)


def check_change(before: TopicImage, after: TopicImage) -> None:
    """What holds of every change that a controller, a crash or a stop makes, however it was decided."""
    assert (before.name, before.topic_id, before.configs) == (after.name, after.topic_id, after.configs)
    for old, new in zip(before.partitions, after.partitions, strict=True):
        assert new.replicas == old.replicas
        assert len(dict.fromkeys(new.replicas)) == len(new.replicas)
        assert new.isr
        assert len(dict.fromkeys(new.isr)) == len(new.isr)
        assert all(member in new.replicas for member in new.isr)
        assert new.leader == NO_LEADER or new.leader in new.isr
        if new.leader != old.leader:
            assert new.leader_epoch == old.leader_epoch + 1
        assert new.leader_epoch >= old.leader_epoch


@settings(max_examples=300)
@given(topics, lives)
def test_a_failover_elects_from_the_isr_only_and_is_stable(before: TopicImage, live: list[int]) -> None:
    planned = plan_failover([before], live, clean)
    after = planned[0] if planned else before
    check_change(before, after)
    for old, new in zip(before.partitions, after.partitions, strict=True):
        assert new.isr == old.isr, "nobody has said that it goes on without the others"
        living = [member for member in old.isr if member in live]
        if old.leader in live:
            assert (new.leader, new.leader_epoch) == (old.leader, old.leader_epoch)
        else:
            # Of several the longest log leads, which nobody knows yet.
            rivals = [member for member in old.replicas if member in live and member not in living]
            assert new.leader == (living[0] if len(living) == 1 and not rivals else NO_LEADER)
    assert plan_failover([after], live, clean) == []
    assert failed_over(after, live, clean) is after


@settings(max_examples=300)
@given(topics, lives, st.dictionaries(st.integers(0, 5), st.integers(0, 9)))
def test_who_is_gone_leaves_the_isrs_whose_leaders_answer(
    before: TopicImage, live: list[int], confirmed: dict[int, int]
) -> None:
    confirmed = {number: epoch for number, epoch in confirmed.items() if number < len(before.partitions)}
    after = without_the_dead(before, live, confirmed)
    check_change(before, after)
    for number, (old, new) in enumerate(zip(before.partitions, after.partitions, strict=True)):
        assert (new.leader, new.leader_epoch) == (old.leader, old.leader_epoch)
        living = tuple(member for member in old.isr if member in live)
        is_led_on = old.leader in live and confirmed.get(number) == old.leader_epoch
        assert new.isr == (living if is_led_on else old.isr)
        assert has_dead(old, live) == (old.leader in live and living != old.isr)
    assert without_the_dead(after, live, confirmed) is after


@settings(max_examples=300)
@given(topics, lives)
def test_an_unclean_failover_goes_beyond_the_isr_only_where_none_of_it_lives(
    before: TopicImage, live: list[int]
) -> None:
    after = failed_over(before, live, unclean)
    check_change(before, after)
    for old, new in zip(before.partitions, after.partitions, strict=True):
        living = [member for member in old.isr if member in live]
        if old.leader not in live and living and sum(member in live for member in old.replicas) > 1:
            assert new.leader == NO_LEADER
        else:
            assert (new.leader in live) == any(member in live for member in old.replicas)
        if living:
            assert all(member in old.isr for member in new.isr)
        elif new.leader != NO_LEADER:
            assert new.isr == (new.leader,)
    assert failed_over(after, live, unclean) is after


@settings(max_examples=300)
@given(topics, st.sampled_from(BROKERS), lives)
def test_a_broker_that_leaves_is_in_no_isr_with_others(before: TopicImage, gone: int, live: list[int]) -> None:
    for departure in (without_broker, after_crash):
        after = departure(before, gone)
        check_change(before, after)
        for old, new in zip(before.partitions, after.partitions, strict=True):
            assert gone not in new.isr or new.isr == (gone,) == old.isr
            assert new.leader in (old.leader, NO_LEADER), "a broker that leaves names no successor"
            if departure is after_crash and old.leader == gone:
                assert new.leader_epoch == old.leader_epoch + 1
                assert new.leader == (gone if len(old.replicas) == 1 else NO_LEADER)
        assert without_broker(after, gone) is after
    others = [broker_id for broker_id in live if broker_id != gone]
    confirmed = {number: old.leader_epoch for number, old in enumerate(before.partitions)}
    after = handed_over(before, gone, others, confirmed)
    check_change(before, after)
    for old, new in zip(before.partitions, after.partitions, strict=True):
        assert (new.leader, new.leader_epoch) == (old.leader, old.leader_epoch)
        leaves = old.leader in others and gone in old.isr
        assert new.isr == (tuple(member for member in old.isr if member != gone) if leaves else old.isr)
    assert handed_over(after, gone, others, confirmed) is after
    assert handed_over(before, gone, others, {}) is before
    elsewhere = {number: epoch + 1 for number, epoch in confirmed.items()}
    assert handed_over(before, gone, others, elsewhere) is before


@settings(max_examples=300)
@given(st.lists(states(), min_size=1, max_size=30).map(lambda some: topic(*some)), lives, st.sampled_from([0, 10, 50]))
def test_preferred_leaders_lead_again_where_too_many_do_not(before: TopicImage, live: list[int], percent: int) -> None:
    planned = plan_preferred([before], live, percent)
    after = planned[0] if planned else before
    check_change(before, after)
    wanted = Counter(each.replicas[0] for each in before.partitions)
    missing = Counter(each.replicas[0] for each in before.partitions if each.leader != each.replicas[0])
    for old, new in zip(before.partitions, after.partitions, strict=True):
        first = old.replicas[0]
        is_due = first in live and missing[first] / wanted[first] > percent / 100
        if is_due and first in old.isr:
            assert new.leader == first
        else:
            assert new is old
        assert new.isr == old.isr
    assert plan_preferred([after], live, percent) == []


@settings(max_examples=200)
@given(topics, st.integers(0, 5), lives)
def test_internal_topics_get_the_replicas_that_there_are_brokers_for(
    before: TopicImage, factor: int, live: list[int]
) -> None:
    brokers = {broker_id: BrokerImage(broker_id, ()) for broker_id in live}
    planned = plan_internal_replication([before], brokers, {"orders": factor})
    after = planned[0] if planned else before
    for old, new in zip(before.partitions, after.partitions, strict=True):
        assert (new.isr, new.leader, new.leader_epoch) == (old.isr, old.leader, old.leader_epoch)
        assert new.replicas[: len(old.replicas)] == old.replicas
        assert len(dict.fromkeys(new.replicas)) == len(new.replicas)
        reachable = len(dict.fromkeys((*old.replicas, *live)))
        assert len(new.replicas) == max(len(old.replicas), min(factor, reachable))
        assert all(each in live for each in new.replicas[len(old.replicas) :])
    assert plan_internal_replication([after], brokers, {"orders": factor}) == []
    assert plan_internal_replication([before], brokers, {"other": factor}) == []


@pytest.mark.parametrize(
    ("before", "live", "expected"),
    [
        (state("123", "123", 1), "123", state("123", "123", 1)),
        (state("123", "123", 1), "23", state("123", "123", NO_LEADER, 6)),
        (state("123", "321", 3), "12", state("123", "321", NO_LEADER, 6)),
        (state("123", "23", NO_LEADER), "23", state("123", "23", NO_LEADER)),
        (state("123", "13", 1), "3", state("123", "13", 3, 6)),
        (state("123", "13", 1), "23", state("123", "13", NO_LEADER, 6)),
        (state("123", "123", 1), "13", state("123", "123", 1)),
        (state("123", "1", 1), "23", state("123", "1", NO_LEADER, 6)),
        (state("123", "12", 1), "3", state("123", "12", NO_LEADER, 6)),
        (state("123", "12", NO_LEADER), "3", state("123", "12", NO_LEADER)),
        (state("123", "12", NO_LEADER), "2", state("123", "12", 2, 6)),
        (state("123", "12", NO_LEADER), "23", state("123", "12", NO_LEADER)),
        (state("1", "1", NO_LEADER), "1", state("1", "1", 1, 6)),
    ],
)
def test_a_partition_after_brokers_are_gone_or_back(
    before: PartitionState, live: str, expected: PartitionState
) -> None:
    assert failed_over(topic(before), list(map(int, live)), clean).partitions == (expected,)


@pytest.mark.parametrize(
    ("ends", "leader"),
    [
        ({2: LogEnd(4, 90), 3: LogEnd(4, 100)}, 3),
        ({2: LogEnd(5, 90), 3: LogEnd(4, 100)}, 2),
        ({2: LogEnd(4, 90), 3: LogEnd(4, 90)}, 2),
        ({3: LogEnd(4, 90)}, 3),
        ({1: LogEnd(3, 900), 3: LogEnd(3, 90)}, 3),
        ({1: LogEnd(3, 900), 3: LogEnd(2, 90)}, 3),
        ({1: LogEnd(4, 90), 3: LogEnd(4, 90)}, 3),
        ({1: LogEnd(4, 900)}, NO_LEADER),
    ],
)
def test_the_longest_log_in_sync_leads(ends: dict[int, LogEnd], leader: int) -> None:
    before = topic(state("123", "23", NO_LEADER), state("123", "12", 1))
    after = with_longest_leaders(before, {0: (5, ends)}, [1, 2, 3])
    assert after.partitions[0] == state("123", "23", leader, 5 + (leader != NO_LEADER))
    assert after.partitions[1] is before.partitions[1]


@pytest.mark.parametrize(
    "ends",
    [
        {1: LogEnd(4, 91), 2: LogEnd(4, 80), 3: LogEnd(4, 90)},
        {1: LogEnd(4, 10), 2: LogEnd(3, 9), 3: LogEnd(3, 90)},
        {1: LogEnd(4, 10), 2: LogEnd(3, 9)},
    ],
)
def test_who_alone_has_records_of_the_last_leader_leads_though_it_is_not_in_sync(ends: dict[int, LogEnd]) -> None:
    after = with_longest_leaders(topic(state("123", "23", NO_LEADER)), {0: (5, ends)}, [1, 2, 3])
    assert after.partitions == (state("123", "123", 1, 6),)


def test_who_is_not_in_sync_and_not_alive_any_more_does_not_lead() -> None:
    ends = {1: LogEnd(4, 91), 3: LogEnd(4, 90)}
    after = with_longest_leaders(topic(state("123", "23", NO_LEADER)), {0: (5, ends)}, [2, 3])
    assert after.partitions == (state("123", "23", 3, 6),)


def test_who_is_gone_leaves_the_isr_when_another_that_answered_leads() -> None:
    ends = {2: LogEnd(4, 91), 3: LogEnd(4, 90)}
    after = with_longest_leaders(topic(state("123", "123", NO_LEADER)), {0: (5, ends)}, [2, 3])
    assert after.partitions == (state("123", "23", 2, 6),)


def test_what_was_said_in_another_epoch_elects_nobody() -> None:
    before = topic(state("123", "23", NO_LEADER, 6), state("123", "23", 2))
    ends = {number: (5, {2: LogEnd(4, 90), 3: LogEnd(4, 100)}) for number in (0, 1)}
    assert with_longest_leaders(before, ends, [2, 3]) is before


def test_an_unclean_leader_is_the_first_replica_that_lives_and_alone_in_sync() -> None:
    before = topic(state("1234", "12", 1))
    assert failed_over(before, [4, 3], unclean).partitions == (state("1234", "3", 3, 6),)
    assert failed_over(before, [], unclean).partitions == (state("1234", "12", NO_LEADER, 6),)


def test_whether_a_topic_may_be_unclean_is_asked_for_each() -> None:
    one, two = topic(state("12", "1", 1), name="one"), topic(state("12", "1", 1), name="two")
    planned = plan_failover([one, two], [2], lambda each: each.name == "two")
    assert [(each.name, each.partitions[0].leader) for each in planned] == [("one", NO_LEADER), ("two", 2)]


@pytest.mark.parametrize(
    ("before", "crashed"),
    [
        (state("123", "123", 1), state("123", "23", NO_LEADER, 6)),
        (state("123", "12", 1), state("123", "2", NO_LEADER, 6)),
        (state("123", "123", 2), state("123", "23", 2)),
        # Others may have what was lost by the crash, also where they are not in sync.
        (state("123", "1", 1), state("123", "1", NO_LEADER, 6)),
        (state("1", "1", 1), state("1", "1", 1, 6)),
        (state("23", "23", 2), state("23", "23", 2)),
    ],
)
def test_broker_1_crashes(before: PartitionState, crashed: PartitionState) -> None:
    assert after_crash(topic(before), 1).partitions == (crashed,)


@pytest.mark.parametrize(
    ("before", "election", "live", "expected"),
    [
        (state("123", "123", 2), ElectionType.PREFERRED, "123", state("123", "123", 1, 6)),
        (state("123", "123", 1), ElectionType.PREFERRED, "123", ErrorCode.ELECTION_NOT_NEEDED),
        (state("123", "23", 2), ElectionType.PREFERRED, "123", ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE),
        (state("123", "123", 2), ElectionType.PREFERRED, "23", ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE),
        (state("123", "1", 1), ElectionType.UNCLEAN, "123", ErrorCode.ELECTION_NOT_NEEDED),
        (state("123", "1", NO_LEADER), ElectionType.UNCLEAN, "32", state("123", "2", 2, 6)),
        (state("123", "12", NO_LEADER), ElectionType.UNCLEAN, "32", ErrorCode.ELECTION_NOT_NEEDED),
        (state("123", "1", NO_LEADER), ElectionType.UNCLEAN, "", ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE),
    ],
)
def test_an_election_that_a_client_asks_for(
    before: PartitionState, election: ElectionType, live: str, expected: PartitionState | ErrorCode
) -> None:
    whole = topic(before)
    after, refusals = elect(whole, [0], election, list(map(int, live)))
    if isinstance(expected, ErrorCode):
        assert refusals[0].code is expected
        assert refusals[0].message
        assert after is whole
    else:
        assert refusals == {}
        assert after.partitions == (expected,)


def test_partitions_that_are_not_there_elect_nobody_and_others_go_on() -> None:
    whole = topic(state("12", "12", 2), state("12", "12", 2))
    after, refusals = elect(whole, [5, 1, -1], ElectionType.PREFERRED, [1, 2])
    assert {number: refusal.code for number, refusal in refusals.items()} == {
        5: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        -1: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert [each.leader for each in after.partitions] == [2, 1]


def test_a_plan_of_ten_thousand_partitions_is_a_matter_of_less_than_a_second() -> None:
    brokers = {broker_id: BrokerImage(broker_id, ()) for broker_id in range(1, 11)}
    states = tuple(state("123", "123", 1 + number % 3) for number in range(10))
    many = [
        replace(topic(*states), topic_id=UUID(int=number), lineage=UUID(int=number), name=f"t{number}")
        for number in range(1000)
    ]
    began = time.process_time()
    planned = plan_failover(many, [2, 3, 4], clean)
    plan_preferred(planned, [1, 2, 3], 10)
    plan_internal_replication(planned, brokers, {"t5": 4})
    assert time.process_time() - began < 1.0
    assert len(planned) == 1000
    assert without_the_dead(planned[0], [2, 3, 4], {1: 5}).partitions[1] == state("123", "23", 2)
