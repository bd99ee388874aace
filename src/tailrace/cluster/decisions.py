"""All decisions on who leads. Pure: topics, live brokers and answers in; changes and questions out.

`decide` tells the controller what to do next, one step at a time: fail over, elect, shrink ISRs, raise the replication
factor. A change is a function of the stored topic, applied again in each compare-and-set, and names the brokers that
the transaction must check. The other functions are for brokers that change their own part: a broker that crashed, stops
or has lost a disk, a leader that hands over its partitions, and the broker that a client asks for an election.

Invariants: leaders change only through this module; applying a change twice has the same effect as applying it once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from tailrace.cluster.image import NO_LEADER, BrokerImage, PartitionState, TopicImage
from tailrace.cluster.leaders import (
    LogEnd,
    candidates_for,
    failed_over,
    first_living,
    has_dead,
    led_by,
    outsiders_of,
    plan_failover,
    with_longest_leaders,
    with_partitions,
    with_states,
    without_the_dead,
)
from tailrace.cluster.placement import Load, plan_internal_replication, with_replicas
from tailrace.errors import ErrorCode, KafkaError
from tailrace.model import Lineage, TopicPartition

#: A partition, by its topic's lineage and its number.
PartitionKey: TypeAlias = tuple[Lineage, int]


@dataclass(frozen=True, slots=True)
class Situation:
    """The input of a controller round, as of its start."""

    brokers: Mapping[int, BrokerImage]
    #: The topics that may need a leader or replicas: all topics after a broker joined or left.
    due: Sequence[TopicImage]
    is_unclean: Callable[[TopicImage], bool]
    #: The target replication factor of internal topics, by name.
    factors: Mapping[str, int]


# --- questions


class Inquiry(NamedTuple):
    """A partition in one leader epoch, and the replicas to ask for their log ends."""

    lineage: Lineage
    partition: TopicPartition
    leader_epoch: int
    replicas: tuple[int, ...]
    #: Those of the replicas that are not in sync.
    outsiders: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class LogEndsQuestion:
    """Ask live replicas of partitions without a leader for their log ends."""

    inquiries: tuple[Inquiry, ...]


@dataclass(frozen=True, slots=True)
class LeadersQuestion:
    """Ask leaders whether they respond, where a broker in their ISR is gone."""

    inquiries: tuple[Inquiry, ...]


Question: TypeAlias = LogEndsQuestion | LeadersQuestion


@dataclass(frozen=True, slots=True)
class Answers:
    """A question, and the log ends of the replicas that answered in time."""

    question: Question
    ends: Mapping[TopicPartition, Mapping[int, LogEnd]]


# --- changes


@dataclass(frozen=True, slots=True)
class FailOver:
    """Replace leaders that are gone; if several replicas could lead, there is no leader until they have answered."""

    lineages: tuple[Lineage, ...]
    #: The leaders of all due topics.
    leaders: tuple[int, ...]
    is_unclean: Callable[[TopicImage], bool]
    #: How many partitions get another leader, and how many get none.
    moved: int
    leaderless: int

    def gone(self, live: Collection[int]) -> list[int]:
        """The leaders that must still be gone when the change is written."""
        return [broker_id for broker_id in self.leaders if broker_id not in live]

    def applied_to(self, topic: TopicImage, live: Collection[int]) -> TopicImage:
        """The topic after it; `live` has all brokers that were registered at any time since the round began."""
        return failed_over(topic, live, self.is_unclean)


@dataclass(frozen=True, slots=True)
class Elect:
    """Elect the replicas with the longest logs, according to their answers."""

    lineages: tuple[Lineage, ...]
    #: For each partition, the leaderless epoch in which the replicas were asked, and their answers.
    found: Mapping[Lineage, Mapping[int, tuple[int, Mapping[int, LogEnd]]]]
    #: The brokers that answered for a partition without being in its ISR. No ISR shows whether such a broker has
    #: restarted, so the transaction checks their broker epochs.
    outsiders: tuple[int, ...]

    def eligible(self, brokers: Mapping[int, BrokerImage], epochs: Mapping[int, int]) -> list[int]:
        """The brokers whose answers still count: an outsider must be in the broker epoch of its registration."""
        return [
            broker_id
            for broker_id, broker in brokers.items()
            if broker_id not in self.outsiders or epochs.get(broker_id) == broker.epoch
        ]

    def applied_to(self, topic: TopicImage, live: Collection[int]) -> TopicImage:
        """The topic after it; `live` has the brokers that are eligible when it is written."""
        return with_longest_leaders(topic, self.found[topic.lineage], live)

    def waiting(self, topics: Iterable[TopicImage]) -> list[PartitionKey]:
        """The partitions that still have no leader, in topics after the change."""
        return [
            (topic.lineage, number)
            for topic in topics
            for number, (leader_epoch, _) in self.found.get(topic.lineage, {}).items()
            if (topic.partitions[number].leader, topic.partitions[number].leader_epoch) == (NO_LEADER, leader_epoch)
        ]


@dataclass(frozen=True, slots=True)
class Shrink:
    """Remove brokers that are gone from the ISRs of leaders that answered."""

    lineages: tuple[Lineage, ...]
    #: The partitions whose leaders answered, with the leader epoch.
    confirmed: Mapping[Lineage, Mapping[int, int]]
    #: The partitions whose leaders did not answer.
    silent: tuple[PartitionKey, ...]

    def applied_to(self, topic: TopicImage, live: Collection[int]) -> TopicImage:
        """The topic after it; `live` has the live brokers of the round."""
        return without_the_dead(topic, live, self.confirmed[topic.lineage])


@dataclass(frozen=True, slots=True)
class RaiseReplication:
    """Add replicas to internal topics, now that there are enough brokers."""

    lineages: tuple[Lineage, ...]
    names: tuple[str, ...]
    brokers: Mapping[int, BrokerImage]
    factors: Mapping[str, int]
    load: Load

    def applied_to(self, topic: TopicImage, live: Collection[int]) -> TopicImage:
        """The topic after it."""
        return with_replicas(topic, self.brokers, self.factors[topic.name], self.load)


Change: TypeAlias = FailOver | Elect | Shrink | RaiseReplication


# --- a round of the controller


def decide(
    topics: Sequence[TopicImage], situation: Situation, past: Answers | Change | None = None
) -> Question | Change | None:
    """What the controller does next, after an answer or a change; None when the round is done.

    `topics` are all topics as they are now. A round makes each kind of change at most once, so that a topic which
    others keep changing cannot hold up the rest.
    """
    if isinstance(past, Answers):
        if isinstance(past.question, LogEndsQuestion):
            return _elect_by(past, topics)
        return _shrink_by(past, topics)
    kinds = [kind for kind, _ in _STEPS]
    done = 0 if past is None else kinds.index(type(past)) + 1
    for _, step in _STEPS[done:]:
        decision = step(topics, situation)
        if decision is not None:
            return decision
    return None


def _fail_over(topics: Sequence[TopicImage], situation: Situation) -> FailOver | None:
    due = situation.due
    planned = plan_failover(due, situation.brokers, situation.is_unclean)
    if not planned:
        return None
    before = {topic.lineage: topic for topic in due}
    moved = leaderless = 0
    for topic in planned:
        for old, new in zip(before[topic.lineage].partitions, topic.partitions, strict=True):
            moved += new.leader not in (old.leader, NO_LEADER)
            leaderless += new.leader == NO_LEADER != old.leader
    leaders = {state.leader for topic in due for state in topic.partitions if state.leader != NO_LEADER}
    lineages = tuple([topic.lineage for topic in planned])
    return FailOver(lineages, tuple(sorted(leaders)), situation.is_unclean, moved, leaderless)


def _ask_log_ends(topics: Sequence[TopicImage], situation: Situation) -> LogEndsQuestion | None:
    inquiries: list[Inquiry] = []
    for topic in topics:
        for number, state in enumerate(topic.partitions):
            if state.leader != NO_LEADER:
                continue
            candidates = candidates_for(state, situation.brokers)
            if candidates:
                outsiders = outsiders_of(state, situation.brokers)
                partition = TopicPartition(topic.name, number)
                inquiries.append(
                    Inquiry(topic.lineage, partition, state.leader_epoch, (*candidates, *outsiders), outsiders)
                )
    return LogEndsQuestion(tuple(inquiries)) if inquiries else None


def _elect_by(answers: Answers, topics: Sequence[TopicImage]) -> Elect:
    found: dict[Lineage, dict[int, tuple[int, Mapping[int, LogEnd]]]] = {}
    outsiders: dict[int, None] = {}
    for inquiry in answers.question.inquiries:
        ends = answers.ends[inquiry.partition]
        found.setdefault(inquiry.lineage, {})[inquiry.partition.partition] = (inquiry.leader_epoch, ends)
        outsiders.update(dict.fromkeys(broker_id for broker_id in inquiry.outsiders if broker_id in ends))
    return Elect(tuple([topic.lineage for topic in topics if topic.lineage in found]), found, tuple(outsiders))


def _ask_leaders(topics: Sequence[TopicImage], situation: Situation) -> LeadersQuestion | None:
    inquiries = [
        Inquiry(topic.lineage, TopicPartition(topic.name, number), state.leader_epoch, (state.leader,))
        for topic in topics
        for number, state in enumerate(topic.partitions)
        if has_dead(state, situation.brokers)
    ]
    return LeadersQuestion(tuple(inquiries)) if inquiries else None


def _shrink_by(answers: Answers, topics: Sequence[TopicImage]) -> Shrink:
    confirmed: dict[Lineage, dict[int, int]] = {}
    silent: list[PartitionKey] = []
    for inquiry in answers.question.inquiries:
        if answers.ends[inquiry.partition]:
            confirmed.setdefault(inquiry.lineage, {})[inquiry.partition.partition] = inquiry.leader_epoch
        else:
            silent.append((inquiry.lineage, inquiry.partition.partition))
    return Shrink(tuple([topic.lineage for topic in topics if topic.lineage in confirmed]), confirmed, tuple(silent))


def _raise_replication(topics: Sequence[TopicImage], situation: Situation) -> RaiseReplication | None:
    brokers, factors = situation.brokers, situation.factors
    planned = plan_internal_replication(situation.due, brokers, factors)
    if not planned:
        return None
    lineages = tuple([topic.lineage for topic in planned])
    return RaiseReplication(lineages, tuple([topic.name for topic in planned]), brokers, factors, Load.of(topics))


_Step: TypeAlias = Callable[[Sequence[TopicImage], Situation], Question | Change | None]
#: The steps of a round, in order, with the change each leads to. Each step starts from the results of earlier ones.
_STEPS: tuple[tuple[type[Change], _Step], ...] = (
    (FailOver, _fail_over),
    (Elect, _ask_log_ends),
    (Shrink, _ask_leaders),
    (RaiseReplication, _raise_replication),
)


# --- brokers that leave


def without_broker(topic: TopicImage, broker_id: int) -> TopicImage:
    """A topic after a broker left the ISRs of others; the controller elects leaders for partitions that it led.

    A broker that leaves cannot choose the next leader, because current registrations may be incomplete: right after an
    outage of the store there are none. The controller waits for brokers that may return, and asks replicas for their
    log ends.
    """

    def after(state: PartitionState) -> PartitionState:
        others = tuple(member for member in state.isr if member != broker_id)
        if not others or (broker_id not in state.isr and state.leader != broker_id):
            return state
        if state.leader != broker_id:
            return replace(state, isr=others)
        return led_by(state, NO_LEADER, others)

    return with_states(topic, after)


def without_replicas(topic: TopicImage, broker_id: int, numbers: Collection[int]) -> TopicImage:
    """A topic after a broker can no longer serve some partitions, and left the ISRs where others can."""
    without = without_broker(topic, broker_id)
    states = [
        without.partitions[number] if number in numbers else state for number, state in enumerate(topic.partitions)
    ]
    return with_partitions(topic, states)


def after_crash(topic: TopicImage, broker_id: int) -> TopicImage:
    """A topic after a broker may have lost the ends of its logs.

    A partition that it led has no leader for now if there is another replica. That replica may have what was lost, even
    if it is not in the ISR, because it was until a moment ago. A sole replica leads on in a new epoch.
    """

    def again(state: PartitionState) -> PartitionState:
        if state.leader != broker_id:
            return state
        if len(state.replicas) > 1:
            return led_by(state, NO_LEADER, state.isr)
        return replace(state, leader_epoch=state.leader_epoch + 1)

    return with_states(without_broker(topic, broker_id), again)


def handed_over(topic: TopicImage, broker_id: int, live: Collection[int], confirmed: Mapping[int, int]) -> TopicImage:
    """A topic after a stopping broker left the ISRs of partitions that others lead.

    `confirmed` has the partitions whose leaders have just answered, with the leader epoch. A leader that does not
    answer may have died with its disk, in which case this broker's log is all that is left. Partitions that this broker
    still leads it keeps: their successors did not catch up, and once it is gone the controller asks for the longest
    log.
    """
    states = list(topic.partitions)
    for number, leader_epoch in confirmed.items():
        state = states[number]
        if leaves_with_confirmation(state, broker_id, live) and state.leader_epoch == leader_epoch:
            states[number] = replace(state, isr=tuple(member for member in state.isr if member != broker_id))
    return with_partitions(topic, states)


def leaves_with_confirmation(state: PartitionState, broker_id: int, live: Collection[int]) -> bool:
    """Whether a stopping broker may leave an ISR, provided that the leader responds."""
    return broker_id in state.isr and state.leader != broker_id and state.leader in live


# --- leaders that a broker hands over, or a client asks for


def with_heirs(topic: TopicImage, leader: int, heirs: Mapping[int, tuple[int, int]]) -> TopicImage:
    """A topic after its leader handed over partitions, unless they have changed in between.

    `heirs` has, by partition, the leader epoch in which the successor had all records, and the successor.
    """
    states = list(topic.partitions)
    for number, (leader_epoch, heir) in heirs.items():
        state = states[number]
        if (state.leader, state.leader_epoch) == (leader, leader_epoch) and heir in state.isr:
            states[number] = led_by(state, heir, state.isr)
    return with_partitions(topic, states)


class ElectionType(IntEnum):
    """The kind of election that a client requests, with the protocol's numbers."""

    PREFERRED = 0
    UNCLEAN = 1


