"""The rules for leaders and ISRs among live brokers, from which decisions are made. Pure.

Invariants: the in-sync replica with the longest log leads, or one outside the ISR with even more of the last leader's
records; replicas are asked for their log ends in an epoch without a leader; others are elected only if the topic allows
it; every change of leader starts a new leader epoch; an election adds nobody to an ISR except a leader from outside it;
a broker that is gone leaves an ISR only if the leader has just answered. Each function returns the given topic object
if nothing changes, and can be applied again to a topic that another broker has changed in between.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from tailrace.cluster.image import NO_LEADER, PartitionState, TopicImage


class LogEnd(NamedTuple):
    """A replica's log end offset and the leader epoch of its last record; the larger one is the longer log."""

    epoch: int
    offset: int


def plan_failover(
    topics: Iterable[TopicImage], live: Collection[int], is_unclean: Callable[[TopicImage], bool]
) -> list[TopicImage]:
    """The topics that change if only these brokers are alive."""
    planned = [(topic, failed_over(topic, live, is_unclean)) for topic in topics]
    return [changed for topic, changed in planned if changed is not topic]


def failed_over(topic: TopicImage, live: Collection[int], is_unclean: Callable[[TopicImage], bool]) -> TopicImage:
    """A topic whose leaders are alive wherever possible.

    If other replicas are alive besides a candidate, the partition gets no leader for now: `with_longest_leaders` elects
    one once they have reported their log ends.
    """

    def after(state: PartitionState) -> PartitionState:
        if state.leader in live:
            return state
        candidates = candidates_for(state, live)
        if not candidates and is_unclean(topic):
            leader = first_living(state.replicas, live)
            return led_by(state, leader, state.isr if leader == NO_LEADER else (leader,))
        return led_by(state, _unrivalled(state, candidates, live), state.isr)

    return with_states(topic, after)


def has_dead(state: PartitionState, live: Collection[int]) -> bool:
    """Whether a live leader has a member in its ISR that is not alive."""
    return state.leader in live and not all(broker_id in live for broker_id in state.isr)


def without_the_dead(topic: TopicImage, live: Collection[int], confirmed: Mapping[int, int]) -> TopicImage:
    """A topic without dead members in the ISRs of confirmed partitions.

    `confirmed` has the partitions whose leaders have just answered, with the leader epoch. A leader that is alive
    according to the store may have died with its disk a moment ago. Its records are then in the logs of the other
    in-sync replicas, and it cannot lead again without them as long as they stay in the ISR.
    """
    states = list(topic.partitions)
    for number, leader_epoch in confirmed.items():
        state = states[number]
        if state.leader_epoch == leader_epoch and has_dead(state, live):
            states[number] = replace(state, isr=_living(state, live))
    return with_partitions(topic, states)


def candidates_for(state: PartitionState, live: Collection[int]) -> tuple[int, ...]:
    """The live in-sync replicas, in order of preference."""
    return tuple(broker_id for broker_id in state.replicas if broker_id in state.isr and broker_id in live)


def outsiders_of(state: PartitionState, live: Collection[int]) -> tuple[int, ...]:
    """The live replicas outside the ISR, in order of preference."""
    return tuple(broker_id for broker_id in state.replicas if broker_id not in state.isr and broker_id in live)


def with_longest_leaders(
    topic: TopicImage, ends: Mapping[int, tuple[int, Mapping[int, LogEnd]]], live: Collection[int]
) -> TopicImage:
    """A topic whose leaderless partitions are led by the replica with the longest log.

    `ends` has, by partition, the leaderless epoch in which replicas were asked, and their answers.
    """
    states = list(topic.partitions)
    for number, (leader_epoch, found) in ends.items():
        state = states[number]
        if (state.leader, state.leader_epoch) == (NO_LEADER, leader_epoch):
            states[number] = _led_by_longest(state, found, live)
    return with_partitions(topic, states)


# --- parts


def first_living(replicas: Sequence[int], live: Collection[int]) -> int:
    """The first live replica; replicas are listed in order of preference."""
    return next((broker_id for broker_id in replicas if broker_id in live), NO_LEADER)


def _unrivalled(state: PartitionState, candidates: Sequence[int], live: Collection[int]) -> int:
    """The candidate that leads without a question about its log end, because no other replica is alive."""
    rivals = [broker_id for broker_id in state.replicas if broker_id in live and broker_id not in candidates]
    return candidates[0] if len(candidates) == 1 and not rivals else NO_LEADER


def _led_by_longest(state: PartitionState, found: Mapping[int, LogEnd], live: Collection[int]) -> PartitionState:
    candidates = [broker_id for broker_id in candidates_for(state, live) if broker_id in found]
    if not candidates:
        return state
    best = max(candidates, key=found.__getitem__)
    # The last leader may have counted a replica that was removed from the ISR without its knowledge. If that replica
    # has records of this leader's epoch, its log is part of the leader's. Everything committed is then either in the
    # part before, or below the end of the best in-sync replica. For records of older epochs this does not hold.
    outsiders = [
        broker_id
        for broker_id in outsiders_of(state, live)
        if broker_id in found and found[broker_id] > found[best] and found[broker_id].epoch == state.leader_epoch - 1
    ]
    if outsiders:
        furthest = max(outsiders, key=found.__getitem__)
        return led_by(state, furthest, (furthest, *_living(state, live)))
    return led_by(state, best, _living(state, live))


def _living(state: PartitionState, live: Collection[int]) -> tuple[int, ...]:
    return tuple([broker_id for broker_id in state.isr if broker_id in live])


def led_by(state: PartitionState, leader: int, isr: tuple[int, ...]) -> PartitionState:
    """A partition with this leader and ISR; a new leader starts a new leader epoch."""
    if (leader, isr) == (state.leader, state.isr):
        return state
    epoch = state.leader_epoch + (leader != state.leader)
    return replace(state, isr=isr, leader=leader, leader_epoch=epoch)


def with_states(topic: TopicImage, after: Callable[[PartitionState], PartitionState]) -> TopicImage:
    """A topic with a function applied to each partition; the same object if nothing changes."""
    return with_partitions(topic, [after(state) for state in topic.partitions])


def with_partitions(topic: TopicImage, states: Sequence[PartitionState]) -> TopicImage:
    """A topic with these partitions; the same object if all of them are its own."""
    if all(new is old for new, old in zip(states, topic.partitions, strict=True)):
        return topic
    return replace(topic, partitions=tuple(states))
