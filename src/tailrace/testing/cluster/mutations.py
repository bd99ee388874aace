"""Brokers that are broken on purpose, one rule each: if the simulation does not notice them, it proves nothing.

Each mutation replaces one function while it is switched on. It names the invariants that may be violated first; any
other failure of a run does not count as caught.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from uuid import UUID

from tailrace.broker import peer_identity
from tailrace.broker.handlers import replica_fetch
from tailrace.broker.leading import controller as broker_controller
from tailrace.broker.leading.leadership import Leadership
from tailrace.cluster import decisions, leaders, metadata, registration
from tailrace.cluster.archives import ArchiveCommit, ArchiveState
from tailrace.cluster.image import PartitionState, TopicImage
from tailrace.cluster.metadata import ClusterMetadata, IsrChange
from tailrace.coordinator import shards
from tailrace.coordinator.journal import Journal
from tailrace.coordinator.shard import Shard
from tailrace.errors import StorageError
from tailrace.model import TopicPartition
from tailrace.records.batch import BatchHeader, iterate_batches
from tailrace.records.record import iterate_records
from tailrace.replication.isr import UNBOUNDED, Followers
from tailrace.replication.leading import Leading
from tailrace.replication.partition import Partition
from tailrace.replication.reading import Audience, PartitionReader
from tailrace.runtime.disk import Disk, FileRange
from tailrace.storage import recovery
from tailrace.storage.checkpoints import Gaps, read_gaps
from tailrace.storage.log_directory import LogDirectory
from tailrace.storage.offset_checkpoints import OffsetCheckpoints
from tailrace.storage.partition_log import PartitionLog
from tailrace.storage.partition_metadata import PartitionMetadata, read_topic_id, write_metadata
from tailrace.storage.producer_state import ProducerState
from tailrace.storage.removals import Removals
from tailrace.storage.segment import Segment
from tailrace.testing.cluster.history import (
    ARCHIVE,
    BEYOND,
    DISAGREE,
    DUPLICATE,
    ELECTION,
    FENCE,
    GROUP_OFFSETS,
    ISR,
    LIVENESS,
    LOST,
    ORDER,
    SELF,
    STALE,
    TOO_FEW,
    TWO_LEADERS,
    TWO_VALUES,
    UNARCHIVED,
    WATERMARK,
)

_NO_LEADER_EPOCH = -1


@dataclass(frozen=True, slots=True)
class Mutation:
    """One function replaced by a wrong one."""

    #: The class, or the modules by whose names it is called.
    owner: object | tuple[object, ...]
    attribute: str
    wrong: Any
    #: The invariants that may be violated first.
    caught_by: tuple[str, ...]
    #: The kind of fault that shows it, which runs then favour.
    favoured: str | None = None

    @contextmanager
    def switched_on(self) -> Iterator[None]:
        """Break the brokers of this interpreter."""
        owners = self.owner if isinstance(self.owner, tuple) else (self.owner,)
        missing = object()
        right = [vars(owner).get(self.attribute, missing) for owner in owners]
        for owner in owners:
            setattr(owner, self.attribute, self.wrong)
        try:
            yield
        finally:
            for owner, former in zip(owners, right, strict=True):
                if former is missing:
                    delattr(owner, self.attribute)
                else:
                    setattr(owner, self.attribute, former)


# --- replication by the leader


def _removal_counts_at_once(followers: Followers, isr: Sequence[int]) -> None:
    if isr:
        followers._isr = tuple(isr)
    followers._pending = tuple(isr)
    followers._count()


def _log_end_is_committed(followers: Followers) -> None:
    followers.committed_limit = UNBOUNDED


def _count_those_out_of_sync(followers: Followers, count: int, own_end_offset: int) -> int:
    ends = sorted([own_end_offset, *[each.log_end_offset for each in followers._by_id.values()]], reverse=True)
    return ends[count - 1] if count <= len(ends) else -1


def _let_nobody_back(
    followers: Followers,
    leader: int,
    leader_start_offset: int,
    leader_end_offset: int,
    high_watermark: int,
    now: float,
    lag_ms: int,
) -> tuple[tuple[int, ...], dict[int, int]] | None:
    wanted = _right_wanted(followers, leader, leader_start_offset, leader_end_offset, high_watermark, now, lag_ms)
    if wanted is None:
        return None
    kept = tuple(replica for replica in wanted[0] if replica not in wanted[1])
    return (kept, {}) if len(kept) < len(followers._isr) else None


_right_wanted = Followers.wanted


def _go_back(partition: Partition) -> None:
    """The high watermark follows the followers, even downwards."""
    limit = partition.log.promised_offset
    if not partition.is_sole:
        if partition.leading.followers is None:
            return
        limit = min(limit, partition.leading.followers.committed_limit)
    _right_advance(partition)
    partition.high_watermark = max(limit, partition.log.start_offset)


_right_advance = Partition.advance


def _up_to_the_log_end(reader: PartitionReader, audience: Audience, isolation: int = 0) -> int:
    return reader._partition.log.end_offset


# --- ISR membership and elections


async def _add_any_incarnation(cluster: ClusterMetadata, changes: Sequence[IsrChange]) -> None:
    def altered(wanted: IsrChange) -> Callable[[TopicImage], TopicImage]:
        return lambda topic: metadata._with_isrs(topic, [wanted], cluster._broker_id, wanted.added)

    for change in changes:
        await cluster.alter_topics({change.lineage: altered(change)})


def _stay(topic: TopicImage, broker_id: int, live: object) -> TopicImage:
    return topic


def _name_an_heir(topic: TopicImage, broker_id: int) -> TopicImage:
    """A broker that restarts after a crash names its successor, without asking for log ends."""

    def after(state: PartitionState) -> PartitionState:
        others = tuple(member for member in state.isr if member != broker_id)
        if state.leader != broker_id or not others:
            return state
        return replace(state, isr=others, leader=others[0], leader_epoch=state.leader_epoch + 1)

    left = decisions.without_broker(topic, broker_id)
    states = [
        after(old) if old.leader == broker_id else new
        for old, new in zip(topic.partitions, left.partitions, strict=True)
    ]
    return replace(topic, partitions=tuple(states))


async def _release_at_once(leadership: Leadership, undecided: Sequence[Partition]) -> None:
    """A change that the store did not answer counts as not made."""
    for partition in undecided:
        partition.leading.release_appends()


def _elect_in_one_epoch(state: PartitionState, leader: int, isr: tuple[int, ...]) -> PartitionState:
    return replace(state, isr=isr, leader=leader)


def _all_alive(state: PartitionState, live: Collection[int]) -> tuple[int, ...]:
    return tuple(broker_id for broker_id in state.replicas if broker_id in live)


def _first_in_sync_leads(
    topic: TopicImage, ends: Mapping[int, tuple[int, Mapping[int, leaders.LogEnd]]], live: Collection[int]
) -> TopicImage:
    """Ignore the log ends."""
    nothing = leaders.LogEnd(-1, -1)
    unknown = {number: (epoch, dict.fromkeys(found, nothing)) for number, (epoch, found) in ends.items()}
    return leaders.with_longest_leaders(topic, unknown, live)


async def _alter_unfenced(self: Any, fence: object, situation: decisions.Situation, change: decisions.Change) -> None:
    live = list(situation.brokers)
    await self._checks_of(change, situation, live)
    await self._metadata.alter_topics(dict.fromkeys(change.lineages, lambda topic: change.applied_to(topic, live)))


# --- logs and state


def _no_divergence(partition: Partition, last_fetched_epoch: int, fetch_offset: int) -> None:
    return None


def _keep_producers(log: PartitionLog, offset: int, producers: ProducerState) -> None:
    _right_was_cut(log, offset, log.producers)


_right_was_cut = PartitionLog._was_cut


def _no_duplicates(state: ProducerState, header: BatchHeader) -> None:
    return None


async def _load_committed_only(partition: Partition, epoch: int, shard: Shard) -> int:
    count, offset = 0, partition.log.start_offset
    while isinstance(part := partition.reader.read(offset, 1 << 18, leader_epoch=epoch).batches, FileRange):
        data = part.file.read(part.position, part.size)
        for position, header in iterate_batches(memoryview(data)):
            for record in iterate_records(data, header, position):
                if record.key is not None:
                    shard.replay(record.key, record.value, record.offset, None)
                    count += 1
            offset = header.next_offset
        await asyncio.sleep(0)
    return count


def _acknowledge_at_once(journal: Journal, batch: bytearray) -> asyncio.Future[None]:
    _right_append(journal, batch)
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    done.set_result(None)
    return done


_right_append = Journal._append

# --- archives


def _remove_unarchived(
    log: PartitionLog,
    limit_offset: int,
    archived_offset: int | None = None,
    epochs_from: int | None = None,
    most: int | None = None,
) -> list[Segment]:
    return _right_remove_expired(log, limit_offset, None, epochs_from, most)


_right_remove_expired = PartitionLog.remove_expired


def _commit_on_any_version(commit: ArchiveCommit, state: ArchiveState) -> ArchiveState:
    return replace(state, version=state.version + 1, manifest=commit.manifest, partitions=commit.partitions)


# --- names on the disk


class _ByName:
    """A directory that is looked up by its old name, as by code that forgets that names change."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self.path = path

    def list(self) -> Sequence[str]:
        return self._disk.list(self.path)

    def replace_file(self, name: str, content: bytes, *, sync: bool = True) -> None:
        self._disk.replace_file(f"{self.path}/{name}", content, sync=sync)

    def remove(self, name: str) -> None:
        self._disk.remove(f"{self.path}/{name}")

    def sync(self) -> None:
        self._disk.sync_directory(self.path)


