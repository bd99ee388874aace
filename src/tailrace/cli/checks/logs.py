"""Checks the partition logs in a directory: their topics, their integrity, and what the next start would do to them.

The quick check reads checkpoints, the first batch of the first and the last segment, and the end of the last. The deep
check reads every batch and compares its CRC. `cli.log_files` reads batches; `storage` reads checkpoints and snapshots.
The recovery point separates damage from the traces of a crash: everything below it was synced.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tailrace.cli.checks.directories import State
from tailrace.cli.checks.finding import Finding, ok, problem, size_text, some, warning
from tailrace.cli.log_files import Corruption, base_offset_of, read_batches, read_offset_index
from tailrace.cli.output import count_of
from tailrace.cluster.image import ClusterImage
from tailrace.errors import StorageError
from tailrace.model import TopicPartition
from tailrace.runtime.system.disk import SystemDisk
from tailrace.storage.checkpoints import (
    CLEANER_OFFSETS,
    LEADER_EPOCHS,
    LOG_START_OFFSETS,
    RECOVERY_POINTS,
    parse_lines,
    parse_offsets,
)
from tailrace.storage.directory_identity import CLEAN_SHUTDOWN
from tailrace.storage.directory_names import is_deleted, is_stray, partition_named
from tailrace.storage.partition_metadata import read_topic_id
from tailrace.storage.producer_state import ProducerState
from tailrace.storage.segment import INDEX_SUFFIX, LOG_SUFFIX, SNAPSHOT_SUFFIX

Advance = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """A .log file."""

    base_offset: int
    path: str
    size: int


@dataclass(frozen=True, slots=True)
class PartitionFiles:
    """The directory of one partition and the segments in it, oldest first."""

    partition: TopicPartition
    path: str
    segments: tuple[SegmentFile, ...]

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.segments)

    def size_after(self, recovery_point: int) -> int:
        """Return what a start after a crash scans: everything from the segment that contains the recovery point."""
        ends = [segment.base_offset for segment in self.segments[1:]]
        known = sum(1 for end in ends if end <= recovery_point)
        return sum(segment.size for segment in self.segments[known:])


@dataclass(slots=True)
class Contents:
    """The contents of a log directory."""

    state: State
    partitions: list[PartitionFiles] = field(default_factory=list)
    strays: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    recovery_points: Mapping[TopicPartition, int] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return sum(files.size for files in self.partitions)

    @property
    def bytes_to_recover(self) -> int:
        """Return what the next start scans if there is no marker of a clean stop."""
        points = self.recovery_points
        return sum(files.size_after(points.get(files.partition, 0)) for files in self.partitions)


def read_contents(state: State) -> tuple[Contents, list[Finding]]:
    """List the contents of a directory; raise StorageError if it cannot be read."""
    contents = Contents(state)
    try:
        names = sorted(os.listdir(state.path))
        for name in names:
            path = f"{state.path}/{name}"
            partition = partition_named(name)
            if is_stray(name):
                contents.strays.append(name)
            elif is_deleted(name):
                contents.deleted.append(name)
            elif partition is not None and os.path.isdir(path):
                contents.partitions.append(PartitionFiles(partition, path, tuple(_segments(path))))
    except OSError as error:
        raise StorageError(f"cannot read {error.filename}: {error.strerror}") from error
    contents.recovery_points, findings = _check_checkpoints(state.path)
    return contents, findings


def _segments(path: str) -> Iterator[SegmentFile]:
    for name in sorted(os.listdir(path)):
        if not name.endswith(LOG_SUFFIX):
            continue
        try:
            yield SegmentFile(base_offset_of(name), f"{path}/{name}", os.stat(f"{path}/{name}").st_size)
        except (ValueError, FileNotFoundError):  # not a segment, or meanwhile removed by retention
            continue


def _check_checkpoints(path: str) -> tuple[dict[TopicPartition, int], list[Finding]]:
    """Read the recovery points, and check that every file of offsets can be read."""
    offsets: dict[str, dict[TopicPartition, int]] = {}
    findings = []
    effects = {
        RECOVERY_POINTS: "ignored, and the next start after a crash scans all logs",
        LOG_START_OFFSETS: "ignored, and deleted records may be readable again",
        CLEANER_OFFSETS: "ignored, and compaction starts over",
    }
    for name, effect in effects.items():
        try:
            offsets[name] = parse_offsets(_read(f"{path}/{name}"))
        except FileNotFoundError:
            pass
        except (ValueError, OSError) as error:
            text = f"{name} cannot be read ({error}): it is {effect}"
            findings.append(warning(path, text, "nothing; the broker writes a new one"))
    return offsets.get(RECOVERY_POINTS, {}), findings


def check_leftovers(contents: Contents) -> list[Finding]:
    """Report the directories of topics that no longer exist."""
    path = contents.state.path
    findings = []
    if contents.strays:
        strays = count_of(len(contents.strays), "partition")
        text = f"{strays} set aside because no topic owned them: {some(contents.strays)}"
        findings.append(warning(path, text, "remove these directories if nobody needs their records"))
    if contents.deleted:
        deleted = count_of(len(contents.deleted), "partition")
        text = f"{deleted} of deleted topics still to be removed: {some(contents.deleted)}"
        findings.append(ok(path, text))
    return findings


def check_ownership(found: Sequence[Contents], image: ClusterImage, broker_id: int) -> list[Finding]:
    """Check that every partition of this broker has its own directory, and every directory its topic."""
    findings = []
    homes: dict[TopicPartition, str] = {}
    disk = SystemDisk()
    owned = {
        TopicPartition(topic.name, number): topic
        for topic in image.topics.values()
        for number, state in enumerate(topic.partitions)
        if broker_id in state.replicas
    }
    for files in (files for contents in found for files in contents.partitions):
        other = homes.setdefault(files.partition, files.path)
        if other != files.path:
            text = f"{files.path} and {other} are the same partition, and the broker uses only one of them"
            findings.append(problem(str(files.partition), text, "move the one that you do not want elsewhere"))
            continue
        topic = owned.get(files.partition)
        try:
            lineage = read_topic_id(disk, files.path)
        except StorageError as error:
            advice = "start the newer version of tailrace that wrote it"
            findings.append(problem(str(files.partition), str(error), advice))
            continue
        if topic is None and lineage is not None:
            text = f"{files.path} ({size_text(files.size)}) belongs to no topic; the next start sets it aside"
            findings.append(
                warning(str(files.partition), text, "if it belongs to another metadata store, restore that store first")
            )
        elif topic is not None and lineage is not None and lineage != topic.lineage:
            size = size_text(files.size)
            text = f"{files.path} ({size}) belongs to another topic of that name; the next start sets it aside"
            findings.append(warning(str(files.partition), text, "move it elsewhere if you want to keep its records"))
    missing = [partition for partition in owned if partition not in homes]
    alone = [name for name in missing if len(owned[name].partitions[name.partition].replicas) == 1]
    if alone:
        text = f"{some(map(str, alone))}: there is no directory; the next start creates an empty one"
        advice = "restore it from a backup, or list every log directory in log.dirs"
        findings.append(problem("partitions", text, advice))
    replicated = [str(name) for name in missing if name not in alone]
    if replicated:
        text = f"{some(replicated)}: there is no directory; the next start creates one and copies the leader's records"
        advice = "nothing if the topic or the disk is new; otherwise list every log directory in log.dirs"
        findings.append(warning("partitions", text, advice))
    return findings


def check_partitions(contents: Contents) -> list[Finding]:
    """Run the quick check on every partition in a directory."""
    findings = [finding for files in contents.partitions for finding in _check_partition(contents, files)]
    if not findings and contents.partitions:
        findings.append(ok(contents.state.path, f"{_summary(contents)}: all logs begin and end with sound batches"))
    return findings


def _summary(contents: Contents) -> str:
    segments = sum(len(files.segments) for files in contents.partitions)
    partitions = count_of(len(contents.partitions), "partition")
    return f"{partitions}, {count_of(segments, 'segment')}, {size_text(contents.size)}"


def check_every_batch(contents: Contents, advance: Advance) -> list[Finding]:
    """Run the deep check on every partition in a directory; report the bytes that are done to `advance`."""
    findings: list[Finding] = []
    for files in contents.partitions:
        findings += _check_small_files(files)
        for segment in files.segments:
            findings += _check_segment(contents, files, segment, advance)
    if not findings and contents.partitions:
        findings.append(ok(contents.state.path, f"{_summary(contents)}: every batch has a valid CRC"))
    return findings


def _check_partition(contents: Contents, files: PartitionFiles) -> Iterator[Finding]:
    yield from _check_small_files(files)
    if not files.segments:
        return
    first, last = files.segments[0], files.segments[-1]
    if first is not last:
        yield from _check_first_batch(contents, files, first)
    position, offset = _last_indexed(last)
    if position > 0:
        yield from _check_first_batch(contents, files, last)
    yield from _check_segment(contents, files, last, _ignore, position, offset)


def _check_small_files(files: PartitionFiles) -> Iterator[Finding]:
    subject = str(files.partition)
    try:
        for epoch, start in parse_lines(_read(f"{files.path}/{LEADER_EPOCHS}")):
            _ = int(epoch), int(start)
    except FileNotFoundError:
        pass
    except (ValueError, OSError) as error:
        text = f"{files.path}/{LEADER_EPOCHS} cannot be read: {error}"
        yield warning(subject, text, "nothing; the broker rebuilds it from the log as far as possible")
    snapshots = [name for name in _names(files.path) if name.endswith(SNAPSHOT_SUFFIX)]
    try:
        if snapshots:
            ProducerState.from_snapshot(_read(f"{files.path}/{snapshots[-1]}"))
    except FileNotFoundError:
        pass
    except (ValueError, OSError) as error:
        text = f"{files.path}/{snapshots[-1]} is unusable: {error}"
        yield warning(subject, text, "nothing; the broker rebuilds it from the log")


def _last_indexed(segment: SegmentFile) -> tuple[int, int]:
    """Return the position of the last batch in the index and an offset in it; the segment's start if it has none."""
    found = (0, segment.base_offset)
    try:
        with open(segment.path[: -len(LOG_SUFFIX)] + INDEX_SUFFIX, "rb") as stream:
            for entry in read_offset_index(stream, segment.base_offset):
                if not isinstance(entry, Corruption) and found[0] < entry.value < segment.size:
                    found = (entry.value, entry.key)
    except OSError:  # the broker rebuilds a missing index
        pass
    return found