def plan_preferred(topics: Iterable[TopicImage], live: Collection[int], imbalance_percent: int) -> list[TopicImage]:
    """The topics whose leadership returns to preferred replicas, for brokers that lead too few of their partitions."""
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
    """A topic in which these brokers lead again wherever they are the first replica and in sync."""

    def after(state: PartitionState) -> PartitionState:
        first = state.replicas[0]
        if state.leader == first or first not in brokers or first not in state.isr:
            return state
        return led_by(state, first, state.isr)

    return with_states(topic, after)


def elect(
    topic: TopicImage, numbers: Sequence[int], election: ElectionType, live: Collection[int]
) -> tuple[TopicImage, dict[int, KafkaError]]:
    """A topic after the elections that a client requested, and the errors by partition."""
    states = list(topic.partitions)
    refusals: dict[int, KafkaError] = {}
    for number in numbers:
        if not 0 <= number < len(states):
            refusals[number] = KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Partition {topic.name}-{number} does not exist"
            )
            continue
        try:
            states[number] = _elect(states[number], election, live)
        except KafkaError as refusal:
            refusals[number] = refusal
    return with_partitions(topic, states), refusals


def _elect(state: PartitionState, election: ElectionType, live: Collection[int]) -> PartitionState:
    first = state.replicas[0]
    # The controller elects in-sync replicas itself, after asking for their log ends.
    has_leader = state.leader != NO_LEADER or bool(candidates_for(state, live))
    if (state.leader == first) if election is ElectionType.PREFERRED else has_leader:
        raise KafkaError(ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")
    if election is ElectionType.PREFERRED:
        if first not in live or first not in state.isr:
            raise KafkaError(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "The preferred leader was not available.")
        return led_by(state, first, state.isr)
    leader = first_living(state.replicas, live)
    if leader == NO_LEADER:
        raise KafkaError(
            ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "Eligible topic partition leaders are not available."
        )
    return led_by(state, leader, (leader,))
