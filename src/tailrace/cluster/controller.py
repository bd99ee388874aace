"""What becomes of partitions when brokers come and go. Pure: topics and who is alive in, changed topics out.

Keeps these invariants: the longest log in sync leads, or one that holds even more of what the last leader wrote; which
that is, replicas are asked in an epoch without a leader; others are elected only where the topic allows it; every
change of a leader is a new leader epoch; nothing is ever added to an ISR here but a leader that was elected from
outside it, and nobody who is only gone is taken out of one but where its leader has just answered; a plan of what a
plan made is empty. Each function gives the very topic back where nothing changes, and can be asked again with what
somebody else made of the topic meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import IntEnum
from typing import NamedTuple

from tailrace.cluster.image import NO_LEADER, BrokerImage, PartitionState, TopicImage
from tailrace.cluster.placement import Load, add_replicas
from tailrace.errors import ErrorCode, KafkaError


class ElectionType(IntEnum):
    """Which leaders a client asks for, as the protocol numbers it."""

    PREFERRED = 0
    UNCLEAN = 1


class LogEnd(NamedTuple):
    """Where a replica's log ends, and the leader epoch of its last record: the larger one is the longer log."""

    epoch: int
    offset: int


# --- brokers that are gone, and that are back


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
            leader = _first(state.replicas, state.replicas, live)
            return _led_by(state, leader, state.isr if leader == NO_LEADER else (leader,))
        return _led_by(state, _unrivalled(state, candidates, live), state.isr)

    return _with_states(topic, after)


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
    if all(new is old for new, old in zip(states, topic.partitions, strict=True)):
        return topic
    return replace(topic, partitions=tuple(states))


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
    if all(new is old for new, old in zip(states, topic.partitions, strict=True)):
        return topic
    return replace(topic, partitions=tuple(states))


def without_broker(topic: TopicImage, broker_id: int) -> TopicImage:
    """A topic after a broker left the ISRs of others; what it led is led by nobody until the controller has asked.

    Whoever leaves cannot choose its heir: who is registered at this moment says little, as after an outage of the store
    nobody is at first. The controller waits for those who may only not be back yet, and asks how far the logs are.
    """

    def after(state: PartitionState) -> PartitionState:
        others = tuple(member for member in state.isr if member != broker_id)
        if not others or (broker_id not in state.isr and state.leader != broker_id):
            return state
        if state.leader != broker_id:
            return replace(state, isr=others)
        return _led_by(state, NO_LEADER, others)

    return _with_states(topic, after)


def without_replicas(topic: TopicImage, broker_id: int, numbers: Collection[int]) -> TopicImage:
    """A topic after a broker can no longer serve some of its partitions, and left what others can."""
    without = without_broker(topic, broker_id)
    states = tuple(
        without.partitions[number] if number in numbers else state for number, state in enumerate(topic.partitions)
    )
    if all(new is old for new, old in zip(states, topic.partitions, strict=True)):
        return topic
    return replace(topic, partitions=states)


def after_crash(topic: TopicImage, broker_id: int) -> TopicImage:
    """A topic after a broker may have lost the ends of its logs.

    Where it led, nobody leads for now if there is another replica, which may have what was lost, also where it is not
    in sync: it was, until a moment ago. A replica that is the only one leads on, in another epoch.
    """

    def again(state: PartitionState) -> PartitionState:
        if state.leader != broker_id:
            return state
        if len(state.replicas) > 1:
            return _led_by(state, NO_LEADER, state.isr)
        return replace(state, leader_epoch=state.leader_epoch + 1)

    return _with_states(without_broker(topic, broker_id), again)


def handed_over(topic: TopicImage, broker_id: int, live: Collection[int], confirmed: Mapping[int, int]) -> TopicImage:
    """A topic after a broker that is about to stop left the ISRs of others' partitions.

    `confirmed` has the partitions whose leaders have just answered, and in which epoch: one that does not may have died
    with its disk, and then this broker's log is what is left. What it still leads it keeps: its heir did not catch up,
    and only the controller can ask who is furthest when this broker is gone.
    """
    states = list(topic.partitions)
    for number, leader_epoch in confirmed.items():
        state = states[number]
        if leaves_with_confirmation(state, broker_id, live) and state.leader_epoch == leader_epoch:
            states[number] = replace(state, isr=tuple(member for member in state.isr if member != broker_id))
    if all(new is old for new, old in zip(states, topic.partitions, strict=True)):
        return topic
    return replace(topic, partitions=tuple(states))


def leaves_with_confirmation(state: PartitionState, broker_id: int, live: Collection[int]) -> bool:
    """Whether a broker that stops leaves an ISR, if the leader is still there."""
    return broker_id in state.isr and state.leader != broker_id and state.leader in live


# --- preferred leaders


