"""Decodes quarantined batches again, perhaps with a newer tailrace, and adds their records to the archive.

A file of records is rewritten with the decoded records, and one commit replaces it and its side file; batches that
still cannot be decoded stay quarantined. Keeps the invariant of every commit: the archive loses nothing, and has each
offset once. It needs no Spark session.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tailrace.archive.errors import ArchiveCorruptError
from tailrace.archive.manifest import ArchivedFile
from tailrace.archive.parquet import RECORD_SCHEMA, FileWriter
from tailrace.archive.quarantine import SideFile, SideFileWriter, read_side_file
from tailrace.archive.scan import Wanted, scan_files
from tailrace.client.errors import ClientError
from tailrace.pipeline.archiving.commit import TopicArchiver
from tailrace.pipeline.archiving.task import COLUMNS
from tailrace.pipeline.arrow.decoding import RecordDecoder
from tailrace.pipeline.source.ranges import OffsetRange
from tailrace.pipeline.source.record_filter import RecordFilter
from tailrace.records.batch import BatchHeader

#: How often another program may commit first.
_CONFLICTS = 20


@dataclass(slots=True)
class RetryOutcome:
    """The results for quarantined batches."""

    decoded_batches: int = 0
    records: int = 0
    left_batches: int = 0


def retry_quarantined(
    archiver: TopicArchiver, is_wanted: Callable[[SideFile], bool] = lambda file: True
) -> RetryOutcome:
    """Decode the batches of side files again; commit each file whose batches can now be decoded."""
    outcome = RetryOutcome()
    archiver.refresh()
    for name in [file.name for file in archiver.snapshot.side_files if is_wanted(file)]:
        for _ in range(_CONFLICTS):
            found = [file for file in archiver.snapshot.side_files if file.name == name]
            if not found or _retry(archiver, found[0], outcome):
                break
            archiver.refresh()
        else:
            raise ClientError(
                f"other programs committed to the archive of {archiver.topic} {_CONFLICTS} times meanwhile: retry "
                "when less is archived"
            )
    return outcome


def _retry(archiver: TopicArchiver, aside: SideFile, outcome: RetryOutcome) -> bool:
    """Retry one side file; return False if another program committed first and nothing was changed."""
    snapshot, location = archiver.snapshot, archiver.location
    content = read_side_file(location, snapshot.directory, aside)
    rest = SideFileWriter(snapshot.topic, snapshot.lineage, aside.partition, aside.first_offset)
    left: list[BatchHeader] = []

    def keep(header: BatchHeader, data: memoryview, reason: str) -> None:
        rest.add(header, data, reason)
        left.append(header)

    wanted = OffsetRange(snapshot.topic, aside.partition, aside.first_offset, aside.next_offset)
    decoder = RecordDecoder(wanted, COLUMNS, RecordFilter(), RECORD_SCHEMA, keep)
    data = bytearray(b"".join(batch.data for batch in content))
    decoded = pa.Table.from_batches(list(decoder.decode(data, 0, len(data))), RECORD_SCHEMA)
    own_left = sum(header.base_offset >= aside.first_offset for header in left)
    if not decoded.num_rows:
        outcome.left_batches += own_left
        return True
    files = snapshot.partition(aside.partition).files_between(aside.first_offset, aside.next_offset)
    if len(files) != 1:
        raise ArchiveCorruptError(
            f"{aside.name} belongs to {len(files)} files of records, expected one; run tailrace archive verify"
        )
    new = _rewritten(archiver, files[0], decoded)
    new_aside = rest.store(location, aside.next_offset)
    removed = (files[0].name, aside.name)
    if not archiver.commit([new], [] if new_aside is None else [new_aside], removed):
        return False
    outcome.left_batches += own_left
    outcome.decoded_batches += aside.batches - own_left
    outcome.records += decoded.num_rows
    return True


def _rewritten(archiver: TopicArchiver, file: ArchivedFile, more: pa.Table) -> ArchivedFile:
    """Write a file with the same range that has the records of the old one and the additional ones."""
    snapshot, location = archiver.snapshot, archiver.location
    writer = FileWriter(snapshot.topic, snapshot.lineage, file.partition, file.first_offset)
    wanted = Wanted(file.first_offset, file.next_offset, tuple(RECORD_SCHEMA.names))
    rows = more.num_rows
    for scanned in scan_files(location, snapshot.directory, [file], wanted):
        table = scanned.table.select(RECORD_SCHEMA.names).cast(RECORD_SCHEMA)
        last = table.column("offset")[-1].as_py()
        count = int(np.searchsorted(more.column("offset").to_numpy(), last))
        writer.write(pa.concat_tables([table, more.slice(0, count)]).sort_by("offset"))
        more = more.slice(count)
    writer.write(more)
    if writer.rows != file.rows + rows:
        raise ArchiveCorruptError(
            f"{file.name} has {writer.rows - rows} records, but its manifest says {file.rows}; nothing was "
            f"changed. Run tailrace archive verify {snapshot.topic} for details"
        )
    return writer.store(location, file.next_offset)
