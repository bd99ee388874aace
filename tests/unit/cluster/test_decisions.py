"""What the controller does next: for each situation the question it asks or the change it makes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.cluster.decisions import (
    Answers,
    Change,
    Elect,
    FailOver,
    Inquiry,
    LeadersQuestion,
    LogEndsQuestion,
    Question,
    RaiseReplication,
    Shrink,
    Situation,
    decide,
    with_heirs,
)
from tailrace.cluster.image import NO_LEADER, BrokerImage, PartitionState, TopicImage
from tailrace.cluster.leaders import LogEnd
from tailrace.cluster.placement import Load
from tailrace.model import TopicPartition

ORDERS = UUID(int=7)
ORDERS_0 = TopicPartition("orders", 0)


@dataclass(frozen=True, slots=True)
class WiderState(PartitionState):
    """A partition as a later release may describe it."""

    moving_to: tuple[int, ...] = ()


def state(replicas: str, isr: str, leader: int, epoch: int = 5) -> PartitionState:
    return WiderState(tuple(map(int, replicas)), tuple(map(int, isr)), leader, epoch, moving_to=(9,))


def topic(*states: PartitionState, name: str = "orders", topic_id: UUID = ORDERS) -> TopicImage:
    return TopicImage(name, topic_id, states, MappingProxyType({}))


def registered(live: Collection[int] | str, epoch: int = 1) -> dict[int, BrokerImage]:
    return {broker_id: BrokerImage(broker_id, (), epoch=epoch) for broker_id in map(int, live)}


def clean(topic: TopicImage) -> bool:
    return False


def unclean(topic: TopicImage) -> bool:
    return True


def situation(topics: Sequence[TopicImage], live: str, factor: int = 0, *, is_unclean: bool = False) -> Situation:
    return Situation(registered(live), topics, unclean if is_unclean else clean, {"orders": factor})


# --- the table: what is there, what has been done or answered, what comes next


def ask_log_ends(epoch: int, in_sync: str, outsiders: str = "") -> LogEndsQuestion:
    outside = tuple(map(int, outsiders))
    return LogEndsQuestion((Inquiry(ORDERS, ORDERS_0, epoch, (*map(int, in_sync), *outside), outside),))


def ask_leader(epoch: int, leader: int) -> LeadersQuestion:
    return LeadersQuestion((Inquiry(ORDERS, ORDERS_0, epoch, (leader,)),))


def answered(question: Question, ends: Mapping[int, tuple[int, int]]) -> Answers:
    return Answers(question, {ORDERS_0: {broker_id: LogEnd(*end) for broker_id, end in ends.items()}})


class Makes(NamedTuple):
    """A change, what it makes of the partition, and what its transaction checks."""

    change: type[Change]
    becomes: PartitionState
    #: Brokers that must not be registered, or that must not have been started again.
    checked: tuple[int, ...] = ()


FAILED_OVER = FailOver((ORDERS,), (), clean, 0, 0)
ELECTED = Elect((ORDERS,), {}, ())
SHRUNK = Shrink((ORDERS,), {}, ())
RAISED = RaiseReplication((ORDERS,), ("orders",), {}, {}, Load())


class Row(NamedTuple):
    name: str
    before: PartitionState
    live: str
    past: Answers | Change | None
    then: Question | Makes | None
    factor: int = 0
    is_unclean: bool = False


TABLE = [
    # Nobody is gone.
    Row("all is well", state("123", "123", 1), "123", None, None),
    Row("a replica that is not in sync is gone", state("123", "12", 1), "12", None, None),
    # The leader is gone.
    Row(
        "one in sync lives and no other replica",
        state("123", "13", 1),
        "3",
        None,
        Makes(FailOver, state("123", "13", 3, 6), (1,)),
    ),
    Row(
        "several in sync live",
        state("123", "123", 1),
        "23",
        None,
        Makes(FailOver, state("123", "123", NO_LEADER, 6), (1,)),
    ),
    Row(
        "one in sync lives beside one that is not",
        state("123", "12", 1),
        "23",
        None,
        Makes(FailOver, state("123", "12", NO_LEADER, 6), (1,)),
    ),
    Row(
        "nobody in sync lives",
        state("123", "1", 1),
        "23",
        None,
        Makes(FailOver, state("123", "1", NO_LEADER, 6), (1,)),
    ),
    Row(
        "nobody in sync lives, and the topic may be unclean",
        state("132", "1", 1),
        "23",
        None,
        Makes(FailOver, state("132", "3", 3, 6), (1,)),
        is_unclean=True,
    ),
    Row(
        "one in sync lives, and the topic may be unclean",
        state("123", "12", 1),
        "23",
        None,
        Makes(FailOver, state("123", "12", NO_LEADER, 6), (1,)),
        is_unclean=True,
    ),
    # Nobody leads.
    Row("nobody in sync is back", state("123", "1", NO_LEADER), "23", None, None),
    Row(
        "the only one in sync is back alone",
        state("123", "1", NO_LEADER),
        "1",
        None,
        Makes(FailOver, state("123", "1", 1, 6)),
    ),
    Row(
        "the only one in sync is back beside others",
        state("123", "1", NO_LEADER),
        "123",
        None,
        ask_log_ends(5, "1", "23"),
    ),
    Row("several in sync may lead", state("123", "23", NO_LEADER), "123", None, ask_log_ends(5, "23", "1")),
    Row("they are asked after the failover", state("123", "123", -1, 6), "23", FAILED_OVER, ask_log_ends(6, "23")),
    # Replicas have answered.
    Row(
        "the longest log in sync leads, and who is gone leaves the ISR",
        state("123", "123", NO_LEADER, 6),
        "23",
        answered(ask_log_ends(6, "23"), {2: (5, 90), 3: (5, 91)}),
        Makes(Elect, state("123", "23", 3, 7)),
    ),
    Row(
        "a later epoch is longer than a higher offset",
        state("123", "123", NO_LEADER, 6),
        "23",
        answered(ask_log_ends(6, "23"), {2: (5, 90), 3: (4, 91)}),
        Makes(Elect, state("123", "23", 2, 7)),
    ),
    Row(
        "of logs that are equally long the preferred one leads",
        state("132", "123", NO_LEADER, 6),
        "23",
        answered(ask_log_ends(6, "32"), {2: (5, 90), 3: (5, 90)}),
        Makes(Elect, state("132", "23", 3, 7)),
    ),
    Row(
        "an outsider with more of the last leader's epoch leads",
        state("123", "12", NO_LEADER, 6),
        "23",
        answered(ask_log_ends(6, "2", "3"), {2: (5, 90), 3: (5, 91)}),
        Makes(Elect, state("123", "32", 3, 7), (3,)),
    ),
    Row(
        "an outsider with more of an older epoch does not",
        state("123", "12", NO_LEADER, 6),
        "23",
        answered(ask_log_ends(6, "2", "3"), {2: (4, 90), 3: (4, 91)}),
        Makes(Elect, state("123", "2", 2, 7), (3,)),
    ),
    Row(
        "nobody in sync has answered",
        state("123", "12", NO_LEADER, 6),
        "23",
        answered(ask_log_ends(6, "2", "3"), {3: (5, 91)}),
        Makes(Elect, state("123", "12", NO_LEADER, 6), (3,)),
    ),
    Row(
        "they have answered in an epoch that is over",
        state("123", "23", NO_LEADER, 8),
        "23",
        answered(ask_log_ends(6, "23"), {2: (5, 90), 3: (5, 91)}),
        Makes(Elect, state("123", "23", NO_LEADER, 8)),
    ),
    Row("nobody is asked twice in a round", state("123", "123", NO_LEADER, 6), "23", ELECTED, None),
    # A follower is gone.
    Row("one in sync is gone", state("123", "123", 1), "12", None, ask_leader(5, 1)),
    Row("the new leader is asked about those that are gone", state("123", "12", 2, 7), "2", ELECTED, ask_leader(7, 2)),
    Row(
        "the leader answers",
        state("123", "123", 1),
        "12",
        answered(ask_leader(5, 1), {1: (5, 90)}),
        Makes(Shrink, state("123", "12", 1)),
    ),
    Row(
        "the leader answered in an epoch that is over",
        state("123", "123", 1, 6),
        "12",
        answered(ask_leader(5, 1), {1: (5, 90)}),
        Makes(Shrink, state("123", "123", 1, 6)),
    ),
    Row("no leader is asked twice in a round", state("123", "123", 1), "12", SHRUNK, None),
    # More replicas.
    Row(
        "there are brokers for more replicas",
        state("1", "1", 1),
        "123",
        None,
        Makes(RaiseReplication, state("123", "1", 1)),
        factor=3,
    ),
    Row(
        "replicas are raised after the ISRs have shrunk",
        state("14", "1", 1),
        "12",
        SHRUNK,
        Makes(RaiseReplication, state("142", "1", 1)),
        factor=3,
    ),
    Row("there are no brokers for more replicas", state("12", "12", 1), "12", None, None, factor=3),
    Row("replicas are raised once in a round", state("1", "1", 1), "123", RAISED, None, factor=3),
]


@pytest.mark.parametrize("row", TABLE, ids=[row.name for row in TABLE])
def test_what_the_controller_does_next(row: Row) -> None:
    whole = topic(row.before)
    going_by = situation([whole], row.live, row.factor, is_unclean=row.is_unclean)
    decision = decide([whole], going_by, row.past)
    if not isinstance(row.then, Makes):
        assert decision == row.then
        return
    assert isinstance(decision, row.then.change)
    assert decision.lineages == (ORDERS,)
    after = decision.applied_to(whole, list(going_by.brokers))
    assert after.partitions == (row.then.becomes,)
    assert decision.applied_to(after, list(going_by.brokers)) is after, "made once, it is made"
    if isinstance(decision, FailOver):
        assert tuple(decision.gone(going_by.brokers)) == row.then.checked
    else:
        assert (decision.outsiders if isinstance(decision, Elect) else ()) == row.then.checked


# --- what a transaction relies on


def test_a_leader_that_is_back_when_the_failover_is_written_leads_on() -> None:
    whole = topic(state("123", "123", 1), state("123", "123", 2))
    decision = decide([whole], situation([whole], "3"))
    assert isinstance(decision, FailOver)
    assert decision.gone([3]) == [1, 2]
    assert decision.gone([3, 1]) == [2]
    after = decision.applied_to(whole, [3, 1])
    assert after.partitions == (whole.partitions[0], state("123", "123", NO_LEADER, 6))


def test_a_failover_checks_the_leaders_of_all_topics_that_are_due() -> None:
    one = topic(state("12", "12", 1))
    other = topic(state("34", "34", 3), name="bills", topic_id=UUID(int=8))
    unseen = topic(state("56", "56", 5), name="ghosts", topic_id=UUID(int=9))
    decision = decide([one, other, unseen], situation([one, other], "24"))
    assert isinstance(decision, FailOver)
    assert decision.lineages == (one.lineage, other.lineage)
    assert decision.gone([2, 4]) == [1, 3]
    assert (decision.moved, decision.leaderless) == (2, 0)


def test_whether_a_topic_may_be_unclean_is_asked_of_the_topic_as_it_is_stored() -> None:
    whole = topic(state("12", "1", 1))
    allowed = TopicImage(whole.name, whole.topic_id, whole.partitions, {"unclean.leader.election.enable": "true"})
    going_by = Situation(registered("2"), [whole], lambda each: bool(each.configs), {})
    decision = decide([whole], going_by)
    assert isinstance(decision, FailOver)
    assert decision.applied_to(whole, [2]).partitions == (state("12", "1", NO_LEADER, 6),)
    assert decision.applied_to(allowed, [2]).partitions == (state("12", "2", 2, 6),)


def test_an_answer_of_an_outsider_counts_only_in_the_incarnation_that_is_registered() -> None:
    whole = topic(state("123", "12", NO_LEADER, 6))
    question = ask_log_ends(6, "2", "3")
    decision = decide([whole], situation([whole], "23"), answered(question, {2: (5, 90), 3: (5, 91)}))
    assert isinstance(decision, Elect)
    brokers = registered("23", epoch=4)
    assert decision.eligible(brokers, {3: 4}) == [2, 3]
    assert decision.eligible(brokers, {3: 5}) == [2]
    assert decision.eligible(brokers, {}) == [2]
    assert decision.applied_to(whole, [2]).partitions == (state("123", "2", 2, 7),)


def test_partitions_wait_whose_candidates_did_not_answer() -> None:
    whole = topic(state("12", "12", NO_LEADER), state("12", "12", NO_LEADER), state("12", "12", NO_LEADER))
    question = decide([whole], situation([whole], "12"))
    assert isinstance(question, LogEndsQuestion)
    assert [inquiry.partition.partition for inquiry in question.inquiries] == [0, 1, 2]
    ends = {inquiry.partition: {1: LogEnd(4, 9)} for inquiry in question.inquiries}
    ends[TopicPartition("orders", 1)] = {}
    decision = decide([whole], situation([whole], "12"), Answers(question, ends))
    assert isinstance(decision, Elect)
    assert decision.waiting([decision.applied_to(whole, [1, 2])]) == [(ORDERS, 1)]
    moved_on = topic(state("12", "12", 1, 6), state("12", "12", NO_LEADER, 7), state("12", "12", NO_LEADER))
    assert decision.waiting([moved_on]) == [(ORDERS, 2)], "of another epoch nobody was asked"
    assert decision.waiting([]) == []


def test_partitions_wait_whose_leaders_did_not_answer() -> None:
    whole = topic(state("12", "12", 1), state("13", "13", 1))
    question = decide([whole], situation([whole], "1"))
    assert isinstance(question, LeadersQuestion)
    ends: dict[TopicPartition, dict[int, LogEnd]] = {ORDERS_0: {}, TopicPartition("orders", 1): {1: LogEnd(5, 9)}}
    decision = decide([whole], situation([whole], "1"), Answers(question, ends))
    assert isinstance(decision, Shrink)
    assert decision.silent == ((ORDERS, 0),)
    assert decision.applied_to(whole, [1]).partitions == (whole.partitions[0], state("13", "1", 1))


def test_a_topic_that_was_deleted_since_its_replicas_were_asked_is_not_written() -> None:
    whole = topic(state("123", "123", NO_LEADER, 6))
    answers = answered(ask_log_ends(6, "23"), {2: (5, 90), 3: (5, 91)})
    decision = decide([], situation([whole], "23"), answers)
    assert isinstance(decision, Elect)
    assert decision.lineages == ()


def test_a_leader_hands_over_only_what_it_still_leads_to_who_is_still_in_sync() -> None:
    whole = topic(*[state("123", "12", 1)] * 3, state("123", "12", 2), state("123", "13", 1))
    after = with_heirs(whole, 1, {0: (5, 2), 1: (4, 2), 3: (5, 2), 4: (5, 2)})
    assert after.partitions == (state("123", "12", 2, 6), *whole.partitions[1:])
    assert with_heirs(after, 1, {0: (5, 2)}) is after


# --- whole rounds


@st.composite
def states(draw: st.DrawFn) -> PartitionState:
    """Any partition that can be stored: a leader is in the ISR, and the ISR is never empty."""
    replicas = draw(st.lists(st.sampled_from("12345"), min_size=1, max_size=4, unique=True))
    isr = draw(st.lists(st.sampled_from(replicas), min_size=1, unique=True))
    leader = int(draw(st.sampled_from(["-1", *isr])))
    return state("".join(replicas), "".join(isr), leader, draw(st.integers(0, 9)))


@settings(max_examples=300)
@given(st.lists(states(), min_size=1, max_size=6), st.sets(st.sampled_from("12345")), st.booleans(), st.data())
def test_a_round_ends_with_leaders_wherever_somebody_in_sync_answers(
    partitions: list[PartitionState], alive: set[str], is_unclean: bool, data: st.DataObject
) -> None:
    live = "".join(sorted(alive))
    whole = topic(*partitions)
    going_by = situation([whole], live, 3, is_unclean=is_unclean)
    silent = data.draw(st.sets(st.sampled_from([1, 2, 3, 4, 5])))
    past: Answers | Change | None = None
    kinds: list[type] = []
    while (decision := decide([whole], going_by, past)) is not None:
        kinds.append(type(decision))
        if isinstance(decision, LogEndsQuestion | LeadersQuestion):
            past = Answers(
                decision,
                {
                    inquiry.partition: {
                        broker_id: LogEnd(data.draw(st.integers(0, 9)), data.draw(st.integers(0, 3)))
                        for broker_id in inquiry.replicas
                        if broker_id not in silent
                    }
                    for inquiry in decision.inquiries
                },
            )
        else:
            whole, past = decision.applied_to(whole, list(going_by.brokers)) if decision.lineages else whole, decision
    order = [FailOver, LogEndsQuestion, Elect, LeadersQuestion, Shrink, RaiseReplication]
    assert kinds == [kind for kind in order if kind in kinds], "each at most once, in the order of the round"
    for old, new in zip(partitions, whole.partitions, strict=True):
        assert isinstance(new, WiderState)
        assert new.moving_to == (9,), "what this release does not know stays"
        assert new.isr
        assert new.leader == NO_LEADER or (new.leader in new.isr and new.leader in going_by.brokers)
        assert (new.leader_epoch > old.leader_epoch) == (new.leader != old.leader)
        answering = [member for member in old.isr if member in going_by.brokers and member not in silent]
        if answering:
            assert new.leader != NO_LEADER
        if new.leader != NO_LEADER and new.leader not in silent:
            assert all(member in going_by.brokers for member in new.isr)
        if old.leader in going_by.brokers:
            assert (new.leader, new.leader_epoch) == (old.leader, old.leader_epoch)
