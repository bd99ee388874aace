"""The partition logs in a directory: whose they are, whether they are whole, and what the next start would do to them.

The quick check reads checkpoints, the first batch of the first and the last segment, and the end of the last; the deep
one every batch by its CRC. Batches are read by `cli.log_files`, checkpoints and snapshots by `storage`. What a crash
has left behind is told from damage by the recovery point: below it everything was synced.
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
        """How much a start after a crash reads: everything from the segment on that holds the recovery point."""
        ends = [segment.base_offset for segment in self.segments[1:]]
        known = sum(1 for end in ends if end <= recovery_point)
        return sum(segment.size for segment in self.segments[known:])


@dataclass(slots=True)
class Contents:
    """What a log directory holds."""

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
        """What the next start reads if there is no marker of a clean stop."""
        points = self.recovery_points
        return sum(files.size_after(points.get(files.partition, 0)) for files in self.partitions)


def read_contents(state: State) -> tuple[Contents, list[Finding]]:
    """List what is in a directory; StorageError where that cannot be read."""
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
        except (ValueError, FileNotFoundError):  # not a segment, or removed by retention meanwhile
            continue


def _check_checkpoints(path: str) -> tuple[dict[TopicPartition, int], list[Finding]]:
    """The recovery points, and whether every file of offsets can be read."""
    offsets: dict[str, dict[TopicPartition, int]] = {}
    findings = []
    effects = {
        RECOVERY_POINTS: "ignored, and the next start after a crash reads all logs",
        LOG_START_OFFSETS: "ignored, and records that were deleted may be read again",
        CLEANER_OFFSETS: "ignored, and compaction begins anew",
    }
    for name, effect in effects.items():
        try:
            offsets[name] = parse_offsets(_read(f"{path}/{name}"))
        except FileNotFoundError:
            pass
        except (ValueError, OSError) as error:
            text = f"{name} cannot be read ({error}): it is {effect}"
            findings.append(warning(path, text, "nothing; the broker writes it anew"))
    return offsets.get(RECOVERY_POINTS, {}), findings


def check_leftovers(contents: Contents) -> list[Finding]:
    """Directories of topics that are gone."""
    path = contents.state.path
    findings = []
    if contents.strays:
        text = f"{len(contents.strays)} set aside because no topic owned them: {some(contents.strays)}"
        findings.append(warning(path, text, "remove them if nobody misses their records"))
    if contents.deleted:
        text = f"{len(contents.deleted)} of deleted topics still to be removed: {some(contents.deleted)}"
        findings.append(ok(path, text))
    return findings


def check_ownership(found: Sequence[Contents], image: ClusterImage, broker_id: int) -> list[Finding]:
    """What a start would make of the directories: whether every partition has its own, and each its topic."""
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
            text = f"{files.path} and {other} are the same partition, and only one of them is used"
            findings.append(problem(str(files.partition), text, "move the one that is not wanted elsewhere"))
            continue
        topic = owned.get(files.partition)
        try:
            lineage = read_topic_id(disk, files.path)
        except StorageError as error:
            advice = "start the newer version of tailrace that wrote it"
            findings.append(problem(str(files.partition), str(error), advice))
            continue
        if topic is None and lineage is not None:
            text = f"{files.path} ({size_text(files.size)}) is of no topic; the next start sets it aside"
            findings.append(warning(str(files.partition), text, "bring back the metadata store it belongs to, if any"))
        elif topic is not None and lineage is not None and lineage != topic.lineage:
            text = (
                f"{files.path} ({size_text(files.size)}) is of another topic of that name; the next start sets it aside"
            )
            findings.append(warning(str(files.partition), text, "move it elsewhere if its records are wanted"))
    missing = [str(partition) for partition in owned if partition not in homes]
    if missing:
        text = f"{some(missing)}: there is no directory; the next start makes it, empty"
        advice = "bring it back from a backup, or name every log directory in log.dirs"
        findings.append(problem("partitions", text, advice))
    return findings


def check_partitions(contents: Contents) -> list[Finding]:
    """The quick check of every partition in a directory."""
    findings = [finding for files in contents.partitions for finding in _check_partition(contents, files)]
    if not findings and contents.partitions:
        findings.append(ok(contents.state.path, f"{_summary(contents)}: beginnings and ends are sound"))
    return findings


def _summary(contents: Contents) -> str:
    segments = sum(len(files.segments) for files in contents.partitions)
    partitions = count_of(len(contents.partitions), "partition")
    return f"{partitions}, {count_of(segments, 'segment')}, {size_text(contents.size)}"


def check_every_batch(contents: Contents, advance: Advance) -> list[Finding]:
    """The same, and every batch of every log read; `advance` is told the bytes that are done."""
    findings: list[Finding] = []
    for files in contents.partitions:
        findings += _check_small_files(files)
        for segment in files.segments:
            findings += _check_segment(contents, files, segment, advance)
    if not findings and contents.partitions:
        findings.append(ok(contents.state.path, f"{_summary(contents)}: every batch has the right CRC"))
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
        yield warning(subject, text, "nothing; it is written anew as far as the log tells")
    snapshots = [name for name in _names(files.path) if name.endswith(SNAPSHOT_SUFFIX)]
    try:
        if snapshots:
            ProducerState.from_snapshot(_read(f"{files.path}/{snapshots[-1]}"))
    except FileNotFoundError:
        pass
    except (ValueError, OSError) as error:
        text = f"{files.path}/{snapshots[-1]} is not used: {error}"
        yield warning(subject, text, "nothing; what it says is taken from the log")


def _last_indexed(segment: SegmentFile) -> tuple[int, int]:
    """Where the last batch that the index knows starts, and an offset in it; the segment's start where it has none."""
    found = (0, segment.base_offset)
    try:
        with open(segment.path[: -len(LOG_SUFFIX)] + INDEX_SUFFIX, "rb") as stream:
            for entry in read_offset_index(stream, segment.base_offset):
                if not isinstance(entry, Corruption) and found[0] < entry.value < segment.size:
                    found = (entry.value, entry.key)
    except OSError:  # an index is made anew where there is none
        pass
    return found