def _adopt_without_identity(directory: LogDirectory, partition: TopicPartition, topic_id: UUID) -> bool:
    path = f"{directory.path}/{partition}"
    names = directory._disk.list(path)
    if names and read_topic_id(directory._disk, path) is None:
        write_metadata(directory._disk.directory(path), topic_id, 0, sync=False)
        return True
    return _right_find_owned(directory, partition, topic_id)


_right_find_owned = LogDirectory._find_owned


async def _remove_at_once(removals: Removals) -> None:
    while removals._discarded:
        aside = removals._discarded.pop()
        await removals._home.insist(partial(removals._disk.remove, aside), "not removed")


async def _forget_nothing(checkpoints: OffsetCheckpoints) -> None:
    """Keep what is stored about removed partitions."""


def _fail_for_anything(directory: LogDirectory, error: StorageError) -> None:
    if directory.failure is None:
        directory.failure = error
        directory.on_failure(directory)


def _fail_at_once(directory: LogDirectory, call: Callable[[], None], problem: str) -> Any:
    return directory._disk.offload(call)


# --- names after a power failure


def _start_with_what_is_found(
    partition: TopicPartition, found: list[Segment], known_start: int | None, first_offset: int, recovery_point: int
) -> list[Segment]:
    return found


def _gaps_anywhere_below(disk: Disk, directory: str) -> Gaps:
    gaps = read_gaps(disk, directory)
    return Gaps(gaps.within_below, gaps.within_below)


