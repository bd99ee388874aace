"""Changes to the cluster's metadata: each one is in the store before anybody sees it.

Topics are stored under their lineages, so no key is ever recreated. One key per name makes two creations of the same
name conflict in the store itself. A topic or a broker's configuration is changed by a function from the stored to the
new value; if another writer was faster, the function is called again with its result. Any broker may do that. If the
store does not confirm a change, it is read again before anything else is decided.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeAlias

from tailrace.cluster.archives import ArchiveCommit, ArchiveState, with_deleted
from tailrace.cluster.feature_changes import FeatureChanges
from tailrace.cluster.features import LINEAGES_LEVEL, TAILRACE_VERSION
from tailrace.cluster.image import (
    ALL_BROKERS,
    TopicImage,
    configs_from_bytes,
    configs_to_bytes,
)
from tailrace.cluster.keys import (
    BROKER_CONFIGS,
    PRODUCER_IDS,
    TOPICS,
    archive_key,
    broker_epoch_key,
    epoch_from_bytes,
    name_key,
    topic_key,
)
from tailrace.cluster.known import FOR_ALL_BROKERS
from tailrace.cluster.patience import ATTEMPTS
from tailrace.cluster.placement import Load, place_replicas, use_further_assignment
from tailrace.cluster.store import (
    ABSENT,
    MAX_OPERATIONS,
    Check,
    TooLarge,
    Unavailable,
    Unreadable,
    Write,
)
from tailrace.cluster.stored_changes import bounded, timed_out, unknown_topic
from tailrace.cluster.topic_plans import TopicPlans, exists_already
from tailrace.errors import ErrorCode, KafkaError
from tailrace.model import Lineage, TopicId

logger = logging.getLogger("tailrace.cluster")

TopicChange: TypeAlias = Callable[[TopicImage], TopicImage]
#: Renews the checks of a batch after it was refused; raises if the batch should not be retried.
Recheck: TypeAlias = Callable[[], Awaitable[Sequence[Check]]]

PRODUCER_ID_BLOCK = 1000
#: Maximum size of a transaction with more than one value.
_TRANSACTION_BYTES = 512 << 10


@dataclass(frozen=True, slots=True)
class IsrChange:
    """The ISR that the leader of a partition wants."""

    lineage: Lineage
    partition: int
    leader_epoch: int
    isr: tuple[int, ...]
    #: New members, with the broker epochs of their fetches.
    added: Mapping[int, int]


class ClusterMetadata(FeatureChanges):
    """What a broker knows of the cluster, kept in step with the store, and every change to it."""

    #: A check that fails once a later process of this broker starts; None before this one has an epoch.
    own_epoch: Check | None = None
    #: Whether others still consider this broker alive, so that its image shows the live brokers.
    holds_lease: Callable[[], bool] = staticmethod(lambda: True)

    # --- topics

    def plan_topic(
        self,
        name: str,
        partitions: int,
        replication_factor: int,
        assignment: Mapping[int, Sequence[int]],
        configs: Mapping[str, str],
    ) -> TopicImage:
        """The topic as it would be created; raises if it cannot be."""
        self.require_lease()
        return self.plan_topics().plan(name, partitions, replication_factor, assignment, configs)

    def plan_topics(self) -> TopicPlans:
        """Plans for topics that are created together."""
        return TopicPlans(self.image, self.new_id)

    def require_lease(self) -> None:
        """Refuse to place replicas while this broker's image may be out of date.

        A suspended broker wakes up with an old image, which still lists the broker itself.
        """
        if not self.holds_lease():
            raise KafkaError(
                ErrorCode.NOT_CONTROLLER,
                "This broker has lost its session in the metadata store and does not know which brokers are alive. "
                "Check that it can reach the store and retry, or ask another broker.",
            )

    async def create_topic(self, topic: TopicImage) -> None:
        """Create a planned topic, in the store first, then in the image."""
        await self._to_its_end(self._create_topic(topic))

    async def create_topics(self, topics: Sequence[TopicImage]) -> dict[str, KafkaError]:
        """Create planned topics, many in one transaction; returns the errors by name."""
        refusals: dict[str, KafkaError] = {}
        if topics:
            await self._to_its_end(self._create_topics(topics, refusals))
        return refusals

    async def delete_topic(self, topic: TopicImage) -> None:
        """Delete a topic."""
        await self._to_its_end(self._delete_topic(topic))

    async def _create_topic(self, topic: TopicImage) -> None:
        names, key = name_key(topic.name), topic_key(topic.lineage)
        writes = [Write(names, str(topic.lineage).encode()), Write(key, bounded(self._stored(topic)))]
        try:
            versions = await self._store.txn([Check(names, ABSENT), Check(key, ABSENT)], writes)
        except Unavailable as error:
            # Lineages are unique: if this one is there, this call created it.
            entry = await self._get(key)
            if entry is None:
                raise timed_out(error) from error
            self._known.learn_topic_entry(entry)
        else:
            if versions is None:
                await self._learn_of(topic.name)
                raise exists_already(topic.name)
            self._known.learn_topic(topic, versions[1])
        await self.settle()

    async def _create_topics(self, topics: Sequence[TopicImage], refusals: dict[str, KafkaError]) -> None:
        for batch in _creation_batches(topics, self._stored):
            # One topic that already exists must not prevent the others.
            if len(batch) > 1 and await self._create_together(batch, refusals):
                continue
            for topic in batch:
                try:
                    await self._create_topic(topic)
                except KafkaError as refusal:
                    refusals[topic.name] = refusal

    async def _create_together(self, topics: Sequence[TopicImage], refusals: dict[str, KafkaError]) -> bool:
        """Create topics in one transaction; False if one of them made it fail."""
        keys = [key for topic in topics for key in (name_key(topic.name), topic_key(topic.lineage))]
        values = [value for topic in topics for value in (str(topic.lineage).encode(), self._stored(topic))]
        writes = [Write(key, value) for key, value in zip(keys, values, strict=True)]
        try:
            versions = await self._store.txn([Check(key, ABSENT) for key in keys], writes)
        except Unavailable as error:
            await self._find_created(topics, timed_out(error), refusals)
        else:
            if versions is None:
                return False
            for topic, version in zip(topics, versions[1::2], strict=True):
                self._known.learn_topic(topic, version)
        await self.settle()
        return True

    async def _find_created(
        self, topics: Sequence[TopicImage], refusal: KafkaError, refusals: dict[str, KafkaError]
    ) -> None:
        """Determine the outcome of an unanswered creation; lineages are unique."""
        for number, topic in enumerate(topics):
            try:
                entry = await self._get(topic_key(topic.lineage))
            except KafkaError as error:
                entry, refusal = None, error
            if entry is None:
                # Topics of one transaction exist together or not at all.
                refusals.update((left.name, refusal) for left in topics[number:])
                return
            self._known.learn_topic_entry(entry)

    async def _learn_of(self, name: str) -> None:
        """Learn of an existing topic that the image does not show."""
        named = await self._get(name_key(name))
        entry = await self._get(f"{TOPICS}/{named.value.decode()}") if named else None
        if entry is not None:
            self._known.learn_topic_entry(entry)
            await self.settle()

    async def _delete_topic(self, topic: TopicImage) -> None:
        key, archive = topic_key(topic.lineage), archive_key(topic.lineage)
        writes = [Write(key, None), Write(name_key(topic.name), None), Write(archive, None)]
        failures: list[Unavailable] = []
        while len(failures) < ATTEMPTS:
            entry = await self._get(key)
            if entry is None:
                await self._forget(topic.lineage)
                if not failures:
                    raise unknown_topic()
                return  # the unanswered deletion was applied
            try:
                if await self._store.txn([Check(key, entry.version)], writes) is not None:
                    await self._forget(topic.lineage)
                    return
            except Unavailable as error:
                failures.append(error)
        raise timed_out(failures[-1]) from failures[-1]

    async def _forget(self, lineage: Lineage) -> None:
        self._known.forget_topic(lineage)
        await self.settle()

    def plan_partitions(self, topic: TopicImage, count: int, assignments: Sequence[Sequence[int]] | None) -> TopicImage:
        """The topic with more partitions; raises if it cannot have them."""
        self.require_lease()
        present = len(topic.partitions)
        if count == present:
            raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {present} partition(s).")
        if count < present:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS,
                f"The topic {topic.name} currently has {present} partition(s); {count} would not be an increase.",
            )
        additional = count - present
        if assignments is not None and len(assignments) != additional:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Attempted to add {additional} additional partition(s), but only {len(assignments)} assignment(s) "
                "were specified.",
            )
        replication_factor = len(topic.partitions[0].replicas)
        if assignments is None:
            states = place_replicas(
                self.image.brokers,
                additional,
                replication_factor,
                Load.of(self.image.topics.values()),
                beside=topic.partitions,
            )
        else:
            states = use_further_assignment(list(self.image.brokers), assignments, replication_factor)
        return replace(topic, partitions=topic.partitions + states)

    async def alter_topic(self, topic: TopicImage, change: TopicChange) -> None:
        """Apply a function to a stored topic; a KafkaError from the function changes nothing."""
        await self._to_its_end(self._alter_topic(topic.lineage, change))

    async def change_topic_id(self, topic: TopicImage) -> TopicId:
        """Give a topic a new id, so that clients take it for another topic; everything stored stays."""
        if self._known.features.level(TAILRACE_VERSION) < LINEAGES_LEVEL:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"Cannot change the id of {topic.name} before the cluster is finalized at {TAILRACE_VERSION}="
                f"{LINEAGES_LEVEL}: older releases would take it for another topic and remove its records.",
            )
        topic_id = TopicId(self.new_id())
        await self.alter_topic(topic, lambda stored: replace(stored, topic_id=topic_id))
        return topic_id

    async def _alter_topic(self, lineage: Lineage, change: TopicChange) -> None:
        def changed(value: bytes | None) -> bytes:
            if value is None:
                self._known.forget_topic(lineage)
                self._step()
                raise unknown_topic()
            stored = TopicImage.from_bytes(value)
            wanted = change(stored)
            return value if wanted == stored else bounded(self._stored(wanted), value)

        # Even if nothing changed: the image may lack an earlier change with unknown outcome.
        self._known.learn_topic_entry(await self._alter(topic_key(lineage), changed))
        await self.settle()

    # --- many topics at once

    async def alter_topics(
        self, changes: Mapping[Lineage, TopicChange], checks: Sequence[Check] = (), recheck: Recheck | None = None
    ) -> None:
        """Apply functions to stored topics, in as few transactions as the store allows.

        A function is called again if another writer was faster. Topics that no longer exist are skipped. On return, the
        image shows the result, and no earlier attempt can still be applied. If this raises `Unavailable`, some of the
        changes may be applied later.
        """
        waiting = dict(changes)
        most = MAX_OPERATIONS
        while waiting:
            batch = self._next_batch(waiting, checks, most)
            if not batch:
                break
            refused = not await self._write_batch(batch, checks)
            if not refused:
                most = MAX_OPERATIONS
                continue
            waiting = {**{lineage: changes[lineage] for lineage in batch}, **waiting}
            # One topic that others keep changing must not hold up all of them.
            most = max(1, len(batch) // 2)
            if recheck is not None:
                checks = await recheck()
            for lineage in batch:
                if not await self._look_at(lineage):
                    del waiting[lineage]
            self._step()
        await self.settle()

    async def _look_at(self, lineage: Lineage) -> bool:
        """Read a topic again; False if this release cannot read it, which must not hold up other topics."""
        entry = await self._store.get(topic_key(lineage))
        if entry is None:
            self._known.forget_topic(lineage)
            return True
        try:
            self._known.learn_topic_entry(entry)
        except Unreadable as error:
            logger.error("Cannot change a topic: %s; start a release of tailrace that can read its format", error)
            return False
        return True

    def is_doubtful(self, lineage: Lineage) -> bool:
        """Whether an unanswered change to a topic may still be applied; the next change prevents that."""
        return self._known.is_doubtful(lineage)

    def _next_batch(
        self, waiting: dict[Lineage, TopicChange], checks: Sequence[Check], most: int
    ) -> dict[Lineage, tuple[TopicImage, bytes]]:
        """Take changed topics from those that wait, as many as fit into one transaction."""
        batch: dict[Lineage, tuple[TopicImage, bytes]] = {}
        size = 0
        while waiting and len(batch) < most and len(checks) + 2 * len(batch) + 2 <= MAX_OPERATIONS:
            lineage = next(iter(waiting))
            stored = self._known.topics.get(lineage)
            if stored is None:
                del waiting[lineage]
                continue
            changed = waiting[lineage](stored)
            # Only a new version rules out an unanswered write.
            if not self._known.is_doubtful(lineage) and (changed is stored or changed == stored):
                del waiting[lineage]
                continue
            value = self._stored(changed)
            size += len(value)
            if batch and size > _TRANSACTION_BYTES:
                break
            batch[lineage] = (changed, value)
            del waiting[lineage]
        return batch

    async def _write_batch(self, batch: Mapping[Lineage, tuple[TopicImage, bytes]], checks: Sequence[Check]) -> bool:
        own = [Check(topic_key(lineage), self._known.version_of(lineage)) for lineage in batch]
        writes = [Write(topic_key(lineage), value) for lineage, (_, value) in batch.items()]
        try:
            versions = await self._store.txn([*checks, *own], writes)
        except TooLarge:
            if len(batch) > 1:
                return False  # a smaller batch may fit
            raise
        except BaseException:  # the outcome is unknown
            for lineage in batch:
                self._known.doubt(lineage)
            raise
        if versions is None:
            return False
        for (changed, _), version in zip(batch.values(), versions, strict=True):
            self._known.learn_topic(changed, version)
        self._step()
        return True

    async def alter_isr(self, changes: Sequence[IsrChange]) -> None:
        """Change the ISRs of partitions that this broker leads; the image shows which changes the store accepted.

        A change is refused if the leader or its epoch has changed, or if a replica to add has restarted since its
        fetches. On `Unavailable` the change may or may not be applied, and must be retried until the outcome is known.
        On return no earlier request can still be applied.
        """
        by_topic: dict[Lineage, list[IsrChange]] = {}
        for change in changes:
            by_topic.setdefault(change.lineage, []).append(change)
        added = dict.fromkeys(broker_id for change in changes for broker_id in change.added)
        epochs: dict[int, int] = {}

        async def epochs_of_added() -> Sequence[Check]:
            epochs.clear()
            stored, checks = await self.broker_epochs(added)
            epochs.update(stored)
            return [*checks, *await self.own_checks()]

        def altered(wanted: Sequence[IsrChange]) -> TopicChange:
            return lambda topic: _with_isrs(topic, wanted, self._broker_id, epochs)

        await self.alter_topics(
            {lineage: altered(wanted) for lineage, wanted in by_topic.items()},
            await epochs_of_added(),
            epochs_of_added,
        )

    async def own_checks(self) -> Sequence[Check]:
        """The check of a leader's changes to its own partitions: no later process of this broker has started.

        An unanswered change could otherwise be applied after its process has ended, when the next one already leads and
        knows nothing of it.
        """
        if self.own_epoch is None:
            return ()
        entry = await self._store.get(self.own_epoch.key)
        if entry is None or entry.version != self.own_epoch.version:
            raise Unavailable("another process has started as this broker and replaces this one")
        return (self.own_epoch,)

    async def broker_epochs(self, brokers: Iterable[int]) -> tuple[dict[int, int], list[Check]]:
        """The current epochs of brokers, and checks that fail once one of them starts again."""
        epochs: dict[int, int] = {}
        checks: list[Check] = []
        for broker_id in brokers:
            entry = await self._store.get(broker_epoch_key(broker_id))
            if entry is not None:
                epochs[broker_id] = epoch_from_bytes(entry.value)
                checks.append(Check(entry.key, entry.version))
        return epochs, checks

    # --- archives

    async def commit_archive(self, topic: TopicImage, commit: ArchiveCommit) -> ArchiveState:
        """Apply a commit to a topic's archive, if it is based on the latest version; returns the archive after it."""

        def changed(state: ArchiveState) -> ArchiveState:
            beyond = [number for number in commit.partitions if not 0 <= number < len(topic.partitions)]
            if beyond:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic.name} has no partition {beyond[0]}.")
            return commit.applied_to(state)

        await self._to_its_end(self._alter_archive(topic.lineage, changed))
        return self.image.archives.get(topic.lineage, ArchiveState(topic.lineage))

    async def delete_archived(self, topic: TopicImage, below: Mapping[int, int]) -> None:
        """Hide records of partitions below offsets from all readers, wherever they are archived."""
        await self._to_its_end(self._alter_archive(topic.lineage, lambda state: with_deleted(state, below)))

    async def _alter_archive(self, lineage: Lineage, change: Callable[[ArchiveState], ArchiveState]) -> None:
        def changed(value: bytes | None) -> bytes | None:
            stored = ArchiveState(lineage) if value is None else ArchiveState.from_bytes(value)
            wanted = change(stored)
            return value if wanted == stored else bounded(wanted.to_bytes(), value)

        entry = await self._alter(archive_key(lineage), changed, beside=topic_key(lineage))
        if entry.version != ABSENT:
            self._known.learn_archive(entry)
        await self.settle()

    # --- configuration of brokers

    async def alter_broker_configs(self, broker: str, change: Callable[[Mapping[str, str]], Mapping[str, str]]) -> None:
        """Apply a function to the stored configuration of a broker, or of `ALL_BROKERS`."""
        await self._to_its_end(self._alter_broker_configs(broker, change))

    async def _alter_broker_configs(
        self, broker: str, change: Callable[[Mapping[str, str]], Mapping[str, str]]
    ) -> None:
        def changed(value: bytes | None) -> bytes | None:
            stored: Mapping[str, str] = configs_from_bytes(value) if value is not None else MappingProxyType({})
            wanted = dict(change(stored))
            # Kept even if empty: a key that is checked is never recreated.
            return value if wanted == stored else bounded(configs_to_bytes(wanted, value), value)

        key = f"{BROKER_CONFIGS}/{broker if broker != ALL_BROKERS else FOR_ALL_BROKERS}"
        entry = await self._alter(key, changed)
        if entry.version != ABSENT:
            self._known.learn_configs(entry)
        await self.settle()

    # --- producer ids

    async def claim_producer_ids(self) -> range:
        """A block of producer ids that no other caller ever gets."""
        while True:
            entry = await self._get(PRODUCER_IDS)
            try:
                first = int(entry.value) if entry else 0
            except ValueError as error:
                unreadable = Unreadable(f"the next producer id in the metadata store is not a number: {error}")
                raise timed_out(unreadable) from error
            version = entry.version if entry else ABSENT
            following = str(first + PRODUCER_ID_BLOCK).encode()
            try:
                claimed = await self._store.txn([Check(PRODUCER_IDS, version)], [Write(PRODUCER_IDS, following)])
            except Unavailable as error:
                # There is no way to tell whether the next number was written here or by another broker.
                raise timed_out(error) from error
            if claimed is not None:
                return range(first, first + PRODUCER_ID_BLOCK)