def _check_first_batch(contents: Contents, files: PartitionFiles, segment: SegmentFile) -> Iterator[Finding]:
    try:
        with open(segment.path, "rb") as stream:
            batch = next(read_batches(stream), None)
    except FileNotFoundError:  # retention was faster
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
    """Read a segment from a position and the offset there on; only the first damage in it is told."""
    next_offset = segment.base_offset if offset is None else offset
    is_newest = segment is files.segments[-1]
    damage: Finding | None = None
    done = position
    try:
        with open(segment.path, "rb") as stream:
            for batch in read_batches(stream, position):
                if isinstance(batch, Corruption):
                    # What a running broker is just writing looks cut off.
                    if damage is None and not (contents.state.is_running and is_newest):
                        damage = _judge(contents, files, segment, batch, next_offset)
                    continue
                if batch.crc_valid:
                    next_offset = batch.header.next_offset
                advance(batch.header.size)
                done += batch.header.size
    except FileNotFoundError:  # retention was faster
        return
    except OSError as error:
        damage = _unreadable(files, error)
    advance(max(segment.size - done, 0))
    if damage is not None:
        yield damage


def _judge(contents: Contents, files: PartitionFiles, segment: SegmentFile, damage: Corruption, offset: int) -> Finding:
    """Damage in what was synced is a problem; behind the recovery point it is what a crash leaves."""
    state = contents.state
    where = f"{segment.path} at position {damage.position} (offset {offset}): {damage.reason}"
    lost = segment.size - damage.position
    was_killed = not state.stopped_cleanly and not state.is_running
    if was_killed and offset >= contents.recovery_points.get(files.partition, 0):
        text = f"{where}; the next start cuts the log there and drops {size_text(lost)}"
        advice = "nothing, if the machine lost power or the disk was full; else copy the directory before the start"
        return warning(str(files.partition), text, advice)
    if segment is not files.segments[-1]:
        following = files.segments[files.segments.index(segment) + 1].base_offset
        advice = (
            "stop the broker and bring the file back from a backup; without one, consumers can go on at offset "
            f"{following}, where the next segment begins"
        )
        return problem(str(files.partition), f"{where}; the rest of the segment is not served", advice)
    advice = (
        "stop the broker and bring the file back from a backup; without one, remove "
        f"{state.path}/{CLEAN_SHUTDOWN}, and the next start cuts the log there"
    )
    return problem(str(files.partition), f"{where}; the partition is not served from there on", advice)


def _unreadable(files: PartitionFiles, error: OSError) -> Finding:
    text = f"{error.filename or files.path} cannot be read: {error.strerror}"
    return problem(str(files.partition), text, "run as the broker's user; if it is the disk, replace it")


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _names(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def _ignore(size: int) -> None:
    """Nobody waits."""