#: Caught by runs of one log on a disk that reorders changes of names.
POWER_CUT_MUTATIONS: Mapping[str, Mutation] = {
    "a log starts with the first segment that is found": Mutation(
        recovery, "_lawful", _start_with_what_is_found, ("false start", "hole", "lost")
    ),
    "segments are removed before the new log start is durable": Mutation(
        PartitionMetadata, "allows_start_at", lambda metadata, offset: True, ("lost", "hole")
    ),
    "a log starts over without recording where": Mutation(
        PartitionMetadata, "move_start", lambda metadata, offset: None, ("lost",)
    ),
    "what a killed process truncated may come back": Mutation(
        LogDirectory, "_make_durable", lambda directory: None, ("invented", "hole", "lost")
    ),
    "a missing segment counts as a gap": Mutation(recovery, "read_gaps", _gaps_anywhere_below, ("hole",)),
}

#: Caught by runs that delete topics and create them again under the same name. Some rules are kept in two places: then
#: a mutation breaks both.
DISK_MUTATIONS: Mapping[str, tuple[Mutation, ...]] = {
    "files are removed before their directory is renamed, and leftovers are adopted": (
        Mutation(LogDirectory, "_find_owned", _adopt_without_identity, ("adopted",)),
        Mutation(Removals, "_remove_discarded", _remove_at_once, ()),
    ),
    "checkpoints of a deleted topic apply to its namesake": (
        Mutation(OffsetCheckpoints, "has_outdated", lambda checkpoints, partition: False, ("lost",)),
        Mutation(OffsetCheckpoints, "forget_removed", _forget_nothing, ()),
    ),
    "threads use the names of directories that the loop renames": (
        Mutation(
            PartitionLog,
            "opened_directory",
            property(lambda log: _ByName(log._disk, log.directory), lambda log, value: None),
            ("offline", "adopted", "lost"),
        ),
    ),
    "a lack of descriptors counts as a disk failure": (
        Mutation(LogDirectory, "fail", _fail_for_anything, ("offline",)),
        Mutation(LogDirectory, "insist", _fail_at_once, ()),
    ),
}

