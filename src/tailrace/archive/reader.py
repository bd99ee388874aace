"""Reading an archive as a broker does: batches from an offset on, and offsets by time.

Batches that could not be decoded when they were archived are returned as the log had them, at their offsets. A client
treats them like such bytes from any log.

This runs in a helper process. A broker calls `read_batches` and `find_offset` there, with values that can be sent
between processes. What was read is cached between calls, within bounds. Everything is reached through the head manifest
that the caller names. Files of an archive never change, so the cache is never out of date. Damage is an error, never a
gap.
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from tailrace.archive.cache import BoundedCache
from tailrace.archive.errors import ArchiveError, OffsetNotArchivedError
from tailrace.archive.layout import TopicArchive, manifest_path
from tailrace.archive.location import Location, open_location
from tailrace.archive.manifest import ArchivedFile, PartitionFiles, Snapshot, load_snapshot
from tailrace.archive.parquet import Footer, read_footer, read_row_groups
from tailrace.archive.quarantine import QuarantinedBatch, SideFileContent, read_side_file
from tailrace.archive.rebuild import build_filler, rebuild

SNAPSHOT_CACHE_BYTES = 64 << 20
FOOTER_CACHE_BYTES = 64 << 20
ROW_GROUP_CACHE_BYTES = 128 << 20
SIDE_FILE_CACHE_BYTES = 32 << 20
#: How much of a file is fetched at once when it is read sequentially.
READ_AHEAD_BYTES = 4 << 20
_BYTES_PER_FILE = 600
_MAX_READERS = 64
_NO_LIMIT = 2**63 - 1

#: The options of a location in hashable form.
Options: TypeAlias = tuple[tuple[str, str], ...]


class FoundOffset(NamedTuple):
    """The result of a search by time."""

    offset: int
    timestamp: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class Caches:
    """The caches that all archives share."""

    snapshots: BoundedCache[Snapshot]
    footers: BoundedCache[Footer]
    row_groups: BoundedCache[pa.Table]
    side_files: BoundedCache[SideFileContent]

    @classmethod
    def new(
        cls,
        snapshot_bytes: int = SNAPSHOT_CACHE_BYTES,
        footer_bytes: int = FOOTER_CACHE_BYTES,
        row_group_bytes: int = ROW_GROUP_CACHE_BYTES,
    ) -> Caches:
        return cls(
            BoundedCache(snapshot_bytes),
            BoundedCache(footer_bytes),
            BoundedCache(row_group_bytes),
            BoundedCache(SIDE_FILE_CACHE_BYTES),
        )


class ArchiveReader:
    """Reads the archives of one location."""

    def __init__(self, location: Location, caches: Caches | None = None) -> None:
        self._location = location
        self._caches = Caches.new() if caches is None else caches

    def snapshot(self, archive: TopicArchive) -> Snapshot:
        """All files of an archive at its head."""
        snapshots = self._caches.snapshots
        found = self._known(archive.directory, archive.manifest)
        if found is None:
            found = load_snapshot(self._location, archive, lambda name: self._known(archive.directory, name))
            snapshots.put(
                (self._location.uri, archive.directory, found.head),
                found,
                (len(found.files) + len(found.side_files)) * _BYTES_PER_FILE,
            )
        return found

    def check(self, archive: TopicArchive) -> int:
        """Raise an error if the archive cannot be read, even if cached; return the number of quarantined batches."""
        if archive.manifest is None:
            self._location.check()
            return 0
        snapshot = self.snapshot(archive)
        self._location.size(manifest_path(archive.directory, archive.manifest))
        return snapshot.quarantined_batches

    def _known(self, directory: str, head: str | None) -> Snapshot | None:
        return self._caches.snapshots.get((self._location.uri, directory, head))

    def read(self, archive: TopicArchive, partition: int, offset: int, max_bytes: int, limit: int = _NO_LIMIT) -> bytes:
        """Batches from an offset on, up to `max_bytes` and below an offset limit, but at least one record.

        They end with the last record that fits. At the end of the archive they end with a filler if offsets are missing
        there, so that a reader that continues after the batches reaches the end of the archive. A quarantined batch
        is never divided: the first one may end beyond the limit.
        """
        files = self.snapshot(archive).partition(partition)
        end = min(files.end, limit)
        index = files.index_at(offset)
        if index is None:
            raise _not_archived(archive, partition, offset, files)
        pieces: list[bytes] = []
        size = 0
        at = told = offset
        while at < end and (size < max_bytes or not pieces):
            file = files.files[index]
            if at >= file.next_offset:  # after a gap, or after a raw batch that spans two files
                index += 1
                continue
            try:
                aside = self._quarantined_after(archive.directory, files, at, file.next_offset)
                if aside is not None and aside.header.base_offset <= at:
                    if pieces and (size + len(aside.data) > max_bytes or aside.header.next_offset > end):
                        break
                    pieces.append(aside.data)
                    size += len(aside.data)
                    at = told = aside.header.next_offset
                    continue
                records = self._records_from(archive.directory, file, at, max_bytes - size)
            except ArchiveError:
                if pieces:
                    break  # what precedes the damage is sound; the next read reports it
                raise
            until = min(end, file.next_offset if aside is None else min(aside.header.base_offset, file.next_offset))
            if records is not None and (aside is not None or until == end):
                records = _below(records, until)
            if records is None or not records.num_rows:
                at = until
                continue
            batches = rebuild(records, max_bytes - size)
            if pieces and size + len(batches.data) > max_bytes:
                break
            pieces.append(batches.data)
            size += len(batches.data)
            at = told = records.column("offset")[batches.rows - 1].as_py() + 1
            if batches.rows < records.num_rows:
                break
        if at >= end > told:
            pieces.append(build_filler(told, end - 1))
        return b"".join(pieces)

    def offset_for_timestamp(
        self, archive: TopicArchive, partition: int, timestamp_ms: int, first_offset: int = 0
    ) -> FoundOffset | None:
        """The first record at or after an offset and a time; None if the archive has none."""
        files = self.snapshot(archive).partition(partition)
        start = max(files.start, first_offset)
        for file in files.files_since(timestamp_ms):
            if file.next_offset <= start:
                continue
            footer = self._footer(archive.directory, file)
            for group in np.flatnonzero(footer.max_timestamps >= timestamp_ms).tolist():
                if footer.last_offsets[group] < start:
                    continue
                records = self._row_group(archive.directory, file, footer, group, 0)
                offsets = records.column("offset").to_numpy()
                times = records.column("timestamp").cast(pa.int64()).to_numpy()
                hits = np.flatnonzero((times >= timestamp_ms) & (offsets >= start))
                if len(hits):
                    row = int(hits[0])
                    epoch = records.column("leader_epoch")[row].as_py()
                    return FoundOffset(int(offsets[row]), int(times[row]), epoch)
        return None

    def _records_from(self, directory: str, file: ArchivedFile, offset: int, wanted_bytes: int) -> pa.Table | None:
        """The rest of the row group with the first record at or after an offset; None if the file has none."""
        if file.rows == 0:
            return None
        footer = self._footer(directory, file)
        group = footer.group_at(offset)
        if group == footer.row_groups:
            return None
        records = self._row_group(directory, file, footer, group, wanted_bytes)
        return records.slice(int(np.searchsorted(records.column("offset").to_numpy(), offset)))

    def _quarantined_after(
        self, directory: str, files: PartitionFiles, offset: int, end: int
    ) -> QuarantinedBatch | None:
        """The first quarantined batch with an offset at or after this one, below `end`; None if there is none."""
        for file in files.side_files_between(offset, end):
            key = (self._location.uri, directory, file.name)
            content = self._caches.side_files.get(key)
            if content is None:
                content = read_side_file(self._location, directory, file)
                self._caches.side_files.put(key, content, content.bytes)
            batch = content.first_after(offset)
            if batch is not None:
                return batch
        return None

    def _footer(self, directory: str, file: ArchivedFile) -> Footer:
        key = (self._location.uri, directory, file.name)
        footer = self._caches.footers.get(key)
        if footer is None:
            start = file.bytes - file.footer_bytes
            footer = read_footer(self._location.read_range(f"{directory}/{file.name}", start, file.footer_bytes), file)
            self._caches.footers.put(key, footer, footer.memory_bytes)
        return footer

    def _row_group(self, directory: str, file: ArchivedFile, footer: Footer, group: int, wanted_bytes: int) -> pa.Table:
        """One row group; later ones are fetched with it if the caller needs more, or reads sequentially."""
        cache, key = self._caches.row_groups, (self._location.uri, directory, file.name)
        found = cache.get((*key, group))
        if found is not None:
            return found
        is_going_on = group > 0 and cache.get((*key, group - 1)) is not None
        last = group
        size = footer.sizes[group]
        while last + 1 < footer.row_groups:
            is_wanted = size < wanted_bytes
            is_near = is_going_on and footer.starts[last + 2] - footer.starts[group] <= READ_AHEAD_BYTES
            if not is_wanted and not is_near:
                break
            last += 1
            size += footer.sizes[last]
        start, end = footer.starts[group], footer.starts[last + 1]
        content = self._location.read_range(f"{directory}/{file.name}", start, end - start)
        tables = read_row_groups(content, group, last, footer, file)
        # The one that is needed now is cached last, so that it stays whatever the limit is.
        for index in range(last, group - 1, -1):
            table = tables[index - group]
            cache.put((*key, index), table, table.nbytes)
        return tables[0]


def _below(records: pa.Table, offset: int) -> pa.Table:
    """The records before an offset."""
    return records.slice(0, int(np.searchsorted(records.column("offset").to_numpy(), offset)))


def _not_archived(archive: TopicArchive, partition: int, offset: int, files: PartitionFiles) -> OffsetNotArchivedError:
    return OffsetNotArchivedError(
        f"offset {offset} of {archive.topic}-{partition} is not in the archive at {archive.uri}, which has "
        f"{files.start} to {files.end - 1}"
        if files.end > files.start
        else f"the archive at {archive.uri} has no records of {archive.topic}-{partition}"
    )


_caches = Caches.new()
_readers: dict[tuple[str, Options], ArchiveReader] = {}
_readers_lock = Lock()


def reader_of(uri: str, options: Options = ()) -> ArchiveReader:
    """The reader of a location; all readers of a process share their caches."""
    with _readers_lock:
        reader = _readers.pop((uri, options), None)
        if reader is None:
            reader = ArchiveReader(open_location(uri, dict(options)), _caches)
            while len(_readers) >= _MAX_READERS:
                del _readers[next(iter(_readers))]
        _readers[uri, options] = reader
        return reader


def keep_reader(uri: str, reader: ArchiveReader) -> None:
    """Register a reader for a location, such as one that no URI can open."""
    with _readers_lock:
        _readers[uri, ()] = reader


def read_batches(
    archive: TopicArchive,
    partition: int,
    offset: int,
    max_bytes: int,
    limit: int = _NO_LIMIT,
    options: Options = (),
) -> bytes:
    """Batches of a partition from an offset on, below a limit; called in a helper process."""
    return reader_of(archive.uri, options).read(archive, partition, offset, max_bytes, limit)


def find_offset(
    archive: TopicArchive, partition: int, timestamp_ms: int, first_offset: int = 0, options: Options = ()
) -> FoundOffset | None:
    """The first record at or after an offset and a time; called in a helper process."""
    return reader_of(archive.uri, options).offset_for_timestamp(archive, partition, timestamp_ms, first_offset)
