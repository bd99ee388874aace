"""Who leads: every decision on it. Pure: topics, living brokers and answers in; changes and questions out.

`decide` tells the controller what to do next, one step at a time: fail over, elect, shrink ISRs, raise replication. A
change is a function of the topic as it is stored, applied again in each compare-and-set, and names the brokers that the
transaction has to check. The other functions are for brokers that change their own part: a broker that crashed, stops
or has lost a disk, a leader that hands over its partitions, and the broker that a client asks for an election.

Invariants: leaders change through this module only; applying a change twice is the same as applying it once.
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

#: A partition by the id of its topic and its number.
PartitionKey: TypeAlias = tuple[Lineage, int]


@dataclass(frozen=True, slots=True)
class Situation:
    """What a round of the controller goes by, as it was when the round began."""

    brokers: Mapping[int, BrokerImage]
    #: The topics that may need a leader or replicas: all of them after a broker has come or gone.
    due: Sequence[TopicImage]
    is_unclean: Callable[[TopicImage], bool]
    #: How many replicas internal topics should have, by name.
    factors: Mapping[str, int]


# --- questions


class Inquiry(NamedTuple):
    """A partition in one leader epoch, and the replicas to ask for the ends of their logs."""

    lineage: Lineage
    partition: TopicPartition
    leader_epoch: int
    replicas: tuple[int, ...]
    #: Those of them that are not in sync.
    outsiders: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class LogEndsQuestion:
    """Ask living replicas how far their logs reach, where a partition has no leader."""

    inquiries: tuple[Inquiry, ...]


@dataclass(frozen=True, slots=True)
class LeadersQuestion:
    """Ask leaders whether they are there, where a broker in their ISR is gone."""

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
    """Replace leaders that are gone; where several replicas could lead, nobody leads until they have been asked."""

    lineages: tuple[Lineage, ...]
    #: The leaders of all topics that are due.
    leaders: tuple[int, ...]
    is_unclean: Callable[[TopicImage], bool]
    #: How many partitions another broker leads after it, and how many nobody.
    moved: int
    leaderless: int

    def gone(self, live: Collection[int]) -> list[int]:
        """The leaders that must still be gone when the change is written."""
        return [broker_id for broker_id in self.leaders if broker_id not in live]

    def applied_to(self, topic: TopicImage, live: Collection[int]) -> TopicImage:
        """The topic after it; `live` are all brokers that were registered at any time since the round began."""
        return failed_over(topic, live, self.is_unclean)


@dataclass(frozen=True, slots=True)
class Elect:
    """Make the longest logs lead, by what the replicas have answered."""

    lineages: tuple[Lineage, ...]
    #: For each partition the epoch without a leader in which the replicas were asked, and their answers.
    found: Mapping[Lineage, Mapping[int, tuple[int, Mapping[int, LogEnd]]]]
    #: The brokers that answered about a partition that they are not in sync with. No ISR shows that one of them has
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
        """The topic after it; `live` are the brokers that are eligible when it is written."""
        return with_longest_leaders(topic, self.found[topic.lineage], live)

    def waiting(self, topics: Iterable[TopicImage]) -> list[PartitionKey]:
        """The partitions that have no leader yet, in topics after the change."""
        return [
            (topic.lineage, number)
            for topic in topics
            for number, (leader_epoch, _) in self.found.get(topic.lineage, {}).items()
            if (topic.partitions[number].leader, topic.partitions[number].leader_epoch) == (NO_LEADER, leader_epoch)
        ]


@dataclass(frozen=True, slots=True)
class Shrink:
    """Take brokers that are gone out of the ISRs whose leaders have answered."""

    lineages: tuple[Lineage, ...]
    #: The partitions whose leaders have answered, and in which epoch.
    confirmed: Mapping[Lineage, Mapping[int, int]]
    #: Those whose leaders have not.
    silent: tuple[PartitionKey, ...]

    def applied_to(self, topic: TopicImage, live: Collection[int]) -> TopicImage:
        """The topic after it; `live` are the brokers of the round."""
        return without_the_dead(topic, live, self.confirmed[topic.lineage])


@dataclass(frozen=True, slots=True)
class RaiseReplication:
    """Give internal topics more replicas, now that there are brokers for them."""

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
    """What the controller does next, after a question was answered or a change carried out; None when all is done.

    `topics` are all topics as they are now. Each kind of change is made at most once in a round, so that a topic that
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
#: The order of a round: each change, and what leads to it. Each step starts from what those before it have left.
_STEPS: tuple[tuple[type[Change], _Step], ...] = (
    (FailOver, _fail_over),
    (Elect, _ask_log_ends),
    (Shrink, _ask_leaders),
    (RaiseReplication, _raise_replication),
)


# --- brokers that leave


def without_broker(topic: TopicImage, broker_id: int) -> TopicImage:
    """A topic after a broker left the ISRs of others; what it led is led by nobody until the controller has asked.

    A broker that leaves cannot choose the next leader: the registrations of this moment say little, as right after an
    outage of the store there are none. The controller waits for brokers that may still return, and asks how long their
    logs are.
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
    """A topic after a broker can no longer serve some of its partitions, and left what others can."""
    without = without_broker(topic, broker_id)
    states = [
        without.partitions[number] if number in numbers else state for number, state in enumerate(topic.partitions)
    ]
    return with_partitions(topic, states)


def after_crash(topic: TopicImage, broker_id: int) -> TopicImage:
    """A topic after a broker may have lost the ends of its logs.

    Where it led, nobody leads for now if there is another replica, which may have what was lost, also where it is not
    in sync: it was, until a moment ago. A replica that is the only one leads on, in another epoch.
    """

    def again(state: PartitionState) -> PartitionState:
        if state.leader != broker_id:
            return state
        if len(state.replicas) > 1:
            return led_by(state, NO_LEADER, state.isr)
        return replace(state, leader_epoch=state.leader_epoch + 1)

    return with_states(without_broker(topic, broker_id), again)


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
    return with_partitions(topic, states)


def leaves_with_confirmation(state: PartitionState, broker_id: int, live: Collection[int]) -> bool:
    """Whether a broker that stops leaves an ISR, if the leader is still there."""
    return broker_id in state.isr and state.leader != broker_id and state.leader in live


# --- leaders that a broker hands over, or a client asks for


def with_heirs(topic: TopicImage, leader: int, heirs: Mapping[int, tuple[int, int]]) -> TopicImage:
    """A topic after its leader handed over partitions, where nothing else has happened to them.

    `heirs` has, for partitions, the leader epoch in which the heir had all records, and the heir.
    """
    states = list(topic.partitions)
    for number, (leader_epoch, heir) in heirs.items():
        state = states[number]
        if (state.leader, state.leader_epoch) == (leader, leader_epoch) and heir in state.isr:
            states[number] = led_by(state, heir, state.isr)
    return with_partitions(topic, states)


class ElectionType(IntEnum):
    """Which leaders a client asks for, as the protocol numbers it."""

    PREFERRED = 0
    UNCLEAN = 1


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
        return led_by(state, first, state.isr)

    return with_states(topic, after)


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
    return with_partitions(topic, states), refusals


def _elect(state: PartitionState, election: ElectionType, live: Collection[int]) -> PartitionState:
    first = state.replicas[0]
    # The controller elects replicas in sync by itself, after it has asked how long their logs are.
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