MUTATIONS: Mapping[str, Mutation] = {
    "a removal from the ISR counts before the store has confirmed it": Mutation(
        Followers, "wait_for_change", _removal_counts_at_once, (ISR, LOST, DISAGREE, TWO_VALUES, SELF, TOO_FEW)
    ),
    "the high watermark is the log end": Mutation(
        Followers, "_count", _log_end_is_committed, (ISR, LOST, DISAGREE, TWO_VALUES, SELF, TOO_FEW)
    ),
    "acks=2 counts replicas that are not in sync": Mutation(
        Followers, "limit_of", _count_those_out_of_sync, (TOO_FEW, LOST)
    ),
    "min.insync.replicas counts as 1": Mutation(
        Partition, "min_insync_replicas", property(lambda self: 1, lambda self, value: None), (TOO_FEW, LOST)
    ),
    "a client that claims to be a replica is believed": Mutation(
        replica_fetch,
        "require_broker",
        lambda services, context, broker_id: None,
        (ISR, LOST, DISAGREE, TWO_VALUES, SELF, TOO_FEW),
    ),
    "any proof of a broker is accepted": Mutation(
        peer_identity,
        "is_proof",
        lambda proof, verifier, challenge: True,
        (ISR, LOST, DISAGREE, TWO_VALUES, SELF, TOO_FEW),
    ),
    "no replica rejoins the ISR": Mutation(Followers, "wanted", _let_nobody_back, (LIVENESS,)),
    "the high watermark goes back with the followers": Mutation(Partition, "advance", _go_back, (WATERMARK, ISR)),
    "consumers read up to the log end": Mutation(PartitionReader, "limit", _up_to_the_log_end, (BEYOND,)),
    "any incarnation of a broker may join the ISR": Mutation(
        ClusterMetadata, "alter_isr", _add_any_incarnation, (ISR, LOST, DISAGREE, TWO_VALUES, SELF)
    ),
    "a broker that crashed stays in the ISR": Mutation(
        registration, "after_crash", _stay, (ISR, LOST, DISAGREE, TWO_VALUES, SELF, WATERMARK, LIVENESS)
    ),
    "a broker that crashed names its successor": Mutation(
        registration, "after_crash", _name_an_heir, (LOST, ISR, SELF)
    ),
    "a leader accepts records right after a handover of unknown outcome": Mutation(
        Leadership, "_find_out", _release_at_once, (LOST,)
    ),
    "a leader without a lease keeps its clients": Mutation(
        Leading, "doubt", lambda leading, silent_since: False, (STALE,)
    ),
    "an election starts no new epoch": Mutation(
        (leaders, decisions), "led_by", _elect_in_one_epoch, (TWO_LEADERS, ELECTION)
    ),
    "a leader is elected from outside the ISR": Mutation(
        (leaders, decisions), "candidates_for", _all_alive, (ELECTION,)
    ),
    "an election does not ask for the longest log": Mutation(
        decisions, "with_longest_leaders", _first_in_sync_leads, (LOST,)
    ),
    "a deposed controller keeps writing": Mutation(broker_controller.Controller, "_alter", _alter_unfenced, (FENCE,)),
    "a follower does not truncate what its leader lacks": Mutation(
        Partition, "diverging_epoch", _no_divergence, (DISAGREE, TWO_VALUES, ISR, LOST, SELF, LIVENESS)
    ),
    "producer state is not truncated with the log": Mutation(
        PartitionLog, "_was_cut", _keep_producers, (LOST, ISR, TWO_VALUES, DISAGREE, ORDER, DUPLICATE, LIVENESS)
    ),
    "brokers do not detect duplicates": Mutation(ProducerState, "check", _no_duplicates, (DUPLICATE, ORDER)),
    "a coordinator loads only what it knows to be committed": Mutation(
        shards, "load", _load_committed_only, (GROUP_OFFSETS,)
    ),
    "group commits are acknowledged before they are committed": Mutation(
        Journal, "_append", _acknowledge_at_once, (GROUP_OFFSETS,)
    ),
    "retention does not wait for the archive": Mutation(
        PartitionLog, "remove_expired", _remove_unarchived, (UNARCHIVED, LOST)
    ),
    "an archive accepts commits on any base version": Mutation(
        ArchiveCommit, "applied_to", _commit_on_any_version, (ARCHIVE,)
    ),
    "readers do not look in the archive": Mutation(
        Partition, "is_in_archive", lambda partition, offset: False, (LOST, ORDER)
    ),
}