def plan_preferred(topics: Iterable[TopicImage], live: Collection[int], imbalance_percent: int) -> list[TopicImage]:
    """The topics whose leaders go back to their first replicas, for brokers that lead too few of what they should."""
    topics = list(topics)
    preferred: dict[int, int] = {}
    elsewhere: dict[int, int] = {}
    for topic in topics:
        for state in topic.partitions:
            first = state.replicas[0]
            preferred[first] = preferred.get(first, 0) + 1
            if state.leader != first:
                elsewhere[first] = elsewhere.get(first, 0) + 1
    deprived = [
        broker_id
        for broker_id, missing in elsewhere.items()
        if broker_id in live and missing * 100 > imbalance_percent * preferred[broker_id]
    ]
    planned = [(topic, with_preferred_leaders(topic, deprived)) for topic in topics] if deprived else []
    return [changed for topic, changed in planned if changed is not topic]


def with_preferred_leaders(topic: TopicImage, brokers: Collection[int]) -> TopicImage:
    """A topic where these brokers lead again what they are the first replica of and in sync with."""

    def after(state: PartitionState) -> PartitionState:
        first = state.replicas[0]
        if state.leader == first or first not in brokers or first not in state.isr:
            return state
        return _led_by(state, first, state.isr)

    return _with_states(topic, after)


def elect(
    topic: TopicImage, numbers: Sequence[int], election: ElectionType, live: Collection[int]
) -> tuple[TopicImage, dict[int, KafkaError]]:
    """A topic after the elections that a client asks for, and why there was none."""
    states = list(topic.partitions)
    refusals: dict[int, KafkaError] = {}
    for number in numbers:
        if not 0 <= number < len(states):
            refusals[number] = KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {topic.name}-{number}"
            )
            continue
        try:
            states[number] = _elect(states[number], election, live)
        except KafkaError as refusal:
            refusals[number] = refusal
    changed = any(after is not before for after, before in zip(states, topic.partitions, strict=True))
    return (replace(topic, partitions=tuple(states)) if changed else topic), refusals


def _elect(state: PartitionState, election: ElectionType, live: Collection[int]) -> PartitionState:
    first = state.replicas[0]
    # Whoever is in sync is elected by the controller, which asks how far they are; that needs no client.
    has_leader = state.leader != NO_LEADER or bool(candidates_for(state, live))
    if (state.leader == first) if election is ElectionType.PREFERRED else has_leader:
        raise KafkaError(ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")
    if election is ElectionType.PREFERRED:
        if first not in live or first not in state.isr:
            raise KafkaError(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "The preferred leader was not available.")
        return _led_by(state, first, state.isr)
    leader = _first(state.replicas, state.replicas, live)
    if leader == NO_LEADER:
        raise KafkaError(
            ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "Eligible topic partition leaders are not available."
        )
    return _led_by(state, leader, (leader,))


# --- internal topics


def plan_internal_replication(
    topics: Iterable[TopicImage], brokers: Mapping[int, BrokerImage], factors: Mapping[str, int]
) -> list[TopicImage]:
    """The internal topics that get more replicas, now that there are the brokers for them; `factors` are by name."""
    topics = list(topics)
    load = Load.of(topics)
    planned = [(topic, with_replicas(topic, brokers, factors.get(topic.name, 0), load)) for topic in topics]
    return [changed for topic, changed in planned if changed is not topic]


def with_replicas(topic: TopicImage, brokers: Mapping[int, BrokerImage], factor: int, load: Load) -> TopicImage:
    """A topic with as many replicas as asked for and possible; the new ones are in sync when they have caught up."""
    own = Load()
    for state in topic.partitions:
        own.add(state.replicas)

    def after(state: PartitionState) -> PartitionState:
        reachable = sum(1 for broker_id in brokers if broker_id not in state.replicas) + len(state.replicas)
        if len(state.replicas) >= min(factor, reachable):
            return state
        replicas = add_replicas(state.replicas, brokers, min(factor, reachable), own, load)
        further = replicas[len(state.replicas) :]
        own.add_followers(replicas[0], further)
        return replace(state, replicas=replicas)

    return _with_states(topic, after)


# --- parts


def _first(replicas: Sequence[int], among: Collection[int], live: Collection[int]) -> int:
    """The first replica that is among those and alive; the order of the replicas is the order of preference."""
    for broker_id in replicas:
        if broker_id in among and broker_id in live:
            return broker_id
    return NO_LEADER


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
        return _led_by(state, furthest, (furthest, *_living(state, live)))
    return _led_by(state, best, _living(state, live))


def _living(state: PartitionState, live: Collection[int]) -> tuple[int, ...]:
    return tuple([broker_id for broker_id in state.isr if broker_id in live])


def _led_by(state: PartitionState, leader: int, isr: tuple[int, ...]) -> PartitionState:
    if (leader, isr) == (state.leader, state.isr):
        return state
    epoch = state.leader_epoch + (leader != state.leader)
    return replace(state, isr=isr, leader=leader, leader_epoch=epoch)


def _with_states(topic: TopicImage, after: Callable[[PartitionState], PartitionState]) -> TopicImage:
    states = tuple([after(state) for state in topic.partitions])
    if all(new is old for new, old in zip(states, topic.partitions, strict=True)):
        return topic
    return replace(topic, partitions=states)
