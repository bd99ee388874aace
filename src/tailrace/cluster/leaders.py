"""Who can lead a partition and be in sync, among the brokers that live: the parts that decisions are made of. Pure.

Keeps these invariants: the longest log in sync leads, or one that holds even more of what the last leader wrote;
replicas are asked which that is in an epoch without a leader; others are elected only where the topic allows it; every
change of a leader is a new leader epoch; an election adds nobody to an ISR but a leader from outside it; a broker that
is gone leaves an ISR only where the leader has just answered. Each function returns the very topic it was given where
nothing changes, and can be applied again to a topic that another broker has changed meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from tailrace.cluster.image import NO_LEADER, PartitionState, TopicImage


class LogEnd(NamedTuple):
    """Where a replica's log ends, and the leader epoch of its last record: the larger one is the longer log."""

    epoch: int
    offset: int


def plan_failover(
    topics: Iterable[TopicImage], live: Collection[int], is_unclean: Callable[[TopicImage], bool]
) -> list[TopicImage]:
    """The topics that change when only these brokers are alive."""
    planned = [(topic, failed_over(topic, live, is_unclean)) for topic in topics]
    return [changed for topic, changed in planned if changed is not topic]


def failed_over(topic: TopicImage, live: Collection[int], is_unclean: Callable[[TopicImage], bool]) -> TopicImage:
    """A topic whose leaders are alive, where any can be.

    Where another replica lives beside the one that could lead there is none for now: `with_longest_leaders` chooses
    when they have said how far they are.
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
    """Whether a living leader has somebody in its ISR who is not alive."""
    return state.leader in live and not all(broker_id in live for broker_id in state.isr)


def without_the_dead(topic: TopicImage, live: Collection[int], confirmed: Mapping[int, int]) -> TopicImage:
    """A topic whose ISRs are of living brokers, where their leaders go on.

    `confirmed` has the partitions whose leaders have just answered, and in which epoch. One that is alive to the store
    may have died with its disk a moment ago. What it leaves behind then is in the logs of the others in sync, and only
    as long as they stay in sync does it not lead again without them.
    """
    states = list(topic.partitions)
    for number, leader_epoch in confirmed.items():
        state = states[number]
        if state.leader_epoch == leader_epoch and has_dead(state, live):
            states[number] = replace(state, isr=_living(state, live))
    return with_partitions(topic, states)


def candidates_for(state: PartitionState, live: Collection[int]) -> tuple[int, ...]:
    """Who is in sync and alive, in the order of preference."""
    return tuple(broker_id for broker_id in state.replicas if broker_id in state.isr and broker_id in live)


def outsiders_of(state: PartitionState, live: Collection[int]) -> tuple[int, ...]:
    """Who is alive and not in sync, in the order of preference."""
    return tuple(broker_id for broker_id in state.replicas if broker_id not in state.isr and broker_id in live)


def with_longest_leaders(
    topic: TopicImage, ends: Mapping[int, tuple[int, Mapping[int, LogEnd]]], live: Collection[int]
) -> TopicImage:
    """A topic whose leaderless partitions are led by the longest log.

    `ends` has, for partitions, the epoch without a leader in which the replicas were asked, and what they said.
    """
    states = list(topic.partitions)
    for number, (leader_epoch, found) in ends.items():
        state = states[number]
        if (state.leader, state.leader_epoch) == (NO_LEADER, leader_epoch):
            states[number] = _led_by_longest(state, found, live)
    return with_partitions(topic, states)


# --- parts


def first_living(replicas: Sequence[int], live: Collection[int]) -> int:
    """The first replica that is alive; the order of the replicas is the order of preference."""
    return next((broker_id for broker_id in replicas if broker_id in live), NO_LEADER)


def _unrivalled(state: PartitionState, candidates: Sequence[int], live: Collection[int]) -> int:
    """Who leads without being asked how far it is: the candidate beside whom no replica lives."""
    rivals = [broker_id for broker_id in state.replicas if broker_id in live and broker_id not in candidates]
    return candidates[0] if len(candidates) == 1 and not rivals else NO_LEADER


def _led_by_longest(state: PartitionState, found: Mapping[int, LogEnd], live: Collection[int]) -> PartitionState:
    candidates = [broker_id for broker_id in candidates_for(state, live) if broker_id in found]
    if not candidates:
        return state
    best = max(candidates, key=found.__getitem__)
    # A replica that was taken out of the ISR may have been counted by the last leader, which did not know it yet. It
    # has what that leader acknowledged where it has records of its epoch: then its log is a part of the leader's, and
    # all that is committed is in the part before, or below the end of the best in sync. Of older epochs that is not so.
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
    """A partition with this leader and ISR; another leader is another leader epoch."""
    if (leader, isr) == (state.leader, state.isr):
        return state
    epoch = state.leader_epoch + (leader != state.leader)
    return replace(state, isr=isr, leader=leader, leader_epoch=epoch)


def with_states(topic: TopicImage, after: Callable[[PartitionState], PartitionState]) -> TopicImage:
    """A topic with what a function makes of each partition; the very topic where nothing changes."""
    return with_partitions(topic, [after(state) for state in topic.partitions])


def with_partitions(topic: TopicImage, states: Sequence[PartitionState]) -> TopicImage:
    """A topic with these partitions; the very topic where all of them are its own."""
    if all(new is old for new, old in zip(states, topic.partitions, strict=True)):
        return topic
    return replace(topic, partitions=tuple(states))