def _check_first_batch(contents: Contents, files: PartitionFiles, segment: SegmentFile) -> Iterator[Finding]:
    try:
        with open(segment.path, "rb") as stream:
            batch = next(read_batches(stream), None)
    except FileNotFoundError:  # meanwhile removed by retention
        return
    except OSError as error:
        yield _unreadable(files, error)
        return
    if isinstance(batch, Corruption):
        yield _judge(contents, files, segment, batch, segment.base_offset)
    elif batch is not None and not batch.crc_valid:
        damage = Corruption(0, f"the CRC of the batch at offset {batch.header.base_offset} does not match")
        yield _judge(contents, files, segment, damage, segment.base_offset)
    elif batch is not None and batch.header.base_offset < segment.base_offset:
        damage = Corruption(0, f"its first offset is {batch.header.base_offset}")
        yield _judge(contents, files, segment, damage, segment.base_offset)


def _check_segment(
    contents: Contents,
    files: PartitionFiles,
    segment: SegmentFile,
    advance: Advance,
    position: int = 0,
    offset: int | None = None,
) -> Iterator[Finding]:
    """Read a segment from a position and its offset on; yield only the first damage in it."""
    next_offset = segment.base_offset if offset is None else offset
    is_newest = segment is files.segments[-1]
    damage: Finding | None = None
    done = position
    try:
        with open(segment.path, "rb") as stream:
            for batch in read_batches(stream, position):
                if isinstance(batch, Corruption):
                    # A batch that a running broker is writing looks truncated.
                    if damage is None and not (contents.state.is_running and is_newest):
                        damage = _judge(contents, files, segment, batch, next_offset)
                    continue
                if batch.crc_valid:
                    next_offset = batch.header.next_offset
                advance(batch.header.size)
                done += batch.header.size
    except FileNotFoundError:  # meanwhile removed by retention
        return
    except OSError as error:
        damage = _unreadable(files, error)
    advance(max(segment.size - done, 0))
    if damage is not None:
        yield damage