def _creation_batches(
    topics: Sequence[TopicImage], stored: Callable[[TopicImage], bytes]
) -> Iterator[Sequence[TopicImage]]:
    """Groups of topics that fit into one transaction: each has a name key and a topic key, checked and written."""
    batch: list[TopicImage] = []
    size = 0
    for topic in topics:
        topic_size = len(stored(topic)) + len(topic.name)
        if batch and (4 * (len(batch) + 1) > MAX_OPERATIONS or size + topic_size > _TRANSACTION_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(topic)
        size += topic_size
    if batch:
        yield batch


def _with_isrs(topic: TopicImage, wanted: Sequence[IsrChange], leader: int, epochs: Mapping[int, int]) -> TopicImage:
    """A topic with the ISRs that a leader wants, if it still leads and the new members have not restarted."""
    states = list(topic.partitions)
    for change in wanted:
        if change.partition >= len(states):
            continue
        state = states[change.partition]
        is_leader = (state.leader, state.leader_epoch) == (leader, change.leader_epoch)
        are_same = all(epochs.get(broker_id) == epoch for broker_id, epoch in change.added.items())
        are_replicas = all(broker_id in state.replicas for broker_id in change.isr)
        # A member that has left in between, perhaps after a crash, is not brought back by an older change.
        are_members = all(broker_id in state.isr or broker_id in change.added for broker_id in change.isr)
        if is_leader and are_same and are_replicas and are_members and leader in change.isr:
            states[change.partition] = replace(state, isr=change.isr)
    return replace(topic, partitions=tuple(states))
