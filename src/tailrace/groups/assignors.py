"""The coordinator's assignors, which decide on the broker which member owns which partition.

They are pure functions of members, topics and the previous assignment. `uniform` spreads partitions evenly over their
subscribers, moves as few as possible, and prefers a member in a rack that has a replica. `range` gives each member
adjacent partitions, with the same numbers in every topic, so that topics can be joined.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from tailrace.groups.assignment import NOTHING, Assignment, of_pairs, pairs_of
from tailrace.model import Lineage

Pair: TypeAlias = tuple[Lineage, int]


class AssignedTopic(NamedTuple):
    """A topic to assign: its partitions, and the racks in which each has a replica."""

    lineage: Lineage
    partitions: int
    racks: tuple[frozenset[str], ...] = ()

    def rack_of(self, partition: int) -> frozenset[str]:
        return self.racks[partition] if partition < len(self.racks) else frozenset()


class Candidate(NamedTuple):
    """A member, the topics it subscribes to, and its previous target assignment."""

    member_id: str
    topics: frozenset[Lineage]
    before: Assignment = NOTHING
    instance_id: str | None = None
    rack: str | None = None

    @property
    def place(self) -> str:
        """The sort key; a static member keeps its place across restarts."""
        return self.instance_id or self.member_id


Assignor: TypeAlias = Callable[[Sequence[Candidate], Mapping[Lineage, AssignedTopic]], dict[str, Assignment]]


def assign_range(candidates: Sequence[Candidate], topics: Mapping[Lineage, AssignedTopic]) -> dict[str, Assignment]:
    """Assign adjacent partitions of each topic to its subscribers."""
    found: dict[str, dict[Lineage, frozenset[int]]] = {candidate.member_id: {} for candidate in candidates}
    ordered = sorted(candidates, key=lambda candidate: (candidate.instance_id is None, candidate.place))
    for topic in topics.values():
        wanting = [candidate for candidate in ordered if topic.lineage in candidate.topics]
        if not wanting:
            continue
        share, more = divmod(topic.partitions, len(wanting))
        first = 0
        for index, candidate in enumerate(wanting):
            count = share + (index < more)
            if count:
                found[candidate.member_id][topic.lineage] = frozenset(range(first, first + count))
            first += count
    return dict(found)


def assign_uniform(candidates: Sequence[Candidate], topics: Mapping[Lineage, AssignedTopic]) -> dict[str, Assignment]:
    """Assign partitions as evenly as the subscriptions allow, moving as few as possible."""
    return _Uniform(candidates, topics).solve()


class _Uniform:
    """One computation of the uniform assignor."""

    def __init__(self, candidates: Sequence[Candidate], topics: Mapping[Lineage, AssignedTopic]) -> None:
        self._topics = topics
        self._candidates = sorted(candidates, key=lambda candidate: candidate.place)
        self._owned: dict[str, dict[Pair, None]] = {candidate.member_id: {} for candidate in self._candidates}
        self._owner: dict[Pair, Candidate] = {}
        self._wanting: dict[Lineage, list[Candidate]] = {
            lineage: [candidate for candidate in self._candidates if lineage in candidate.topics] for lineage in topics
        }

    def solve(self) -> dict[str, Assignment]:
        self._keep_what_may_stay()
        self._give_out_the_rest()
        self._even_out()
        return {member_id: of_pairs(pairs) for member_id, pairs in self._owned.items()}

    def _load(self, candidate: Candidate) -> int:
        return len(self._owned[candidate.member_id])

    def _take(self, candidate: Candidate, pair: Pair) -> None:
        self._owner[pair] = candidate
        self._owned[candidate.member_id][pair] = None

    def _move(self, pair: Pair, receiver: Candidate) -> None:
        del self._owned[self._owner[pair].member_id][pair]
        self._take(receiver, pair)

    def _keep_what_may_stay(self) -> None:
        for candidate in self._candidates:
            for pair in pairs_of(candidate.before):
                topic = self._topics.get(pair[0])
                if topic is None or pair[1] >= topic.partitions or pair[0] not in candidate.topics:
                    continue
                if pair not in self._owner:
                    self._take(candidate, pair)

    def _give_out_the_rest(self) -> None:
        """Assign free partitions, scarce ones first, to the least loaded subscriber; at equal load prefer its rack."""
        free = [
            (topic.lineage, number)
            for topic in self._topics.values()
            if self._wanting[topic.lineage]
            for number in range(topic.partitions)
            if (topic.lineage, number) not in self._owner
        ]
        free.sort(key=lambda pair: len(self._wanting[pair[0]]))
        for pair in free:
            racks = self._topics[pair[0]].rack_of(pair[1])
            self._take(
                min(
                    self._wanting[pair[0]],
                    key=lambda candidate: (self._load(candidate), candidate.rack not in racks),
                ),
                pair,
            )

    def _even_out(self) -> None:
        """Move partitions from loaded members to less loaded ones while that evens out the load."""
        # Move one at a time, always from the most loaded member. Emptying one member first would take partitions that
        # it gets back from others later.
        while self._move_one():
            pass

    def _move_one(self) -> bool:
        for giver in sorted(self._candidates, key=self._load, reverse=True):
            move = self._best_move(giver)
            if move is not None:
                self._move(*move)
                return True
        return False

    def _best_move(self, giver: Candidate) -> tuple[Pair, Candidate] | None:
        best: tuple[Pair, Candidate] | None = None
        lowest = self._load(giver) - 1
        for lineage in dict.fromkeys(pair[0] for pair in self._owned[giver.member_id]):
            for receiver in self._wanting[lineage]:
                if self._load(receiver) >= lowest:
                    continue
                pairs = [pair for pair in self._owned[giver.member_id] if pair[0] == lineage]
                # Prefer a partition with a replica in the receiver's rack, then the one with the highest number.
                racks = self._topics[lineage]
                best = max(pairs, key=lambda pair: (receiver.rack in racks.rack_of(pair[1]), pair[1])), receiver
                lowest = self._load(receiver)
        return best


ASSIGNORS: Mapping[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}
