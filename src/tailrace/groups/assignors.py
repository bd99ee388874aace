"""The assignors of the coordinator: who shall own which partition, decided here and not by a client.

Pure functions of members, topics and the assignment so far. `uniform` spreads partitions evenly over those who want
them, leaves them where they are as far as it can, and prefers a member in a rack that has a replica; `range` gives
each member neighbouring partitions, the same numbers of every topic, so that topics can be joined.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from tailrace.groups.assignment import NOTHING, Assignment, of_pairs, pairs_of
from tailrace.model import Lineage

Pair: TypeAlias = tuple[Lineage, int]


class AssignedTopic(NamedTuple):
    """A topic to be shared out: its partitions, and the racks in which each has a replica."""

    lineage: Lineage
    partitions: int
    racks: tuple[frozenset[str], ...] = ()

    def rack_of(self, partition: int) -> frozenset[str]:
        return self.racks[partition] if partition < len(self.racks) else frozenset()


class Candidate(NamedTuple):
    """A member that wants partitions of some topics, and those that it was to have before."""

    member_id: str
    topics: frozenset[Lineage]
    before: Assignment = NOTHING
    instance_id: str | None = None
    rack: str | None = None

    @property
    def place(self) -> str:
        """What it is sorted by: a static member keeps its place over restarts."""
        return self.instance_id or self.member_id


Assignor: TypeAlias = Callable[[Sequence[Candidate], Mapping[Lineage, AssignedTopic]], dict[str, Assignment]]


def assign_range(candidates: Sequence[Candidate], topics: Mapping[Lineage, AssignedTopic]) -> dict[str, Assignment]:
    """Neighbouring partitions of each topic to each member that wants it."""
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
    """As even as the subscriptions allow, moving as little as that takes."""
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
        """Scarce partitions first; each to the least loaded who wants it, in its rack if that costs no evenness."""
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
        """Move partitions from the loaded to the idle while that makes the two more alike."""
        # One at a time, from whoever has most by then: one giver alone would give what it has to get back from others.
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
                # What suits the receiver's rack goes first, then what came last.
                racks = self._topics[lineage]
                best = max(pairs, key=lambda pair: (receiver.rack in racks.rack_of(pair[1]), pair[1])), receiver
                lowest = self._load(receiver)
        return best


ASSIGNORS: Mapping[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}
