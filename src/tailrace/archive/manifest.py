"""Manifests: the files of an archive, version by version.

A manifest is one commit: the files it adds and removes, and the coverage of each partition afterwards. It also names
side files, which keep undecodable batches within the range of a data file. It names its parent, so the head leads to
the whole history. At intervals a manifest is a checkpoint that lists all files, so that only a few need to be read.
Nothing is ever overwritten. A `Snapshot` is the resulting state at a head. It keeps the most important invariant: the
files of a partition are adjacent, offset by offset, from its start to its end, so a gap cannot be committed.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tailrace.archive.errors import ArchiveCorruptError, InvalidCommitError, NewerFormatError
from tailrace.archive.layout import (
    TopicArchive,
    check_manifest,
    is_data_file,
    is_side_file,
    manifest_name,
    manifest_path,
    topic_directory,
)
from tailrace.archive.location import Location
from tailrace.archive.quarantine import SideFile
from tailrace.model import Lineage
from tailrace.storage.checkpoints import decode_uuid, encode_uuid

#: The formats of manifests. Those with side files use the second, which older readers refuse.
_PLAIN_FORMAT = 1
FORMAT = 2
#: A manifest whose version is a multiple of this is a checkpoint.
CHECKPOINT_INTERVAL = 64


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """A data file, with everything that is known without reading it; its range includes gaps between offsets."""

    #: Relative to the topic's directory.
    name: str
    partition: int
    first_offset: int
    next_offset: int
    rows: int
    bytes: int
    #: `crc32c:` and eight digits: of the whole file, and of its footer.
    checksum: str
    footer_bytes: int
    footer_checksum: str
    #: None if the file has no records, because its range has none.
    min_timestamp: int | None
    max_timestamp: int | None

    def may_have(self, first_ms: int, last_ms: int) -> bool:
        """Whether it may have a record within a range of times (inclusive)."""
        if self.min_timestamp is None or self.max_timestamp is None:
            return False
        return self.min_timestamp <= last_ms and self.max_timestamp >= first_ms


@dataclass(frozen=True, slots=True)
class Manifest:
    """One commit, in its stored form."""

    topic: str
    lineage: Lineage
    version: int
    parent: str | None
    added: tuple[ArchivedFile, ...]
    removed: tuple[str, ...]
    #: Start and end offset of every partition of the archive after this commit.
    partitions: Mapping[int, tuple[int, int]]
    #: All files after this commit, if it is a checkpoint.
    files: tuple[ArchivedFile, ...] | None = None
    #: The side files that this commit adds; removed ones are in `removed`.
    quarantined: tuple[SideFile, ...] = ()
    #: All side files after this commit, if it is a checkpoint.
    side_files: tuple[SideFile, ...] = ()
    #: Whether any side file exists after this commit.
    has_quarantine: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Every file that it adds or lists."""
        files, side_files = (*self.added, *(self.files or ())), (*self.quarantined, *self.side_files)
        return (*(file.name for file in files), *(file.name for file in side_files))

    def encode(self) -> bytes:
        """The manifest as JSON."""
        document: dict[str, Any] = {
            "format": FORMAT if self.has_quarantine else _PLAIN_FORMAT,
            "topic": self.topic,
            "topic_id": encode_uuid(self.lineage),
            "version": self.version,
            "parent": self.parent,
            "partitions": {str(partition): list(span) for partition, span in sorted(self.partitions.items())},
            "added": [asdict(file) for file in self.added],
            "removed": list(self.removed),
        }
        if self.files is not None:
            document["files"] = [asdict(file) for file in self.files]
        if self.has_quarantine:
            document["quarantined"] = [asdict(file) for file in self.quarantined]
            if self.files is not None:
                document["side_files"] = [asdict(file) for file in self.side_files]
        return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def decode_manifest(name: str, content: bytes) -> Manifest:
    """Decode a manifest that was stored under a name."""
    version = check_manifest(name, content)
    try:
        document = json.loads(content)
        found = document["format"]
        if not isinstance(found, int):
            raise TypeError("the format is not a number")
        if found > FORMAT:
            raise NewerFormatError(
                f"manifest {name} has format {found}, but this tailrace supports only formats up to {FORMAT}: use the "
                "version that wrote it, or a later one"
            )
        manifest = Manifest(
            topic=document["topic"],
            lineage=Lineage(decode_uuid(document["topic_id"])),
            version=document["version"],
            parent=document["parent"],
            added=_decode_files(document["added"]),
            removed=tuple(document["removed"]),
            partitions={int(partition): (start, end) for partition, (start, end) in document["partitions"].items()},
            files=_decode_files(document["files"]) if "files" in document else None,
            quarantined=_decode_side_files(document.get("quarantined", ())),
            side_files=_decode_side_files(document.get("side_files", ())),
            has_quarantine=found > _PLAIN_FORMAT,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArchiveCorruptError(f"cannot read manifest {name}: {type(error).__name__}: {error}") from error
    if manifest.version != version:
        raise ArchiveCorruptError(f"manifest {name} has the wrong version {manifest.version} in its content")
    return manifest


def _decode_files(documents: Iterable[Mapping[str, Any]]) -> tuple[ArchivedFile, ...]:
    # A later tailrace may add optional fields within the same format.
    names = ArchivedFile.__slots__
    files = tuple(ArchivedFile(**{name: document[name] for name in names}) for document in documents)
    for file in files:
        if not is_data_file(file.name):
            raise ValueError(f"'{file.name}' is not the name of a data file")
    return files


def _decode_side_files(documents: Iterable[Mapping[str, Any]]) -> tuple[SideFile, ...]:
    names = SideFile.__slots__
    files = tuple(SideFile(**{name: document[name] for name in names}) for document in documents)
    for file in files:
        if not is_side_file(file.name):
            raise ValueError(f"'{file.name}' is not the name of a file of quarantined batches")
    return files


@dataclass(frozen=True, slots=True)
class PartitionFiles:
    """The archived part of one partition: a range of offsets in adjacent files."""

    start: int
    end: int
    files: tuple[ArchivedFile, ...] = ()
    #: Quarantined batches in the range, ordered by offset.
    side_files: tuple[SideFile, ...] = ()
    _firsts: tuple[int, ...] = field(default=(), repr=False, compare=False)

    @classmethod
    def of(
        cls, start: int, end: int, files: Iterable[ArchivedFile], side_files: Iterable[SideFile] = ()
    ) -> PartitionFiles:
        """Build from files in any order; InvalidCommitError if they leave a gap or overlap."""
        ordered = tuple(sorted(files, key=lambda file: (file.first_offset, file.next_offset)))
        at = ordered[0].first_offset if ordered else end
        for file in ordered:
            if file.first_offset != at or file.next_offset <= at:
                what = "overlaps the file before it" if file.first_offset < at else f"leaves a gap from {at} on"
                if file.next_offset <= file.first_offset:
                    what = "has an empty range of offsets"
                raise InvalidCommitError(f"{file.name} {what}")
            at = file.next_offset
        first = ordered[0].first_offset if ordered else end
        if not 0 <= first <= start <= end or at != end:
            raise InvalidCommitError(f"the files cover offsets {first} to {at}, but the commit says {start} to {end}")
        aside = tuple(sorted(side_files, key=lambda file: file.first_offset))
        at = first
        for side_file in aside:
            if not at <= side_file.first_offset < side_file.next_offset <= end:
                raise InvalidCommitError(
                    f"{side_file.name} is outside of the data files, or overlaps another side file"
                )
            at = side_file.next_offset
        return cls(start, end, ordered, aside, tuple(file.first_offset for file in ordered))

    @property
    def max_timestamp(self) -> int | None:
        """The latest time of any record in the files; None without records."""
        return max((file.max_timestamp for file in self.files if file.max_timestamp is not None), default=None)

    def index_at(self, offset: int) -> int | None:
        """The index of the file that covers an offset; None if the archive does not have it."""
        if not self.start <= offset < self.end:
            return None
        return bisect_right(self._firsts, offset) - 1

    def files_between(self, start: int, end: int) -> tuple[ArchivedFile, ...]:
        """The files that cover any offset from `start` up to `end` (exclusive)."""
        first, last = max(start, self.start), min(end, self.end) - 1
        if first > last:
            return ()
        return self.files[bisect_right(self._firsts, first) - 1 : bisect_right(self._firsts, last)]

    def side_files_between(self, start: int, end: int) -> tuple[SideFile, ...]:
        """The side files that may have any offset from `start` up to `end` (exclusive)."""
        first = bisect_right(self.side_files, max(start, self.start), key=lambda file: file.next_offset)
        last = bisect_left(self.side_files, end, key=lambda file: file.first_offset)
        return self.side_files[first:last]

    def files_since(self, timestamp_ms: int) -> Iterable[ArchivedFile]:
        """The files with a record at or after a time, ordered by offset."""
        return (file for file in self.files if file.max_timestamp is not None and file.max_timestamp >= timestamp_ms)


_NOTHING = PartitionFiles(0, 0)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All files of a topic's archive at one version."""

    topic: str
    lineage: Lineage
    version: int = 0
    #: The head manifest; None before the first commit.
    head: str | None = None
    partitions: Mapping[int, PartitionFiles] = field(default_factory=dict)

    @property
    def directory(self) -> str:
        return topic_directory(self.topic, self.lineage)

    @property
    def coverage(self) -> dict[int, tuple[int, int]]:
        """Start and end offset of each partition, as reported to the broker in a commit."""
        return {partition: (files.start, files.end) for partition, files in sorted(self.partitions.items())}

    @property
    def files(self) -> tuple[ArchivedFile, ...]:
        return tuple(file for _, partition in sorted(self.partitions.items()) for file in partition.files)

    @property
    def side_files(self) -> tuple[SideFile, ...]:
        return tuple(file for _, partition in sorted(self.partitions.items()) for file in partition.side_files)

    @property
    def names(self) -> tuple[str, ...]:
        """Every file that readers of this version need, without manifests."""
        return (*(file.name for file in self.files), *(file.name for file in self.side_files))

    @property
    def quarantined_batches(self) -> int:
        """The number of undecodable batches in the archive."""
        return sum(file.batches for file in self.side_files)

    def partition(self, partition: int) -> PartitionFiles:
        """The files of a partition, possibly none."""
        return self.partitions.get(partition, _NOTHING)

    def commit(
        self,
        added: Sequence[ArchivedFile],
        removed: Sequence[str] = (),
        starts: Mapping[int, int] | None = None,
        quarantined: Sequence[SideFile] = (),
    ) -> Manifest:
        """The manifest of the next version; InvalidCommitError if it would be inconsistent.

        Side files are removed by name like data files. A partition begins with its first file. Starts only move up.
        Files that lie wholly below a start may be removed without a replacement; any other removed file must be
        replaced.
        """
        partitions = _changed(self.partitions, added, removed, starts or {}, quarantined)
        version = self.version + 1
        spans = {partition: (files.start, files.end) for partition, files in partitions.items()}
        checkpoint = None
        if version % CHECKPOINT_INTERVAL == 0:
            checkpoint = tuple(file for _, files in sorted(partitions.items()) for file in files.files)
        side_files = tuple(file for _, files in sorted(partitions.items()) for file in files.side_files)
        return Manifest(
            self.topic,
            self.lineage,
            version,
            self.head,
            tuple(added),
            tuple(removed),
            spans,
            checkpoint,
            tuple(quarantined),
            side_files if checkpoint is not None else (),
            bool(side_files),
        )

    def following(self, manifest: Manifest, name: str) -> Snapshot:
        """The next version, according to its manifest; ArchiveCorruptError if the manifest does not fit."""
        _check_identity(manifest, name, self.topic, self.lineage)
        if manifest.version != self.version + 1 or manifest.parent != self.head:
            raise ArchiveCorruptError(
                f"manifest {name} follows {manifest.parent}, not version {self.version} ({self.head})"
            )
        starts = {partition: start for partition, (start, _) in manifest.partitions.items()}
        try:
            partitions = _changed(self.partitions, manifest.added, manifest.removed, starts, manifest.quarantined)
        except InvalidCommitError as error:
            raise ArchiveCorruptError(f"manifest {name} is inconsistent: {error}") from error
        if {partition: (files.start, files.end) for partition, files in partitions.items()} != manifest.partitions:
            raise ArchiveCorruptError(f"manifest {name} does not cover the offsets that it lists")
        return Snapshot(self.topic, self.lineage, manifest.version, name, partitions)


def _changed(
    before: Mapping[int, PartitionFiles],
    added: Iterable[ArchivedFile],
    removed: Iterable[str],
    starts: Mapping[int, int],
    quarantined: Iterable[SideFile],
) -> dict[int, PartitionFiles]:
    gone = set(removed)
    new: dict[int, list[ArchivedFile]] = {}
    for file in added:
        new.setdefault(file.partition, []).append(file)
    new_aside: dict[int, list[SideFile]] = {}
    for side_file in quarantined:
        new_aside.setdefault(side_file.partition, []).append(side_file)
    after: dict[int, PartitionFiles] = {}
    for partition in sorted({*before, *new, *new_aside}):
        old = before.get(partition)
        kept = [file for file in old.files if file.name not in gone] if old is not None else []
        aside = [file for file in old.side_files if file.name not in gone] if old is not None else []
        if old is not None:
            is_kept = len(kept) == len(old.files) and len(aside) == len(old.side_files)
            gone.difference_update(file.name for file in old.files)
            gone.difference_update(file.name for file in old.side_files)
            if is_kept and partition not in new and partition not in new_aside and partition not in starts:
                after[partition] = old
                continue
        files = kept + new.get(partition, [])
        first = min((file.first_offset for file in files), default=None)
        end = max((file.next_offset for file in files), default=old.end if old is not None else 0)
        floor = old.start if old is not None else (0 if first is None else first)
        start = starts.get(partition, floor)
        if old is not None and not (old.start <= start <= old.end <= end):
            raise InvalidCommitError(
                f"partition {partition} would cover offsets {start} to {end}, but now covers {old.start} to {old.end}"
            )
        after[partition] = PartitionFiles.of(start, end, files, aside + new_aside.get(partition, []))
    if gone:
        raise InvalidCommitError(f"{min(gone)} is not part of the archive, so it cannot be removed")
    if unknown := sorted(starts.keys() - after.keys()):
        raise InvalidCommitError(f"partition {unknown[0]} is not part of the archive, so its start cannot change")
    return after


def _check_identity(manifest: Manifest, name: str, topic: str, lineage: Lineage) -> None:
    if (manifest.topic, manifest.lineage) != (topic, lineage):
        raise ArchiveCorruptError(
            f"manifest {name} belongs to topic {manifest.topic} ({encode_uuid(manifest.lineage)}), not to "
            f"{topic} ({encode_uuid(lineage)})"
        )


def write_manifest(location: Location, manifest: Manifest) -> str:
    """Store a manifest under a new name and return the name; it takes effect when the broker accepts it as the head."""
    content = manifest.encode()
    name = manifest_name(manifest.version, content)
    location.write_new(manifest_path(topic_directory(manifest.topic, manifest.lineage), name), content)
    return name


def read_manifest(location: Location, directory: str, name: str) -> Manifest:
    """Read a manifest from a topic's directory."""
    return decode_manifest(name, location.read_all(manifest_path(directory, name)))


def load_snapshot(
    location: Location, archive: TopicArchive, known: Callable[[str], Snapshot | None] = lambda name: None
) -> Snapshot:
    """The snapshot at an archive's head, built from the last checkpoint or from a known snapshot."""
    pending: list[tuple[str, Manifest]] = []
    snapshot = Snapshot(archive.topic, archive.lineage)
    name = archive.manifest
    while name is not None:
        if (found := known(name)) is not None:
            snapshot = found
            break
        manifest = read_manifest(location, archive.directory, name)
        if pending and manifest.version != pending[-1][1].version - 1:
            raise ArchiveCorruptError(f"manifest {name} is the parent of a manifest that does not follow it")
        if manifest.files is not None:
            snapshot = _from_checkpoint(archive, manifest, name)
            break
        pending.append((name, manifest))
        name = manifest.parent
    for later, manifest in reversed(pending):
        snapshot = snapshot.following(manifest, later)
    return snapshot


def _from_checkpoint(archive: TopicArchive, manifest: Manifest, name: str) -> Snapshot:
    _check_identity(manifest, name, archive.topic, archive.lineage)
    files: dict[int, list[ArchivedFile]] = {partition: [] for partition in manifest.partitions}
    side_files: dict[int, list[SideFile]] = {partition: [] for partition in manifest.partitions}
    try:
        for file in manifest.files or ():
            files[file.partition].append(file)
        for side_file in manifest.side_files:
            side_files[side_file.partition].append(side_file)
        partitions = {
            partition: PartitionFiles.of(start, end, files[partition], side_files[partition])
            for partition, (start, end) in manifest.partitions.items()
        }
    except (InvalidCommitError, KeyError) as error:
        raise ArchiveCorruptError(f"manifest {name} is inconsistent: {error}") from error
    return Snapshot(archive.topic, archive.lineage, manifest.version, name, partitions)
