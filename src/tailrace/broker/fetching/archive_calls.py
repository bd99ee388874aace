"""Functions that the helper process runs on an archive: only there are the packages imported that read files.

They must not know the broker; arguments and results are plain values.
"""

from __future__ import annotations

from tailrace.archive.installation import require_packages
from tailrace.archive.layout import TopicArchive
from tailrace.runtime.disk import Buffer


def check_archive(archive: TopicArchive) -> int:
    """Check that this machine can read the archive's location and head, else raise; count its quarantined batches."""
    require_packages()
    from tailrace.archive import reader

    return reader.reader_of(archive.uri).check(archive)


def read_batches(archive: TopicArchive, partition: int, offset: int, max_bytes: int, limit: int) -> Buffer:
    """Read record batches from an offset on: below a limit, at least one, at most max_bytes unless it is larger."""
    require_packages()
    from tailrace.archive import reader

    return reader.read_batches(archive, partition, offset, max_bytes, limit)


def find_largest_timestamp(archive: TopicArchive, partition: int, start_offset: int) -> tuple[int, int] | None:
    """Find the first record with the largest timestamp; None if it is before the start offset."""
    require_packages()
    from tailrace.archive import reader

    largest = reader.reader_of(archive.uri).snapshot(archive).partition(partition).max_timestamp
    return None if largest is None else find_timestamp(archive, partition, largest, start_offset)


def find_timestamp(archive: TopicArchive, partition: int, timestamp: int, start_offset: int) -> tuple[int, int] | None:
    """Find the first record at or after a time from an offset on, as offset and timestamp; None if there is none."""
    require_packages()
    from tailrace.archive import reader

    found = reader.find_offset(archive, partition, timestamp, start_offset)
    return None if found is None else (found.offset, found.timestamp)