def _judge(contents: Contents, files: PartitionFiles, segment: SegmentFile, damage: Corruption, offset: int) -> Finding:
    """Rate damage: a problem in synced data; only a warning after the recovery point if the broker was killed."""
    state = contents.state
    where = f"{segment.path} at position {damage.position} (offset {offset}): {damage.reason}"
    lost = segment.size - damage.position
    was_killed = not state.stopped_cleanly and not state.is_running
    if was_killed and offset >= contents.recovery_points.get(files.partition, 0):
        text = f"{where}; the next start truncates the log there and drops {size_text(lost)}"
        advice = "nothing if the machine lost power or the disk was full; otherwise copy the directory before you start"
        return warning(str(files.partition), text, advice)
    if segment is not files.segments[-1]:
        following = files.segments[files.segments.index(segment) + 1].base_offset
        advice = (
            "stop the broker and restore the file from a backup; without one, consumers can continue at offset "
            f"{following}, where the next segment begins"
        )
        return problem(str(files.partition), f"{where}; the rest of the segment is not served", advice)
    advice = (
        "stop the broker and restore the file from a backup; without one, remove "
        f"{state.path}/{CLEAN_SHUTDOWN}, and the next start truncates the log there"
    )
    return problem(str(files.partition), f"{where}; the partition is not served from there on", advice)


def _unreadable(files: PartitionFiles, error: OSError) -> Finding:
    text = f"{error.filename or files.path} cannot be read: {error.strerror}"
    return problem(str(files.partition), text, "run doctor as the broker's user; if the disk is faulty, replace it")


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _names(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def _ignore(size: int) -> None:
    """Do not report progress."""
