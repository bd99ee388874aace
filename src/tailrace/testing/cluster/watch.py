"""Observes a simulated cluster while it runs: every log, every role, and every change of the store.

Owns how far each replica has been checked. It sees what no client can, and changes nothing. Its observations go into
the history, which checks them; it checks changes of the store, and the state of replicas, itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tailrace.cluster.image import NO_LEADER, PartitionState, TopicImage
from tailrace.cluster.keys import CONTROLLER, TOPICS, ElectedController, topic_of
from tailrace.cluster.store import Entry
from tailrace.model import INTERNAL_TOPICS, Lineage, TopicPartition
from tailrace.records.batch import has_valid_crc, iterate_batches
from tailrace.records.record import iterate_records
from tailrace.replication.partition import Partition
from tailrace.stores.watching import Changed, directory_of
from tailrace.testing.cluster.history import (
    DISAGREE,
    ELECTION,
    FENCE,
    ISR,
    SELF,
    STALE,
    TOO_FEW,
    TWO_LEADERS,
    UNASKED,
    ClusterHistory,
    Promise,
    Violation,
)
from tailrace.testing.cluster.machines import ClusterNode, SimCluster
from tailrace.testing.store import NASTY

_READ_BYTES = 1 << 20
_CONTROL_BIT = 0x20
#: How long a deposed leader may keep its clients if it gets no fetches from its followers. One with a lease learns of
#: the election from the store, which may take as long as the latest watch.
_STALE_SECONDS = NASTY.late_watch_seconds[1] + 1.0


@dataclass(frozen=True, slots=True)
class StateAt:
    """The state of a partition in the store from a time on."""

    at: float
    state: PartitionState


class ClusterWatch:
    """The observer of one cluster."""

    def __init__(self, cluster: SimCluster, history: ClusterHistory) -> None:
        self._cluster = cluster
        self._history = history
        self.topics: dict[Lineage, TopicImage] = {}
        #: The unique name of each topic here, by id. The first topic with a name has that name.
        self.names: dict[Lineage, str] = {}
        #: Topics that were deleted, by their names here.
        self.deleted: dict[str, None] = {}
        #: Nodes whose disk fails, or has lost synced data.
        self.unreadable: dict[str, None] = {}
        #: All past states of each partition in the store.
        self.states: dict[TopicPartition, list[StateAt]] = {}
        self.controller_id = NO_LEADER
        self.elections = 0
        #: Called with a record that several replicas acknowledged, and the in-sync ones that lack it.
        self.on_promise: Callable[[Promise, list[int]], None] = lambda promise, lacking: None
        #: Problems with changes of the store; raised by the next look, not inside the store.
        self._objections: list[Violation] = []
        #: The offset up to which logs were compared, by launch of a node and partition.
        self._compared: dict[tuple[str, int, TopicPartition], int] = {}
        #: Since when a deposed leader has kept leading, by launch of a node and partition.
        self._stale_since: dict[tuple[str, int, TopicPartition], float] = {}
        cluster.coordination.space.follow(self._changed)

    # --- the store

    def _changed(self, changed: Changed) -> None:
        for key, entry in changed.items():
            if key == CONTROLLER and entry is not None:
                self.controller_id = ElectedController.from_bytes(entry.value).broker_id
                self.elections += 1
                self._cluster.note(f"controller is {self.controller_id}")
            elif directory_of(key) == TOPICS and entry is not None:
                self._topic_changed(entry)
            elif directory_of(key) == TOPICS and (topic := self.topics.pop(topic_of(key), None)) is not None:
                self.deleted[self.names[topic.lineage]] = None
                self._cluster.note(f"store: {self.names[topic.lineage]} is deleted, by {self._cluster.writer}")

    def _topic_changed(self, entry: Entry) -> None:
        topic = TopicImage.from_bytes(entry.value)
        before = self.topics.get(topic.lineage)
        self.topics[topic.lineage] = topic
        name = self.names.get(topic.lineage)
        if name is None:
            namesakes = sum(1 for other in self.names.values() if other.partition("+")[0] == topic.name)
            name = self.names[topic.lineage] = f"{topic.name}+{namesakes}" if namesakes else topic.name
        for number, state in enumerate(topic.partitions):
            partition = TopicPartition(name, number)
            former = before.partitions[number] if before is not None and number < len(before.partitions) else None
            if former == state:
                continue
            states = self.states.setdefault(partition, [])
            states.append(StateAt(self._cluster.loop.time(), state))
            self._cluster.note(
                f"store: {partition} led by {state.leader} in epoch {state.leader_epoch}, in sync {list(state.isr)}, "
                f"by {self._cluster.writer}"
            )
            try:
                self._check_change(partition, former, state)
                if former is not None:
                    self._check_added(partition, [each for each in state.isr if each not in former.isr])
            except Violation as violation:
                self._objections.append(violation)

    def _check_added(self, partition: TopicPartition, added: list[int]) -> None:
        """Check that a replica that joins an ISR has everything, unless it has just died or its disk is damaged."""
        for broker_id in added:
            node = self._cluster.node(broker_id)
            if node.name in self.unreadable:
                continue
            for replica in node.broker.partitions if node.is_serving and node.broker is not None else ():
                if self.key_of(replica) == partition and replica.directory.failure is None:
                    self._look_at(node, replica)

    def _check_change(self, partition: TopicPartition, former: PartitionState | None, state: PartitionState) -> None:
        if not state.isr or not set(state.isr) <= set(state.replicas) or len(set(state.replicas)) < len(state.replicas):
            raise Violation(ELECTION, f"{partition} cannot be {state}")
        if state.leader != NO_LEADER:
            if state.leader not in state.isr:
                raise Violation(ELECTION, f"{partition}: leader {state.leader} is not in sync: {state}")
            self._history.leads(partition, state.leader_epoch, state.leader)
        if former is None:
            return
        if state.leader_epoch < former.leader_epoch:
            raise Violation(ELECTION, f"{partition}: the epoch went back from {former} to {state}")
        removed = [broker_id for broker_id in former.isr if broker_id not in state.isr]
        if state.leader != former.leader or removed:
            self._check_writer(partition, former, state, removed)
        if state.leader != former.leader:
            if state.leader_epoch == former.leader_epoch:
                raise Violation(TWO_LEADERS, f"{partition}: from {former} to {state} in one epoch")
            # One outside the ISR may be elected for its log, in an epoch without a leader, and is then in sync; its log
            # is checked as for every replica that joins an ISR.
            is_added = former.leader == NO_LEADER and set(state.isr) <= {state.leader, *former.isr}
            is_added = is_added or (self._history.may_lose(partition) and state.isr == (state.leader,))
            if state.leader != NO_LEADER and state.leader not in former.isr and not is_added:
                raise Violation(ELECTION, f"{partition}: {state.leader} was not in sync in {former}")
        elif set(state.isr) - set(former.isr) and state.leader_epoch != former.leader_epoch:
            raise Violation(ELECTION, f"{partition}: the ISR grew with a new epoch, from {former} to {state}")

    def _check_writer(
        self, partition: TopicPartition, former: PartitionState, state: PartitionState, removed: list[int]
    ) -> None:
        """Check the writer: only the controller, the leader, or a leaving broker may change leader and ISR."""
        writer = self._cluster.writer
        leaves = state.leader == former.leader and removed == [
            broker_id for broker_id in removed if writer == f"b{broker_id}"
        ]
        if not leaves and writer not in (f"b{self.controller_id}", f"b{former.leader}"):
            raise Violation(
                FENCE,
                f"{partition}: {writer} changes {former} to {state}, while b{self.controller_id} is the controller",
            )

    def state(self, partition: TopicPartition) -> PartitionState | None:
        """Return the present state of a partition in the store."""
        states = self.states.get(partition)
        return states[-1].state if states else None

    def states_since(
        self, partition: TopicPartition, since: float, until: float = float("inf")
    ) -> list[PartitionState]:
        """Return all states of a partition in the store between two times."""
        states = self.states.get(partition, [])
        first = max((number for number, each in enumerate(states) if each.at <= since), default=0)
        return [each.state for each in states[first:] if each.at <= until]

    def object(self, violation: Violation) -> None:
        """Raise a violation of another observer at the next look."""
        self._objections.append(violation)

    # --- the brokers

    def look(self) -> None:
        """Check every broker that serves, paused or not."""
        if self._objections:
            raise self._objections[0]
        if self._cluster.fatal:
            name, error = self._cluster.fatal[0]
            raise Violation(SELF, f"{name} cannot go on: {error!r}") from error
        for node in self._cluster.nodes:
            if node.is_serving and node.broker is not None and node.name not in self.unreadable:
                for partition in node.broker.partitions:
                    if partition.directory.failure is None:
                        self._look_at(node, partition)

    def key_of(self, replica: Partition) -> TopicPartition:
        """Return the partition of a replica, by a unique topic name."""
        return TopicPartition(self.names.get(replica.lineage, replica.partition.topic), replica.partition.partition)

    def _look_at(self, node: ClusterNode, replica: Partition) -> None:
        partition, history = self.key_of(replica), self._history
        if partition.topic in self.deleted:
            return
        state = self.state(partition)
        if replica.is_leader:
            history.leads(partition, replica.leader_epoch, node.broker_id)
            now = self._cluster.loop.time()
            history.high_watermark(
                partition, replica.leader_epoch, replica.high_watermark, now, f"{node.name} as it is"
            )
        self._check_stale(node, replica, state)
        end_offset = replica.log.end_offset
        limit = min(replica.high_watermark, end_offset)
        trimmed = history.trimmed.get(partition, 0)
        if replica.log.start_offset > trimmed and not replica.log.config.is_archived and not replica.is_internal:
            start_offset = replica.log.start_offset
            raise Violation(
                UNASKED, f"{partition}: {node.name} starts at {start_offset}, but only {trimmed} was requested"
            )
        if state is not None and node.broker_id in state.isr and not history.may_lose(partition):
            limit = history.committed_end(partition)
            if end_offset < limit:
                raise Violation(
                    ISR,
                    f"{partition}: {node.name} ends at {end_offset}, {limit - 1} is committed "
                    f"(seen by {history.committed[partition][limit - 1].by}); {state}",
                )
        self._compare(node, replica, limit)

    def _check_stale(self, node: ClusterNode, replica: Partition, state: PartitionState | None) -> None:
        """Check that an unaware deposed leader sends clients elsewhere, unless its followers are unaware too."""
        key, now = (node.name, node.launches, self.key_of(replica)), self._cluster.loop.time()
        is_deposed = state is not None and state.leader not in (NO_LEADER, node.broker_id)
        followers = replica.leading.followers
        if not is_deposed or followers is None or replica.is_cut_off or node.is_paused:
            self._stale_since.pop(key, None)
            return
        since = max(self._stale_since.setdefault(key, now), followers.last_fetch)
        if now - since > _STALE_SECONDS:
            epoch = replica.leader_epoch
            raise Violation(STALE, f"{self.key_of(replica)}: {node.name} keeps leading in epoch {epoch}; {state}")

    def _compare(self, node: ClusterNode, replica: Partition, limit: int) -> None:
        """Compare a replica's records below an offset with the committed ones."""
        partition = self.key_of(replica)
        key = (node.name, node.launches, partition)
        # Records that are gone before they were compared are in the archive, where they are checked too.
        offset = max(self._compared.get(key, 0), replica.log.start_offset)
        if replica.log.end_offset < offset and self._history.may_lose(partition):
            offset = replica.log.start_offset
        if replica.log.end_offset < offset:
            raise Violation(
                DISAGREE, f"{partition}: {node.name} has truncated its log to {replica.log.end_offset}, below {offset}"
            )
        by = f"replica {node.name}"
        while offset < limit and (part := replica.log.read(offset, _READ_BYTES, limit)) is not None:
            data = part.file.read(part.position, part.size)
            before = offset
            for position, header in iterate_batches(memoryview(data)):
                if not has_valid_crc(data, header, position):
                    raise Violation(DISAGREE, f"{partition}: {node.name} has a corrupt batch at {header.base_offset}")
                if not header.attributes & _CONTROL_BIT:
                    for record in iterate_records(data, header, position):
                        if offset <= record.offset < limit:
                            self._history.is_committed(partition, record.offset, record.key, record.value, by)
                offset = max(offset, header.next_offset)
            if offset == before:
                break
        self._compared[key] = min(offset, limit) if partition.topic not in INTERNAL_TOPICS else offset

    def compare_anew(self) -> None:
        """Compare again replicas that may have lost something since they were checked."""
        for key in [key for key in self._compared if self._history.may_lose(key[2])]:
            del self._compared[key]

    # --- acknowledgements

    def check_holders(self, promise: Promise, wanted: int) -> None:
        """Check that as many in-sync replicas have a record as its producer was told; failed ones count as having it.

        A leader may learn late that a replica left the ISR by itself: every member in this epoch counts.
        """
        partition = promise.partition
        if partition.topic in self.deleted:
            return
        since = self.states_since(partition, promise.sent_at)
        # In another epoch, a replica may have truncated it since. A deposed leader that does not know it gets
        # confirmations from followers that do not know either, and these are asked for their log ends before another
        # one leads.
        if {(state.leader, state.leader_epoch) for state in since} != {(promise.broker_id, since[-1].leader_epoch)}:
            return
        states = [each.state for each in self.states[partition]]
        in_sync = dict.fromkeys(
            broker_id for state in states if state.leader_epoch == states[-1].leader_epoch for broker_id in state.isr
        )
        holders: list[int] = []
        lacking: list[int] = []
        for broker_id in in_sync:
            node = self._cluster.node(broker_id)
            # The content of a node that has ended since is unknown; a paused or isolated one can be checked.
            is_unknown = not node.is_serving or node.broker is None or node.ended_at >= promise.sent_at
            has_it = is_unknown or self._has(node, partition, promise.offset)
            (holders if has_it else lacking).append(broker_id)
        if len(holders) < wanted:
            raise Violation(
                TOO_FEW,
                f"{promise.value!r} at {partition} {promise.offset} was acknowledged by {promise.broker_id} "
                f"with acks={promise.acks}; it is on {holders} of {list(in_sync)}",
            )
        self.on_promise(promise, [broker_id for broker_id in lacking if broker_id in states[-1].isr])

    def _has(self, node: ClusterNode, partition: TopicPartition, offset: int) -> bool:
        assert node.broker is not None
        for replica in node.broker.partitions:
            if self.key_of(replica) == partition:
                return replica.log.end_offset > offset
        return False
